"""specc compiles a spec of a reinforcement-learning algorithm for language models into one training script.

`load_spec(spec)` reads and checks a spec, `compile_spec(spec)` makes its script, `verify(spec)` says what its gradient
estimator is, and `SpecError` carries what is wrong with it; `load_answers(folder)` adds answers of one's own. They are
imported on first use, so that `import specc` stays free of dependencies. docs/api.md describes them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specc.api import compile_spec, load_spec, verify
    from specc.own_answers import load_answers
    from specc.problems import SpecError

__version__ = "0.1.0"
__all__ = ["SpecError", "__version__", "compile_spec", "load_answers", "load_spec", "verify"]

HOMES = {
    "SpecError": "specc.problems",
    "compile_spec": "specc.api",
    "load_answers": "specc.own_answers",
    "load_spec": "specc.api",
}


def __getattr__(name: str) -> Any:
    if name == "verify":  # the package, which can be called
        return import_module("specc.verify")
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
