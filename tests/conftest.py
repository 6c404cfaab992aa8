"""What the tests share: compiled scripts as modules, the shipped algorithms, and the tiny demo."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from specc.compiler import compile_specs

# Two workers on two cores: more threads would wait for each other. It must be set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
ALGORITHMS = sorted(path.stem for path in (ROOT / "algorithms").glob("*.yaml"))


def load_module(path: Path) -> ModuleType:
    """A Python file as a module of its own, registered so that its dataclasses can be looked up."""
    name = f"loaded_{path.stem}_{abs(hash(str(path.resolve())))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@cache
def generated(name: str) -> ModuleType:
    """A shipped algorithm's committed script."""
    return load_module(ROOT / "generated" / f"{name}.py")


@pytest.fixture(params=ALGORITHMS)
def script(request: pytest.FixtureRequest) -> ModuleType:
    """Every shipped algorithm's script in turn."""
    return generated(request.param)


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[[str], ModuleType]:
    """Compiles the text of a spec and imports what it became."""

    def compile_text(text: str) -> ModuleType:
        source = tmp_path / "spec.yaml"
        source.write_text(text, encoding="utf-8")
        (result,) = compile_specs([source])
        target = tmp_path / f"{result.name}.py"
        target.write_text(result.script, encoding="utf-8")
        return load_module(target)

    return compile_text


@pytest.fixture(scope="session")
def tiny_demo():
    """The tiny demo: a model, its prompts and verifier, and a reward model; prepared once and kept in .cache."""
    from specc.demo import FORMAT, prepare

    return prepare(ROOT / ".cache" / f"demo-tiny-{FORMAT}", tiny=True, report=lambda line: None)
