"""What moves between the steps, and what is in the loss beside the advantage: numbers by hand and in closed form."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest
import torch
from strategies import script_of
from torch import Tensor

from specc.derive import derive
from specc.load import findings_of
from specc.plan import Plan
from specc.spec import Spec
from specc.verify.enumerate import population, population_batch
from specc.verify.environment import Environment, coin, in_proportion
from specc.verify.laws import check_laws, make_batch
from specc.verify.penalty import judge_penalty
from specc.verify.run import verify
from specc.verify.script import Script
from specc.verify.verdict import KINDS, find_weight, judge

NAN = math.nan
ADAPTIVE = {"adaptive": {"initial": 0.2, "target": 6.0, "horizon": 10_000.0}}


def spec_of(k: int = 4, **parts: Any) -> Spec:
    """REINFORCE with other answers; `objective` is a part of it, and `sampling` beside the group size."""
    objective = {"quantity": "sequence_advantage", "aggregation": "seq_mean_token_sum", **parts.pop("objective", {})}
    sampling = {"group_size": k, **parts.pop("sampling", {})}
    plain = {"name": "plain", "reward": "verifier", "kl": "none", "baseline": "none", "normalization": "none"}
    return Spec.model_validate({**plain, **parts, "objective": objective, "sampling": sampling})


def module_of(spec: Spec) -> ModuleType:
    return script_of(spec).module


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def verdicts(spec: Spec) -> tuple[str, str]:
    """By the rules, after enumeration has said the same of both kinds of rewards, of reused batches and of the KL."""
    script, derived, size = script_of(spec), derive(spec), spec.sampling.group_size
    weight = find_weight(script, size, script.with_numbers(kl_coefficient=0.0))
    for kind in KINDS:
        first = judge(script, kind, size, weight=weight)
        later = judge(script, kind, size, reused=True, weight=weight, coupled=not first.exact)
        assert getattr(derived, kind) == first.verdict, kind
        assert getattr(derived, f"off_policy_{kind}") == later.verdict, kind
    rule, found = derived.penalty, judge_penalty(script, size)
    assert (rule and (rule.kind, rule.weighting)) == (found and (found.kind, found.weighting))
    return derived.binary, derived.real


# -------- the adaptive coefficient --------


def step_of(
    module: ModuleType, log_ratios: list[list[float]], rewards: list[list[float]], state: Any, **hp: Any
) -> Any:
    """update_state on two-token responses with these log-ratios of the whole response; NaN is an empty response."""
    whole = tensor(log_ratios)
    mask = whole.isfinite()[..., None].expand(*whole.shape, 2)
    old = torch.stack([whole / 4 - 1, 3 * whole / 4 - 2], dim=-1)
    reference = tensor([-1.0, -2.0]).expand(old.shape)
    rollouts = module.Rollouts(tensor(rewards), mask, old, reference, state=state)
    return module.update_state(rollouts, module.Args(**hp))


@pytest.mark.parametrize("placement", ["reward", "loss"])
def test_the_controller_of_ziegler_et_al(placement: str) -> None:
    """error = clip(KL / target - 1, -.2, .2); coefficient (1 + error n / horizon)."""
    spec = spec_of(2, kl={"placement": placement, "estimator": "k1", "coefficient": ADAPTIVE}, baseline="leave_one_out")
    module = module_of(spec)
    numbers = {"kl_adaptive_initial": 0.5, "kl_adaptive_target": 2.0, "kl_adaptive_horizon": 40.0}
    ones = [[1.0, 0.0], [0.0, 1.0]]
    first = step_of(module, [[2.0, 2.2], [2.4, 2.2]], ones, {}, **numbers)  # a KL of 2.2, an error of 0.1
    assert first.keys() == {"kl_coefficient"}
    assert float(first["kl_coefficient"]) == pytest.approx(0.5 * (1 + 0.1 * 4 / 40), rel=1e-12)
    high = step_of(module, [[9.0, 9.0], [9.0, 9.0]], ones, first, **numbers)
    assert float(high["kl_coefficient"]) == pytest.approx(float(first["kl_coefficient"]) * (1 + 0.2 * 4 / 40))
    low = step_of(module, [[-3.0, 0.0], [0.0, 0.0]], ones, high, **numbers)
    assert float(low["kl_coefficient"]) == pytest.approx(float(high["kl_coefficient"]) * (1 - 0.2 * 4 / 40))
    # Neither a response without a score nor an empty one is measured or counted.
    some = step_of(module, [[2.2, 50.0], [NAN, 2.2]], [[1.0, NAN], [1.0, 0.0]], {}, **numbers)
    assert float(some["kl_coefficient"]) == pytest.approx(0.5 * (1 + 0.1 * 2 / 40), rel=1e-12)
    none = step_of(module, [[2.2, 50.0], [9.0, 9.0]], [[NAN, NAN], [NAN, NAN]], low, **numbers)
    assert torch.equal(none["kl_coefficient"], low["kl_coefficient"])
    short = step_of(module, [[0.0, 0.0], [0.0, 0.0]], ones, {}, **numbers | {"kl_adaptive_horizon": 0.1})
    assert float(short["kl_coefficient"]) == 0.25  # halved, and not turned


def test_the_coefficient_in_force_is_that_of_the_past() -> None:
    batch = make_batch(3, 2, 2, 3)
    log_ratio = (batch.old_logprobs_BGT - batch.ref_logprobs_BGT).masked_fill(~batch.mask_BGT, 0.0).sum(-1)
    spec = spec_of(2, kl={"placement": "reward", "coefficient": ADAPTIVE})
    module = module_of(spec)
    for state, beta in (({}, 0.2), ({"kl_coefficient": tensor(0.7)}, 0.7)):
        found = module.compute_advantages(batch.rollouts(module, state=state), module.Args())
        wanted = (batch.rewards_BG - beta * log_ratio)[..., None] * batch.mask_BGT
        assert torch.allclose(found, wanted, rtol=1e-12)
    spec = spec_of(2, kl={"placement": "loss", "estimator": "k2", "coefficient": ADAPTIVE})
    module = module_of(spec)
    tensors = (batch.logprobs_BGT, batch.old_logprobs_BGT, batch.ref_logprobs_BGT)
    rows = [x.flatten(0, 1) for x in (*tensors, torch.zeros_like(batch.logprobs_BGT), batch.mask_BGT.double())]
    mask = batch.mask_BGT.flatten(0, 1)
    loss = module.policy_loss(*rows, mask, module.Args(), kl_coefficient=tensor(0.7))
    assert float(loss) == pytest.approx(0.35 * float((rows[0] - rows[2])[mask].square().sum()), rel=1e-12)


@pytest.mark.parametrize("placement", ["reward", "loss"])
@pytest.mark.parametrize("baseline", ["leave_one_out", "moving_average"])
def test_a_moving_coefficient_is_a_number_of_the_past(placement: str, baseline: str) -> None:
    """The verdicts, KL part included, are those of the same spec with a constant coefficient; and the laws hold."""
    given = {"placement": placement, "estimator": "k1" if placement == "reward" else "k2", "unit": "sequence"}
    specs = [spec_of(2, kl={**given, "coefficient": beta}, baseline=baseline) for beta in (0.3, ADAPTIVE)]
    assert verdicts(specs[0]) == verdicts(specs[1]) == ("unbiased", "unbiased")
    assert derive(specs[0]).penalty == derive(specs[1]).penalty
    script = script_of(specs[1])
    assert [law for law in check_laws(script, batches=3) if law.verdict == "broken"] == []
    assert script.has_kl and judge_penalty(script, 2).factor == pytest.approx(1.0)


def test_numbers_that_are_carried_are_set_like_others() -> None:
    script = script_of(spec_of(2, kl={"placement": "reward", "coefficient": ADAPTIVE}))
    world = in_proportion("real")[0]
    none, once, twice = (
        population(script, world, 2, script.with_numbers(kl_coefficient=beta)) for beta in (0.0, 1.0, 2.0)
    )
    assert torch.allclose(none, world.tables.gradient)
    assert torch.allclose(twice - once, once - none) and float((once - none).norm()) > 0.1


# -------- the reference --------


def test_the_reference_is_the_policy_of_every_nth_step() -> None:
    from templates.kl.refreshed import reference_step

    assert [reference_step(step, refresh_every=3) for step in range(8)] == [0, 0, 0, 3, 3, 3, 6, 6]
    plan = Plan(spec_of(kl={"placement": "loss", "coefficient": 0.1, "reference": {"refresh_every": 3}}))
    assert "kl_refresh_every" in {parameter.argument for parameter in plan.parameters}
    assert [parameter.argument for parameter in plan.estimator_parameters] == ["kl_coefficient"]
    with pytest.raises(ValueError, match="reference"):
        spec_of(kl={"placement": "none", "reference": "initial"})


# -------- bounds of the tokens' ratios --------


def gmpo(ratio: str, **numbers: float) -> ModuleType:
    return module_of(spec_of(objective={"ratio": ratio, "token_clip": numbers, "aggregation": "seq_mean_token_mean"}))


@pytest.mark.parametrize("advantage", [1.5, -1.5])
@pytest.mark.parametrize("ratio", ["sequence", "sequence_mean"])
def test_each_tokens_ratio_is_bounded_before_the_product(ratio: str, advantage: float) -> None:
    """A exp(sum of min(x, high) / L) where A > 0, and of max(x, -low) where A < 0; what is free has a gradient."""
    module, x = gmpo(ratio, low=0.3, high=0.5), tensor([[0.2, 0.9, -0.7, 50.0]])
    mask = torch.tensor([[True, True, True, False]])
    old = tensor([[-1.0, -2.0, -1.5, 0.0]])
    logprobs = (old + x).requires_grad_()
    advantages, weights = torch.full_like(old, advantage), tensor([[1 / 3, 1 / 3, 1 / 3, 9.0]])
    loss = module.policy_loss(logprobs, old, None, advantages, weights, mask, module.Args())
    (gradient,) = torch.autograd.grad(loss, logprobs)
    free = [True, False, True] if advantage > 0 else [True, True, False]
    total = 0.2 + 0.5 - 0.7 if advantage > 0 else 0.2 + 0.9 - 0.3
    value = advantage * (math.exp(total / 3) if ratio == "sequence_mean" else math.exp(total) / 3)
    slope = value / 3 if ratio == "sequence_mean" else value
    assert loss.item() == pytest.approx(-value, rel=1e-12)
    assert gradient[0].tolist() == pytest.approx([-slope * there for there in free] + [0.0], rel=1e-12)
    counted = module.count_clipped(logprobs.detach(), old, advantages, mask, module.Args())
    assert counted.tolist() == ([0, 1] if advantage > 0 else [1, 0])


def test_the_first_step_of_gmpo_is_that_of_the_mean_over_tokens() -> None:
    bounded = spec_of(baseline="group_mean", objective={"ratio": "sequence_mean", "token_clip": {}})
    plain = spec_of(baseline="group_mean", objective={"ratio": "none", "aggregation": "seq_mean_token_sum"})
    world = in_proportion("real")[0]
    left, right = (population(script_of(spec), world, 2) for spec in (bounded, plain))
    assert torch.allclose(left, right, rtol=1e-12)  # the gradient of each response's mean log-ratio, over its tokens


@pytest.mark.parametrize("high", [0.4, 2.0])
@pytest.mark.parametrize("ratio", ["sequence", "sequence_mean"])
def test_bounds_of_tokens_are_judged(ratio: str, high: float) -> None:
    spec = spec_of(2, baseline="leave_one_out", objective={"ratio": ratio, "token_clip": {"high": high}})
    assert verdicts(spec) == ("unbiased", "unbiased")
    assert derive(spec).off_policy_binary == "biased"
    assert [law for law in check_laws(script_of(spec), batches=3) if law.verdict == "broken"] == []


def test_bounds_of_tokens_need_a_product() -> None:
    for ratio, slug in (("none", "clip-without-ratio"), ("token", "token-clip-without-product")):
        found = findings_of(spec_of(objective={"ratio": ratio, "token_clip": {}}))
        assert slug in {finding.slug for finding in found}
    both = findings_of(spec_of(objective={"ratio": "sequence", "token_clip": {}, "clip": {}}))
    assert "two-weightings" in {finding.slug for finding in both}


# -------- the std of the returns --------


def spread(values: list[float], ddof: int = 1) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - ddof))


def test_the_std_of_the_returns_by_hand() -> None:
    rewards = [[1.0, 0.0, 4.0], [2.0, 5.0, NAN]]
    mask = torch.ones(2, 3, 1, dtype=torch.bool)

    def advantages(scope: str, baseline: str, **more: Any) -> Any:
        module = module_of(spec_of(3, baseline=baseline, normalization={"scope": scope, "std_of": "returns"}))
        found = module.compute_advantages(
            module.Rollouts(tensor(rewards), mask, **more), module.Args(normalization_epsilon=0.5)
        )
        return found[..., 0].tolist()

    others = [[1.0 - 2.0, 0.0 - 2.5, 4.0 - 0.5], [2.0 - 5.0, 5.0 - 2.0, 0.0]]
    stds = [spread([1.0, 0.0, 4.0]), spread([2.0, 5.0])]
    for found, row, std in zip(advantages("group", "leave_one_out"), others, stds, strict=True):
        assert found == pytest.approx([a / (std + 0.5) for a in row], rel=1e-12)
    std = spread([1.0, 0.0, 4.0, 2.0, 5.0])
    for found, row in zip(advantages("batch", "leave_one_out"), others, strict=True):
        assert found == pytest.approx([a / (std + 0.5) for a in row], rel=1e-12)
    past = {"returns_count": tensor(4.0), "returns_mean": tensor(1.0), "returns_squares": tensor(12.0)}
    for found, row in zip(advantages("running", "leave_one_out", state=past), others, strict=True):
        assert found == pytest.approx([a / (2.0 + 0.5) for a in row], rel=1e-12)


def test_the_past_returns_are_merged() -> None:
    module = module_of(
        spec_of(
            2, baseline="group_mean", normalization={"scope": "running", "std_of": "returns", "subtract_mean": True}
        )
    )
    state: dict[str, Tensor] = {}
    for rewards in ([[1.0, 3.0]], [[10.0, NAN]], [[-2.0, 0.5]]):
        mask = torch.ones(1, 2, 3, dtype=torch.bool)
        state = module.update_state(module.Rollouts(tensor(rewards), mask, state=state), module.Args())
    every = [1.0, 3.0, 10.0, -2.0, 0.5]
    assert float(state["returns_count"]) == 5
    assert float(state["returns_mean"]) == pytest.approx(sum(every) / 5)
    assert float(state["returns_squares"]) == pytest.approx(4 * spread(every) ** 2)
    assert float(state["mean"]) == pytest.approx(0.0) and float(state["count"]) == 5  # of the advantages


@pytest.mark.parametrize("k", [2, 3, 4, 6])
@pytest.mark.parametrize("ddof", [0, 1])
def test_leave_one_out_over_the_std_of_the_rewards(k: int, ddof: int) -> None:
    """w(p) = E[(1 - b) / s_(j + 1) + b / s_j], b = j / (k - 1), s_K the std of K ones and k - K zeros, or 1."""
    normalization = {"scope": "group", "std_of": "returns", "ddof": ddof, "epsilon": 0.0}
    spec = spec_of(k, baseline="leave_one_out", normalization=normalization)

    def s(K: int) -> float:
        return spread([1.0] * K + [0.0] * (k - K), ddof) or 1.0

    def w(p: float) -> float:
        terms = (
            math.comb(k - 1, j) * p**j * (1 - p) ** (k - 1 - j)
            * ((1 - j / (k - 1)) / s(j + 1) + j / (k - 1) / s(j))
            for j in range(k)
        )  # fmt: skip
        return math.fsum(terms)

    weight = find_weight(script_of(spec), k, script_of(spec).hp)
    for p in (0.05, 0.3, 0.5, 0.9):
        assert weight.at(p) == pytest.approx(w(p), rel=1e-9)
        assert derive(spec).weight.at(p) == pytest.approx(w(p), rel=1e-9)
    assert verdicts(spec) == ("proportional" if k <= 3 else "reweighted", "biased")


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("scope", ["group", "batch", "running"])
@pytest.mark.parametrize("baseline", [{"source": "length_weighted", "leave_one_out": True}, {"source": "group_mean"}])
def test_verdicts_on_the_std_of_the_returns(baseline: dict[str, Any], scope: str, k: int) -> None:
    spec = spec_of(k, baseline=baseline, normalization={"scope": scope, "std_of": "returns"})
    if errors := [finding for finding in findings_of(spec) if not finding.warning]:
        assert (scope, baseline["source"]) == ("group", "group_mean") and errors[0].slug == "dead-option"
        return
    binary = {"group": "proportional" if k <= 3 else "reweighted", "batch": "asymptotic", "running": "proportional"}
    real = {"group": "biased", "batch": "asymptotic", "running": "proportional"}
    assert verdicts(spec) == (binary[scope], real[scope])
    assert [law for law in check_laws(script_of(spec), batches=3) if law.verdict == "broken"] == []


# -------- the likelihood of correct responses --------

NLL = {"positive_nll": {"coefficient": 0.25}}


def test_the_likelihood_of_correct_responses_by_hand() -> None:
    module = module_of(spec_of(2, objective=NLL))
    mask = torch.arange(3) < torch.tensor([[3, 1], [2, 2]])[..., None]
    weights = module.likelihood_weights(tensor([[1.0, -1.0], [0.0, 0.5]]), mask)
    assert weights.tolist() == [[[0.2] * 3, [0.0] * 3], [[0.0] * 3, [0.2, 0.2, 0.0]]]
    assert module.likelihood_weights(tensor([[NAN, -1.0], [0.0, 0.0]]), mask).tolist() == [[[0.0] * 3] * 2] * 2
    rows, logprobs = mask.flatten(0, 1), torch.full((4, 3), NAN, dtype=torch.float64)
    logprobs = logprobs.masked_fill(rows, -2.0).requires_grad_()
    none = torch.zeros(4, 3, dtype=torch.float64)
    given = (logprobs, logprobs.detach(), None, none, none, rows, module.Args())
    loss = module.policy_loss(*given, likelihood_weights=weights.flatten(0, 1))
    assert float(loss) == pytest.approx(0.25 * 2.0)
    (slope,) = torch.autograd.grad(loss, logprobs)
    assert torch.allclose(slope, -0.25 * weights.flatten(0, 1).masked_fill(~rows, 0.0))


def mean_tokens(world: Environment, correct: Tensor) -> float:
    """The tokens of correct responses over all responses, in a batch with the prompts as often as `population` has."""
    share = population_batch(world, 2)[2]
    of_prompt = (world.tables.probs * correct * world.tree.lengths).sum(-1)
    return float((of_prompt * share).sum() / share.sum())


@pytest.mark.parametrize("aggregation", ["seq_mean_token_sum", "token_mean"])
def test_it_adds_the_gradient_of_the_success_rate(aggregation: str) -> None:
    """In large batches coefficient / (mean tokens of correct responses) grad p, the same for all prompts."""
    script = script_of(spec_of(2, baseline="leave_one_out", objective={"aggregation": aggregation, **NLL}))
    for world in in_proportion("binary"):
        tables = world.tables
        tokens = mean_tokens(world, tables.rewards)
        without = population(script, world, 2, script.with_numbers(positive_nll_coefficient=0.0))
        added = population(script, world, 2) - without
        assert torch.allclose(added, 0.25 / tokens * tables.gradient, rtol=1e-9, atol=1e-12)


def test_it_counts_positive_rewards_of_any_size_alike() -> None:
    script = script_of(spec_of(2, objective=NLL))
    world = in_proportion("real")[0]
    tables = world.tables
    correct = (tables.rewards > 0).double()
    tokens = mean_tokens(world, correct)
    without = population(script, world, 2, script.with_numbers(positive_nll_coefficient=0.0))
    wanted = torch.einsum("bm,bm,bmtp->bp", tables.probs, correct, tables.scores) * 0.25 / tokens
    assert torch.allclose(population(script, world, 2) - without, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("parts", "binary"),
    [
        ({"baseline": "leave_one_out"}, "asymptotic"),
        ({"baseline": "group_mean", "objective": {"aggregation": "token_mean"}}, "asymptotic"),
        ({"baseline": "group_mean", "normalization": {"scope": "group"}}, "reweighted"),
        ({"baseline": "group_mean", "normalization": {"scope": "batch"}}, "asymptotic"),
        ({"baseline": "group_mean", "objective": {"aggregation": "seq_mean_token_mean"}}, "biased"),
        ({"baseline": "none", "objective": {"ratio": "sequence"}}, "asymptotic"),
        ({"kl": {"placement": "reward", "coefficient": 0.1}, "normalization": {"scope": "batch"}}, "asymptotic"),
    ],
)
def test_verdicts_with_the_likelihood_of_correct_responses(parts: dict[str, Any], binary: str) -> None:
    objective = {**parts.get("objective", {}), **NLL}
    spec = spec_of(**{**parts, "objective": objective})
    assert verdicts(spec) == (binary, "biased")
    derived = derive(spec)
    assert derived.weight is None and (derived.off_policy_binary, derived.off_policy_real) == ("biased", "biased")
    assert [law for law in check_laws(script_of(spec), batches=2) if law.verdict == "broken"] == []


def test_a_wrong_sign_is_not_made_up_for() -> None:
    """Where the rest turns the gradient round for some prompts, the term may or may not outweigh it."""
    normalization = {"scope": "group", "divide_by": "mean", "epsilon": 0.1}
    rest = spec_of(3, baseline={"source": "constant", "value": -4.0}, normalization=normalization)
    assert verdicts(rest)[0] == "biased"
    strong = rest.objective.model_dump(exclude_none=True) | {"positive_nll": {"coefficient": 50.0}}
    with_term = Spec.model_validate(rest.model_dump(exclude_none=True) | {"objective": strong})
    assert verdicts(with_term)[0] == "biased"


def test_what_is_said_of_the_likelihood() -> None:
    derived = derive(spec_of(2, baseline="group_mean", objective=NLL))
    assert derived.factor == "(k - 1)/k + 0.25/(mean tokens of correct responses)" and derived.value() is None
    assert "c = (k - 1)/k + 0.25/(mean tokens" in derived.said("binary")
    assert derived.variance == ""


def test_a_broken_term_is_found() -> None:
    """Rules and enumeration differ where the weights are over the tokens of all responses of the prompt."""
    spec = spec_of(2, baseline="leave_one_out", objective=NLL)
    script = script_of(spec)
    source = script.module.likelihood_weights

    def by_length(rewards_BG: Tensor, mask_BGT: Tensor) -> Tensor:
        return source(rewards_BG, mask_BGT) / mask_BGT.sum(-1, keepdim=True).clamp(min=1)

    script.module.likelihood_weights = by_length
    assert isinstance(script, Script)
    assert judge(script, "binary", 2).verdict == "biased"
    assert "every_number_acts" in {law.law.name for law in check_laws(script, batches=2) if law.verdict == "broken"}


def test_the_report_has_no_weight_for_a_term_of_the_batch() -> None:
    spec = spec_of(4, baseline="group_mean", normalization={"scope": "group"}, objective=NLL)
    found = verify(script_of(spec), 4)
    assert found.weight is None and found.disagreements == [] and found.overall == "reweighted"


def test_one_response_in_all_says_nothing_of_a_batch_mean() -> None:
    """(kB - 1)/(kB) is 0 there: the batch mean is the response's own return."""
    spec = spec_of(1, baseline="batch_mean")
    found = verify(script_of(spec), 1)
    assert found.overall == "proportional" and found.disagreements == []
    assert float(population(script_of(spec), coin((1, 1)), 1).norm()) > 0
