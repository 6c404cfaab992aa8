"""What Python code calls: a spec read, compiled and verified. docs/api.md describes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specc import compiler, load
from specc.compiler import Compiled
from specc.load import Loaded
from specc.paths import find_spec
from specc.plan import Plan

if TYPE_CHECKING:
    from specc.verify.run import Verified
    from specc.verify.script import Script


def load_spec(spec: str | Path) -> Loaded:
    """The spec in a file, or the shipped one of a bare name, checked.

    Raises `SpecError` with everything that is wrong with it.
    """
    return load.load_spec(find_spec(spec))


def compile_spec(spec: str | Path) -> Compiled:
    """The script of the spec in a file, or of the shipped one of a bare name.

    Raises `SpecError` with everything that is wrong with it.
    """
    return compiler.compile_spec(find_spec(spec))


def verify(spec: str | Path | Compiled, group_size: int | None = None, seed: int = 0) -> Verified:
    """The exact verdict on the gradient estimator of a spec, or of a script that was compiled from one (`*.py`).

    `group_size` is the number of responses a prompt, the spec's own where it is None; `seed` draws environments and
    batches. Raises `SpecError` for a bad spec or script, `ValueError` for a group size that it cannot have, and
    `ModuleNotFoundError` without the packages of `specc[verify]`.
    """
    from specc.verify.run import verify as verify_script

    script = script_of(spec, group_size)
    return verify_script(script, group_size or group_size_of(script), seed)


def script_of(spec: str | Path | Compiled, group_size: int | None = None) -> Script:
    """The estimator of a spec or of a script's file."""
    from specc.verify.script import load_script, read_script

    if not isinstance(spec, Compiled) and str(spec).endswith(".py"):
        return read_script(Path(spec))
    compiled = spec if isinstance(spec, Compiled) else compile_spec(spec)
    name = compiled.name if isinstance(spec, Compiled) else str(spec)
    return load_script(compiled.script, name, with_group_size(compiled, group_size), compiled.loaded.spec.claim)


def group_size_of(script: Script) -> int:
    """The responses a prompt that a script asks for, 1 where it does not say."""
    size = getattr(script.hp, "group_size", 1)
    if not isinstance(size, int) or not 1 <= size <= 1024:
        raise ValueError(f"{script.name}: its group_size is {size!r}; give one from 1 to 1024")
    return size


def with_group_size(compiled: Compiled, group_size: int | None) -> Plan:
    """The plan of a spec at another group size."""
    if group_size is None:
        return compiled.plan
    if not compiled.plan.online:
        raise ValueError(f"{compiled.name} has pairs of responses, and no groups")
    if group_size < compiled.plan.min_group_size:
        raise ValueError(f"{compiled.name} needs at least {compiled.plan.min_group_size} responses a prompt")
    spec = compiled.loaded.spec
    return Plan(spec.model_copy(update={"sampling": spec.sampling.model_copy(update={"group_size": group_size})}))
