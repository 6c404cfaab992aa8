"""No option is dead: a field that is changed changes the script, or the changed spec is refused.

Nothing here names an answer. A field is changed to every other choice that it offers, to "not there" where it may be
left out, and to another number or text, in the shipped specs and in random ones.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from functools import lru_cache
from typing import Any

import pytest
from conftest import ALGORITHMS, ROOT
from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel, ValidationError
from strategies import TEXTS, choices, specs

from specc.answers import QUESTIONS
from specc.answers.base import Answer, Block
from specc.load import findings_of, load_spec
from specc.plan import Plan
from specc.problems import nested_block
from specc.render import BETWEEN, render
from specc.sampling import Sampling
from specc.spec import Spec

IN_THE_DOCSTRING = {"name": "other", "title": "Other", "cite": "elsewhere", "claim": None, "target": "pass@7"}
"""what a spec says of itself: it names the script or is told in its docstring, and is no part of the algorithm"""

NOT_IN_THE_SCRIPT = {"accept", "specc"}
"""what silences warnings, each of which has to occur; and the version of the language, of which there is one"""

Place = tuple[str, ...]


def written(block: BaseModel) -> dict[str, Any]:
    """The data that a spec was read from: what is set, an answer's own name included."""
    return block.model_dump(exclude_unset=True)


def fields(block: BaseModel, at: Place = ()) -> Iterator[tuple[Place, Block]]:
    """Every field that a spec can change: its place and the block that it is in, blocks that are there included."""
    for name in type(block).model_fields:
        value = getattr(block, name)
        if not at and name in (*IN_THE_DOCSTRING, *NOT_IN_THE_SCRIPT):
            continue
        if isinstance(value, Block):
            yield from fields(value, (*at, name))
        is_answer = name in QUESTIONS and not at
        is_name = isinstance(block, Answer) and name == block.discriminator
        if not (is_answer or is_name or (isinstance(value, Block) and not at)):
            yield (*at, name), block


def others(block: BaseModel, name: str) -> list[Any]:
    """Other values of a field; None to leave it out."""
    info, value = type(block).model_fields[name], getattr(block, name)
    offered = choices(info.annotation, info, share=0.37)
    offered += [c for c in choices(info.annotation, info, share=0.61) if c not in offered]
    offered += TEXTS[1:3] if info.annotation is str else []
    offered += [value + 1] if isinstance(value, int) and not isinstance(value, bool) else []
    if nested_block(info.annotation) is not None:
        offered = without_parts_of_the_same(offered)
    return offered


def without_parts_of_the_same(offered: list[Any]) -> list[Any]:
    """One of the many blocks, since the fields of a block that is there are changed one by one."""
    found = [value for value in offered if not isinstance(value, dict)]
    return [*found, *[value for value in offered if isinstance(value, dict)][:1]]


def changed(spec: Spec, place: Place, value: Any) -> Spec | None:
    """The spec with another value there; None where that is the same spec, or is none."""
    data = deepcopy(written(spec))
    inside = data
    for name in place[:-1]:
        inside = inside.setdefault(name, {})
    inside[place[-1]] = value
    if value is None:
        del inside[place[-1]]
    try:
        other = Spec.model_validate(data)
    except ValidationError:
        return None
    return other if other != spec and not any(not finding.warning for finding in findings_of(other)) else None


def code(spec: Spec) -> tuple[str, ...]:
    """The script without its docstring, its comments and how it is laid out."""
    first, *rest = BETWEEN.split(render(Plan(spec), "spec.yaml", "0" * 16))
    _, *imports = ast.parse(first).body
    return (ast.dump(ast.Module(imports, [])), *map(dumped, rest))


@lru_cache(maxsize=4096)
def dumped(part: str) -> str:
    return ast.dump(ast.parse(part))


def dead(spec: Spec) -> Iterator[tuple[Place, Any, list[Any]]]:
    """The fields that can be changed to other values which leave the script as it is and are not refused.

    What a field does that is not there is what it does with one of its values, or nothing: there the script has to
    change with some value.
    """
    before = code(spec)
    for place, block in fields(spec):
        value = getattr(block, place[-1])
        found = [(other, changed(spec, place, other)) for other in others(block, place[-1])]
        kept = [(other, code(valid) == before) for other, valid in found if valid is not None and other is not None]
        same = [other for other, is_same in kept if is_same]
        if same and (value is not None or len(same) == len(kept)):
            yield place, value, same


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_field_of_a_shipped_spec_is_in_its_script(name: str) -> None:
    assert list(dead(load_spec(ROOT / "algorithms" / f"{name}.yaml").spec)) == []


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(specs())
def test_every_field_of_a_random_spec_is_in_its_script(spec: Spec) -> None:
    assert list(dead(spec)) == []


def test_a_field_without_effect_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finder sees what is refused only because a check says so."""
    spec = load_spec(ROOT / "algorithms" / "rloo.yaml").spec
    monkeypatch.setattr(Sampling, "check", lambda self, spec: iter(()))
    assert {place for place, *_ in dead(spec)} == {("sampling", "advantages_over")}


@pytest.mark.parametrize("name", ["rloo", "dpo"])
def test_what_a_spec_says_of_itself_is_in_the_docstring_alone(name: str) -> None:
    spec = load_spec(ROOT / "algorithms" / f"{name}.yaml").spec
    before = render(Plan(spec), "spec.yaml", "0" * 16)
    for field, value in IN_THE_DOCSTRING.items():
        data = {**written(spec), "claim": "biased", field: value}
        other = Spec.model_validate({key: each for key, each in data.items() if each is not None})
        assert code(other) == code(spec)
        assert render(Plan(other), "spec.yaml", "0" * 16) != before


def test_every_field_of_the_language_is_of_a_kind() -> None:
    """A field that is added to the spec is changed above, or is put among what is told in the docstring."""
    spec = load_spec(ROOT / "algorithms" / "rloo.yaml").spec
    changed_above = {place[0] for place, _ in fields(spec)}
    assert changed_above | set(QUESTIONS) | set(IN_THE_DOCSTRING) | NOT_IN_THE_SCRIPT == set(Spec.model_fields)
