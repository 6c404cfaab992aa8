"""The JSON Schema: it accepts every spec that compiles, and what it refuses the compiler refuses."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from conftest import ALGORITHMS, ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from strategies import CONTEXTS, every_block, specs

from specc.answers import QUESTIONS, answers_to
from specc.cli import main
from specc.load import load_spec
from specc.new import from_nothing
from specc.paths import algorithms_dir
from specc.problems import SpecError
from specc.schema import schema
from specc.source import parse, read_source
from specc.spec import Spec

SCHEMA = schema()
VALIDATOR = Draft202012Validator(SCHEMA)
BAD_SPECS = sorted((ROOT / "tests/bad_specs").glob("*.yaml"))


def accepts(data: Any) -> bool:
    return bool(VALIDATOR.is_valid(data))


def compiles(data: Any) -> bool:
    """Whether the fields of a spec are what they may be; contradictions between them aside."""
    try:
        Spec.model_validate(data, context={"folder": Path(__file__).parent / "bad_specs"})
    except ValidationError:
        return False
    return True


def test_a_function_may_have_any_name_of_python(tmp_path: Path) -> None:
    """The letters of an identifier are not those of a regular expression in an editor."""
    (tmp_path / "mine.py").write_text("def größe(returns_BG):\n    return 0.5 * returns_BG\n", encoding="utf-8")
    spec = {"name": "own", "reward": "verifier", "kl": "none", "normalization": "none"}
    spec |= {"objective": {"quantity": "sequence_advantage", "aggregation": "token_mean"}}
    for name, known in (("größe", True), ("", False)):
        data = spec | {"baseline": {"source": "custom", "function": f"{tmp_path}/mine.py::{name}"}}
        assert accepts(data) == compiles(data) == known


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(CliRunner().invoke(main, ["schema"]).stdout) == SCHEMA


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_accepts_the_shipped_algorithms(name: str) -> None:
    VALIDATOR.validate(read_source(algorithms_dir() / f"{name}.yaml").data)


def test_it_accepts_a_new_spec() -> None:
    VALIDATOR.validate(parse(from_nothing("mine")).data)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(specs())
def test_it_accepts_drawn_specs(spec: Spec) -> None:
    VALIDATOR.validate(spec.model_dump(mode="json"))
    VALIDATOR.validate(spec.model_dump(mode="json", exclude_unset=True))


ANSWERS = [answer for question in QUESTIONS for answer in answers_to(question).values()]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: f"{answer.question}-{answer.answer_name()}")
def test_an_answer_in_short_and_in_long(answer: Any) -> None:
    context = {"name": "mine", **CONTEXTS[0]}
    for block in random.Random(0).sample(every_block(answer), min(len(every_block(answer)), 50)):
        assert accepts(context | {answer.question: block}), block
    name = answer.answer_name()
    assert accepts(context | {answer.question: name}) == compiles(context | {answer.question: name})
    assert not accepts(context | {answer.question: {}})
    assert not accepts(context | {answer.question: {answer.discriminator: name, "colour": 1}})


def test_a_range_of_scores_is_two_numbers_or_a_block() -> None:
    for clip, right in [([-5, 5], True), ({"low": 0, "high": 1}, True), ([0], False), ([0, "1"], False), (5, False)]:
        data = {"name": "mine", **CONTEXTS[0], "reward": {"source": "verifier", "clip": clip}}
        assert accepts(data) == compiles(data) == right, clip


@pytest.mark.parametrize("path", BAD_SPECS, ids=lambda path: path.stem)
def test_what_it_refuses_of_the_bad_specs_the_compiler_refuses(path: Path) -> None:
    try:
        data = read_source(path).data
    except SpecError:
        return  # no YAML, so that an editor has nothing to check
    if not accepts(data):
        with pytest.raises(SpecError):
            load_spec(path)


def test_it_refuses_the_bad_specs_whose_fields_are_not_what_they_may_be() -> None:
    """All those that pydantic refuses, but for a few that are a matter of the text, or of more than JSON can say."""
    wrong, missed = [], []
    for path in BAD_SPECS:
        try:
            data = read_source(path).data
        except SpecError:
            continue
        if not compiles(data):
            wrong.append(path.stem)
            missed += [path.stem] * (accepts(data) and not path.stem.startswith("custom_"))
    assert len(wrong) > 30
    assert missed == MISSED


MISSED = ["bad_value_device", "bad_value_taken"]
"""names that are another file's, or a module's; and what is wrong in a file of functions is not in the spec"""

JUNK: list[Any] = [None, False, True, -1, 0, 0.5, 3, 1e9, "", "junk", [], [1, 2], {}, {"junk": 1}]


def mutants(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in the data."""
    for key in data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield (*at, key)
        yield from mutants(data[key], (*at, key))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_it_refuses_of_mutants_the_compiler_refuses(name: str) -> None:
    """Each value replaced by junk, left out, or joined by a field that there is not."""
    data = read_source(algorithms_dir() / f"{name}.yaml").data
    refused = 0
    for place in mutants(data):
        for junk in [*JUNK, "DELETE", "EXTRA"]:
            mutant = copy.deepcopy(data)
            inside = mutant
            for key in place[:-1]:
                inside = inside[key]
            if junk == "DELETE":
                del inside[place[-1]]
            elif junk == "EXTRA" and isinstance(inside, dict):
                inside["colour"] = 1
            else:
                inside[place[-1]] = junk
            refused += not accepts(mutant)
            assert accepts(mutant) or not compiles(mutant), (place, junk)
            if accepts(mutant) and not compiles(mutant):  # laxer here alone: in JSON 1e9 is a whole number
                assert junk == 1e9, (place, junk)
    assert refused > 50


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(specs(), st.data())
def test_what_it_refuses_of_drawn_mutants_the_compiler_refuses(spec: Spec, draw: st.DataObject) -> None:
    data = spec.model_dump(mode="json")
    place = draw.draw(st.sampled_from(sorted(mutants(data), key=str)))
    inside = data
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = draw.draw(st.sampled_from(JUNK))
    assert accepts(data) or not compiles(data)


def test_everything_is_described() -> None:
    """What an editor shows for a key or a word."""
    blocks = {"a spec": SCHEMA, **SCHEMA["$defs"]}
    for name, block in blocks.items():
        assert block["additionalProperties"] is False, name
        assert block.get("description"), name
        for field, value in block["properties"].items():
            assert value.get("description"), f"{name}.{field}"
            assert "title" not in value or field in QUESTIONS, f"{name}.{field}"
    for question in QUESTIONS:
        words = [option for option in SCHEMA["properties"][question]["anyOf"] if "const" in option]
        assert words and all(word["description"] for word in words)
