"""The laws: what the estimator of every script obeys, whatever its spec, checked on small random batches in float64.

Most faults that users of RL trainers report break one of them. A law knows no answer by its name: what it must know of
the spec it reads off the plan, and of a script without one, such as a file that was edited by hand, off the script
itself where that is exact; where it is not, the law is skipped.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import math
import operator
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_type_hints

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from specc.fragments import read_fragment
from specc.plan import Plan
from specc.verify.script import Script, rollouts_of

Check = Callable[[Script, "Batch"], None]
Verdict = Literal["holds", "broken", "skipped"]
Estimate = dict[str, Tensor]

BY_TOKEN = {"advantages", "weights", "gradient", "likelihood", "targets", "value gradient"}
"""what of an estimate is [B, G, T]"""

GARBAGE = (math.nan, math.inf, -math.inf, 200.0)
SIGNS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


class Broken(Exception):
    """A law does not hold; the text says what differs, in one sentence."""


class NotApplicable(Exception):
    """A law says nothing about this script; the text says why."""


@dataclasses.dataclass(frozen=True)
class Law:
    """A law and its check, which raises `Broken`. Several checks may share a number."""

    number: int
    name: str
    title: str
    check: Check
    batches: int
    """on how many batches `check_laws` runs it at most; fewer where they differ little for it"""


@dataclasses.dataclass(frozen=True)
class LawResult:
    """What came of a law; `detail` is empty where it holds."""

    law: Law
    verdict: Verdict
    detail: str = ""


LAWS: list[Law] = []


def law(number: int, title: str, batches: int = 99) -> Callable[[Check], Check]:
    """Registers a check under its function's name."""

    def register(check: Check) -> Check:
        LAWS.append(Law(number, check.__name__, title, check, batches))
        return check

    return register


# -------- Batches --------


class Batch(NamedTuple):
    """One step's rollouts as plain float64 tensors; what a script does not need, it does not read."""

    rewards_BG: Tensor
    mask_BGT: Tensor
    logprobs_BGT: Tensor
    old_logprobs_BGT: Tensor
    ref_logprobs_BGT: Tensor
    extras_BGT: Tensor  # what `policy_loss` takes besides, e.g. entropies
    greedy_rewards_B: Tensor
    values_BGT: Tensor
    step_rewards_BGT: Tensor  # which do not add up to the rewards
    step_ends_BGT: Tensor

    def rollouts(self, module: ModuleType, **changed: Any) -> Any:
        """The `Rollouts` of a script, with the statistics of two past steps where it carries any."""
        given = self._asdict()
        if hasattr(module, "update_state") and "state" not in changed:
            given["state"] = past_state(module)
        return rollouts_of(module, **{**given, **changed})


def lengths_to_mask(lengths: Tensor, longest: int) -> Tensor:
    """Right-padded: True on the first `lengths` positions. [...] -> bool [..., T]."""
    return torch.arange(longest) < lengths[..., None]


def last_tokens(mask: Tensor) -> Tensor:
    """True on the last token of each response. bool [..., T] -> bool [..., T]."""
    return mask & (mask.flip(-1).cumsum(-1).flip(-1) == 1)


def make_batch(seed: int, prompts: int, group: int, tokens: int, spread: float = 0.5, kind: str = "real") -> Batch:
    """Random rollouts. `spread` is the scale of log pi/pi_old; `kind` of rewards is real, ties or nan."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shape = (prompts, group, tokens)
    mask = lengths_to_mask(torch.randint(0, tokens + 1, shape[:2], generator=generator), tokens)
    rewards = normal(*shape[:2])
    if kind == "ties":
        rewards = (rewards > 0).double()
    if kind == "nan":
        unscored = torch.rand(shape[:2], generator=generator) < 0.3
        unscored[0, 0] |= unscored.numel() > 1
        rewards = rewards.masked_fill(unscored, math.nan)
    logprobs = -1.0 - normal(*shape).abs()
    old, ref = logprobs + spread * normal(*shape), logprobs + 0.5 * normal(*shape)
    extras, greedy = normal(*shape).abs(), normal(prompts)
    values, steps = normal(*shape), normal(*shape)
    ends = last_tokens(mask) | (mask & (steps > 0))  # more or fewer steps a response, and one at its end
    return Batch(rewards, mask, logprobs, old, ref, extras, greedy, values, steps.masked_fill(~ends, 0.0), ends)


def family(script: Script, seed: int, count: int) -> Iterator[Batch]:
    """The batches of a seed: their sizes and kinds take turns, so that the first few already differ in everything."""
    sizes = group_sizes(script)
    for i in range(count):
        again = i // 3  # shifts a cycle of three against the others
        yield make_batch(
            1000 * seed + i,
            prompts=(3, 1, 2)[(i + again) % 3],
            group=sizes[i % len(sizes)],
            tokens=(4, 1, 3, 2)[(i + i // 4) % 4],
            spread=(1.0, 0.1, 0.0)[i // 2 % 3],
            kind=("real", "ties", "nan")[(i + 2 * again) % 3],
        )


def group_sizes(script: Script) -> tuple[int, ...]:
    """The small group sizes that the estimator is meant for: those of its spec, or else those at which it works."""
    if script.plan is not None:
        smallest = script.plan.min_group_size
        return tuple(size for size in (4, 3, 2, 1) if size >= smallest) or (smallest,)
    working = tuple(size for size in (4, 3, 2) if works_at(script, size))
    return (*working, 1) if working and works_at(script, 1) else working or (4, 3, 2)


def works_at(script: Script, size: int) -> bool:
    """Whether the estimator runs at all at this group size; and gives a number where one response is all there is."""
    batch = make_batch(0, 5, size, 2)  # five prompts, since with as many as responses a wrong shape may still fit
    try:
        with warnings.catch_warnings(action="ignore"):
            advantages = script.module.compute_advantages(batch.rollouts(script.module), script.hp)
    except Exception:  # what a script raises at all sizes, the laws report
        return False
    return advantages.shape == batch.mask_BGT.shape and (size > 1 or bool(advantages.isfinite().all()))


@cache
def past_state(module: ModuleType) -> dict[str, Tensor]:
    """The statistics that two steps leave, of a script that carries any."""
    state: dict[str, Tensor] = {}
    for seed in range(2):
        state = module.update_state(make_batch(seed, 2, 4, 3).rollouts(module, state=state), module.Args())
    return state


# -------- What a law looks at --------


def extra_inputs(script: Script, extras: Tensor, state: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """What this script's loss takes besides: tensors, all of them different, and numbers that `state` carries."""
    carried = [name for name in script.loss_inputs if script.carries(name)]
    past = (past_state(script.module) if state is None else state) if carried else {}
    own = {name: extras * (place + 1) for place, name in enumerate(script.loss_inputs) if name not in carried}
    return own | {name: past[name] for name in carried}


def loss(
    script: Script,
    batch: Batch,
    advantages: Tensor,
    weights: Tensor,
    logprobs: Tensor,
    hp: Any = None,
    state: dict[str, Tensor] | None = None,
) -> Tensor:
    """`policy_loss` of all rows of the batch. Everything is [B, G, T], or [rows, T]."""
    tensors = (logprobs, batch.old_logprobs_BGT, batch.ref_logprobs_BGT, advantages, weights, batch.mask_BGT)
    rows = [x.flatten(0, -2) for x in tensors]
    extra = extra_inputs(script, batch.extras_BGT.flatten(0, -2), state)
    value: Tensor = script.module.policy_loss(*rows, hp or script.hp, **extra)
    return value


def loss_and_gradient(
    script: Script,
    batch: Batch,
    advantages: Tensor,
    weights: Tensor,
    hp: Any = None,
    state: dict[str, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss and its gradient with respect to the log-probs, of the batch's shape."""
    logprobs = batch.logprobs_BGT.detach().requires_grad_()
    value = loss(script, batch, advantages, weights, logprobs, hp, state)
    if not value.requires_grad:
        return value, torch.zeros_like(logprobs)
    (gradient,) = torch.autograd.grad(value, logprobs, allow_unused=True)
    return value.detach(), torch.zeros_like(logprobs) if gradient is None else gradient


def estimate(script: Script, batch: Batch) -> Estimate:
    """Everything that the estimator says about a batch."""
    module, hp = script.module, script.hp
    advantages = module.compute_advantages(batch.rollouts(module), hp)
    weights = module.aggregation_weights(batch.mask_BGT, hp)
    value, gradient = loss_and_gradient(script, batch, advantages, weights)
    state = module.update_state(batch.rollouts(module), hp) if script.has("update_state") else {}
    made = {"likelihood": likelihood(script, batch)} if script.has("likelihood_weights") else {}
    made |= critic_estimate(script, batch, weights) if script.has("value_loss") else {}
    return {"advantages": advantages, "weights": weights, "loss": value, "gradient": gradient, **made, **state}


def likelihood(script: Script, batch: Batch) -> Tensor:
    """The weights of the likelihood of correct responses, [B, G, T], in a script that has it in its loss."""
    made: Tensor = script.module.likelihood_weights(batch.rewards_BG, batch.mask_BGT)
    return made


def critic_estimate(script: Script, batch: Batch, weights: Tensor, hp: Any = None) -> Estimate:
    """What a critic learns from a batch, which are its values before the update; 0 where it has no target."""
    hp = hp or script.hp
    targets = script.module.compute_value_targets(batch.rollouts(script.module), hp)
    value, gradient = value_loss_and_gradient(script, batch, targets, weights, hp)
    return {"targets": targets.masked_fill(targets.isnan(), 0.0), "value loss": value, "value gradient": gradient}


def value_loss_and_gradient(
    script: Script, batch: Batch, targets: Tensor, weights: Tensor, hp: Any = None
) -> tuple[Tensor, Tensor]:
    """The critic's loss where its values have moved by as much as the log-probs' extras, and its gradient in them."""
    values = (batch.values_BGT + batch.extras_BGT - 1).detach().requires_grad_()
    tensors = (values, batch.values_BGT, targets, weights, batch.mask_BGT)
    loss = script.module.value_loss(*(x.flatten(0, -2) for x in tensors), hp or script.hp)
    (gradient,) = torch.autograd.grad(loss, values)
    return loss.detach(), gradient


def advantages_with(script: Script, batch: Batch, hp: Any = None, **changed: Any) -> Tensor:
    """The advantages of the batch with something else in its rollouts."""
    value: Tensor = script.module.compute_advantages(batch.rollouts(script.module, **changed), hp or script.hp)
    return value


def plan_of(script: Script) -> Plan:
    if script.plan is None:
        raise NotApplicable("only its spec would say whether this is to hold")
    return script.plan


def rewarded(plan: Plan | None, batch: Batch, rewards_BG: Tensor) -> dict[str, Tensor]:
    """Other rewards, as they are in the rollouts: of whole responses, that come at their end, or, where statistics are
    over steps, of each step."""
    if plan is None or not plan.credits_steps:
        return {"rewards_BG": rewards_BG}
    rewards = rewards_BG.nan_to_num(0.0)[..., None]
    if not plan.over_steps:
        return {"rewards_BG": rewards_BG, "step_rewards_BGT": rewards * last_tokens(batch.mask_BGT)}
    steps = rewards * batch.step_ends_BGT
    return {"rewards_BG": steps.sum(-1).masked_fill(rewards_BG.isnan(), math.nan), "step_rewards_BGT": steps}


def ignores_constants(plan: Plan) -> bool:
    """Whether adding a constant to all rewards must leave the advantages alone."""
    if plan.over_steps and not plan.has_baseline:
        return bool(getattr(plan.spec.normalization, "centred", False)) and not plan.normalization_state
    return of_this_batch(plan) and getattr(plan.spec.normalization, "divisor", "none") != "mean"


def of_this_batch(plan: Plan) -> bool:
    """Whether the baseline is a mean of returns of this batch, and of no others."""
    return plan.spec.baseline.reads_returns and not plan.spec.baseline.reads_past


def ignores_scale(plan: Plan) -> bool:
    """Whether multiplying all rewards must leave the advantages alone, with an epsilon of 0."""
    free = of_this_batch(plan) or not plan.has_baseline
    return free and plan.spec.normalization.divides and not (plan.normalization_state or plan.kl_in_reward)


def is_constant(plan: Plan) -> bool:
    """Whether equal rewards must give an advantage of exactly 0."""
    reads = of_this_batch(plan) or (plan.over_steps and ignores_constants(plan))
    return reads and not plan.kl_in_reward and not plan.normalization_state


@cache
def names_read(module: ModuleType, function: str) -> frozenset[str]:
    """The names that a function of the script reads."""
    tree = ast.parse(module.__dict__["__source__"])
    bodies = [node.body for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    inside = [inner for body in bodies for statement in body for inner in ast.walk(statement)]
    return frozenset(node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))


def kl_in_loss(script: Script) -> bool:
    return "ref_logprobs" in names_read(script.module, "policy_loss")


def kl_in_reward(script: Script) -> bool:
    return "ref_logprobs_BGT" in script.reads


@cache
def limits(module: ModuleType) -> dict[str, list[tuple[str, float]]]:
    """The bounds that the script declares for its arguments: name -> signs and numbers."""
    hints = get_type_hints(module.Args, include_extras=True)
    words = {
        name: [bound.split() for bound in getattr(hint, "__metadata__", ()) if isinstance(bound, str)]
        for name, hint in hints.items()
    }
    return {name: [(pair[0], float(pair[1])) for pair in pairs if pair[0] in SIGNS] for name, pairs in words.items()}


@cache
def arguments_read(module: ModuleType) -> list[str]:
    """The numeric arguments that the estimator reads."""
    used = {node.attr for node in ast.walk(ast.parse(module.__dict__["__source__"])) if isinstance(node, ast.Attribute)}
    values = vars(module.Args())
    return [name for name, value in values.items() if name in used and type(value) in (int, float)]


# -------- Comparing --------


def need(condition: bool | Tensor, text: str) -> None:
    if not condition:
        raise Broken(text)


def close(got: Tensor, want: Tensor, what: str, rtol: float = 1e-12, atol: float = 1e-12) -> None:
    """Raises with the first entries that differ. `what` says what they are and when."""
    need(got.shape == want.shape, f"{what} has the shape {list(got.shape)} and not {list(want.shape)}")
    fine = (got - want).abs() <= atol + rtol * want.abs()
    if not fine.all():
        place = tuple((~fine).nonzero()[0].tolist())
        where = f", at {list(place)}" if place else ""
        raise Broken(f"{what} is {got[place].item():.9g} and not {want[place].item():.9g}{where}")


def same(got: Estimate, want: Estimate, when: str, exactly: bool = False) -> None:
    """Everything that the estimator says, compared."""
    need(got.keys() == want.keys(), f"{when}, there is {', '.join(got)} and not {', '.join(want)}")
    for name in got:
        close(got[name], want[name], f"{when}, {name}", **({"rtol": 0.0, "atol": 0.0} if exactly else {}))


def zero(got: Tensor, what: str) -> None:
    if got.any():
        raise Broken(f"{what} is {got[got != 0][0].item():.6g} and not 0")


def finite(values: Estimate, when: str) -> None:
    for name, value in values.items():
        need(value.isfinite().all(), f"{when}, {name} is {value[~value.isfinite()][:1].sum().item()}")


# -------- The laws --------


def spoiled(batch: Batch, garbage: float) -> Batch:
    """The batch with garbage in every masked position."""
    tokens = {name: tensor for name, tensor in batch._asdict().items() if name.endswith("_BGT") and name != "mask_BGT"}
    filled = {
        name: tensor.masked_fill(~batch.mask_BGT, bool(garbage) if tensor.dtype == torch.bool else garbage)
        for name, tensor in tokens.items()
    }
    return batch._replace(**filled)


@law(1, "masked positions do not exist")
def masked_positions_do_not_exist(script: Script, batch: Batch) -> None:
    """NaN, infinities and large numbers there change nothing at all, forward and backward."""
    clean = estimate(script, spoiled(batch, 0.0))
    finite(clean, "with zeros on the masked positions")
    for name in {"gradient", "value gradient", "targets"} & clean.keys():
        zero(clean[name][~batch.mask_BGT], f"the {name} on a masked position")
    for garbage in GARBAGE:
        when = f"with {garbage:g} on the masked positions"
        dirty = spoiled(batch, garbage)
        same(estimate(script, dirty), clean, when, exactly=True)
        given = [clean[name].masked_fill(~batch.mask_BGT, garbage) for name in ("advantages", "weights")]
        value, gradient = loss_and_gradient(script, dirty, given[0], given[1])
        wanted = {"loss": clean["loss"], "gradient": clean["gradient"]}
        same({"loss": value, "gradient": gradient}, wanted, f"{when} of everything", exactly=True)
        if script.has("value_loss"):
            targets = script.module.compute_value_targets(batch.rollouts(script.module), script.hp)
            spoiled_targets = targets.masked_fill(~batch.mask_BGT, garbage)
            value, gradient = value_loss_and_gradient(script, dirty, spoiled_targets, given[1])
            wanted = {"value loss": clean["value loss"], "value gradient": clean["value gradient"]}
            same({"value loss": value, "value gradient": gradient}, wanted, f"{when} of everything", exactly=True)


@law(2, "padding does not exist")
def padding_does_not_exist(script: Script, batch: Batch) -> None:
    """The same rows padded to twice the length."""
    tokens = batch.mask_BGT.shape[-1]
    padded = {
        name: torch.nn.functional.pad(tensor, (0, tokens), value=False if tensor.dtype == torch.bool else 7.0)
        for name, tensor in batch._asdict().items()
        if name.endswith("_BGT")
    }
    short, long = estimate(script, batch), estimate(script, batch._replace(**padded))
    for name in BY_TOKEN & long.keys():
        zero(long[name][..., tokens:], f"with the rows padded to twice the length, {name} on a pad")
        long[name] = long[name][..., :tokens]
    same(long, short, "with the rows padded to twice the length")


def loss_of_rows(script: Script, batch: Batch, whole: Estimate, rows: list[int], width: int) -> tuple[Tensor, Tensor]:
    """The loss of some rows, cut to a width, with the advantages and weights of the whole batch; and its gradient."""
    cut = {
        name: tensor.flatten(0, 1)[rows, None, :width]
        for name, tensor in {**batch._asdict(), **whole}.items()
        if name.endswith("_BGT") or name in ("advantages", "weights")
    }
    piece = batch._replace(**{name: tensor for name, tensor in cut.items() if name in Batch._fields})
    value, gradient = loss_and_gradient(script, piece, cut["advantages"], cut["weights"])
    return value, gradient.flatten(0, 1)


def partitions(count: int) -> set[frozenset[frozenset[int]]]:
    """Every way to divide `count` rows into parts."""
    found = set()
    for labels in itertools.product(range(count), repeat=count):
        found.add(frozenset(frozenset(r for r in range(count) if labels[r] == label) for label in set(labels)))
    return found


@law(3, "splits do not exist")
def splits_do_not_exist(script: Script, batch: Batch) -> None:
    """Rows one by one, cut after their own last token, rows in two parts, and all partitions of few rows."""
    whole = estimate(script, batch)
    lengths, longest = batch.mask_BGT.flatten(0, 1).sum(-1).tolist(), batch.mask_BGT.shape[-1]
    count = len(lengths)
    halves = [(list(range(count))[start::2], longest) for start in range(min(2, count))]
    for parts in ([([row], max(lengths[row], 1)) for row in range(count)], halves):
        when = f"in {len(parts)} micro-batches"
        total, gradient = torch.zeros((), dtype=torch.float64), torch.zeros(count, longest, dtype=torch.float64)
        for rows, width in parts:
            value, slope = loss_of_rows(script, batch, whole, rows, width)
            total += value
            gradient[rows, :width] += slope
        close(total, whole["loss"], f"{when}, the loss")
        close(gradient.view_as(whole["gradient"]), whole["gradient"], f"{when}, the gradient")
    if script.has("value_loss"):
        value_losses_add_up(script, batch, whole)
    if count > 4:
        return
    loss_of_part = cache(lambda part: loss_of_rows(script, batch, whole, sorted(part), longest)[0])
    for partition in partitions(count):
        divided = sum(map(loss_of_part, partition), torch.zeros((), dtype=torch.float64))
        close(divided, whole["loss"], f"with the rows divided into {sorted(map(sorted, partition))}, the loss")


def value_losses_add_up(script: Script, batch: Batch, whole: Estimate) -> None:
    """The critic's loss and its gradient, of rows one by one and of all together."""
    targets = script.module.compute_value_targets(batch.rollouts(script.module), script.hp)
    total, gradients = torch.zeros((), dtype=torch.float64), []
    for row in range(batch.rewards_BG.numel()):
        names = [name for name in Batch._fields if name.endswith("_BGT")]
        piece = batch._replace(**{name: getattr(batch, name).flatten(0, 1)[row, None, None] for name in names})
        own_targets, own_weights = (x.flatten(0, 1)[row, None, None] for x in (targets, whole["weights"]))
        value, gradient = value_loss_and_gradient(script, piece, own_targets, own_weights)
        total += value
        gradients.append(gradient[0, 0])
    close(total, whole["value loss"], "in micro-batches, the value loss")
    together = torch.stack(gradients).view_as(whole["value gradient"])
    close(together, whole["value gradient"], "in micro-batches, the value loss's gradient")


def reindexed(batch: Batch, prompts: Tensor, responses: Tensor) -> Batch:
    """The batch with its prompts and, in each prompt, its responses in another order. [B], [B, G]."""
    moved = {
        name: tensor[prompts[:, None], responses]
        for name, tensor in batch._asdict().items()
        if name.endswith(("_BG", "_BGT"))
    }
    return batch._replace(**moved, greedy_rewards_B=batch.greedy_rewards_B[prompts])


@law(4, "order does not exist")
def order_does_not_exist(script: Script, batch: Batch) -> None:
    """Permuting prompts, and responses in their groups, permutes what belongs to them and nothing else."""
    B, G, _ = batch.mask_BGT.shape
    generator = torch.Generator().manual_seed(B + 7 * G)
    prompts = torch.arange(B)
    prompts[:2] = prompts[:2].flip(0)  # of three prompts, no rotation: a baseline of the next prompt would follow that
    responses = torch.stack([torch.randperm(G, generator=generator) for _ in range(B)])
    before, after = estimate(script, batch), estimate(script, reindexed(batch, prompts, responses))
    for name in BY_TOKEN & before.keys():
        before[name] = before[name][prompts[:, None], responses]
    same(after, before, "with the prompts and the responses in another order")


def select_of(script: Script) -> Callable[[Tensor, Any], tuple[Tensor, Tensor]]:
    """What selects responses, before or after advantages are made."""
    function: Callable[[Tensor, Any], tuple[Tensor, Tensor]] = (
        script.module.select if script.has("select") else script.module.select_after
    )
    return function


def selects(script: Script) -> bool:
    return script.has("select") or script.has("select_after")


def kept_rewards(script: Script, rewards_BG: Tensor, hp: Any) -> list[list[float]]:
    """The rewards that a selection keeps of each prompt, in ascending order."""
    prompts, chosen = select_of(script)(rewards_BG, hp)
    need(prompts.shape == (len(rewards_BG),), f"select gives prompts of shape {list(prompts.shape)}")
    found = []
    for rewards, prompt, indices in zip(rewards_BG.tolist(), prompts.tolist(), chosen.tolist(), strict=True):
        there = [index for index in indices if prompt and index >= 0]
        need(len(set(there)) == len(there), "a response is kept twice")
        values = [rewards[index] for index in there]
        scored = sum(not math.isnan(reward) for reward in rewards)
        known = sorted(value for value in values if not math.isnan(value))
        need(len(known) in (len(values), scored), "an unscored response is kept in place of a scored one")
        found.append(known)
    return found


@law(4, "a selection does not see the order")
def selection_does_not_see_the_order(script: Script, batch: Batch) -> None:
    """It keeps the same rewards of a prompt's responses in any order, each at most once, and none that is missing where
    there are others. Of equal rewards it may keep any."""
    if not selects(script):
        raise NotApplicable("it keeps all responses")
    hp, prompts = script.for_groups(script.hp, batch.rewards_BG.shape[1]), torch.arange(len(batch.rewards_BG)).flip(0)
    for rewards_BG in (batch.rewards_BG, batch.rewards_BG.round()):
        before, after = kept_rewards(script, rewards_BG, hp), kept_rewards(script, rewards_BG[prompts].flip(1), hp)
        need(before == after[::-1], f"of rewards in another order it keeps {after[::-1]} and not {before}")


@law(5, "on-policy means ratio one")
def on_policy_means_ratio_one(script: Script, batch: Batch) -> None:
    """At the first update the gradient is weight times advantage for every ratio, and no token is clipped.

    The terms beside the advantage's, the KL and the entropy, are those of the same loss with advantages of 0. Of those
    a KL has no gradient where the policy is the reference, unless it is one that has none in expectation. No response
    counts as correct.
    """
    module, hp = script.module, script.hp
    batch = batch._replace(old_logprobs_BGT=batch.logprobs_BGT, extras_BGT=torch.zeros_like(batch.extras_BGT))
    advantages = advantages_with(script, batch)
    tracked = {name: x.clone().requires_grad_() for name, x in batch._asdict().items() if x.is_floating_point()}
    need(
        not advantages_with(script, batch._replace(**tracked)).requires_grad, "the advantage has a gradient of its own"
    )
    weights = module.aggregation_weights(batch.mask_BGT, hp)
    _, gradient = loss_and_gradient(script, batch, advantages, weights)
    _, beside = loss_and_gradient(script, batch, torch.zeros_like(advantages), weights)
    if not kl_in_loss(script):
        zero(beside, "without a KL in the loss and with advantages of 0, the gradient")
    elif script.plan and script.plan.spec.kl.flat_at_reference:
        at_reference = batch._replace(ref_logprobs_BGT=batch.logprobs_BGT)
        _, none = loss_and_gradient(script, at_reference, torch.zeros_like(advantages), weights)
        zero(none, "with the reference for a policy and advantages of 0, the gradient")
    slack = 1e-12 * (1 + gradient.abs().max().item())
    close(gradient - beside, -weights * advantages, "at the first update, the gradient", rtol=1e-9, atol=slack)
    if script.has("count_clipped"):
        rows = [x.flatten(0, 1) for x in (batch.logprobs_BGT, batch.logprobs_BGT, advantages, batch.mask_BGT)]
        zero(module.count_clipped(*rows, hp), "at the first update, the number of clipped tokens")


@law(5, "on-policy means ratio one in bfloat16 too", batches=3)
def on_policy_in_bfloat16(script: Script, batch: Batch) -> None:
    """Log-probs that are equal have a ratio of exactly 1, however coarse they are."""
    coarse = batch.logprobs_BGT.bfloat16()
    batch = batch._replace(logprobs_BGT=coarse, old_logprobs_BGT=coarse, ref_logprobs_BGT=coarse)
    batch = batch._replace(extras_BGT=torch.zeros_like(batch.extras_BGT))
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)[torch.arange(batch.mask_BGT.shape[1]) % 2]
    advantages = batch.mask_BGT.double() * signs[:, None]
    weights = script.module.aggregation_weights(batch.mask_BGT, script.hp)
    _, gradient = loss_and_gradient(script, batch, advantages, weights)
    _, beside = loss_and_gradient(script, batch, torch.zeros_like(advantages), weights)
    what = "at the first update in bfloat16, the gradient"
    slack = 1e-6 + 2**-6 * beside.abs().max().item()  # the sum of two coarse numbers is as coarse as the larger one
    close(gradient.double() - beside.double(), -weights * advantages, what, rtol=2**-6, atol=slack)
    if not kl_in_loss(script):
        zero(beside, f"without a KL in the loss and with advantages of 0, {what}")


@law(7, "rewards plus a constant: the same advantages", batches=4)
def rewards_plus_a_constant(script: Script, batch: Batch) -> None:
    """A baseline from the batch's own returns takes a constant away again; one of steps is a mean of them all."""
    plan = plan_of(script)
    if plan.over_steps and plan.has_baseline and not plan.normalizers:
        steps_count_the_same(script, plan, max(2, batch.mask_BGT.shape[1]))
    if not ignores_constants(plan):
        raise NotApplicable("with this spec a constant in the rewards is seen")
    plain, shifted = (
        advantages_with(script, batch, **rewarded(script.plan, batch, batch.rewards_BG + more)) for more in (0.0, 16.0)
    )
    tolerance = 1e-9 / min(script.number("normalization_epsilon", 1.0) + 1e-3, 1.0)
    close(shifted, plain, "with 16 added to every reward, the advantage", rtol=1e-9, atol=tolerance)


def steps_count_the_same(script: Script, plan: Plan, group: int) -> None:
    """With 16 more for one step, a mean of steps rises by 16 over their number in each baseline that is of its scope:
    the batch, the prompt, or the prompt's other responses. No other baseline changes."""
    batch = make_batch(4, 2, group, 3)
    batch = nonempty(batch._replace(ref_logprobs_BGT=batch.old_logprobs_BGT))
    ends, spot = batch.step_ends_BGT, torch.zeros_like(batch.mask_BGT)
    spot[0, 0] = last_tokens(batch.mask_BGT)[0, 0]
    counts = ends.sum(-1, keepdim=True).expand(ends.shape)
    same_for = plan.spec.baseline.same_for
    number = ends.sum() if same_for == "batch" else ends.sum((1, 2), keepdim=True)
    number = number - counts if same_for == "response" else number
    sees = torch.ones_like(ends)
    sees[1:], sees[0, 0] = same_for == "batch", same_for != "response"
    wanted = 16 * (spot.double() - sees.double() / number) * ends

    def parts(rewards_BGT: Tensor) -> Tensor:
        advantages = advantages_with(script, batch, step_rewards_BGT=rewards_BGT)
        return (advantages - torch.nn.functional.pad(advantages[..., 1:], (0, 1))) * ends

    before, after = parts(batch.step_rewards_BGT), parts(batch.step_rewards_BGT + 16 * spot)
    close(after - before, wanted, "with 16 more for one step, what a step's advantage gains", rtol=1e-9, atol=1e-9)


def counted_once(plan: Plan, batch: Batch, advantages: Tensor) -> list[Tensor]:
    """What counts once in the normalization's statistic, one vector for each scope; no response may be empty.

    A step's own part is what the advantage at its end has more than the one after it.
    """
    mask = batch.mask_BGT
    if plan.over_steps:
        after = torch.nn.functional.pad(advantages[..., 1:], (0, 1))
        advantages, mask = advantages - after, batch.step_ends_BGT
    parts = list(zip(advantages, mask, strict=True)) if plan.spec.normalization.per_prompt else []
    parts = parts or [(advantages, mask)]
    return [values[mask] if plan.over_tokens or plan.over_steps else values[..., 0].flatten() for values, mask in parts]


def returns_counted_once(plan: Plan, batch: Batch) -> list[Tensor]:
    """The same of the returns before the baseline, which are the rewards where no KL is charged."""
    if plan.over_steps:
        parts = list(zip(batch.step_rewards_BGT, batch.step_ends_BGT, strict=True))
        parts = parts if plan.spec.normalization.per_prompt else [(batch.step_rewards_BGT, batch.step_ends_BGT)]
        return [values[ends] for values, ends in parts]
    return counted_once(plan, batch, batch.rewards_BG[..., None].expand(batch.mask_BGT.shape))


def two_steps(plan: Plan, group: int) -> list[Batch]:
    """Two batches with responses of any length but 0, of which the second has higher rewards."""
    first, second = (make_batch(seed, 3, group, 3) for seed in (2, 3))
    second = second._replace(rewards_BG=second.rewards_BG + 16, step_rewards_BGT=second.step_rewards_BGT + 16)
    first, second = map(nonempty, (first, second))
    # A step's part is told from the KL's by there being none of that.
    return [
        batch._replace(
            step_rewards_BGT=batch.step_rewards_BGT.masked_fill(~batch.step_ends_BGT, 0.0),
            **({"ref_logprobs_BGT": batch.old_logprobs_BGT} if plan.over_steps else {}),
        )
        for batch in (first, second)
    ]


def nonempty(batch: Batch) -> Batch:
    """The batch with a token, and so a step, in every response."""
    mask = batch.mask_BGT | (torch.arange(batch.mask_BGT.shape[-1]) < 1)
    ends = batch.step_ends_BGT | last_tokens(mask)
    rewards = batch.step_rewards_BGT.masked_fill(ends & ~batch.step_ends_BGT, 1.0)
    return batch._replace(mask_BGT=mask, step_rewards_BGT=rewards, step_ends_BGT=ends)


def scores_are_z(script: Script, plan: Plan, group: int) -> None:
    """What is divided by a std has a std of 1 over its scope, without epsilon; and that is added to the std."""
    batch = two_steps(plan, group)[0]
    ddof = int(script.number("normalization_ddof", 0))
    hps = [script.with_numbers(normalization_epsilon=epsilon) for epsilon in (0.0, 1.0, 2.0)]
    plain, one, two = (counted_once(plan, batch, advantages_with(script, batch, hp)) for hp in hps)
    of_returns = getattr(plan.spec.normalization, "of_returns", False)
    rewards = returns_counted_once(plan, batch)
    for scope in range(len(plain)):
        if not of_returns:
            spread = plain[scope].std(correction=ddof)
            close(spread, torch.ones_like(spread), f"the std of what was divided by it, ddof {ddof},", rtol=1e-9)
        elif not plan.kl_in_reward:  # epsilon is 1 of the slower, so the divisor is known
            spread = 1 / (plain[scope] / one[scope] - 1)
            wanted = rewards[scope].std(correction=ddof).expand(spread.shape)
            close(spread, wanted, f"what is divided by, beside the std of the rewards, ddof {ddof},", rtol=1e-9)
        slower = plain[scope] / one[scope] - 1, plain[scope] / two[scope] - 1  # epsilon over the std
        close(slower[1], 2 * slower[0], "with an epsilon of 2 and not 1, what it does to the advantage", rtol=1e-9)


def scores_are_z_of_the_past(script: Script, plan: Plan, group: int) -> None:
    """After two steps the advantages are those of a first step, with the mean and the std of both steps' together, the
    std being that of the returns where it is to be."""
    module, hp, steps = script.module, script.hp, two_steps(plan, group)
    state: dict[str, Tensor] = {}
    raw = torch.cat([counted_once(plan, b, advantages_with(script, b, state={}))[0] for b in steps])
    for batch in steps:
        state = module.update_state(batch.rollouts(module, state=state), hp)
    (got,) = counted_once(plan, steps[1], advantages_with(script, steps[1], state=state))
    done = dict(plan.normalizers)
    of_returns = getattr(plan.spec.normalization, "of_returns", False)
    measured = torch.cat([returns_counted_once(plan, b)[0] for b in steps]) if of_returns else raw
    std = measured.std(correction=int(script.number("normalization_ddof", 0)))
    want = raw[-len(got) :] - (raw.mean() if "centre" in done else 0.0)
    want = want / (std + script.number("normalization_epsilon", 0.0) if "scale" in done else 1.0)
    close(got, want, "after two steps, the advantage", rtol=1e-9, atol=1e-9)


@law(7, "rewards times a constant: the same advantages", batches=4)
def rewards_times_a_constant(script: Script, batch: Batch) -> None:
    """A z-score, and a quotient by the mean, do not see the scale of the rewards, up to epsilon.

    What says that it is divided by a std has one of 1: of the batch or the group, or of the past steps.
    """
    plan, group = plan_of(script), max(2, batch.mask_BGT.shape[1])
    others = [name for name in plan.state_updates if plan.functions.get(name, ("normalization",))[0] != "normalization"]
    own = plan.normalization_state and not others  # without a baseline that moves between the steps
    own = own and not (plan.kl_in_reward and getattr(plan.spec.normalization, "of_returns", False))
    spread = getattr(plan.spec.normalization, "divisor", "none") == "std" and not plan.normalization_state
    if own:
        scores_are_z_of_the_past(script, plan, group)
    if spread:
        scores_are_z(script, plan, group)
    if not ignores_scale(plan):
        if own or spread:
            return
        raise NotApplicable("with this spec the scale of the rewards is seen")
    hp = script.with_numbers(normalization_epsilon=0.0)
    full = make_batch(2, 2, max(2, batch.mask_BGT.shape[1]), 3)
    full = nonempty(full._replace(mask_BGT=torch.ones_like(full.mask_BGT)))
    plain = advantages_with(script, full, hp)
    need(plain.any(), "with different rewards, every advantage is 0")
    scaled = advantages_with(
        script, full, hp, rewards_BG=4 * full.rewards_BG, step_rewards_BGT=4 * full.step_rewards_BGT
    )
    close(scaled, plain, "with every reward times 4, the advantage")


@law(8, "degenerate groups are defined", batches=4)
def degenerate_groups_are_defined(script: Script, batch: Batch) -> None:
    """Equal rewards, rewards that are missing, empty responses; and an epsilon of 0."""
    module = script.module
    small = {name: 0.0 for name in vars(script.hp) if name.endswith("epsilon")}
    missing, shape = batch.rewards_BG.isnan(), batch.rewards_BG.shape
    nothing = torch.full(shape, math.nan, dtype=torch.float64)
    for hp in [script.hp, script.with_numbers(**small)] if small else [script.hp]:
        for reward in (0.1, 0.0, -7.3):
            equal = torch.full(shape, reward, dtype=torch.float64).masked_fill(missing, math.nan)
            advantages = advantages_with(script, batch, hp, **rewarded(script.plan, batch, equal))
            finite({"advantages": advantages}, f"with rewards of {reward}")
            zero(advantages[missing], "the advantage of a response without a reward")
            if script.plan is not None and is_constant(script.plan):
                zero(advantages, f"with rewards of {reward}, all equal, an advantage")
        zero(advantages_with(script, batch, hp, rewards_BG=nothing), "without any reward, an advantage")
        if "greedy_rewards_B" in script.reads:
            lost = torch.full_like(batch.greedy_rewards_B, math.nan)
            zero(advantages_with(script, batch, hp, greedy_rewards_B=lost), "without any greedy reward, an advantage")
        if script.has("update_state"):
            past = past_state(module)
            state = module.update_state(batch.rollouts(module, rewards_BG=nothing), hp)
            same({name: state[name] for name in state}, past, "after a step without any reward", exactly=True)
            fresh = module.update_state(batch.rollouts(module, rewards_BG=nothing, state={}), hp)
            finite(fresh, "after a first step without any reward")
    empty = estimate(script, batch._replace(mask_BGT=torch.zeros_like(batch.mask_BGT)))
    finite(empty, "with empty responses")
    for name in (BY_TOKEN | {"loss"}) & empty.keys():
        zero(empty[name], f"with empty responses, {name}")


def other_values(value: float, bounds: list[tuple[str, float]]) -> Iterator[float]:
    """Other values within the bounds: near ones first, then some that act where this one is beyond everything."""
    if isinstance(value, int):
        tries: tuple[float, ...] = (value + 1, value - 1, 2 * value, 1)
    else:
        tries = (value / 2 if value else 0.5, value * 1.5, 0.01, 1.0, 1.5, 4.0, -1.0)
    for other in tries:
        if other != value and all(SIGNS[sign](other, limit) for sign, limit in bounds):
            yield other


def outcomes(script: Script, batch: Batch, hp: Any) -> Iterator[Tensor]:
    """What a spec's numbers can act on: the rewards, two steps' advantages, the weights, the loss, the gradient."""
    module, shape = script.module, batch.rewards_BG.shape
    if script.has("transform_rewards"):
        # Around every whole number of the script there are lengths, in case it is one that lengths are compared with.
        near = [value for name, value in vars(script.hp).items() if name in arguments_read(module) and value >= 1]
        lengths = torch.arange(batch.rewards_BG.numel())
        for place, value in enumerate(int(value) for value in near):
            lengths[-8 * (place + 1) :][:8] = torch.arange(value - 4, value + 4).clamp(min=0)
        yield module.transform_rewards(9 * batch.rewards_BG, lengths.view(shape) % 3 > 0, lengths.view(shape), hp)
    if selects(script):
        wide = torch.linspace(-1, 2, 3 * int(max(script.number("max_variance", 1), 2)), dtype=torch.float64)
        yield from select_of(script)(wide.square()[None], hp)
    weights = module.aggregation_weights(batch.mask_BGT, hp)
    yield weights
    for state in ({}, past_state(module)) if script.has("update_state") else ({},):
        for _ in range(2):
            rollouts = batch.rollouts(module, state=state)
            advantages = module.compute_advantages(rollouts, hp)
            yield advantages
            state = module.update_state(rollouts, hp) if script.has("update_state") else state
        yield from loss_and_gradient(script, batch, advantages, weights, hp, state)
    if script.has("value_loss"):
        yield from critic_estimate(script, batch, weights, hp).values()
    if script.has("trains_policy"):
        yield torch.tensor([module.trains_policy(step, hp) for step in range(256)])


def differ(left: Tensor, right: Tensor) -> bool:
    """Whether two outcomes differ by more than rounding."""
    if left.shape != right.shape:
        return True
    if not left.is_floating_point():
        return not torch.equal(left, right)
    return not torch.allclose(left, right, rtol=1e-9, atol=1e-12, equal_nan=True)


@cache
def arguments_of(module: ModuleType, function: str) -> frozenset[str]:
    """The arguments that a function of the script reads."""
    tree = ast.parse(module.__dict__["__source__"])
    bodies = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    found = [inner for body in bodies for inner in ast.walk(body) if isinstance(inner, ast.Attribute)]
    return frozenset(node.attr for node in found if isinstance(node.value, ast.Name) and node.value.id == "hp")


def rewards_are_as_named(script: Script) -> None:
    """The transforms of the score, as their arguments describe them, on lengths around every number."""
    bounds, cut, long = {"reward_clip_low", "reward_clip_high"}, "reward_missing_eos", "overlong_"
    overlong = {f"{long}limit", f"{long}buffer", f"{long}penalty"}
    names = arguments_of(script.module, "transform_rewards")
    ours = {name for each in ("clip", "missing_eos", "overlong") for name in read_fragment("reward", each).functions}
    called = names_read(script.module, "transform_rewards") & vars(script.module).keys()
    if not (names <= bounds | {cut} | overlong and called <= ours):
        return  # one that nothing is known about
    edges = [script.number(f"{long}limit", 8.0), script.number(f"{long}limit", 8.0) - script.number(f"{long}buffer", 4)]
    lengths = torch.cat([torch.arange(-4, 5) + int(edge) for edge in edges]).clamp(min=0)
    lengths, ended = lengths[:, None].expand(-1, 6), (torch.arange(6) % 2 == 0).expand(len(lengths), -1)
    low, high = script.number("reward_clip_low", -1.0), script.number("reward_clip_high", 1.0)
    rewards = torch.tensor([low - 2, low - 1, (low + high) / 2, low / 3 + high / 1.5, high + 1, high + 2]).double()
    rewards = wanted = rewards.expand(len(lengths), -1)
    if bounds <= names:
        wanted = torch.minimum(torch.maximum(wanted, torch.full_like(wanted, low)), torch.full_like(wanted, high))
    if cut in names:
        wanted = wanted.masked_fill(~ended, script.number(cut, 0.0))
    if overlong <= names:
        limit, buffer, penalty = (script.number(long + name, 1.0) for name in ("limit", "buffer", "penalty"))
        share = ((lengths - limit + buffer).double() / buffer).clamp(min=0.0, max=1.0)
        wanted = wanted - penalty * share
    got = script.module.transform_rewards(rewards, ended, lengths, script.hp)
    close(got, wanted, "by the arguments of the reward, the reward", rtol=1e-9, atol=1e-9)


def entropy_is_as_named(script: Script, batch: Batch) -> None:
    """What is maximized grows with the entropy, in the same weights as the advantage."""
    weights = script.module.aggregation_weights(batch.mask_BGT, script.hp)
    extras = batch.extras_BGT.clone().requires_grad_()
    value = loss(script, batch._replace(extras_BGT=extras), torch.zeros_like(weights), weights, batch.logprobs_BGT)
    (slope,) = torch.autograd.grad(value, extras)
    close(slope, -weights * script.number("entropy_bonus", 0.0), "the gradient of the loss in the entropy", rtol=1e-9)


def likelihood_is_as_named(script: Script, batch: Batch) -> None:
    """The likelihood of correct responses is maximized in weights of its own, which are 1 over their tokens."""
    correct = batch.mask_BGT & (batch.rewards_BG > 0)[..., None]
    wanted = correct.double() / max(int(correct.sum()), 1)
    weights = likelihood(script, batch)
    close(weights, wanted, "of correct responses, the weight of a token's likelihood", rtol=1e-9)
    none = torch.zeros_like(weights)
    slopes = []
    for given in (weights, none):
        logprobs = batch.logprobs_BGT.detach().requires_grad_()
        rows = [x.flatten(0, 1) for x in (logprobs, batch.old_logprobs_BGT, batch.ref_logprobs_BGT, none, none)]
        extra = extra_inputs(script, none.flatten(0, 1)) | {"likelihood_weights": given.flatten(0, 1)}
        value = script.module.policy_loss(*rows, batch.mask_BGT.flatten(0, 1), script.hp, **extra)
        slopes.append(torch.autograd.grad(value, logprobs)[0])
    coefficient = script.number("positive_nll_coefficient", 0.0)
    close(slopes[0] - slopes[1], -coefficient * weights, "of the likelihood, the gradient of the loss", rtol=1e-9)


def decay_is_as_named(script: Script, batch: Batch, name: str) -> None:
    """With a decay of 0 nothing is left of the past, in the statistics that it has to do with."""
    module, forgetful = script.module, dataclasses.replace(script.hp, **{name: 0.0})
    usual = module.update_state(batch.rollouts(module), script.hp)
    late = module.update_state(batch.rollouts(module), forgetful)
    carried = {number: value for number, value in past_state(module).items() if script.carries(number)}
    fresh = module.update_state(batch.rollouts(module, state=carried), forgetful)
    for key in usual:
        if differ(usual[key], late[key]):
            close(late[key], fresh[key], f"with a {name} of 0, {key}")


def selection_is_as_named(script: Script) -> None:
    """No other m of a prompt's scored responses have rewards of a larger variance."""
    generator, m = torch.Generator().manual_seed(6), 3
    rewards = torch.randn(12, 7, generator=generator, dtype=torch.float64)
    rewards = torch.cat([rewards, rewards.exp(), -rewards.exp()])  # of which one end or the other is stretched
    rewards[::4, :2] = math.nan
    hp = dataclasses.replace(script.hp, max_variance=m)
    for row, kept in zip(rewards, kept_rewards(script, rewards, hp), strict=True):
        subsets = torch.combinations(row[row.isfinite()], m)
        spread, best = torch.tensor(kept, dtype=torch.float64).var(), subsets.var(1).max()
        close(spread, best, f"of {len(row)} responses, the variance of the rewards of the {m} that are kept", rtol=1e-9)


def coefficient_is_as_named(script: Script, batch: Batch) -> None:
    """An adaptive coefficient grows by a share of the error of the measured KL, in each direction up to a bound."""
    initial, target, horizon = (script.number(f"kl_adaptive_{name}", 1.0) for name in ("initial", "target", "horizon"))
    counts = batch.rewards_BG.isfinite() & batch.mask_BGT.any(-1)
    for nats in (-50.0, 0.0, 0.9 * target, 1.1 * target, 50 * target):  # a response
        part = nats / batch.mask_BGT.sum(-1, keepdim=True).clamp(min=1)
        moved = batch._replace(ref_logprobs_BGT=batch.old_logprobs_BGT - part)
        state = script.module.update_state(moved.rollouts(script.module, state={}), script.hp)
        error = min(max((nats if counts.any() else 0.0) / target - 1, -0.2), 0.2)
        wanted = initial * max(0.5, 1 + error * int(counts.sum()) / horizon)
        got = state["kl_coefficient"].double()
        what = f"after a step with a KL of {nats:g} nats a response, the coefficient"
        close(got, torch.tensor(wanted, dtype=torch.float64), what, rtol=1e-6)


def pretraining_is_as_named(script: Script) -> None:
    """The first steps, as many as the argument says, leave the policy alone, and no others do."""
    steps = int(script.number("baseline_pretrain_steps", 0))
    idle = [step for step in range(steps + 8) if not script.module.trains_policy(step, script.hp)]
    need(idle == list(range(steps)), f"of {steps} first steps, {len(idle)} leave the policy alone: {idle[:9]}")


@law(9, "every number acts", batches=2)
def every_number_acts(script: Script, batch: Batch) -> None:
    """Another value of any number changes something, on a batch with responses of every kind; and those of the reward,
    of a selection, of an entropy bonus, of a decay, of an adaptive KL and of pretraining do what their names say.

    The numbers are those of the spec, or of a script without one those that its estimator reads.
    """
    if script.has("transform_rewards"):
        rewards_are_as_named(script)
    if selects(script) and "max_variance" in arguments_read(script.module):
        selection_is_as_named(script)
    if script.carries("kl_coefficient") and {"kl_adaptive_target", "kl_adaptive_horizon"} <= vars(script.hp).keys():
        coefficient_is_as_named(script, batch)
    if script.has("trains_policy") and hasattr(script.hp, "baseline_pretrain_steps"):
        pretraining_is_as_named(script)
    if "likelihood_weights" in script.loss_inputs:
        likelihood_is_as_named(script, batch)
    if script.loss_inputs == ("entropies",) and "entropy_bonus" in arguments_read(script.module):
        entropy_is_as_named(script, batch)
    module, hp, plan = script.module, script.hp, script.plan
    names = arguments_read(module)
    if plan is not None:
        numbers = plan.estimator_parameters
        names = [parameter.argument for parameter in numbers]
        for parameter in numbers:
            value = getattr(hp, parameter.argument, None)
            as_specified = value == parameter.value and type(value) is type(parameter.value)
            need(as_specified, f"the script's {parameter.argument} is {value} and the spec's {parameter.value}")
    smallest = 2 if plan is None else plan.min_group_size
    rich = make_batch(5, 64, max(batch.mask_BGT.shape[1], smallest), 4, spread=2.0)
    # Rewards of two sizes: beside a large constant or KL the small ones all fall on one side of a clip.
    scales = (4, 400, 0.25) if script.has("transform_rewards") else (4, 400)  # a transform may be flat but near 0
    batches = [
        rich._replace(rewards_BG=scale * rich.rewards_BG, step_rewards_BGT=scale * rich.step_rewards_BGT)
        for scale in scales
    ]
    if script.carries("kl_coefficient"):  # which is moved by a KL on either side of its target, as far as a bound
        batches += [batches[0]._replace(ref_logprobs_BGT=rich.old_logprobs_BGT - nats) for nats in (0.5, 50.0)]
    rich, usual = batches[0], [list(outcomes(script, each, hp)) for each in batches]
    for name in arguments_read(module):
        if name.endswith("_decay") and script.has("update_state"):
            decay_is_as_named(script, rich, name)
    for name in names:
        value = getattr(hp, name)
        for other in other_values(value, limits(module)[name]):
            changed = dataclasses.replace(hp, **{name: other})
            pairs = (
                zip(before, outcomes(script, each, changed), strict=True)
                for before, each in zip(usual, batches, strict=True)
            )
            if any(differ(a, b) for pair in pairs for a, b in pair):
                break
        else:
            raise Broken(f"{name} changes nothing: rewards, advantages, weights, loss and gradient are as with {value}")


@law(10, "what is masked out does not count")
def masked_out_responses_do_not_count(script: Script, batch: Batch) -> None:
    """What is masked out is in neither the numerator nor the denominator."""
    weights = script.module.aggregation_weights(batch.mask_BGT, script.hp)
    wrong = (weights > 0) != batch.mask_BGT
    need(not wrong.any(), f"the weight of {int(wrong.sum())} token(s) is positive and masked out, or the reverse")
    more = torch.cat([batch.mask_BGT, torch.zeros_like(batch.mask_BGT)])
    wanted = torch.cat([weights, torch.zeros_like(weights)])
    got = script.module.aggregation_weights(more, script.hp)
    close(got, wanted, "with as many responses more, all masked out, the weight")
    unscored_responses_do_not_count(script, batch)


def unscored_responses_do_not_count(script: Script, batch: Batch) -> None:
    """One response more for every prompt, with tokens and without a reward: the others' advantages stay."""
    G = batch.mask_BGT.shape[1]
    grown = {
        name: torch.cat([tensor, tensor[:, :1]], dim=1)
        for name, tensor in batch._asdict().items()
        if name.endswith(("_BG", "_BGT"))
    }
    grown["rewards_BG"][:, G:] = math.nan
    grown["mask_BGT"][:, G:] = True
    more, when = batch._replace(**grown), "with an unscored response more for every prompt"
    if selects(script):
        hp = script.for_groups(script.hp, G)
        kept = [kept_rewards(script, each.rewards_BG, hp) for each in (more, batch)]
        need(kept[0] == kept[1], f"{when}, the rewards {kept[0]} are kept and not {kept[1]}")
    got, want = advantages_with(script, more), advantages_with(script, batch)
    zero(got[:, G:], f"{when}, its advantage")
    close(got[:, :G], want, f"{when}, the advantage of another", rtol=1e-9, atol=1e-9)
    if script.has("update_state"):
        states = (script.module.update_state(each.rollouts(script.module), script.hp) for each in (more, batch))
        for (name, left), right in zip(next(states).items(), next(states).values(), strict=True):
            close(left, right, f"{when}, {name}", rtol=1e-9, atol=1e-9)


@law(11, "statistics are two-pass", batches=4)
def statistics_are_two_pass(script: Script, batch: Batch) -> None:
    """Small differences of large rewards survive in float32, where a one-pass variance would lose them."""
    rewards = 10_000 + (4 * batch.rewards_BG).round()  # exact in float32, where their squares are 8 apart
    if selects(script):
        hp = script.for_groups(script.hp, rewards.shape[1])
        single, exact = (kept_rewards(script, each, hp) for each in (rewards.float(), rewards))
        need(single == exact, f"of rewards near 10000 in float32 it keeps {single} and not {exact}")
    if kl_in_reward(script):
        raise NotApplicable("the KL in the reward is no small difference of large numbers")
    wanted, got = (
        advantages_with(script, batch, **rewarded(script.plan, batch, each)) for each in (rewards, rewards.float())
    )
    close(got.double(), wanted, "with rewards near 10000 in float32, the advantage", rtol=1e-2, atol=1e-2)


class NoSinglePrecision(TorchFunctionMode):
    """Stops at the first operation that makes a tensor of less than float64.

    (A mode of torch.utils._python_dispatch would see inside of operations too; it imports torch._dynamo for a second.)
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            narrow = isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dtype != torch.float64
            if narrow:
                raise Broken(f"{getattr(func, '__name__', func)} makes {tensor.dtype} of float64 and integers")
        return result


@law(11, "float64 stays float64", batches=2)
def float64_stays_float64(script: Script, batch: Batch) -> None:
    """Nothing is computed in less than the precision of what is given."""
    with NoSinglePrecision():
        made = estimate(script, batch)
        if script.has("transform_rewards"):
            lengths = batch.mask_BGT.sum(-1)
            made["rewards"] = script.module.transform_rewards(batch.rewards_BG, lengths > 1, lengths, script.hp)
    for name, value in made.items():
        need(value.dtype == torch.float64, f"{name} is {value.dtype} where everything given is float64")


@law(3, "batches side by side are what they are alone", batches=2)
def vmap_and_grad_go_through(script: Script, batch: Batch) -> None:
    """No Python branch on a tensor's value: many batches at once, under vmap, are each what they are alone."""
    module, hp = script.module, script.hp
    B, G, T = batch.mask_BGT.shape
    other = make_batch(11, B, G, T)
    pair = Batch(*(torch.stack(two) for two in zip(batch, other, strict=True)))
    past = past_state(module) if script.has("update_state") else {}
    states = [past, {name: value + value for name, value in past.items()}]
    state = {name: torch.stack([each[name] for each in states]) for name in past}

    def statistics_of(state: dict[str, Tensor], *tensors: Tensor) -> Estimate:
        lane = Batch(*tensors)
        found = module.update_state(lane.rollouts(module, state=state), hp) if past else {}
        found["advantages"] = advantages_with(script, lane, state=state)
        found["weights"] = module.aggregation_weights(lane.mask_BGT, hp)
        if script.has("value_loss"):
            targets = module.compute_value_targets(lane.rollouts(module, state=state), hp)
            tensors = (lane.extras_BGT, lane.values_BGT, targets, found["weights"], lane.mask_BGT)
            found["value loss"] = module.value_loss(*(x.flatten(0, 1) for x in tensors), hp)
            found["targets"] = targets.masked_fill(targets.isnan(), 0.0)
        return found

    def loss_of(logprobs: Tensor, advantages: Tensor, weights: Tensor, *tensors: Tensor) -> Tensor:
        return loss(script, Batch(*tensors), advantages, weights, logprobs)

    together = torch.func.vmap(statistics_of, in_dims=(0 if past else None, *[0] * len(pair)))(state, *pair)
    logprobs = pair.logprobs_BGT.detach().requires_grad_()
    given = (together["advantages"], together["weights"], *pair)
    # The lanes are independent, so the gradient of their sum is each one's own.
    together["loss"] = torch.func.vmap(loss_of)(logprobs, *given)
    (together["gradient"],) = torch.autograd.grad(together["loss"].sum(), logprobs)
    for lane, each, state in ((0, batch, states[0]), (1, other, states[1])):
        alone = statistics_of(state, *each)
        alone["loss"], alone["gradient"] = loss_and_gradient(script, each, alone["advantages"], alone["weights"])
        same({name: value[lane].detach() for name, value in together.items()}, alone, "beside another batch")


@law(3, "a reward is its response's own", batches=2)
def rewards_are_their_own(script: Script, batch: Batch) -> None:
    """Each process changes the scores of its own responses, so a score may not look at others."""
    if not script.has("transform_rewards"):
        raise NotApplicable("scores are not changed")
    shape, lengths = batch.rewards_BG.shape, batch.mask_BGT.sum(-1)
    rewards, ended = 3 * torch.linspace(-1, 1, shape.numel()).double().view(shape), lengths > 1
    together = script.module.transform_rewards(rewards, ended, lengths, script.hp)
    for b, g in itertools.product(range(shape[0]), range(shape[1])):
        one = (x[b : b + 1, g : g + 1] for x in (rewards, ended, lengths))
        alone = script.module.transform_rewards(*one, script.hp)
        close(alone, together[b : b + 1, g : g + 1], "apart from the rest of the batch, the reward")


@law(17, "the same batch gives the same estimate", batches=2)
def estimates_repeat(script: Script, batch: Batch) -> None:
    """Nothing is drawn, and nothing is kept but the state: a run that is resumed goes on as it would have."""
    same(estimate(script, batch), estimate(script, batch), "a second time", exactly=True)


# -------- The critic --------


def lambda_returns(rewards: list[float], values: list[float], trace: float, gamma: float) -> list[float]:
    """Of one response: G_t = r_t + gamma ((1 - trace) V_(t+1) + trace G_(t+1)), and 0 after its last token."""
    following, value, found = 0.0, 0.0, []
    for reward, own in zip(reversed(rewards), reversed(values), strict=True):
        following = reward + gamma * ((1 - trace) * value + trace * following)
        value = own
        found.append(following)
    return found[::-1]


ACTOR_LAMBDAS = {"baseline_gae_lambda", "baseline_length_adaptive_alpha"}


def actor_lambda(hp: Any, length: int) -> float:
    """The lambda of the advantages that the script's arguments name, for a response of some tokens."""
    if hasattr(hp, "baseline_gae_lambda"):
        return float(hp.baseline_gae_lambda)
    return max(0.0, 1 - 1 / (hp.baseline_length_adaptive_alpha * length)) if length else 0.0


@law(14, "the critic sees states, and pads do not bootstrap", batches=4)
def the_critic_sees_states(script: Script, batch: Batch) -> None:
    """Targets and advantages by their recursion, response by response, where no KL is charged; and the values move
    towards the targets, in proportion to their distance.

    A normalization leaves the advantages of one prompt a multiple of those, plus a constant; of one of the author's own
    nothing is known.
    """
    if not script.has("value_loss"):
        raise NotApplicable("there is no critic")
    known = vars(script.hp).keys()
    if not {"baseline_critic_lambda", "baseline_gamma"} <= known or not ACTOR_LAMBDAS & known:
        raise NotApplicable("the arguments of the script do not name its lambdas and its gamma")
    critic_lambda, gamma = script.number("baseline_critic_lambda", 1.0), script.number("baseline_gamma", 1.0)
    one = make_batch(3, 1, max(2, batch.mask_BGT.shape[1]), 4)
    one = one._replace(ref_logprobs_BGT=one.old_logprobs_BGT, rewards_BG=one.rewards_BG.abs())
    targets, found = torch.full_like(one.values_BGT, math.nan), torch.zeros_like(one.values_BGT)
    for g, length in enumerate(one.mask_BGT[0].sum(-1).tolist()):
        rewards = [0.0] * (length - 1) + [float(one.rewards_BG[0, g])] * (length > 0)
        values = one.values_BGT[0, g, :length].tolist()
        for table, trace in ((targets, critic_lambda), (found, actor_lambda(script.hp, length))):
            table[0, g, :length] = torch.tensor(lambda_returns(rewards, values, trace, gamma), dtype=torch.float64)
    raw = torch.where(one.mask_BGT, found - one.values_BGT, 0.0)[one.mask_BGT]
    got = script.module.compute_value_targets(one.rollouts(script.module), script.hp)
    need(torch.equal(got.isnan(), targets.isnan()), "a target is missing on a token, or there is one on a pad")
    close(got[one.mask_BGT], targets[one.mask_BGT], "the critic's target", rtol=1e-9, atol=1e-9)
    values_move_to_targets(script, one, got)
    if script.own_normalization:
        return
    advantages = advantages_with(script, one)[one.mask_BGT]
    if script.plan is None or script.plan.normalizers:
        low, high = int(raw.argmin()), int(raw.argmax())
        slope = (advantages[high] - advantages[low]) / (raw[high] - raw[low])
        need(slope > 0, "the advantages are not in the order of the generalized ones")
        raw = advantages[low] + slope * (raw - raw[low])
    close(advantages, raw, "the generalized advantage", rtol=1e-9, atol=1e-9)


def values_move_to_targets(script: Script, batch: Batch, targets: Tensor) -> None:
    """The gradient of half the squared error, but where the value is beyond the argument's clip and nearer than its
    bound."""
    weights = script.module.aggregation_weights(batch.mask_BGT, script.hp)
    _, got = value_loss_and_gradient(script, batch, targets, weights)
    moved = batch.extras_BGT - 1
    error, bound = batch.values_BGT + moved - targets, script.number("baseline_value_clip", math.inf)
    bounded = batch.values_BGT + moved.clamp(-bound, bound) - targets
    live = batch.mask_BGT & targets.isfinite() & (error.abs() >= bounded.abs())
    wanted = torch.where(live, script.number("baseline_coefficient", 1.0) * weights * error, 0.0)
    close(got, wanted, "the gradient of the value loss", rtol=1e-9, atol=1e-9)


# -------- The bounds of the ratio --------


@dataclasses.dataclass(frozen=True)
class Weighting:
    """What a script's arguments say of the ratio's part in the objective."""

    value: Callable[[Tensor, Tensor, Tensor], Tensor]
    """the objective over the advantage, of ratio, sign of the advantage, and log-prob"""
    slope: Callable[[Tensor, Tensor], Tensor]
    """its derivative with respect to the log-prob"""
    ratios: list[float]
    """ratios on both sides of every bound"""
    clipped: dict[float, float]
    """by the sign of the advantage, a ratio from which on, away from 1, there is no gradient"""
    free: dict[float, float]
    """by the sign of the advantage, a ratio from which on, away from 1, there always is one"""


def weighting_of(script: Script) -> Weighting:
    """The weighting that the script's arguments describe; they are the only thing that is looked at."""
    values = {name: float(value) for name, value in vars(script.hp).items() if type(value) in (int, float)}
    if {"clip_low", "clip_high"} <= values.keys():
        return clip(values["clip_low"], values["clip_high"], values.get("clip_dual", math.inf))
    if {"detached_clip_low", "detached_clip_high"} <= values.keys():
        return detached_clip(values["detached_clip_low"], values["detached_clip_high"])
    if {"soft_gate_positive", "soft_gate_negative"} <= values.keys():
        return soft_gate(values["soft_gate_positive"], values["soft_gate_negative"])
    if {"token_clip_low", "token_clip_high"} <= values.keys():  # bounds of the log-ratio
        return clip(1 - math.exp(-values["token_clip_low"]), math.expm1(values["token_clip_high"]), math.inf)
    raise NotApplicable("no argument of the script bounds the ratio")


def around(low: float, high: float, dual: float = math.inf) -> list[float]:
    """Ratios below, between and above the bounds 1 - low, 1 + high and dual, and not at one, where the slope jumps."""
    bounds = [1 - low, 1 + high, dual]
    below = [1 - low / 2, (1 - low) / 2 if low < 1 else 0.05]
    above = [
        1 + min(high, dual - 1) / 2,
        1.5 * (1 + high),
        *([(1 + high + dual) / 2, 1.5 * dual] if dual < math.inf else []),
    ]
    return [ratio for ratio in (*below, 1.0, *above) if not any(math.isclose(ratio, bound) for bound in bounds)]


def by_sign(sign: Tensor, positive: float, negative: float) -> Tensor:
    return torch.full_like(sign, negative).masked_fill(sign > 0, positive)


def clip(low: float, high: float, dual: float) -> Weighting:
    """One bound a sign: 1 + high for positive advantages, 1 - low for negative ones, and those have `dual` besides."""

    def value(ratio: Tensor, sign: Tensor, logprobs: Tensor) -> Tensor:
        floor, ceiling = by_sign(sign, 0.0, 1 - low), by_sign(sign, 1 + high, dual)
        return torch.minimum(torch.maximum(ratio, floor), ceiling)

    def slope(ratio: Tensor, sign: Tensor) -> Tensor:
        return torch.where(value(ratio, sign, ratio) == ratio, ratio, 0.0)

    clipped, free = {1.0: 1.5 * (1 + high)}, {1.0: (1 - low) / 2 if low < 1 else 0.5}
    if low < 1:
        clipped[-1.0] = (1 - low) / 2
    elif dual < math.inf:
        clipped[-1.0] = 1.5 * dual
    if dual == math.inf:
        free[-1.0] = 1.5 * (1 + high)
    return Weighting(value, slope, around(low, high, dual), clipped, free)


def detached_clip(low: float, high: float) -> Weighting:
    """The clipped ratio is a factor of A log pi, without a gradient of its own: no token loses its gradient."""

    def slope(ratio: Tensor, sign: Tensor) -> Tensor:
        return ratio.clamp(1 - low, 1 + high)

    far = 1.5 * (1 + high)
    return Weighting(
        lambda r, sign, logprobs: slope(r, sign) * logprobs, slope, around(low, high), {}, {1.0: far, -1.0: far}
    )


def soft_gate(positive: float, negative: float) -> Weighting:
    """4 / tau sigmoid(tau (ratio - 1)), with tau by the advantage's sign: the slope shrinks and is never 0."""

    def gate(ratio: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
        tau = by_sign(sign, positive, negative)
        return tau, torch.sigmoid(tau * (ratio - 1))

    def value(ratio: Tensor, sign: Tensor, logprobs: Tensor) -> Tensor:
        tau, open = gate(ratio, sign)
        return 4 / tau * open

    def slope(ratio: Tensor, sign: Tensor) -> Tensor:
        _, open = gate(ratio, sign)
        return 4 * open * (1 - open) * ratio

    step = 1 / (1 + max(positive, negative))  # where the sigmoid is not yet flat
    return Weighting(value, slope, [1 - step, 1.0, 1 + step], {}, {1.0: 1 - step, -1.0: 1 - step})


@law(15, "the ratio is bounded on one side", batches=3)
def ratio_is_bounded_on_one_side(script: Script, batch: Batch) -> None:
    """Value and slope of the objective for both signs of the advantage, at ratios around every bound.

    Rows of one token, for which the ratios of a token and of a sequence are the same.
    """
    weighting = weighting_of(script)
    if script.weighs_tokens:
        raise NotApplicable("each token has a weight beside the ratio")
    ratio = torch.tensor(weighting.ratios, dtype=torch.float64).repeat(2)
    count = len(ratio)
    sign = torch.ones(count, dtype=torch.float64)
    sign[count // 2 :] = -1.0
    chosen = torch.arange(count) % batch.mask_BGT.numel()
    rows = Batch(*(tensor.flatten()[chosen % tensor.numel(), None, None] for tensor in batch))
    logprobs = rows.logprobs_BGT.detach().requires_grad_()
    rows = rows._replace(
        mask_BGT=torch.ones_like(rows.mask_BGT), old_logprobs_BGT=logprobs.detach() - ratio.log()[:, None, None]
    )
    advantages = (sign * torch.linspace(0.5, 2.0, count, dtype=torch.float64))[:, None, None]
    weights = torch.linspace(1.0, 0.2, count, dtype=torch.float64)[:, None, None].requires_grad_()

    def gradients(advantages: Tensor) -> tuple[Tensor, Tensor]:
        """Of the log-probs and of the weights: the latter is minus the objective of each token."""
        value = loss(script, rows, advantages, weights, logprobs)
        slope, objective = torch.autograd.grad(value, (logprobs, weights), allow_unused=True)
        return (torch.zeros_like(logprobs) if slope is None else slope), objective

    with_advantage, beside = gradients(advantages), gradients(torch.zeros_like(advantages))
    slope, value = ((-(a - b) / advantages).flatten() for a, b in zip(with_advantage, beside, strict=True))
    slope = slope / weights.detach().flatten()
    wanted = weighting.slope(ratio, sign), weighting.value(ratio, sign, logprobs.detach().flatten())
    for i in range(count):
        when = f"with a ratio of {ratio[i]:.6g} and {'a positive' if sign[i] > 0 else 'a negative'} advantage A"
        close(slope[i], wanted[0][i], f"{when}, the gradient over A", rtol=1e-9, atol=1e-9)
        close(value[i], wanted[1][i], f"{when}, the objective over A", rtol=1e-9, atol=1e-9)


@law(15, "clipped tokens have no gradient, all others have one", batches=3)
def clipped_tokens_have_no_gradient(script: Script, batch: Batch) -> None:
    """Whole responses beyond a bound, which they are by every kind of ratio; and what the script counts as clipped."""
    weighting, module = weighting_of(script), script.module
    weights = module.aggregation_weights(batch.mask_BGT, script.hp)
    for clipped, ratios in ((True, weighting.clipped), (False, weighting.free)):
        if not ratios:
            continue
        turns = torch.arange(batch.rewards_BG.numel()).view(batch.rewards_BG.shape) % len(ratios)
        signs, log_ratios = (
            torch.tensor(list(x), dtype=torch.float64)[turns, None] for x in (ratios, map(math.log, ratios.values()))
        )
        moved = batch._replace(old_logprobs_BGT=batch.logprobs_BGT - log_ratios)
        advantages = signs * batch.mask_BGT
        _, gradient = loss_and_gradient(script, moved, advantages, weights)
        _, beside = loss_and_gradient(script, moved, torch.zeros_like(advantages), weights)
        slope, tokens = gradient - beside, int(batch.mask_BGT.sum())
        if clipped:
            zero(slope, "the gradient of a token whose ratio is beyond its bound")
        else:
            idle = int((slope[batch.mask_BGT] == 0).sum())
            need(idle == 0, f"{idle} of {tokens} tokens have no gradient, and no bound acts on them")
        if clipped and {"token_clip_low", "token_clip_high"} <= vars(script.hp).keys():
            tokens_are_bounded_alone(script, moved, advantages, weights)
        if script.has("count_clipped") and weighting.clipped:
            rows = [x.flatten(0, 1) for x in (batch.logprobs_BGT, moved.old_logprobs_BGT, advantages, batch.mask_BGT)]
            counted, wanted = int(module.count_clipped(*rows, script.hp).sum()), tokens if clipped else 0
            need(counted == wanted, f"count_clipped says that {counted} tokens are clipped, and {wanted} are")


def tokens_are_bounded_alone(script: Script, batch: Batch, advantages: Tensor, weights: Tensor) -> None:
    """Where every other token is beyond its own bound and all ratios of the rest are 1, the rest has a gradient."""
    odd = torch.arange(batch.mask_BGT.shape[-1]) % 2 == 1
    mixed = batch._replace(old_logprobs_BGT=torch.where(odd, batch.old_logprobs_BGT, batch.logprobs_BGT))
    _, gradient = loss_and_gradient(script, mixed, advantages, weights)
    _, beside = loss_and_gradient(script, mixed, torch.zeros_like(advantages), weights)
    slope = gradient - beside
    zero(slope[..., odd], "the gradient of a token whose own ratio is beyond its bound")
    idle = int((slope == 0)[batch.mask_BGT & ~odd].sum())
    need(idle == 0, f"{idle} tokens have no gradient, and only others of their responses are beyond a bound")


# -------- Checking --------


def judge(law: Law, script: Script, batches: list[Batch]) -> LawResult:
    """One law on some batches. What the script raises breaks the law that ran it."""
    reason = ""
    applied = False
    for batch in batches[: law.batches]:
        try:
            law.check(script, batch)
            applied = True
        except NotApplicable as why:
            reason = str(why)
        except Exception as error:
            B, G, T = batch.mask_BGT.shape
            size = f" ({B} prompts, {G} responses each, {T} tokens)"
            return LawResult(law, "broken", described(error, script) + size)
    return LawResult(law, "holds") if applied else LawResult(law, "skipped", reason)


def described(error: Exception, script: Script) -> str:
    """An exception in one line, with the line of the script that it comes from."""
    text = " ".join(str(error).split())
    if not isinstance(error, Broken):
        text = f"{type(error).__name__}: {text}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == script.name]
    return f"{text}, in {frames[-1].name} at line {frames[-1].lineno}" if frames else text


def check_laws(script: Script, *, seed: int = 0, batches: int = 6) -> list[LawResult]:
    """Every law on the batches of a seed, in the order of their numbers."""
    if script.on_pairs:
        from specc.verify.pair_laws import check_pair_laws

        return check_pair_laws(script, seed, batches)
    try:
        made = list(family(script, seed, batches))
    except Exception as error:
        return [LawResult(each, "broken", described(error, script)) for each in LAWS]
    return [judge(each, script, made) for each in sorted(LAWS, key=lambda each: each.number)]
