"""The estimator's parts against numbers that are derived by hand, or by a few lines of plain Python.

No expected number here comes from a run of the code under test: each is a fraction worked out in a comment, a formula
of the paper in plain Python, or a finite difference.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from conftest import load_module
from torch import Tensor

from specc.compiler import compile_specs

NAN = math.nan
KL = {"placement": "reward", "coefficient": 0.5}
PLAIN = {
    "reward": "verifier",
    "kl": "none",
    "baseline": "none",
    "normalization": "none",
    "objective": {"quantity": "sequence_advantage", "aggregation": "token_mean"},
    "sampling": {"group_size": 4},
}


def objective(**fields: Any) -> dict[str, Any]:
    return {"objective": {**PLAIN["objective"], **fields}}


BASELINES = {
    "none": "none",
    "constant": {"source": "constant", "value": 0.25},
    "batch_mean": "batch_mean",
    "moving_average": {"source": "moving_average", "decay": 0.75},
    "group_mean": "group_mean",
    "leave_one_out": "leave_one_out",
    "length_weighted": "length_weighted",
    "length_weighted_loo": {"source": "length_weighted", "leave_one_out": True},
    "greedy": "greedy",
}
NORMALIZATIONS = {
    f"{scope}_{unit}_{divide}_{'centred' if centred else 'plain'}": {
        "scope": scope,
        "unit": unit,
        "divide_by": divide,
        **({"subtract_mean": True} if centred else {}),
    }
    for scope in ("group", "batch", "running")
    for unit in ("response", "token")
    for divide in ("std", "mean", "none")
    for centred in (False, True)
    if not (scope == "group" and (centred or divide == "none"))
    and not (scope == "running" and divide == "mean")
    and (centred or divide != "none")
}
KL_REWARDS = {
    f"kl_{estimator}_{unit}_{quantity}{'_after' if after else ''}": {
        "kl": {**KL, "estimator": estimator, "unit": unit, **({"after_baseline": True} if after else {})},
        "baseline": "leave_one_out" if after else "none",
        **objective(quantity=quantity),
    }
    for estimator in ("k1", "k2", "k3")
    for unit in ("token", "sequence")
    for quantity in ("sequence_advantage", "token_advantage")
    for after in (False, True)
}
AGGREGATIONS = ("token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm", "prompt_mean")
RATIOS = ("token", "sequence", "sequence_mean", "sequence_mean_token")
WEIGHTINGS: dict[str, dict[str, Any]] = {
    "unclipped": {},
    "clip": {"clip": {"low": 0.2, "high": 0.3}},
    "dual": {"clip": {"low": 0.2, "high": 0.3, "dual": 3.0}},
    "detached": {"detached_clip": {"low": 0.2, "high": 0.3}},
    "gate": {"soft_gate": {"positive": 1.0, "negative": 1.05}},
}

SPECS: dict[str, dict[str, Any]] = {
    **{f"baseline_{name}": {"baseline": answer} for name, answer in BASELINES.items()},
    **{f"normalization_{name}": {"normalization": answer} for name, answer in NORMALIZATIONS.items()},
    **KL_REWARDS,
    **{
        f"aggregation_{name}": objective(aggregation=name, **({"max_length": 8} if name.endswith("norm") else {}))
        for name in AGGREGATIONS
    },
    **{
        f"loss_{ratio}_{name}": objective(ratio=ratio, **weighting)
        for ratio in RATIOS
        for name, weighting in WEIGHTINGS.items()
    },
    **{
        f"loss_kl_{estimator}_{unit}": {
            "kl": {"placement": "loss", "estimator": estimator, "unit": unit, "coefficient": 0.5}
        }
        for estimator in ("k1", "k2", "k3")
        for unit in ("token", "sequence")
    },
    "loss_entropy": objective(entropy_bonus=0.1),
    "group_z": {"baseline": "group_mean", "normalization": {"scope": "group", "epsilon": 0.0}},
    "group_z_population": {"baseline": "group_mean", "normalization": {"scope": "group", "ddof": 0, "epsilon": 0.0}},
    "batch_z": {"baseline": "group_mean", "normalization": {"scope": "batch", "epsilon": 0.0}},
    "maxrl": {"baseline": "group_mean", "normalization": {"scope": "group", "divide_by": "mean", "epsilon": 0.0}},
    "after_then_mean": {
        "kl": {**KL, "after_baseline": True},
        "baseline": "group_mean",
        "normalization": {"scope": "batch", "divide_by": "mean", "epsilon": 0.0},
    },
    "kl_then_loo": {"kl": {**KL, "unit": "sequence"}, "baseline": "leave_one_out"},
    "transforms": {
        "reward": {
            "source": "verifier",
            "clip": [-5, 5],
            "missing_eos": -1.0,
            "overlong": {"limit": 20480, "buffer": 4096},
        }
    },
}


@cache
def scripts() -> dict[str, ModuleType]:
    """Every spec of this file, compiled together."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, answers in SPECS.items():
            paths.append(Path(folder) / f"{name}.yaml")
            paths[-1].write_text(yaml.safe_dump({"name": name, **PLAIN, **answers}), encoding="utf-8")
        modules = {}
        for compiled in compile_specs(paths):
            path = Path(folder) / f"{compiled.name}.py"
            path.write_text(compiled.script, encoding="utf-8")
            modules[compiled.name] = load_module(path)
        return modules


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def mask_of(lengths: list[list[int]], longest: int | None = None) -> Tensor:
    lengths_BG = torch.tensor(lengths)
    return torch.arange(longest or max(int(lengths_BG.max()), 1)) < lengths_BG[..., None]


def advantages(
    name: str,
    rewards: list[list[float]],
    lengths: list[list[int]] | None = None,
    hp: dict[str, Any] | None = None,
    **more: Any,
) -> list[Any]:
    """The advantages [B, G, T] as lists; without lengths each response is one token, and they are [B, G]."""
    module = scripts()[name]
    mask = mask_of(lengths or [[1] * len(group) for group in rewards])
    args = dataclasses.replace(module.Args(), **(hp or {}))
    result = module.compute_advantages(module.Rollouts(rewards_BG=tensor(rewards), mask_BGT=mask, **more), args)
    assert result.dtype == torch.float64 and not result.requires_grad
    return (result if lengths else result.squeeze(-1)).tolist()


def flat(nested: Any) -> list[float]:
    return [x for inner in nested for x in flat(inner)] if isinstance(nested, list) else [nested]


def near(found: Any, expected: Any, tolerance: float = 1e-12) -> None:
    assert flat(found) == pytest.approx(flat(expected), rel=tolerance, abs=tolerance)


# -------- baselines --------

REWARDS = [[1.0, 0.0, 0.0, 3.0], [0.0, 2.0, 2.0, 4.0]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", REWARDS),
        ("constant", [[0.75, -0.25, -0.25, 2.75], [-0.25, 1.75, 1.75, 3.75]]),
        # all eight sum to 12: the mean is 1.5
        ("batch_mean", [[-0.5, -1.5, -1.5, 1.5], [-1.5, 0.5, 0.5, 2.5]]),
        ("moving_average", REWARDS),  # nothing has passed yet
        # means 4/4 and 8/4
        ("group_mean", [[0.0, -1.0, -1.0, 2.0], [-2.0, 0.0, 0.0, 2.0]]),
        # others of the first group: (4 - r) / 3 = 1, 4/3, 4/3, 1/3; of the second: (8 - r) / 3 = 8/3, 2, 2, 4/3
        ("leave_one_out", [[0.0, -4 / 3, -4 / 3, 8 / 3], [-8 / 3, 0.0, 0.0, 8 / 3]]),
    ],
)
def test_baseline(name: str, expected: list[list[float]]) -> None:
    near(advantages(f"baseline_{name}", REWARDS), expected)


def test_length_weighted_baseline() -> None:
    """Lengths 1, 2, 1, 4: (1*1 + 2*0 + 1*0 + 4*3) / 8 = 13/8; without the own: 12/7, 13/6, 13/7, 1/4 (OPO)."""
    lengths = [[1, 2, 1, 4]]
    first = [row[0] for row in advantages("baseline_length_weighted", REWARDS[:1], lengths)[0]]
    near(first, [1 - 13 / 8, -13 / 8, -13 / 8, 3 - 13 / 8])
    first = [row[0] for row in advantages("baseline_length_weighted_loo", REWARDS[:1], lengths)[0]]
    near(first, [1 - 12 / 7, -13 / 6, -13 / 7, 3 - 1 / 4])


def test_greedy_baseline() -> None:
    more = {"greedy_rewards_B": tensor([0.5, 2.0])}
    near(advantages("baseline_greedy", REWARDS, **more), [[0.5, -0.5, -0.5, 2.5], [-2.0, 0.0, 0.0, 2.0]])
    # a prompt whose greedy response has no score has no advantage
    more = {"greedy_rewards_B": tensor([NAN, 2.0])}
    near(advantages("baseline_greedy", REWARDS, **more), [[0.0] * 4, [-2.0, 0.0, 0.0, 2.0]])


def test_moving_average_over_three_steps() -> None:
    """Means 1, 3, -1 with decay 3/4: the average starts at 1, then 3/4 + 3/4 = 1.5, then 9/8 - 1/4 = 0.875."""
    module = scripts()["baseline_moving_average"]
    state: dict[str, Tensor] = {}
    baselines, steps = [], ([[0.0, 2.0]], [[3.0, NAN]], [[-1.0, -1.0]], [[5.0, 5.0]])
    for rewards in steps:
        rollouts = module.Rollouts(rewards_BG=tensor(rewards), mask_BGT=mask_of([[1, 1]]), state=state)
        baselines.append(rewards[0][0] - module.compute_advantages(rollouts, module.Args())[0, 0, 0].item())
        state = module.update_state(rollouts, module.Args())
    near(baselines, [0.0, 1.0, 1.5, 0.875])


def test_a_missing_score_is_not_a_zero() -> None:
    """Law 8: (1, NaN, 1, 1) has the mean 1 over three; all NaN is no advantage at all."""
    for name in (
        "baseline_group_mean",
        "baseline_leave_one_out",
        "baseline_length_weighted",
        "baseline_batch_mean",
        "group_z",
    ):
        assert flat(advantages(name, [[1.0, NAN, 1.0, 1.0]])) == [0.0] * 4, name
        assert flat(advantages(name, [[NAN] * 4])) == [0.0] * 4, name
    # (1, NaN, 0, 5): the others of the first have the mean 2.5, of the third 3, of the fourth 0.5
    near(advantages("baseline_leave_one_out", [[1.0, NAN, 0.0, 5.0]]), [[-1.5, 0.0, -3.0, 4.5]])
    # the only score of a group has nothing to be compared with
    assert flat(advantages("baseline_leave_one_out", [[NAN, NAN, 7.0, NAN]])) == [0.0] * 4


def test_equal_rewards_have_no_advantage() -> None:
    """Law 8 and any epsilon: exactly 0, also where the sum of equal floats is not their product."""
    for name in ("group_z", "group_z_population", "batch_z", "baseline_leave_one_out", "baseline_group_mean"):
        for reward in (0.1, 0.7, 1e8 + 0.1, -1 / 3):
            assert flat(advantages(name, [[reward] * 3])) == [0.0] * 3, name


def test_moments_of_the_baselines() -> None:
    """Over all outcomes of k fair coins Var A is s2 k/(k-1) with leave-one-out, s2 (k-1)/k with the mean.

    Their covariance is -s2 k/(k-1)^2 with leave-one-out, and a reward is independent of its own leave-one-out baseline.
    """
    k, variance = 4, 0.25
    outcomes = [[float(n >> bit & 1) for bit in range(k)] for n in range(2**k)]
    leave_one_out, mean = (tensor(advantages(f"baseline_{name}", outcomes)) for name in ("leave_one_out", "group_mean"))
    near(leave_one_out[:, 0].var(correction=0).item(), variance * k / (k - 1))
    near(mean[:, 0].var(correction=0).item(), variance * (k - 1) / k)
    near((leave_one_out[:, 0] * leave_one_out[:, 1]).mean().item(), -variance * k / (k - 1) ** 2)
    rewards = tensor(outcomes)
    near(((rewards - 0.5) * (rewards - leave_one_out))[:, 0].mean().item(), 0.0)


# -------- normalization --------


def std(values: list[float], ddof: int) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / max(len(values) - ddof, 1))


@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("name", [name for name in NORMALIZATIONS if not name.startswith("running")])
def test_normalization(name: str, ddof: int, epsilon: float) -> None:
    """Every scope, unit, divisor and centring, with no baseline, so that advantages are the rewards."""
    scope, unit, divide, centring = name.split("_")
    rewards, lengths = [[1.0, 0.0, 5.0], [2.0, 2.5, -1.0]], [[1, 3, 2], [2, 1, 4]]
    expected = []
    for group, counts in zip(rewards, lengths, strict=True):
        every = (list(itertools.chain.from_iterable(nested)) for nested in (rewards, lengths))
        pairs = list(zip(*((group, counts) if scope == "group" else every), strict=True))
        values = [r for r, count in pairs for _ in range(count if unit == "token" else 1)]
        mean = sum(values) / len(values)
        divisor = {"std": std(values, ddof) + epsilon, "mean": mean + epsilon, "none": 1.0}[divide]
        expected.append([(r - mean * (centring == "centred")) / divisor for r in group])
    module = scripts()[f"normalization_{name}"]
    names = {field.name for field in dataclasses.fields(module.Args)}
    hp = {f"normalization_{key}": value for key, value in (("ddof", ddof), ("epsilon", epsilon))}
    found = advantages(
        f"normalization_{name}", rewards, lengths, {key: value for key, value in hp.items() if key in names}
    )
    for found_group, group, counts in zip(found, expected, lengths, strict=True):
        for row, value, count in zip(found_group, group, counts, strict=True):
            near(row, [value] * count + [0.0] * (4 - count))


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("name", [name for name in NORMALIZATIONS if name.startswith("running")])
def test_running_normalization(name: str, ddof: int) -> None:
    """Three steps against the mean and std of everything that came before, kept as a list; the first step is bare."""
    _, unit, divide, centring = name.split("_")
    module, state, past = scripts()[f"normalization_{name}"], {}, []
    names = {field.name for field in dataclasses.fields(module.Args)}
    args = dataclasses.replace(module.Args(), **{"normalization_ddof": ddof} if "normalization_ddof" in names else {})
    for rewards in ([1.0, 4.0], [NAN, 2.5], [-3.0, 7.0]):
        mask = mask_of([[1, 3]])
        rollouts = module.Rollouts(rewards_BG=tensor([rewards]), mask_BGT=mask, state=state)
        found = module.compute_advantages(rollouts, args)[0, :, 0].tolist()
        mean = sum(past) / len(past) if past and centring == "centred" else 0.0
        divisor = std(past, ddof) + 1e-6 if divide == "std" and len(past) > 1 else 1.0
        near(found, [0.0 if math.isnan(r) else (r - mean) / divisor for r in rewards])
        state = module.update_state(rollouts, args)
        counts = (1, 3) if unit == "token" else (1, 1)
        past += [r for r, count in zip(rewards, counts, strict=True) for _ in range(count) if not math.isnan(r)]


def test_invariances_and_their_numbers() -> None:
    """Law 7: groups (0, 1) and (0, 10)."""
    groups = [[0.0, 1.0], [0.0, 10.0]]
    near(advantages("baseline_group_mean", groups), [[-0.5, 0.5], [-5.0, 5.0]])
    half = math.sqrt(0.5)  # (1 - 0.5) / sqrt(2 * 0.25 / 1)
    near(advantages("group_z", groups), [[-half, half], [-half, half]])
    # the std of the advantages (-.5, .5, -5, 5) with ddof 1 is sqrt((2 * .25 + 2 * 25) / 3)
    scale = math.sqrt(50.5 / 3)
    near(advantages("batch_z", groups), [[-0.5 / scale, 0.5 / scale], [-5 / scale, 5 / scale]])
    # the batch std of the rewards themselves, mean 2.75: sqrt((2 * 2.75^2 + 1.75^2 + 7.25^2) / 3) = 4.8563
    raw = math.sqrt((2 * 2.75**2 + 1.75**2 + 7.25**2) / 3)
    assert raw == pytest.approx(4.8563, abs=1e-4)
    near(advantages("normalization_batch_response_std_plain", groups, hp={"normalization_epsilon": 0.0})[0][1], 1 / raw)


def test_z_scores_are_bounded() -> None:
    """|z| <= sqrt(k-1) with ddof 0 and (k-1)/sqrt(k) with ddof 1, reached by one reward that differs."""
    for k in (2, 3, 8):
        rewards = [[1.0] + [0.0] * (k - 1)]
        near(advantages("group_z_population", rewards)[0][0], math.sqrt(k - 1))
        near(advantages("group_z", rewards)[0][0], (k - 1) / math.sqrt(k))


def test_small_differences_of_large_rewards() -> None:
    """Laws 8 and 11: z-scores of two rewards are +-.7071 however close they are, in float32 up to its spacing."""
    half = math.sqrt(0.5)
    near(advantages("group_z", [[1.0, 1.00001]]), [[-half, half]], 1e-9)
    module = scripts()["group_z"]
    rewards = torch.tensor([[1000.0, 1000.001]])  # float32: 16 spacings of 6.1e-5 apart
    found = module.compute_advantages(module.Rollouts(rewards_BG=rewards, mask_BGT=mask_of([[1, 1]])), module.Args())
    assert found.flatten().tolist() == pytest.approx([-half, half], rel=1 / 16)
    # (0, .95 x 7): the others of the first have no spread, and their mean is exactly theirs
    found = advantages("baseline_leave_one_out", [[0.0] + [0.95] * 7])[0]
    assert found[0] == -0.95
    near(found[1:], [0.95 - 6 * 0.95 / 7] * 7)


def test_division_by_the_mean() -> None:
    """MaxRL's (r - m) / m: for two of four right, 1 and -1; a group without a right one has no advantage."""
    near(advantages("maxrl", [[1.0, 1.0, 0.0, 0.0], [0.0] * 4]), [[1.0, 1.0, -1.0, -1.0], [0.0] * 4])


# -------- KL in the reward --------

LOG = math.log


def estimate(estimator: str, x: float) -> float:
    return {"k1": x, "k2": x * x / 2, "k3": math.exp(-x) - 1 + x}[estimator]


def test_the_three_estimators() -> None:
    """pi = .5, ref = .4: k1 = ln 1.25 = .2231, k2 = .0249, k3 = .8 - 1 + .2231 = .0231."""
    for name, expected in (("k1", 0.2231), ("k2", 0.0249), ("k3", 0.0231)):
        more = {"old_logprobs_BGT": tensor([[[LOG(0.5)]]]), "ref_logprobs_BGT": tensor([[[LOG(0.4)]]])}
        found = advantages(f"kl_{name}_token_sequence_advantage", [[0.0]], hp={"kl_coefficient": 1.0}, **more)
        assert flat(found) == pytest.approx([-expected], abs=5e-5)
        near(found, -estimate(name, LOG(1.25)))


@pytest.mark.parametrize("name", KL_REWARDS)
def test_kl_in_the_reward(name: str) -> None:
    """Each estimator, per token or per response, as a sum or as what is still to come, before or after the baseline."""
    _, estimator, unit, quantity, _, *after = name.split("_")
    ratios = [[[0.4, -0.2, 0.3], [0.1, 0.6, NAN]], [[-0.5, NAN, NAN], [0.2, 0.2, 0.2]]]
    lengths, rewards, beta = [[3, 2], [1, 3]], [[1.0, 0.0], [2.0, -1.0]], 0.5
    expected = []
    for group, rewarded in zip(ratios, rewards, strict=True):
        expected.append([])
        for i, row in enumerate(group):
            x = [value for value in row if not math.isnan(value)]
            cost = [estimate(estimator, value) for value in x]
            if unit == "sequence":
                cost = [0.0] * (len(x) - 1) + [estimate(estimator, sum(x))]
            to_go = [sum(cost[t:]) for t in range(len(x))]
            charged = to_go if quantity == "token" else [to_go[0]] * len(x)
            baseline = rewarded[1 - i] if after else 0.0  # of two, the other one
            expected[-1].append([rewarded[i] - baseline - beta * c for c in charged] + [0.0] * (3 - len(x)))
    old = -1 - torch.rand(2, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    more = {"old_logprobs_BGT": old, "ref_logprobs_BGT": old - tensor(ratios)}
    near(advantages(name, rewards, lengths, **more), expected)


def test_kl_before_the_baseline_is_compared_as_well() -> None:
    """Returns (1 - .5 * .4, 0 - .5 * .2) = (.8, -.1): leave-one-out gives +-.9; after the baseline, (.8, -1.1)."""
    more = {"old_logprobs_BGT": tensor([[[0.4], [0.2]]]), "ref_logprobs_BGT": tensor([[[0.0], [0.0]]])}
    near(advantages("kl_then_loo", [[1.0, 0.0]], **more), [[0.9, -0.9]])
    near(advantages("kl_k1_token_sequence_advantage_after", [[1.0, 0.0]], **more), [[0.8, -1.1]])


def test_kl_after_the_baseline_and_division_by_the_mean_return() -> None:
    """(1 - .5 - .2, 0 - .5 - .1) = (.3, -.6) over the mean of the returns (.8 - .1) / 2 = .35."""
    more = {"old_logprobs_BGT": tensor([[[0.4], [0.2]]]), "ref_logprobs_BGT": tensor([[[0.0], [0.0]]])}
    near(advantages("after_then_mean", [[1.0, 0.0]], **more), [[0.3 / 0.35, -0.6 / 0.35]])


def test_reward_transforms() -> None:
    """clip, then the score of a response that never ends, then the soft overlong punishment (DAPO, equation 13)."""
    module = scripts()["transforms"]
    lengths = torch.tensor([[16384, 18432, 20480, 20481, 100]])
    ended = torch.tensor([[True] * 5])
    found = module.transform_rewards(tensor([[1.0, 1.0, 1.0, 1.0, 9.0]]), ended, lengths, module.Args())
    near(found.tolist(), [1.0, 0.5, 0.0, 0.0, 5.0])
    found = module.transform_rewards(
        tensor([[1.0, NAN, -9.0]]), torch.tensor([[False, False, True]]), lengths[:, :3], module.Args()
    )
    near(found.tolist(), [-1.0, -1.5, -6.0])
    assert (
        module.transform_rewards(tensor([[NAN]]), torch.tensor([[True]]), lengths[:, :1], module.Args()).isnan().all()
    )


# -------- aggregation --------

# prompts with lengths (2, 4), (1, 0) and, masked out altogether, (0, 0): 7 tokens, 3 responses and 2 prompts that count
LENGTHS = [[2, 4], [1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_mean", [[1 / 7, 1 / 7], [1 / 7, 0], [0, 0]]),
        ("seq_mean_token_sum", [[1 / 3, 1 / 3], [1 / 3, 0], [0, 0]]),
        ("seq_mean_token_mean", [[1 / 6, 1 / 12], [1 / 3, 0], [0, 0]]),
        ("seq_mean_token_sum_norm", [[1 / 24, 1 / 24], [1 / 24, 0], [0, 0]]),  # max_length: 8
        ("prompt_mean", [[1 / 12, 1 / 12], [1 / 2, 0], [0, 0]]),  # 6 tokens, and 1
    ],
)
def test_aggregation(name: str, expected: list[list[float]]) -> None:
    module = scripts()[f"aggregation_{name}"]
    mask = mask_of(LENGTHS)
    weights = module.aggregation_weights(mask, module.Args())
    near(weights.tolist(), (tensor(expected)[..., None] * mask).tolist())
    empty = module.aggregation_weights(torch.zeros_like(mask), module.Args())
    assert empty.isfinite().all() and not empty.any()


def loss_of(
    name: str,
    logprobs: Tensor,
    old: Tensor,
    adv: Tensor,
    weights: Tensor,
    mask: Tensor,
    ref: Tensor | None = None,
    **more: Any,
) -> Tensor:
    module = scripts()[name]
    return module.policy_loss(logprobs, old, ref, adv, weights, mask, module.Args(), **more)


def test_token_mean_of_tokens_not_of_parts() -> None:
    """Law 3: 100 tokens of loss 2 and 900 of 0.5 are 0.65, though the mean of the parts' means is 1.25."""
    module = scripts()["aggregation_token_mean"]
    mask = mask_of([[100, 900]])
    weights = module.aggregation_weights(mask, module.Args())
    logprobs = -torch.ones(2, 900, dtype=torch.float64)  # -A log pi = A
    adv = tensor([[2.0], [0.5]]).expand(2, 900)
    parts = [
        loss_of("aggregation_token_mean", logprobs[[i]], logprobs[[i]], adv[[i]], weights[0, [i]], mask[0, [i]]).item()
        for i in (0, 1)
    ]
    near(sum(parts), 0.65)


def test_what_is_masked_out_is_not_counted() -> None:
    """Law 10: lengths 8, masked out, and 4, all losses 1: 4/4 and not 4/12. And law 3's windows: each of them is 1."""
    for name in ("token_mean", "seq_mean_token_mean", "prompt_mean"):
        module = scripts()[f"aggregation_{name}"]
        mask = mask_of([[0, 4]], longest=8)
        near(module.aggregation_weights(mask, module.Args()).sum().item(), 1.0)
    module = scripts()["aggregation_token_mean"]
    for tokens in (100, 300, 900, 700, 7):
        near(module.aggregation_weights(mask_of([[tokens]]), module.Args()).sum().item(), 1.0)


# -------- the loss --------


def surrogate_slope(weighting: str, ratio: float, advantage: float) -> tuple[float, float]:
    """Value of the objective and its derivative with respect to log ratio, in plain Python."""
    low, high, dual = 0.8, 1.3, 3.0
    if weighting == "unclipped":
        return ratio * advantage, ratio * advantage
    if weighting in ("clip", "dual"):
        bounded = min(max(ratio, low), high)
        value = min(ratio * advantage, bounded * advantage)
        moved = (advantage > 0 and ratio > high) or (advantage < 0 and ratio < low)
        slope = 0.0 if moved else ratio * advantage
        if weighting == "dual" and advantage < 0 and ratio > dual:
            return dual * advantage, 0.0
        return value, slope
    tau = 1.0 if advantage > 0 else 1.05
    gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
    return gate * 4 / tau * advantage, 4 * gate * (1 - gate) * ratio * advantage


LOG_RATIOS = [[0.1, -0.4, 1.3], [0.6, -0.9, 0.0], [1.5, 0.0, 0.0], [-0.3, -0.2, 0.0]]
LOSS_LENGTHS = [[3, 2, 1, 2]]
WEIGHTS = [0.5, 0.25, 2.0, 1.0]


@pytest.mark.parametrize("advantage", [0.7, -1.5])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("ratio", RATIOS)
def test_loss_and_gradient(ratio: str, weighting: str, advantage: float) -> None:
    """The value and the gradient of every surrogate for every ratio, from the formulas of the papers row by row.

    token: PPO; sequence: the product, once a response; sequence_mean: GSPO, whose token gets 1/L of the response's
    gradient; sequence_mean_token: GSPO-token, where it gets its own.
    """
    mask = mask_of(LOSS_LENGTHS)[0]
    old = -1 - torch.rand(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    logprobs = (old + tensor(LOG_RATIOS)).requires_grad_()
    weights = tensor(WEIGHTS)[:, None].expand(4, 3)
    loss = loss_of(
        f"loss_{ratio}_{weighting}", logprobs, old, torch.full((4, 3), advantage, dtype=torch.float64), weights, mask
    )
    (gradient,) = torch.autograd.grad(loss, logprobs)
    value, slopes = 0.0, []
    for row, length, weight in zip(range(4), LOSS_LENGTHS[0], WEIGHTS, strict=True):
        x = LOG_RATIOS[row][:length]
        of_token = {"token": x, "sequence": [sum(x)] * length}.get(ratio, [sum(x) / length] * length)
        if weighting == "detached":  # sg[clip(ratio)] A log pi, for every ratio
            pi = [min(max(math.exp(r), 0.8), 1.3) for r in of_token]
            value += weight * sum(p * advantage * logprobs[row, t].item() for t, p in enumerate(pi))
            slopes.append([weight * p * advantage for p in pi] + [0.0] * (3 - length))
            continue
        pairs = [surrogate_slope(weighting, math.exp(r), advantage) for r in of_token]
        once = 1 / length if ratio == "sequence" else 1.0  # the response counts once, not once a token
        value += weight * once * sum(v for v, _ in pairs)
        slope = [s for _, s in pairs]
        if ratio == "sequence":
            slope = [slope[0]] * length
        slopes.append([weight * s for s in slope] + [0.0] * (3 - length))
    near(loss.item(), -value)
    near(gradient.tolist(), (-tensor(slopes)).tolist())


def test_clip_is_one_sided_and_dual_is_for_negative_advantages() -> None:
    """Law 15: A = 1, ratio .5: loss -.5, whatever the dual. A = -1, ratio 10: 3 with a dual of 3, and 10 without."""
    one = torch.ones(1, 1, dtype=torch.float64)

    def loss(name: str, ratio: float, advantage: float) -> float:
        logprobs = (math.log(ratio) * one).requires_grad_()
        return loss_of(f"loss_token_{name}", logprobs, 0 * one, advantage * one, one, one.bool()).item()

    near([loss("dual", 0.5, 1.0), loss("dual", 10.0, -1.0), loss("clip", 10.0, -1.0)], [-0.5, 3.0, 10.0])


def test_where_the_clip_takes_the_gradient() -> None:
    """Exactly on {A > 0, ratio > 1 + high} and {A < 0, ratio < 1 - low}, which is also what is counted."""
    module = scripts()["loss_token_clip"]
    ratios = tensor([[0.5, 0.79, 0.81, 1.0, 1.29, 1.31, 5.0]])
    one = torch.ones_like(ratios)
    for advantage, dead in ((1.0, [5, 6]), (-1.0, [0, 1]), (0.0, [])):
        logprobs = ratios.log().requires_grad_()
        loss = module.policy_loss(logprobs, 0 * one, None, advantage * one, one, one.bool(), module.Args())
        (gradient,) = torch.autograd.grad(loss, logprobs)
        near(gradient.tolist(), [-advantage * r * (i not in dead) for i, r in enumerate(ratios[0].tolist())])
        counted = module.count_clipped(logprobs, 0 * one, advantage * one, one.bool(), module.Args()).tolist()
        assert counted == [2 * (advantage < 0), 2 * (advantage > 0)]


def test_masked_log_ratios_are_masked_before_the_exponential() -> None:
    """Law 1: a log-ratio of (0, 0, 200) with mask (1, 1, 0), and old log-probs (0, NaN) with mask (1, 0)."""
    for ratio in RATIOS:
        for weighting in WEIGHTINGS:
            for pad in (200.0, NAN, -math.inf):
                logprobs = tensor([[0.0, 0.0, 200.0]]).requires_grad_()
                old, mask = tensor([[0.0, 0.0, pad]]), torch.tensor([[True, True, False]])
                one = torch.ones(1, 3, dtype=torch.float64)
                loss = loss_of(f"loss_{ratio}_{weighting}", logprobs, old, one, one, mask)
                (gradient,) = torch.autograd.grad(loss, logprobs)
                near(gradient.tolist(), [[-1.0, -1.0, 0.0]])


@pytest.mark.parametrize("unit", ["token", "sequence"])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_in_the_loss(estimator: str, unit: str) -> None:
    """beta times the estimate, and its derivative in log pi: 1, x, 1 - exp(-x); of a response, at the sum of its x."""
    ratios, lengths, weights, beta = [[0.4, -0.2, 0.3], [0.1, 0.6, 9.0]], [3, 2], [0.5, 2.0], 0.5
    mask = mask_of([lengths])[0]
    logprobs = (-1 + 0.1 * torch.arange(6, dtype=torch.float64).view(2, 3)).requires_grad_()
    ref, zero = logprobs.detach() - tensor(ratios), torch.zeros(2, 3, dtype=torch.float64)
    loss = loss_of(
        f"loss_kl_{estimator}_{unit}", logprobs, zero, zero, tensor(weights)[:, None].expand(2, 3), mask, ref
    )
    (gradient,) = torch.autograd.grad(loss, logprobs)
    value, slopes = 0.0, []
    slope_of = {"k1": lambda x: 1.0, "k2": lambda x: x, "k3": lambda x: 1 - math.exp(-x)}[estimator]
    for row, length, weight in zip(ratios, lengths, weights, strict=True):
        x = row[:length]
        points = x if unit == "token" else [sum(x)]
        value += weight * beta * sum(estimate(estimator, point) for point in points)
        slope = [weight * beta * slope_of(point) for point in points]
        slopes.append((slope if unit == "token" else slope * length) + [0.0] * (3 - length))
    near(loss.item(), value)
    near(gradient.tolist(), slopes)


def test_entropy_bonus() -> None:
    """It is subtracted from the loss with its coefficient and the token's weight, and only under the mask."""
    mask = torch.tensor([[True, True, False]])
    entropies = tensor([[2.0, 1.0, NAN]]).requires_grad_()
    logprobs, weights = tensor([[-1.0, -2.0, -3.0]]).requires_grad_(), tensor([[0.5, 0.5, 0.5]])
    loss = loss_of("loss_entropy", logprobs, logprobs.detach(), weights * 0 + 3.0, weights, mask, entropies=entropies)
    near(loss.item(), 0.5 * 3 * (1 + 2) - 0.5 * 0.1 * (2 + 1))  # -A log pi, and -0.1 H
    gradients = torch.autograd.grad(loss, (logprobs, entropies))
    near([gradient.tolist() for gradient in gradients], [[[-1.5, -1.5, 0.0]], [[-0.05, -0.05, 0.0]]])


def test_gradients_against_finite_differences() -> None:
    """Every loss of this file once more, away from the kinks, against (f(x + h) - f(x - h)) / 2h."""
    generator = torch.Generator().manual_seed(4)
    mask, step = mask_of([[3, 2]])[0], 1e-6
    old = -1 - torch.rand(2, 3, dtype=torch.float64, generator=generator)
    adv, weights = tensor([[0.7] * 3, [-1.5] * 3]), tensor([[0.5] * 3, [0.25] * 3])
    for name in SPECS:
        # what a weight that is detached does to the value is not in its gradient
        if name.startswith("loss_") and "detached" not in name and "mean_token" not in name and name != "loss_entropy":
            x = old + tensor([[0.11, -0.37, 0.05], [0.23, -0.08, 0.0]])
            ref = old - 0.2
            point = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(loss_of(name, point, old, adv, weights, mask, ref), point)
            for index in ((0, 0), (0, 2), (1, 1), (1, 2)):
                up, down = x.clone(), x.clone()
                up[index] += step
                down[index] -= step
                above, below = (loss_of(name, moved, old, adv, weights, mask, ref) for moved in (up, down))
                slope = (above - below) / (2 * step)
                assert gradient[index].item() == pytest.approx(slope.item(), rel=1e-6, abs=1e-8), (name, index)


def test_the_first_step_is_the_same_for_all() -> None:
    """At ratio 1 the gradient is -w A for every ratio and every weighting: a difference on step 1 is not theirs."""
    mask = mask_of([[3, 2]])[0]
    weights, adv = tensor([[0.5] * 3, [0.25] * 3]), tensor([[0.7] * 3, [-1.5] * 3])
    for ratio in RATIOS:
        for weighting in WEIGHTINGS:
            logprobs = tensor([[-1.0, -0.5, -2.0], [-0.1, -3.0, -1.0]]).requires_grad_()
            loss = loss_of(f"loss_{ratio}_{weighting}", logprobs, logprobs.detach(), adv, weights, mask)
            (gradient,) = torch.autograd.grad(loss, logprobs)
            near(gradient.tolist(), (-weights * adv * mask).tolist())
