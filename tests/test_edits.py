"""The help of a message is an edit that works: where a machine can make it, it is made, and the problem is gone."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from specc.answers import QUESTIONS, answers_to
from specc.load import check
from specc.problems import Problem, SpecError, block_at, given_answer
from specc.source import Source, parse, read_source

IN_FILES = re.compile(r"custom-(?!arguments)")
"""What is said of a file with functions is mended there, or by naming another function, which only its author knows."""

BAD_SPECS = Path(__file__).parent / "bad_specs"
Loc = tuple[str | int, ...]

BY_HAND = {
    # what only the author knows, or the file as such
    "accept-unused": {"remove it here and mend the error"},
    "bad-key": {"remove it, or write the key that was meant", "write `key: value`"},
    "bad-number": {"write a smaller number"},
    "duplicate-key": {"remove one of them"},
    "not-plain-data": {
        "remove it, and write the value out where it is used",
        "write the value out",
        "remove it; text that looks like a number goes in quotes",
        "write the fields out",
    },
    "control-character": {"remove the escape"},
    "too-long": {"shorten it"},
    "missing-field": {
        "write `baseline: {source: custom, function: ...}`, with a function, file.py::name in place of the dots"
    },
    "custom-arguments": {"arguments: {share: ...}, or a default in numbers.py"},
    "unknown-answer": {"choose one of them; `specc answers reward` says what each is"},
}


class Edit(NamedTuple):
    """One of: `swap` the word at the place, `set` a field, give the `value` at the place, `remove` a field."""

    kind: str
    key: str = ""
    text: str = ""


def edit_of(help: str) -> Edit | None:
    """The first edit that a help tells, None where it is told in prose."""
    if found := re.match(r"did you mean `([^`]+)`", help):
        return Edit("swap", text=found.group(1))
    if found := re.match(r"choose one of (\w+)|write `(\w+)` or a block", help):
        return Edit("swap", text=found.group(1) or found.group(2))
    if re.match(r"(`\w+` is|here this is `[\w.]+`,) a field of .*or remove it", help):
        return Edit("remove")
    if found := re.match(r"write a (?:whole )?number( of at least 0 and below 1)?", help):
        return Edit("value", text="0.5" if found.group(1) else "1")
    first = re.split(
        r"; |, or |, which |, as in |, with | with | in place | for the full| for a lambda| to have none", help
    )[0]
    first = re.sub(
        r"^(write|add a line|add|e\.g\.|remove the quotes:|put it in brackets:|put a space after the colon:|"
        r"write the lower bound first:) ",
        "",
        first,
    ).strip("`")
    first = re.sub(r" as well$", "", first)
    if found := re.fullmatch(r"remove (?:it|`?(\w+)`?)", first):
        return Edit("remove", found.group(1) or "")
    if found := re.fullmatch(r'put it in quotes: ("[^"]*")|(-?[\d.]+|true|false)(?:, without.*)?', first):
        return Edit("value", text=found.group(1) or found.group(2))
    if found := re.fullmatch(r"(\w+): (.+)", first):
        key, text = found.groups()
        return Edit("set", key, text.split(", ")[0].split(" or ")[0] if re.fullmatch(r"[\w, ]+", text) else text)
    return None


def loc_of(problem: Problem, source: Source) -> tuple[Loc, bool]:
    """What of the data a problem is about, and whether it is the key."""
    for key, table in ((True, source.keys), (False, source.values)):
        found = [loc for loc, place in table.items() if place == problem.place]
        if found:
            return found[-1], key
    return (), False


def inside(data: Any, loc: Loc) -> Any:
    for part in loc:
        data = data[part]
    return data


def made(edit: Edit, problem: Problem, source: Source) -> dict[str, Any]:
    """The data after an edit."""
    loc, is_key = loc_of(problem, source)
    data = deepcopy(source.data)
    if edit.kind == "swap":
        parent, last = inside(data, loc[:-1]), loc[-1]
        if is_key and isinstance(parent, dict) and edit.text not in parent:
            parent[edit.text] = parent.pop(last)
        else:
            parent[last] = edit.text
    elif edit.kind == "value":
        inside(data, loc[:-1])[loc[-1]] = parse(f"x: {edit.text}").data["x"]
    elif edit.kind == "remove":
        at = where(edit.key, loc, data) if edit.key else loc
        del inside(data, at[:-1])[at[-1]]
    else:
        at = where(edit.key, loc, data)
        value = parse(f"x: {filled(edit.text)}").data["x"]
        parent = inside(data, at[:-1])
        if isinstance(value, dict):
            value = long_form(at, parent.get(at[-1])) | value
        if is_key and edit.key not in parent and len(loc) == len(at) and problem.slug == "unknown-key":
            del parent[loc[-1]]
        parent[at[-1]] = value
    return data


def filled(text: str) -> str:
    """With something in place of the dots: nothing where they stand for what is there already, and 1 for a number."""
    text = re.sub(r",? ?\.\.\.(?=\})", "", text) if ": ..." not in text else text
    return text.replace("...", "1").replace("[low, high]", "[-1, 1]").replace("ANSWER", "none")


def long_form(at: Loc, answer: Any) -> dict[str, Any]:
    question = QUESTIONS.get(str(at[-1])) if len(at) == 1 else None
    if question is not None and isinstance(answer, str):
        return {question.discriminator: answer} if answer in answers_to(str(at[-1])) else {}
    return answer if isinstance(answer, dict) else {}


def where(key: str, loc: Loc, data: dict[str, Any]) -> Loc:
    """Where a field of this name goes: the nearest block around the place that has it, or the answer that does."""
    if loc and loc[0] in QUESTIONS and key == QUESTIONS[str(loc[0])].discriminator:
        return (loc[0], key)
    for end in range(len(loc), -1, -1):
        block = block_at(loc[:end], data)
        if block is not None and key in block.model_fields:
            spell_out(loc[:end], data)
            return (*loc[:end], key)
    for question in QUESTIONS:
        answer = answers_to(question).get(given_answer(question, data))
        if answer is not None and key in answer.model_fields:
            spell_out((question,), data)
            return (question, key)
    raise AssertionError(f"no block has a field {key}")


def spell_out(loc: Loc, data: dict[str, Any]) -> None:
    """An answer in its short form has no room for a field."""
    if len(loc) == 1 and isinstance(data[str(loc[0])], str):
        data[str(loc[0])] = long_form(loc, data[str(loc[0])])


def problems_of(source: Source) -> list[Problem]:
    try:
        return check(source).warnings
    except SpecError as error:
        return error.problems


def cases() -> list[str]:
    """The bad specs that can be read, at least."""
    found = []
    for path in sorted(BAD_SPECS.glob("*.yaml")):
        try:
            read_source(path)
            found.append(path.stem)
        except SpecError:
            pass
    return found


@pytest.mark.parametrize("case", cases())
def test_the_edit_that_a_help_tells_works(case: str) -> None:
    source = read_source(BAD_SPECS / f"{case}.yaml")
    before = problems_of(source)
    for problem in before:
        edit = edit_of(problem.help)
        if IN_FILES.match(problem.slug) or problem.help in BY_HAND.get(problem.slug, ()):
            continue
        assert edit is not None, f"no edit in {problem.help!r}; tell one, or say in BY_HAND why not"
        changed = Source(source.path, source.text, made(edit, problem, source), source.keys, source.values)
        after = problems_of(changed)
        if "; quantity: " in problem.help:  # a second edit
            changed.data["objective"]["quantity"] = "token_advantage"
            after = problems_of(changed)
        assert (problem.slug, problem.what) not in {(each.slug, each.what) for each in after}, (edit, changed.data)
        new = {each.slug for each in after if not each.warning} - {each.slug for each in before}
        assert not new, (edit, changed.data, [each.what for each in after])
