"""A spec's file to a validated `Spec`, with its places and warnings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from specc.answers.base import Finding
from specc.custom import names_taken
from specc.deprecation import deprecations
from specc.derive import odd_weights, refuted_claim
from specc.plan import Plan
from specc.problems import Problem, SpecError, closest, from_finding, from_validation, shown
from specc.source import Source, read_source
from specc.spec import Spec


@dataclass(frozen=True)
class Loaded:
    """A spec without errors; its warnings are those that it does not `accept`."""

    spec: Spec
    source: Source
    warnings: list[Problem] = field(default_factory=list)


def load_spec(path: Path | str) -> Loaded:
    """The spec in the file; raises `SpecError` with everything that is wrong with it."""
    return check(read_source(path))


def check(source: Source, folder: Path | None = None) -> Loaded:
    """The spec that a source holds; raises `SpecError` with everything that is wrong with it, warnings included."""
    try:
        spec = Spec.model_validate(source.data, context={"folder": folder or Path(source.path).parent})
    except ValidationError as error:
        raise SpecError([*source.problems, *from_validation(error, source)]) from None
    found = [*source.problems, *(from_finding(finding, source) for finding in findings_of(spec))]
    warnings = [problem for problem in found if problem.warning]
    errors = [problem for problem in found if not problem.warning]
    kept = [warning for warning in warnings if warning.slug not in spec.accept]
    kept += unused(spec, source, errors, {warning.slug for warning in warnings})
    errors += [] if errors else names_taken(Plan(spec))
    if errors:
        raise SpecError([*errors, *kept])
    return Loaded(spec, source, kept)


def findings_of(spec: Spec) -> list[Finding]:
    """What the answers say of each other; and, where they do not contradict each other, what follows from them."""
    found = [*spec.findings(), *deprecations(spec)]
    if any(not finding.warning for finding in found):
        return found
    return [*found, *Plan(spec).findings(), *odd_weights(spec), *refuted_claim(spec)]


def unused(spec: Spec, source: Source, errors: list[Problem], occurring: set[str]) -> list[Problem]:
    """A warning for each entry of `accept` that accepts nothing."""
    found = []
    for index, slug in enumerate(spec.accept):
        if slug in occurring and slug not in spec.accept[:index]:
            continue
        near = closest(slug, sorted(occurring - set(spec.accept)))
        if slug in {error.slug for error in errors}:
            why, help = "only warnings can be accepted, and this is an error", "remove it here and mend the error"
        elif slug in occurring:
            why, help = "it is already in this list", "remove it"
        else:
            why = "`accept` holds warnings that the author has read; one that does not occur could hide a later one"
            help = f"did you mean `{near}`?" if near else "remove it"
        found.append(
            Problem(
                "accept-unused",
                f"{shown(slug)} accepts nothing in this spec",
                why,
                help,
                source.place(("accept", index)),
                warning=True,
                source=source,
            )
        )
    return found
