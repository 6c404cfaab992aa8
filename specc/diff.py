"""In what two specs and their scripts differ, and what each difference does to the verdict."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from typing import Any

from pydantic import ValidationError

from specc.answers import QUESTIONS
from specc.answers.base import Block
from specc.compiler import Compiled
from specc.custom import UserFunction
from specc.derive import Derived, derive
from specc.load import findings_of
from specc.report import as_yaml, in_order, indented, table
from specc.spec import Spec

COMPARED = (*QUESTIONS, "sampling", "target", "claim", "defaults")
"""the parts of a spec that are compared, in the order in which they are told"""

JUDGED = (*QUESTIONS, "sampling", "target")
"""those that a verdict follows from"""


@dataclass(frozen=True)
class Swap:
    """The verdict on the first spec with one answer of the second, or why they do not go together."""

    part: str
    verdict: Derived | None
    reason: str = ""


@dataclass(frozen=True)
class Change:
    """A section that is not the same in both scripts; one of them may be without it."""

    title: str
    before: str
    after: str

    @cached_property
    def lines(self) -> list[str]:
        """The unified diff, without its two lines of file names."""
        return list(difflib.unified_diff(self.before.splitlines(), self.after.splitlines(), lineterm=""))[2:]

    def count(self, sign: str) -> int:
        return sum(line.startswith(sign) for line in self.lines)


@dataclass(frozen=True)
class Difference:
    """Two compiled specs, side by side."""

    first: Compiled
    second: Compiled

    @property
    def specs(self) -> tuple[Spec, Spec]:
        return self.first.loaded.spec, self.second.loaded.spec

    @property
    def names(self) -> tuple[str, str]:
        """What the two are called; where that is the same word, with the files that they are in."""
        first, second = self.first.name, self.second.name
        return (first, second) if first != second else (self.first.loaded.source.path, self.second.loaded.source.path)

    @cached_property
    def fields(self) -> dict[str, tuple[Any, Any]]:
        """The fields whose values differ, as `kl.placement`, None where one of the specs does not set it."""
        before, after = (dict(fields_of(spec)) for spec in self.specs)
        names = [name for part in COMPARED for name in (*before, *after) if name.partition(".")[0] == part]
        pairs = {name: (before.get(name), after.get(name)) for name in names}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    @cached_property
    def swaps(self) -> list[Swap]:
        """The first spec with each of the second's answers that differ, one at a time."""
        changed = {name.partition(".")[0] for name in self.fields}
        return [swap(*self.specs, part) for part in JUDGED if part in changed]

    @cached_property
    def changes(self) -> list[Change]:
        """The sections of the scripts that differ, in their order."""
        before, after = sections(self.first.script), sections(self.second.script)
        titles = dict.fromkeys([*before, *after])
        every = [Change(title, before.get(title, ""), after.get(title, "")) for title in titles]
        return [change for change in every if change.before != change.after]

    @property
    def same(self) -> list[str]:
        """The titles of the sections that are the same bytes in both."""
        return [title for title in sections(self.first.script) if title not in {c.title for c in self.changes}]


def fields_of(spec: Spec) -> Iterator[tuple[str, Any]]:
    """Every field that is compared, with the blocks that it is in, and its value."""
    for part in COMPARED:
        value = getattr(spec, part)
        yield from flattened(part, value) if isinstance(value, Block) else [(part, value)]


def flattened(prefix: str, block: Block) -> Iterator[tuple[str, Any]]:
    for name, value in in_order(block):
        place = f"{prefix}.{name}"
        plain = str(value) if isinstance(value, UserFunction) else value
        yield from flattened(place, value) if isinstance(value, Block) else [(place, plain)]


def swap(first: Spec, second: Spec, part: str) -> Swap:
    """The first spec with one part of the second, checked as if it had been written so."""
    data = first.model_dump(exclude_unset=True)
    data.pop(part, None)
    data |= second.model_dump(exclude_unset=True, include={part})
    try:
        spec = Spec.model_validate(data)
    except ValidationError as error:
        return Swap(part, None, error.errors()[0]["msg"])
    if errors := [finding for finding in findings_of(spec) if not finding.warning]:
        return Swap(part, None, errors[0].what)
    return Swap(part, derive(spec))


def sections(script: str) -> dict[str, str]:
    """The sections of a script by title. What comes before the first title is the docstring, imports and arguments."""
    lines, body = list(StringIO(script, newline="\n")), ast.parse(script).body
    imports = [node.end_lineno or 0 for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    starts = {"docstring": 0, "imports": body[0].end_lineno or 0, "arguments": imports[-1]}
    starts |= {line.strip("#- \n"): number for number, line in enumerate(lines) if line.startswith("# -------- ")}
    ends = [*starts.values(), len(lines)][1:]
    return {title: "".join(lines[start:end]) for (title, start), end in zip(starts.items(), ends, strict=True)}


# -------- for people --------


def render(difference: Difference, full: bool = False) -> str:
    """The text of `specc diff`."""
    first, second = difference.names
    parts = [[f"{first} -> {second}"]]
    if difference.fields:
        rows = [(name, as_yaml(a), as_yaml(b)) for name, (a, b) in difference.fields.items()]
        parts.append(["Fields", *indented(table([("", first, second), *rows]))])
    else:
        parts[0].append("no field differs")
    if difference.swaps:
        parts.append([f"Verdict of {first} with one answer of {second} at a time", *indented(verdicts(difference))])
    if reasons := list(changed(difference)):
        parts.append(["Reasons that this takes away (-) and adds (+)", *indented(table(reasons))])
    if counts := [(c.title, f"-{c.count('-')}", f"+{c.count('+')}") for c in difference.changes]:
        parts.append(["Sections of the scripts that differ, and their lines", *indented(table(counts))])
    if full:
        parts += [[f"--- {change.title}", *change.lines] for change in difference.changes]
    return "\n\n".join("\n".join(lines) for lines in parts)


def verdicts(difference: Difference) -> list[str]:
    """A line for each swap, between those of the two specs."""
    first, second = (derive(spec) for spec in difference.specs)
    rows: list[tuple[str, ...]] = [("", "0/1 rewards", "real rewards", "KL part"), in_words("none", first)]
    rows += [in_words(swap.part, swap.verdict) for swap in difference.swaps if swap.verdict]
    lines = table([*rows, in_words("all", second)])
    return lines + [f"{swap.part}: not valid together: {swap.reason}" for swap in difference.swaps if not swap.verdict]


def changed(difference: Difference) -> Iterator[tuple[str, str, str]]:
    """What each swap takes away from the reasons of the first spec's verdict, and adds to them."""
    first = derive(difference.specs[0])
    for swap in difference.swaps:
        if swap.verdict is not None:
            for sign, (where, reason) in changed_reasons(first, swap.verdict):
                yield swap.part, sign, reason if where == swap.part else f"{where}: {reason}"


def in_words(part: str, derived: Derived) -> tuple[str, ...]:
    return part, derived.binary, derived.real, kl_part(derived) or "-"


def kl_part(derived: Derived) -> str:
    return f"{derived.penalty.kind} {derived.penalty.weighting}".strip() if derived.penalty else ""


def changed_reasons(before: Derived, after: Derived) -> Iterator[tuple[str, tuple[str, str]]]:
    """The reasons that are gone (-) and those that are new (+)."""
    yield from (("-", reason) for reason in before.reasons if reason not in after.reasons)
    yield from (("+", reason) for reason in after.reasons if reason not in before.reasons)


# -------- JSON --------


def as_json(difference: Difference, full: bool = False) -> dict[str, Any]:
    """The stable form, which docs/language.md describes."""
    first, second = (derive(spec) for spec in difference.specs)
    return {
        "version": 1,
        "specs": [
            {"name": spec.name, "verdict": of_verdict(derived)}
            for spec, derived in zip(difference.specs, (first, second), strict=True)
        ],
        "fields": [{"field": name, "values": list(values)} for name, values in difference.fields.items()],
        "swaps": [
            {
                "answer": swap.part,
                "verdict": of_verdict(swap.verdict) if swap.verdict else None,
                "not_valid": swap.reason or None,
                "reasons": [
                    {"change": "gone" if sign == "-" else "new", "where": where, "why": why}
                    for sign, (where, why) in (changed_reasons(first, swap.verdict) if swap.verdict else ())
                ],
            }
            for swap in difference.swaps
        ],
        "sections": [
            {"title": change.title, "removed": change.count("-"), "added": change.count("+")}
            | ({"diff": change.lines} if full else {})
            for change in difference.changes
        ],
        "same_sections": difference.same,
    }


def of_verdict(derived: Derived) -> dict[str, Any]:
    return {
        "overall": derived.overall,
        "binary": derived.binary,
        "real": derived.real,
        "kl": kl_part(derived) or None,
    }
