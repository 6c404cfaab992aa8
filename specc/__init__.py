"""specc compiles a spec of a reinforcement-learning algorithm for language models into one training script.

`load_spec(path)` reads and checks a spec, `compile_spec(path)` makes its script, `SpecError` carries what is wrong with
it. They are imported on first use, so that `import specc` stays free of dependencies.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specc.compiler import compile_spec
    from specc.load import load_spec
    from specc.own_answers import load_answers
    from specc.problems import SpecError

__version__ = "0.1.0"
__all__ = ["SpecError", "__version__", "compile_spec", "load_answers", "load_spec"]

HOMES = {
    "SpecError": "specc.problems",
    "compile_spec": "specc.compiler",
    "load_answers": "specc.own_answers",
    "load_spec": "specc.load",
}


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
