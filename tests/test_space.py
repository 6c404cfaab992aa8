"""Whole specs drawn at random: each is compiled, linted, imported and verified, and compared with its equals.

`make fuzz` runs the same for any number of them.
"""

from __future__ import annotations

import ast
from typing import Any

import pytest
from fuzz import choices, disagreements, draw, every_pair, examine, lint, not_given, pairs, run
from identities import Identity, broken_identities, changed, identities
from strategies import script_of
from test_generated import unused_in

from specc.answers import QUESTIONS
from specc.finish import finish
from specc.plan import Plan
from specc.render import render
from specc.spec import Spec

PLAIN = {
    "name": "plain",
    "reward": {"source": "verifier"},
    "kl": {"placement": "none"},
    "baseline": {"source": "group_mean"},
    "normalization": {"scope": "none"},
    "objective": {"quantity": "sequence_advantage", "aggregation": "token_mean"},
    "sampling": {"group_size": 3},
}


@pytest.mark.parametrize("number", range(6))
def test_drawn_specs(number: int) -> None:
    found = run(number, count=40)
    assert len(found.tried) >= 20
    assert not found.failures, "\n".join(f"{failure}\n  {spec}" for spec, failure in found.failures[:5])


def test_draws_differ_and_repeat() -> None:
    assert draw(3, 10) == draw(3, 10) != draw(4, 10)


def test_what_is_covered_is_counted() -> None:
    spec = Spec.model_validate(PLAIN)
    assert set(choices(spec)) == set(QUESTIONS)
    assert ("baseline.group_mean", "objective.token_mean") in set(pairs(spec))
    assert every_pair() > len(set(pairs(spec)))


def test_lint_objects() -> None:
    assert lint(["x = 1\n"]) == ""
    assert "F401" in lint(["import os\n"])


def test_a_broken_script_is_found() -> None:
    """Own sample left in twice: the rules say (k - 1)/k, and enumeration another number of the same kind."""
    spec = Spec.model_validate(changed(PLAIN, baseline={"source": "leave_one_out"}))
    (text,) = finish([render(Plan(spec), "plain.yaml", "0" * 16)])
    assert examine(spec, text) == []
    wrong = text.replace("return mean_B1 - (returns_BG - mean_B1) / others_B1", "return mean_B1 * mask_BGT_length")
    assert any("NameError" in failure for failure in examine(spec, wrong))
    wrong = text.replace("masked_fill(~mask, 0.0) for x in (logprobs", "masked_fill(~mask, 0.0) * 2 for x in (logprobs")
    assert any("law" in failure or "by enumeration" in failure for failure in examine(spec, wrong))


def test_identities_tell_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    import identities as module

    spec = Spec.model_validate(PLAIN)
    script = script_of(spec)
    assert {each.name for each in identities(spec)} >= {"the group mean is (k - 1)/k leave-one-out"}
    assert list(broken_identities(spec, script)) == []
    wrong = Identity("wrong", changed(PLAIN, baseline={"source": "leave_one_out"}))
    monkeypatch.setattr(module, "identities", lambda spec: iter([wrong]))
    assert [text.split(":")[0] for text in broken_identities(spec, script)] == ["wrong"]


def test_the_group_mean_does_not_shrink_the_likelihood_of_correct_responses() -> None:
    """It is no part of the advantage, so no multiple of leave-one-out is the same."""
    spec = Spec.model_validate(changed(PLAIN, objective={"positive_nll": {"coefficient": 0.5}}))
    assert "the group mean is (k - 1)/k leave-one-out" not in {each.name for each in identities(spec)}
    assert list(broken_identities(spec, script_of(spec))) == []


# -------- what was found --------


@pytest.mark.parametrize(
    "parts",
    [
        # w(p) of large batches and of a prompt alone: how many are kept is a number of the batch
        {
            "baseline": {"source": "constant", "value": 0.5},
            "normalization": {"scope": "group"},
            "sampling": {"keep": "positive", "advantages_over": "all"},
        },
        # the order of a group decides which of equal rewards are kept, so sequences are counted
        {"baseline": {"source": "greedy"}, "sampling": {"keep": {"max_variance": 2}}},
        # alone, the one response that is kept is its own baseline; beside others it is not
        {"baseline": {"source": "batch_mean"}, "sampling": {"keep": "best"}},
        # a mean of tokens, which long responses have more of, is above the mean of responses
        {
            "normalization": {"scope": "batch", "divide_by": "none", "subtract_mean": True, "unit": "token"},
            "sampling": {"keep": "best", "advantages_over": "all"},
        },
        # no batch of few prompts turns round what a large one does: the mean may be above all that the rewards allow
        {
            "baseline": {"source": "greedy"},
            "normalization": {"scope": "batch", "subtract_mean": True, "epsilon": 1.0},
            "sampling": {"keep": "best", "advantages_over": "all"},
        },
        # a mean of rewards is 1 only where all of them are
        {"baseline": {"source": "batch_mean"}, "sampling": {"keep": "positive", "advantages_over": "all"}},
        {"baseline": {"source": "batch_mean"}, "sampling": {"keep": "positive"}},
        {"baseline": {"source": "moving_average"}, "sampling": {"keep": "positive"}},
        # the mean of past advantages may have been of either sign
        {
            "baseline": {"source": "length_weighted"},
            "normalization": {"scope": "running", "subtract_mean": True},
            "sampling": {"keep": "positive", "group_size": 2},
        },
        # a baseline of others, weighted by length, falls out or keeps the sign that it has at equal lengths
        *(
            {
                "baseline": {"source": "length_weighted", "leave_one_out": True},
                "normalization": {"scope": "running", "divide_by": "none", "subtract_mean": True},
                "sampling": {"keep": "mixed"},
            },
            {
                "baseline": {"source": "length_weighted", "leave_one_out": True},
                "sampling": {"keep": "positive", "advantages_over": "all"},
            },
            {
                "baseline": {"source": "length_weighted", "leave_one_out": True},
                "normalization": {"scope": "group", "std_of": "returns"},
                "sampling": {"keep": "mixed"},
            },
            {
                "baseline": {"source": "length_weighted", "leave_one_out": True},
                "normalization": {"scope": "batch", "divide_by": "none", "subtract_mean": True},
                "sampling": {"keep": {"max_variance": 3}, "group_size": 4},
            },
        ),
        # statistics of past steps, and a KL of which nothing is in them
        {
            "kl": {"placement": "reward", "coefficient": {"adaptive": {"initial": 5.0, "target": 1.0, "horizon": 9.0}}},
            "baseline": {"source": "none"},
            "normalization": {"scope": "running", "divide_by": "none", "subtract_mean": True},
            "sampling": {"keep": "best"},
        },
        # each prompt's own divisor, of responses of which one prompt may have none
        {
            "kl": {"placement": "reward", "coefficient": 1.0},
            "baseline": {"source": "none"},
            "normalization": {"scope": "group"},
            "sampling": {"keep": "positive"},
        },
    ],
)
def test_what_disagreed(parts: dict[str, Any]) -> None:
    spec = Spec.model_validate(changed(PLAIN, objective={"aggregation": "seq_mean_token_sum"}, **parts))
    assert list(disagreements(spec, script_of(spec))) == []


@pytest.mark.parametrize(
    "parts",
    [
        {"kl": {"placement": "loss", "coefficient": {"adaptive": {"initial": 0.1, "target": 1.0, "horizon": 9.0}}}},
        {
            "baseline": {"source": "critic", "backbone": "shared"},
            "objective": {"quantity": "token_advantage"},
        },
        {
            "baseline": {"source": "critic"},
            "normalization": {"scope": "running", "std_of": "returns", "subtract_mean": True},
            "objective": {"quantity": "token_advantage"},
        },
    ],
)
def test_the_loop_gives_what_the_estimator_reads(parts: dict[str, Any]) -> None:
    spec = Spec.model_validate(changed(PLAIN, **parts))
    script = ast.parse(finish([render(Plan(spec), "drawn.yaml", "0" * 16)])[0])
    assert not_given(script) == unused_in(script) == []
    short = ast.parse("class Rollouts:\n    a: int\n    b: int = 0\n\nRollouts(a=1)")
    assert not_given(short) == ["b"]
