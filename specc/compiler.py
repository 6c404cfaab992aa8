"""The pipeline: source -> spec -> warnings -> plan -> render -> finish."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specc.finish import finish
from specc.fragments import FOLDERS
from specc.load import Loaded, load_spec
from specc.paths import algorithms_dir
from specc.plan import Plan
from specc.problems import SpecError, from_finding
from specc.render import render


@dataclass(frozen=True)
class Compiled:
    """A spec and the script that it became."""

    loaded: Loaded
    plan: Plan
    script: str

    @property
    def name(self) -> str:
        return self.loaded.spec.name


def compile_spec(path: Path | str) -> Compiled:
    """The script of the spec in a file. Raises `SpecError`."""
    return compile_specs([path])[0]


def compile_specs(paths: Sequence[Path | str]) -> list[Compiled]:
    """The scripts of several specs. Raises one `SpecError` with what is wrong with any of them."""
    loaded, problems = [], []
    for path in paths:
        try:
            loaded.append(load_spec(path))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(problems)
    plans = [Plan(each.spec) for each in loaded]
    rendered = [rendered_with_own(each, plan) for each, plan in zip(loaded, plans, strict=True)]
    return [Compiled(*parts) for parts in zip(loaded, plans, finish(rendered), strict=True)]


def rendered_with_own(loaded: Loaded, plan: Plan) -> str:
    """The script; raises `SpecError` with what is wrong with the user's own fragments in it, or has no effect."""
    if not FOLDERS:
        return render(plan, *provenance(loaded))
    from specc.own_answers import check_answers, check_script, dead_choices

    check_answers(plan)
    script = render(plan, *provenance(loaded))
    check_script(plan, script)
    if dead := [from_finding(finding, loaded.source) for finding in dead_choices(plan, script)]:
        raise SpecError(dead)
    return script


def provenance(loaded: Loaded) -> tuple[str, str]:
    """The name of a spec's file, the same from wherever it is compiled, and the hash of its text; likewise of the
    files that its own functions are from."""
    path = Path(loaded.source.path)
    shipped = path.resolve().parent == algorithms_dir().resolve()
    origin = f"algorithms/{path.name}" if shipped else path.name
    digest = hashlib.sha256(loaded.source.text.encode()).hexdigest()[:16]
    own = dict.fromkeys((function.file, function.text_hash) for function in Plan(loaded.spec).own_functions)
    return origin, "".join([digest, *(f"; {file}, sha256 {own_digest}" for file, own_digest in own)])
