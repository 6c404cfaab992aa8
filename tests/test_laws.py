"""The laws: what every script obeys, the shipped ones and those of specs drawn at random.

Most faults that users of RL trainers report break one of them. A law takes a script as a module, its plan and a batch
of rollouts in float64, and asserts; it holds for every spec without knowing its answers' names.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch
from conftest import ALGORITHMS, ROOT, generated
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from strategies import GROUP_SIZES, Batch, batches, every_spec, make_batch, script_of, specs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specc.answers import QUESTIONS
from specc.answers.base import leaves
from specc.load import load_spec
from specc.plan import Plan
from specc.spec import Spec

Law = Callable[[ModuleType, Plan, Batch], None]

LAWS: list[Law] = []
TIGHT = {"rtol": 1e-12, "atol": 1e-12}
GARBAGE = (math.nan, math.inf, -math.inf, 200.0)


def law(check: Law) -> Law:
    LAWS.append(check)
    return check


# -------- What the laws look at --------


def loss(module: ModuleType, plan: Plan, batch: Batch, advantages: Tensor, weights: Tensor, logprobs: Tensor) -> Tensor:
    """`policy_loss` of all rows of the batch. Everything is [B, G, T], or [rows, T]."""
    tensors = (logprobs, batch.old_logprobs_BGT, batch.ref_logprobs_BGT, advantages, weights, batch.mask_BGT)
    entropies = {"entropies": batch.entropies_BGT.flatten(0, -2)} if plan.entropy_bonus else {}
    return module.policy_loss(*(x.flatten(0, -2) for x in tensors), module.Args(), **entropies)


def loss_and_gradient(
    module: ModuleType, plan: Plan, batch: Batch, advantages: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss and its gradient with respect to the log-probs, of the batch's shape."""
    logprobs = batch.logprobs_BGT.detach().requires_grad_()
    value = loss(module, plan, batch, advantages, weights, logprobs)
    if not value.requires_grad:
        return value, torch.zeros_like(logprobs)
    (gradient,) = torch.autograd.grad(value, logprobs, allow_unused=True)
    return value.detach(), torch.zeros_like(logprobs) if gradient is None else gradient


def estimate(module: ModuleType, plan: Plan, batch: Batch) -> dict[str, Tensor]:
    """Everything that the estimator says about a batch."""
    hp = module.Args()
    advantages = module.compute_advantages(batch.rollouts(module), hp)
    weights = module.aggregation_weights(batch.mask_BGT, hp)
    value, gradient = loss_and_gradient(module, plan, batch, advantages, weights)
    state = module.update_state(batch.rollouts(module), hp) if plan.state_updates else {}
    return {"advantages": advantages, "weights": weights, "loss": value, "gradient": gradient, **state}


def close(left: Tensor, right: Tensor, what: str = "") -> None:
    torch.testing.assert_close(left, right, **TIGHT, msg=lambda text: f"{what}: {text}")


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        close(left[name], right[name], name)


def spoiled(batch: Batch, garbage: float) -> Batch:
    """The batch with garbage in every masked position."""
    tokens = {name: tensor for name, tensor in batch._asdict().items() if name.endswith("_BGT") and name != "mask_BGT"}
    return batch._replace(**{name: tensor.masked_fill(~batch.mask_BGT, garbage) for name, tensor in tokens.items()})


def reindexed(batch: Batch, prompts: Tensor, responses: Tensor) -> Batch:
    """The batch with its prompts and, in each prompt, its responses in another order. [B], [B, G]."""
    moved = {
        name: tensor[prompts[:, None], responses]
        for name, tensor in batch._asdict().items()
        if name[-3:] in ("_BG", "BGT")
    }
    return batch._replace(**moved, greedy_rewards_B=batch.greedy_rewards_B[prompts])


def ignores_constants(plan: Plan) -> bool:
    """Whether adding a constant to all rewards must leave the advantages alone."""
    return plan.spec.baseline.reads_returns and getattr(plan.spec.normalization, "divisor", "none") != "mean"


def ignores_scale(plan: Plan) -> bool:
    """Whether multiplying all rewards must leave the advantages alone, with an epsilon of 0."""
    free = plan.spec.baseline.reads_returns or not plan.has_baseline
    return free and plan.spec.normalization.divides and not (plan.normalization_state or plan.kl_in_reward)


def is_constant(plan: Plan) -> bool:
    """Whether equal rewards must give an advantage of exactly 0."""
    return plan.spec.baseline.reads_returns and not plan.kl_in_reward and not plan.normalization_state


# -------- The laws --------


@law
def masked_positions_do_not_exist(module: ModuleType, plan: Plan, batch: Batch) -> None:
    """Law 1: NaN, infinities and large numbers there change nothing at all, forward and backward."""
    clean = estimate(module, plan, spoiled(batch, 0.0))
    assert all(value.isfinite().all() for value in clean.values())
    assert not clean["gradient"][~batch.mask_BGT].any()
    for garbage in GARBAGE:
        dirty = estimate(module, plan, spoiled(batch, garbage))
        assert all(torch.equal(dirty[name], clean[name]) for name in clean), garbage
        given = (clean[name].masked_fill(~batch.mask_BGT, garbage) for name in ("advantages", "weights"))
        value, gradient = loss_and_gradient(module, plan, spoiled(batch, garbage), *given)
        assert torch.equal(value, clean["loss"]) and torch.equal(gradient, clean["gradient"])


@law
def padding_does_not_exist(module: ModuleType, plan: Plan, batch: Batch) -> None:
    """Law 2: the same rows padded to twice the length."""
    tokens = batch.mask_BGT.shape[-1]
    padded = {
        name: torch.nn.functional.pad(tensor, (0, tokens), value=False if tensor.dtype == torch.bool else 7.0)
        for name, tensor in batch._asdict().items()
        if name.endswith("_BGT")
    }
    short, long = estimate(module, plan, batch), estimate(module, plan, batch._replace(**padded))
    for name in ("advantages", "weights", "gradient"):
        assert not long[name][..., tokens:].any()
        long[name] = long[name][..., :tokens]
    same(long, short)


@law
def splits_do_not_exist(module: ModuleType, plan: Plan, batch: Batch) -> None:
    """Law 3: rows one by one, cut after their own last token, and rows in two parts add up to the whole."""
    whole = estimate(module, plan, batch)
    rows, longest = batch.mask_BGT.flatten(0, 1).sum(-1), batch.mask_BGT.shape[-1]
    count = len(rows)
    parts = [(torch.tensor([row]), max(int(rows[row]), 1)) for row in range(count)]
    halves = [(torch.arange(count)[start::2], longest) for start in range(min(2, count))]
    for partition in (parts, halves):
        total, gradient = torch.zeros((), dtype=torch.float64), torch.zeros(count, longest, dtype=torch.float64)
        for chosen, width in partition:
            cut = {
                name: tensor.flatten(0, 1)[chosen, None, :width]
                for name, tensor in {**batch._asdict(), **whole}.items()
                if name.endswith("_BGT") or name in ("advantages", "weights")
            }
            piece = batch._replace(**{name: tensor for name, tensor in cut.items() if name in Batch._fields})
            value, slope = loss_and_gradient(module, plan, piece, cut["advantages"], cut["weights"])
            total += value
            gradient[chosen, :width] += slope.flatten(0, 1)
        close(total, whole["loss"])
        close(gradient.view_as(whole["gradient"]), whole["gradient"])


@law
def order_does_not_exist(module: ModuleType, plan: Plan, batch: Batch) -> None:
    """Law 4: permuting prompts, and responses in their groups, permutes what belongs to them and nothing else."""
    B, G, _ = batch.mask_BGT.shape
    generator = torch.Generator().manual_seed(B + 7 * G)
    prompts = torch.randperm(B, generator=generator)
    responses = torch.stack([torch.randperm(G, generator=generator) for _ in range(B)])
    before, after = estimate(module, plan, batch), estimate(module, plan, reindexed(batch, prompts, responses))
    for name in ("advantages", "weights", "gradient"):
        before[name] = before[name][prompts[:, None], responses]
    same(after, before)


@law
def on_policy_means_ratio_one(module: ModuleType, plan: Plan, batch: Batch) -> None:
    """Law 5: at the first update the gradient is weight times advantage for every ratio, and no token is clipped.

    The terms beside the advantage's, the KL and the entropy, are those of the same loss with advantages of 0.
    """
    batch = batch._replace(old_logprobs_BGT=batch.logprobs_BGT)
    hp = module.Args()
    advantages = module.compute_advantages(batch.rollouts(module), hp)
    weights = module.aggregation_weights(batch.mask_BGT, hp)
    _, gradient = loss_and_gradient(module, plan, batch, advantages, weights)
    _, beside = loss_and_gradient(module, plan, batch, torch.zeros_like(advantages), weights)
    if not plan.kl_in_loss:
        assert not beside.any()
    torch.testing.assert_close(
        gradient - beside, -weights * advantages, rtol=1e-9, atol=1e-12 * (1 + gradient.abs().max().item())
    )
    if plan.has_clip:
        rows = (x.flatten(0, 1) for x in (batch.logprobs_BGT, batch.logprobs_BGT, advantages, batch.mask_BGT))
        assert module.count_clipped(*rows, hp).tolist() == [0, 0]


@law
def on_policy_in_bfloat16(module: ModuleType, plan: Plan, batch: Batch) -> None:
    """Law 5, in bf16: log-probs that are equal have a ratio of exactly 1, however coarse they are."""
    coarse = batch.logprobs_BGT.bfloat16()
    batch = batch._replace(logprobs_BGT=coarse, old_logprobs_BGT=coarse, ref_logprobs_BGT=coarse)
    advantages = (
        batch.mask_BGT.double()
        * torch.tensor([1.0, -1.0], dtype=torch.float64)[torch.arange(batch.mask_BGT.shape[1]) % 2][:, None]
    )
    weights = module.aggregation_weights(batch.mask_BGT, module.Args())
    _, gradient = loss_and_gradient(module, plan, batch, advantages, weights)
    _, beside = loss_and_gradient(module, plan, batch, torch.zeros_like(advantages), weights)
    if not plan.kl_in_loss:
        torch.testing.assert_close(gradient.double(), -weights * advantages, rtol=2**-6, atol=1e-6)
        assert not beside.any()


@law
def rewards_plus_a_constant(module: ModuleType, plan: Plan, batch: Batch) -> None:
    """Law 7: a baseline from the batch's own returns takes a constant away again."""
    if ignores_constants(plan):
        hp = module.Args()
        plain = module.compute_advantages(batch.rollouts(module), hp)
        shifted = module.compute_advantages(batch.rollouts(module, rewards_BG=batch.rewards_BG + 16.0), hp)
        tolerance = 1e-9 / min(getattr(hp, "normalization_epsilon", 1.0) + 1e-3, 1.0)
        torch.testing.assert_close(shifted, plain, rtol=1e-9, atol=tolerance)


@law
def rewards_times_a_constant(module: ModuleType, plan: Plan, batch: Batch) -> None:
    """Law 7: a z-score, and a quotient by the mean, do not see the scale of the rewards, up to epsilon."""
    if ignores_scale(plan):
        hp = dataclasses.replace(module.Args(), normalization_epsilon=0.0)
        full = make_batch(2, 2, max(2, batch.mask_BGT.shape[1]), 3)
        full = full._replace(mask_BGT=torch.ones_like(full.mask_BGT))
        plain = module.compute_advantages(full.rollouts(module), hp)
        scaled = module.compute_advantages(full.rollouts(module, rewards_BG=4 * full.rewards_BG), hp)
        assert plain.any()
        close(scaled, plain)


@law
def degenerate_groups_are_defined(module: ModuleType, plan: Plan, batch: Batch) -> None:
    """Law 8: equal rewards, rewards that are missing, empty responses; and an epsilon of 0."""
    every = [module.Args()]
    if hasattr(every[0], "normalization_epsilon"):
        every += [dataclasses.replace(every[0], normalization_epsilon=0.0)]
    missing, shape = batch.rewards_BG.isnan(), batch.rewards_BG.shape
    for hp in every:
        for reward in (0.1, 0.0, -7.3):
            equal = torch.full(shape, reward, dtype=torch.float64).masked_fill(missing, math.nan)
            advantages = module.compute_advantages(batch.rollouts(module, rewards_BG=equal), hp)
            assert advantages.isfinite().all() and not advantages[missing].any()
            assert not (is_constant(plan) and advantages.any())
        nothing = torch.full(shape, math.nan, dtype=torch.float64)
        assert not module.compute_advantages(batch.rollouts(module, rewards_BG=nothing), hp).any()
        if plan.state_updates:
            state = module.update_state(batch.rollouts(module, rewards_BG=nothing), hp)
            assert all(value.isfinite() for value in state.values())
            assert all(torch.equal(state[name], batch.state[name]) for name in state)
            fresh = module.update_state(batch.rollouts(module, rewards_BG=nothing, state={}), hp)
            assert all(value.isfinite() for value in fresh.values())
    empty = estimate(module, plan, batch._replace(mask_BGT=torch.zeros_like(batch.mask_BGT)))
    assert all(value.isfinite().all() for value in empty.values())
    assert not any(empty[name].any() for name in ("advantages", "weights", "loss", "gradient"))


def nearby(value: float, bounds: dict[str, float]) -> float:
    """Another value within the bounds, far enough away to matter."""
    if isinstance(value, int):
        return value + 1 if bounds.get("le", math.inf) >= value + 1 else value - 1
    half = value / 2 if value else 0.5
    return half if half > bounds.get("gt", -math.inf) and half >= bounds.get("ge", -math.inf) else value * 1.5


def outcomes(module: ModuleType, plan: Plan, batch: Batch, hp: Any) -> Iterator[Tensor]:
    """What a spec's numbers can act on: the rewards, two steps' advantages, the weights, the loss, the gradient."""
    B, G, _ = batch.mask_BGT.shape
    if plan.transforms:
        lengths = torch.arange(B * G).view(B, G)
        yield module.transform_rewards(9 * batch.rewards_BG, lengths % 3 > 0, lengths, hp)
    state = dict(batch.state)
    for _ in range(2):
        rollouts = batch.rollouts(module, state=state)
        advantages = module.compute_advantages(rollouts, hp)
        yield advantages
        state = module.update_state(rollouts, hp) if plan.state_updates else state
    weights = module.aggregation_weights(batch.mask_BGT, hp)
    yield weights
    logprobs = batch.logprobs_BGT.detach().requires_grad_()
    tensors = (logprobs, batch.old_logprobs_BGT, batch.ref_logprobs_BGT, advantages, weights, batch.mask_BGT)
    entropies = {"entropies": batch.entropies_BGT.flatten(0, 1)} if plan.entropy_bonus else {}
    value = module.policy_loss(*(x.flatten(0, 1) for x in tensors), hp, **entropies)
    yield value.detach()
    yield torch.autograd.grad(value, logprobs)[0]


@law
def every_number_acts(module: ModuleType, plan: Plan, batch: Batch) -> None:
    """Law 9: another value of any number of the spec changes something, on a batch with responses of every kind."""
    rich = make_batch(5, 64, max(batch.mask_BGT.shape[1], plan.min_group_size), 4, spread=2.0)
    rich = rich._replace(rewards_BG=4 * rich.rewards_BG)
    hp = module.Args()
    usual = list(outcomes(module, plan, rich, hp))
    numbers = [parameter for taken in plan.question_parameters.values() for parameter in taken.values()]
    assert {parameter.argument for parameter in numbers} <= {field.name for field in dataclasses.fields(hp)}
    for parameter in numbers:
        value = getattr(hp, parameter.argument)
        assert value == parameter.value and type(value) is type(parameter.value)
        other = dataclasses.replace(hp, **{parameter.argument: nearby(value, parameter.bounds)})
        seen = outcomes(module, plan, rich, other)
        assert not all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(usual, seen, strict=True)), (
            parameter.argument
        )


@law
def masked_out_responses_do_not_count(module: ModuleType, plan: Plan, batch: Batch) -> None:
    """Law 10: what is masked out is in neither the numerator nor the denominator."""
    weights = module.aggregation_weights(batch.mask_BGT, module.Args())
    assert torch.equal(weights > 0, batch.mask_BGT)
    more = torch.cat([batch.mask_BGT, torch.zeros_like(batch.mask_BGT)])
    close(module.aggregation_weights(more, module.Args()), torch.cat([weights, torch.zeros_like(weights)]))


@law
def statistics_are_two_pass(module: ModuleType, plan: Plan, batch: Batch) -> None:
    """Law 11: small differences of large rewards survive in float32, where a one-pass variance would lose them."""
    if not plan.kl_in_reward:
        rewards = 10_000 + (16 * batch.rewards_BG).round()  # exact in float32, where their squares are 8 apart
        exact = module.compute_advantages(batch.rollouts(module, rewards_BG=rewards), module.Args())
        single = module.compute_advantages(batch.rollouts(module, rewards_BG=rewards.float()), module.Args())
        torch.testing.assert_close(single.double(), exact, rtol=1e-2, atol=1e-2)


class NoSinglePrecision(TorchDispatchMode):
    """Stops at the first operation that makes a tensor of less than float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple | list) else (result,)
        for tensor in made:
            narrow = isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dtype != torch.float64
            assert not narrow, f"{func} makes {tensor.dtype} of float64 and integers"
        return result


@law
def float64_stays_float64(module: ModuleType, plan: Plan, batch: Batch) -> None:
    """Nothing is computed in less than the precision of what is given."""
    with NoSinglePrecision():
        for value in estimate(module, plan, batch).values():
            assert value.dtype == torch.float64
        if plan.transforms:
            lengths = batch.mask_BGT.sum(-1)
            assert (
                module.transform_rewards(batch.rewards_BG, lengths > 1, lengths, module.Args()).dtype == torch.float64
            )


@law
def vmap_and_grad_go_through(module: ModuleType, plan: Plan, batch: Batch) -> None:
    """No Python branch on a tensor's value: many batches at once are each what they are alone."""
    hp, other = module.Args(), make_batch(11, *batch.mask_BGT.shape, spread=1.0)
    pair = Batch(
        *(
            {name: torch.stack([a[name], a[name]]) for name in a} if isinstance(a, dict) else torch.stack([a, b])
            for a, b in zip(batch, other, strict=True)
        )
    )
    other = other._replace(state=batch.state)

    def advantages_of(*tensors: Any) -> Tensor:
        return module.compute_advantages(Batch(*tensors).rollouts(module), hp)

    def state_of(*tensors: Any) -> dict[str, Tensor]:
        return module.update_state(Batch(*tensors).rollouts(module), hp)

    def loss_of(logprobs: Tensor, advantages: Tensor, weights: Tensor, *tensors: Any) -> Tensor:
        return loss(module, plan, Batch(*tensors), advantages, weights, logprobs)

    alone = [estimate(module, plan, each) for each in (batch, other)]
    together = {"advantages": torch.func.vmap(advantages_of)(*pair)}
    together["weights"] = torch.func.vmap(lambda mask: module.aggregation_weights(mask, hp))(pair.mask_BGT)
    gradient = torch.func.vmap(torch.func.grad(loss_of))
    together["gradient"] = gradient(pair.logprobs_BGT, together["advantages"], together["weights"], *pair)
    if plan.state_updates:
        together |= torch.func.vmap(state_of)(*pair)
    for index in (0, 1):
        same({name: value[index] for name, value in together.items()}, {name: alone[index][name] for name in together})


# -------- Every shipped script, and specs drawn at random --------


@cache
def shipped(name: str) -> tuple[ModuleType, Plan]:
    return generated(name), Plan(load_spec(ROOT / "algorithms" / f"{name}.yaml").spec)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("check", LAWS, ids=lambda check: check.__name__)
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_shipped_scripts(check: Law, name: str, data: st.DataObject) -> None:
    module, plan = shipped(name)
    smallest = plan.min_group_size
    check(module, plan, data.draw(batches(tuple(size for size in GROUP_SIZES if size >= smallest))))


# Without shrinking, which would take minutes: a spec that fails is short enough to read.
@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(spec=specs(), data=st.data())
def test_drawn_specs(spec: Spec, data: st.DataObject) -> None:
    module, plan = script_of(spec), Plan(spec)
    batch = data.draw(batches((spec.sampling.group_size,)))
    for check in LAWS:
        check(module, plan, batch)


def cover() -> dict[str, Spec]:
    """Few specs in which every fragment occurs, by the first one that each brings in."""
    chosen: dict[str, Spec] = {}
    seen: set[tuple[str, str]] = set()
    for base in QUESTIONS.values():
        for answer in leaves(base):
            for spec in every_spec(answer):
                new = {(question, name) for question, each in spec.answers.items() for name in each.fragments()} - seen
                if new:
                    chosen["-".join(min(new))] = spec
                    seen |= new
    return chosen


COVER = cover()


@pytest.mark.parametrize("spec", COVER.values(), ids=COVER.keys())
def test_every_fragment(spec: Spec) -> None:
    """Whatever Hypothesis happens to draw, no fragment is left out."""
    module, plan = script_of(spec), Plan(spec)
    for seed, kind in enumerate(("real", "ties", "nan")):
        for check in LAWS:
            check(module, plan, make_batch(seed, 3, 4, 4, spread=1.0, kind=kind))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_partition_of_four_rows(name: str) -> None:
    """Law 3, exhaustively: the 15 partitions of four rows."""
    module, plan = shipped(name)
    batch = make_batch(3, 1, 4, 3, spread=1.0)
    whole = estimate(module, plan, batch)
    rows = {**batch._asdict(), **whole}
    rows = {k: v.flatten(0, 1) for k, v in rows.items() if k.endswith("_BGT") or k in ("advantages", "weights")}

    @cache
    def part(chosen: tuple[int, ...]) -> Tensor:
        cut = {k: v[list(chosen), None] for k, v in rows.items()}
        piece = batch._replace(**{k: v for k, v in cut.items() if k in Batch._fields})
        return loss(module, plan, piece, cut["advantages"], cut["weights"], piece.logprobs_BGT)

    seen = {frozenset(map(frozenset, partition)) for partition in partitions(4)}
    assert len(seen) == 15
    for partition in seen:
        close(
            sum((part(tuple(sorted(chosen))) for chosen in partition), torch.zeros((), dtype=torch.float64)),
            whole["loss"],
        )


def partitions(count: int) -> Iterator[list[list[int]]]:
    """Every assignment of `count` rows to parts."""
    for labels in itertools.product(range(count), repeat=count):
        yield [[row for row in range(count) if labels[row] == label] for label in set(labels)]
