"""What other libraries call the parts of a spec: every name leads to a field or a word that there is."""

from __future__ import annotations

from typing import Any

import pytest

from specc.answers import QUESTIONS, answers_to
from specc.load import check
from specc.problems import SpecError, choices_of, field_at, nested_block
from specc.source import Source
from specc.spec import Spec
from specc.synonyms import FIELDS, WORDS, Term, terms, word_for


def owners(path: tuple[str, ...]) -> list[tuple[str | None, type[Any]]]:
    """The blocks of the language in which the rest of a path is looked up, each with the answer that it is."""
    if path[0] in QUESTIONS:
        return [(name, cls) for name, cls in answers_to(path[0]).items() if field_at(cls, path[1:]) is not None]
    block = nested_block(Spec.model_fields[path[0]].annotation)
    return [(None, block)] if block is not None and field_at(block, path[1:]) is not None else []


@pytest.mark.parametrize("term", FIELDS, ids=lambda term: f"{term.field}-{term.names.split()[0]}")
def test_a_name_leads_to_a_field_and_is_no_field_itself(term: Term) -> None:
    found = owners(term.path)
    assert found
    for _, cls in found:
        info = field_at(cls, term.path[1:-1]) if len(term.path) > 2 else None
        parent = nested_block(info.annotation) if info is not None else cls
        assert not set(term.names.split()) & set(parent.model_fields)


@pytest.mark.parametrize("term", FIELDS, ids=lambda term: f"{term.field}-{term.names.split()[0]}")
def test_the_help_says_the_field(term: Term) -> None:
    answer, cls = owners(term.path)[0]
    question = term.path[0]
    for name in term.names.split():
        if name in cls.model_fields:
            continue  # of the answer itself, and meant of a block inside it
        data = {question: {QUESTIONS[question].discriminator: answer, name: 1} if answer else {name: 1}}
        with pytest.raises(SpecError) as caught:
            check(Source("spec.yaml", data=data))
        [help] = [problem.help for problem in caught.value.problems if f"no field `{name}`" in problem.what]
        first = next(other for other in terms(name) if other.path[0] == question and field_at(cls, other.path[1:]))
        assert f"`{first.path[1]}" in help, (name, help)


def test_each_name_is_once_in_a_field_and_written_as_it_is_looked_up() -> None:
    pairs = [(term.field, name) for term in FIELDS for name in term.names.split()]
    assert len(pairs) == len(set(pairs))
    for field, name in pairs:
        assert field in {term.field for term in terms(name.upper().replace("_", "-"))}


@pytest.mark.parametrize(
    ("low", "high"),
    [("epsilon_low", "epsilon_high"), ("clip_ratio_low", "clip_ratio_high"), ("min", "max"), ("lower", "upper")],
)
def test_two_sides_are_not_taken_for_each_other(low: str, high: str) -> None:
    for name, side in ((low, "low"), (high, "high")):
        sides = {term.path[-1] for term in terms(name) if term.path[-1] in ("low", "high")}
        assert sides == {side}, name


@pytest.mark.parametrize("field", WORDS)
def test_words_lead_to_choices(field: str) -> None:
    question, *path = field.split(".")
    if question in QUESTIONS and path == [QUESTIONS[question].discriminator]:
        choices = set(answers_to(question))
    else:
        choices = {word for _, cls in owners((question, *path)) for word in choices_of(field_at(cls, path).annotation)}
    assert set(WORDS[field].values()) <= choices
    assert not set(WORDS[field]) & choices
    assert word_for(field, next(iter(WORDS[field])).upper()) in choices


@pytest.mark.parametrize("value", [[[1]], [{}], [None], {"a": [1]}, 10**18, float("nan"), True, "", [], "1e999", ["x"]])
def test_any_value_of_another_name_has_a_help(value: object) -> None:
    """What is written under another name may be anything that YAML holds."""
    blocks = {
        "reward": {"source": "verifier", "reward_clip": value, "overlong_buffer": value},
        "kl": {"placement": "loss", "beta": value, "target_kl": value, "kl_loss_type": value},
        "objective": {"quantity": "token_advantage", "clip_ratio": value, "epsilon_low": value, "loss_type": value},
        "normalization": value,
        "baseline": {"type": value},
        "sampling": {"num_generations": value, "dynamic_sampling": value, "group_size": value},
        "n": value,
    }
    with pytest.raises(SpecError) as caught:
        check(Source("spec.yaml", data=blocks))
    assert all(problem.help for problem in caught.value.problems)
