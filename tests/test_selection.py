"""Selections: what is kept, what that does to E[g], and the runs of scripts that select."""

from __future__ import annotations

import itertools
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import generated, load_module
from strategies import script_of
from test_training import run, same, untimed, weights_of
from torch import Tensor, tensor

from specc.compiler import compile_specs
from specc.demo import DemoFiles
from specc.derive import derive
from specc.spec import Spec
from specc.verify.run import verify
from specc.verify.verdict import find_weight
from templates.sampling import best, max_variance, mixed, positive
from templates.sections.rollouts import Responses
from templates.sections.selection import is_kept, join_responses, keep_responses

NAN = math.nan


def kept_rewards(rewards_BG: Tensor, chosen: tuple[Tensor, Tensor]) -> list[list[float]]:
    """The rewards that are kept of each prompt, in their order."""
    rows = zip(rewards_BG.tolist(), chosen[0].tolist(), chosen[1].tolist(), strict=True)
    return [[rewards[i] for i in indices if i >= 0] if prompt else [] for rewards, prompt, indices in rows]


# -------- what is kept --------


def test_mixed_keeps_whole_groups_whose_rewards_differ() -> None:
    rewards = tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.1, 0.1, 0.1], [NAN, 1.0, 1.0], [NAN, 0.0, 1.0], [NAN] * 3])
    prompts, chosen = mixed.kept(rewards)
    assert prompts.tolist() == [True, False, False, False, True, False]
    assert chosen.tolist() == [[0, 1, 2]] * 6


def test_best_keeps_the_first_of_the_highest() -> None:
    rewards = tensor([[0.0, 2.0, 2.0], [NAN, -1.0, -3.0], [NAN] * 3])
    prompts, chosen = best.kept(rewards)
    assert prompts.tolist() == [True, True, False]
    assert chosen[:2].tolist() == [[1], [1]]


def test_positive_keeps_what_is_above_zero() -> None:
    rewards = tensor([[0.0, 2.0, -1.0, 1.0], [NAN, -1.0, 0.0, 0.0], [1.0, 1.0, NAN, 1.0]])
    prompts, chosen = positive.kept(rewards)
    assert prompts.tolist() == [True, False, True]
    assert chosen.tolist() == [[1, 3, -1, -1], [-1] * 4, [0, 1, 3, -1]]


def test_max_variance_keeps_both_ends() -> None:
    rewards = tensor([[5.0, 1.0, 3.0, 2.0, 9.0], [0.0, 1.0, 0.0, 0.0, 0.0], [NAN, 4.0, NAN, 1.0, NAN]])
    prompts, chosen = max_variance.kept(rewards, max_variance=3)
    assert prompts.all()
    kept = kept_rewards(rewards, (prompts, chosen))
    assert [sorted(row) for row in kept[:2]] == [[1.0, 2.0, 9.0], [0.0, 0.0, 1.0]]
    assert sorted(row for row in kept[2] if row == row) == [1.0, 4.0]  # all that are scored, and one that is not


@pytest.mark.parametrize("kind", ["real", "binary", "far"])
def test_max_variance_is_the_best_of_all_subsets(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for G in range(2, 8):
        for m in range(2, G + 1):
            rewards = torch.randn(1, G, generator=generator, dtype=torch.float64)
            rewards = {"real": rewards, "binary": (rewards > 0).double(), "far": 1e4 + rewards}[kind]
            _, chosen = max_variance.kept(rewards, max_variance=m)
            assert len(set(chosen[0].tolist())) == m
            subsets = [list(subset) for subset in itertools.combinations(range(G), m)]
            most = max(float(rewards[0, subset].var(correction=0)) for subset in subsets)
            assert float(rewards[0, chosen[0]].var(correction=0)) == pytest.approx(most, rel=1e-5, abs=1e-12)


def two_prompts() -> Responses:
    tokens = torch.arange(12).view(2, 2, 3)
    mask = tensor([[[True, True, False], [True, True, True]], [[True, False, False], [True, True, True]]])
    return Responses(torch.ones(2, 2).long(), torch.ones(2, 2).bool(), tokens, mask, tensor([[True, False]] * 2))


def test_what_is_not_kept_has_no_token_and_no_reward() -> None:
    responses, rewards = two_prompts(), tensor([[1.0, 2.0], [3.0, 4.0]])
    kept, rewards_BM = keep_responses(responses, rewards, tensor([True, True]), tensor([[1, -1], [0, 1]]))
    assert kept.tokens_BGT[0, 0].tolist() == [3, 4, 5]
    assert kept.mask_BGT.sum(-1).tolist() == [[3, 0], [1, 3]]
    assert kept.ended_BG.tolist() == [[False, False], [True, False]]
    assert rewards_BM[0, 0] == 2 and rewards_BM[0, 1].isnan() and rewards_BM[1].tolist() == [3.0, 4.0]
    none, rewards_BM = keep_responses(responses, rewards, tensor([False, True]), tensor([[0], [1]]))
    assert none.mask_BGT.sum(-1).tolist() == [[0], [3]] and rewards_BM[0].isnan().all()
    assert is_kept(tensor([False, True]), tensor([[0, -1], [1, -1]]), 2).tolist() == [[False, False], [False, True]]


def test_batches_are_joined_with_pads_where_they_belong() -> None:
    short = two_prompts()
    long = Responses(
        torch.full((1, 4), 7), torch.ones(1, 4).bool(), torch.full((1, 2, 5), 8), torch.ones(1, 2, 5).bool(),
        tensor([[True, True]]),
    )  # fmt: skip
    joined = join_responses([short, long], pad=9)
    assert joined.ids_BP.tolist() == [[9, 9, 1, 1]] * 2 + [[7] * 4]
    assert joined.prompt_mask_BP.tolist() == [[False, False, True, True]] * 2 + [[True] * 4]
    assert joined.tokens_BGT[0, 0].tolist() == [0, 1, 2, 9, 9]
    assert joined.mask_BGT.sum(-1).tolist() == [[2, 3], [1, 3], [5, 5]]
    assert joined.ended_BG.tolist() == [[True, False], [True, False], [True, True]]


# -------- what that does to E[g] --------


def spec_of(keep: Any, k: int = 4, quantity: str = "sequence_advantage", baseline: Any = "none", **others: Any) -> Spec:
    sampling = {"group_size": k, "keep": keep} | others.pop("sampling", {})
    objective = {"quantity": quantity, "aggregation": "seq_mean_token_sum"}
    plain = {"reward": "verifier", "kl": "none", "baseline": baseline, "normalization": "none", "objective": objective}
    return Spec.model_validate({"name": "selecting", **plain, "sampling": sampling, **others})


STD = {"scope": "group", "divide_by": "std", "ddof": 0, "epsilon": 0.0}


@pytest.mark.parametrize("k", [2, 3, 6])
@pytest.mark.parametrize(
    ("spec", "weight"),
    [
        # fine-tuning on the best response; without a right one, on any
        (lambda k: spec_of("best", k, "likelihood"), lambda p, k: (1 - (1 - p) ** (k - 1)) / p),
        # its reward times its score: nothing without a right one
        (lambda k: spec_of("best", k), lambda p, k: (1 - (1 - p) ** k) / p),
        # the rewards themselves, of groups with both
        (lambda k: spec_of("mixed", k), lambda p, k: 1 - p ** (k - 1)),
    ],
    ids=["likelihood_of_best", "reward_of_best", "rewards_of_mixed"],
)
def test_weights_of_success_rates(spec: Any, weight: Any, k: int) -> None:
    """By the rule and from the script, at every success rate."""
    rule, script = derive(spec(k)), script_of(spec(k))
    assert rule.binary == ("unbiased" if weight(0.5, k) == 1 else "reweighted") and rule.real == "biased"
    assert rule.weight is not None
    found = find_weight(script, k, script.hp)
    for p in (0.1, 0.5, 0.9):
        assert rule.weight.at(p) == pytest.approx(weight(p, k), rel=1e-12)
        assert found.at(p) == pytest.approx(weight(p, k), rel=1e-9)


def test_the_widest_subset_of_many_weighs_the_ends() -> None:
    """Two right and two wrong ones with z = +-1, where there are: (1 - q^n)/(2p) + (1 - p^n)/(2q), almost."""
    rule = derive(spec_of({"max_variance": 4}, 48, baseline="group_mean", normalization=STD))
    assert rule.weight is not None
    for p in (0.3, 0.5, 0.7):
        want = (1 - (1 - p) ** 48) / (2 * p) + (1 - p**48) / (2 * (1 - p))
        assert rule.weight.at(p) == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize(
    ("spec", "verdicts"),
    [
        (spec_of("mixed", baseline="group_mean"), ("asymptotic", "asymptotic")),
        (spec_of("mixed", baseline="leave_one_out"), ("asymptotic", "asymptotic")),
        (spec_of("mixed", baseline="group_mean", normalization=STD), ("reweighted", "biased")),
        (spec_of("mixed", 3, baseline="greedy"), ("reweighted", "biased")),
        (spec_of("positive"), ("asymptotic", "biased")),
        (spec_of("positive", baseline="group_mean"), ("biased", "biased")),  # right ones beside right ones
        (spec_of("best", baseline="group_mean", sampling={"advantages_over": "all"}), ("reweighted", "biased")),
        (spec_of({"max_variance": 2}, baseline="leave_one_out"), ("reweighted", "biased")),
        (spec_of("best", 2, "likelihood"), ("unbiased", "biased")),
        (spec_of("mixed", quantity="likelihood"), ("biased", "biased")),  # against the gradient above p = 1/2
    ],
    ids=lambda value: value.sampling.rule if isinstance(value, Spec) else "-".join(value),
)
def test_verdicts_by_rule_and_by_enumeration(spec: Spec, verdicts: tuple[str, str]) -> None:
    rule = derive(spec)
    assert (rule.binary, rule.real) == verdicts
    found = verify(script_of(spec), spec.sampling.group_size)
    assert found.disagreements == [] and found.broken == []


# -------- the runs --------


def training(tmp_path: Path, sampling: str, quantity: str = "sequence_advantage", baseline: str = "none") -> Any:
    text = f"""\
name: selecting
reward: verifier
kl: {{placement: loss, estimator: k2, coefficient: 0.01}}
baseline: {baseline}
normalization: none
objective: {{quantity: {quantity}, aggregation: seq_mean_token_sum}}
sampling: {{group_size: 4, {sampling}}}
"""
    (tmp_path / "selecting.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "selecting.py").write_text(compile_specs([tmp_path / "selecting.yaml"])[0].script, encoding="utf-8")
    return load_module(tmp_path / "selecting.py")


@pytest.mark.parametrize(
    ("sampling", "quantity", "baseline"),
    [
        ("keep: best", "likelihood", "none"),
        ("keep: positive, minibatches: 2", "likelihood", "none"),
        ("keep: {max_variance: 2}", "sequence_advantage", "group_mean"),
        ("keep: mixed", "sequence_advantage", "leave_one_out"),
        ("keep: mixed, resample: true", "sequence_advantage", "greedy"),
        ("keep: best, advantages_over: all", "sequence_advantage", "group_mean"),
        ("keep: mixed, mask_truncated: true", "sequence_advantage", "group_mean"),
    ],
)
def test_scripts_that_select_train(
    sampling: str, quantity: str, baseline: str, tiny_demo: DemoFiles, tmp_path: Path
) -> None:
    rows = run(training(tmp_path, sampling, quantity, baseline), tiny_demo, tmp_path / "run", steps=2)[:-1]
    for row in rows:
        assert math.isfinite(row["loss"]) and row["grad_norm"] > 0
        assert 0 < row["frac_kept"] < 1
    if "best" in sampling:
        assert all(row["frac_kept"] == 1 / 4 for row in rows)
    if "max_variance" in sampling:
        assert all(row["frac_kept"] == 2 / 4 for row in rows)


def test_other_prompts_take_the_place_of_those_that_are_dropped(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """Every group of the update is mixed: 8 prompts x 4 responses, out of all that were sampled."""
    script = training(tmp_path, "keep: mixed, resample: true", baseline="group_mean")
    rows = run(script, tiny_demo, tmp_path / "run", steps=3)[:-1]
    for row in rows:
        sampled = 8 * 4 / row["frac_kept"]
        assert sampled == pytest.approx(round(sampled / 32) * 32) and sampled > 32
        assert 0 < row["frac_reward_zero_std"] < 1


def test_a_step_that_cannot_be_filled_stops_the_run(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    script = training(tmp_path, "keep: mixed, resample: true", baseline="group_mean")
    (tmp_path / "same.py").write_text("def score(completions):\n    return [1.0 for _ in completions]\n")
    given = {"reward": f"{tmp_path / 'same.py'}:score", "max_sampling_rounds": 3, "steps": 1}
    with pytest.raises(SystemExit, match="step 0: 3 batches of prompts lack 8 groups whose rewards differ"):
        run(script, tiny_demo, tmp_path / "run", **given)


def test_dapo_resumes_where_it_was(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """A resumed run takes up the prompts where the other left them, though its steps take several batches each."""
    script = generated("dapo")
    given = {"minibatches": 2, "warmup_steps": 0, "steps": 4, "save_every": 2, "keep_checkpoints": 9}
    whole = run(script, tiny_demo, tmp_path / "whole", **given)
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "checkpoint-4")
    resumed = run(script, tiny_demo, tmp_path / "part", resume=True, **given)
    assert untimed(resumed) == untimed(whole)
    assert same(weights_of(tmp_path / "part"), weights_of(tmp_path / "whole"))
