"""E[g] and its covariance, exactly: the script's gradient on every outcome, times the outcome's probability.

The gradient in the logits is the sum over tokens of (d loss / d log pi) grad log pi. The first factor comes from the
script itself: `torch.func.vmap` runs its own `compute_advantages`, `aggregation_weights` and `policy_loss` on
many outcomes at once, and autograd differentiates them. The responses to a prompt are exchangeable (law 4, which is
checked apart), so a group is counted as a multiset, with the number of its orders.

All gradients here point uphill: they are those of minus the loss. Each is taken with respect to every prompt's own
parameters, [B, P], where the objective is the mean over the batch's prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, product
from math import comb, factorial, prod
from typing import Any

import torch
from torch import Tensor

from specc.verify.environment import PASTS, Environment, Tables, counts
from specc.verify.script import Script, rollouts_of

AT_ONCE = 1 << 21
"""numbers of the largest tensor that a chunk of outcomes may need: 16 MB in float64"""


@dataclass(frozen=True)
class Moments:
    """The mean and the covariance of one step's gradient."""

    mean: Tensor  # [B, P], exactly 0 where only rounding is left
    second: Tensor | None  # E[g g^T], [B P, B P]
    outcomes: int
    advantage_variance: float = 0.0  # of the advantage on the first token of a response, over everything random

    @property
    def covariance(self) -> Tensor:
        assert self.second is not None
        flat = self.mean.flatten()
        return self.second - flat[:, None] * flat

    @property
    def trace(self) -> float:
        """tr Cov(g)."""
        return float(self.covariance.diagonal().sum())


@cache
def groups(outcomes: int, size: int, exchangeable: bool = True) -> tuple[Tensor, Tensor]:
    """Every multiset of `size` outcomes [C, G], and in how many orders it can be sampled [C]; or every sequence."""
    if not exchangeable:
        every = torch.tensor(list(product(range(outcomes), repeat=size))).view(-1, size)
        return every, torch.ones(len(every), dtype=torch.float64)
    chosen = list(combinations_with_replacement(range(outcomes), size))
    orders = [factorial(size) // prod(factorial(c.count(y)) for y in set(c)) for c in chosen]
    return torch.tensor(chosen).view(-1, size), torch.tensor(orders, dtype=torch.float64)


def count_groups(script: Script, outcomes: int, size: int) -> int:
    """How many groups there are to enumerate."""
    return comb(outcomes + size - 1, size) if script.exchangeable else outcomes**size


def batches(tables: Tables, size: int, probs: Tensor, exchangeable: bool = True) -> Iterator[tuple[Tensor, Tensor]]:
    """Every batch of groups, in chunks: outcome indices [n, B, G], and probabilities [n]."""
    prompts, outcomes = tables.rewards.shape
    multisets, orders = groups(outcomes, size, exchangeable)
    of_group = orders * probs[:, multisets].prod(-1)  # [B, C]
    count = len(multisets)
    width = tables.scores[0, 0].numel() * prompts * size
    step = max(1, AT_ONCE // width)
    for first in range(0, count**prompts, step):
        number = torch.arange(first, min(first + step, count**prompts))
        digits = torch.stack([number // count**b % count for b in range(prompts)], dim=1)  # [n, B]
        yield multisets[digits], of_group[torch.arange(prompts), digits].prod(1)


def moments(
    script: Script,
    environment: Environment,
    size: int,
    hp: Any = None,
    *,
    reused: bool = False,
    covariance: bool = False,
) -> Moments:
    """The exact moments of the gradient of a batch with `size` responses to each of the environment's prompts.

    `reused` samples from the behaviour policy and takes the gradient at the policy, as the later updates of a batch do.
    """
    tables = environment.tables
    probs = tables.old_probs if reused else tables.probs
    B, P = len(probs), tables.scores.shape[-1]
    mean, outcomes = torch.zeros(B, P, dtype=torch.float64), 0
    sizes = torch.zeros(B, dtype=torch.float64)
    second = torch.zeros(B * P, B * P, dtype=torch.float64) if covariance else None
    first, square = 0.0, 0.0
    context = Context(script, environment, hp or script.hp, reused)
    for index, probability in batches(tables, size, probs, script.exchangeable):
        slopes, advantages = context.slopes(index)
        gradient = context.gradients(index, slopes)
        mean += torch.einsum("n,nbp->bp", probability, gradient)
        sizes += probability @ gradient.abs().sum(-1)
        if second is not None:
            flat = gradient.flatten(1)
            second += (flat * probability[:, None]).T @ flat
            first += float((probability * advantages[..., 0].mean((1, 2))).sum())
            square += float((probability * advantages[..., 0].square().mean((1, 2))).sum())
        outcomes += len(index)
    return Moments(without_rounding(mean, sizes), second, outcomes, square - first**2)


def without_rounding(mean: Tensor, sizes: Tensor) -> Tensor:
    """The means [B, P], 0 where they are nothing beside the mean size of what they are means of [B]."""
    return mean.masked_fill((mean.abs().sum(-1) <= 1e-13 * sizes)[:, None], 0.0)


def population(script: Script, environment: Environment, size: int, hp: Any = None, *, reused: bool = False) -> Tensor:
    """The limit of E[g] as the batch grows, times the prompts in it: comparable to each prompt's gradient. [B, P].

    It is the gradient of one batch in which every group of a prompt occurs as often as its probability says, so that
    the statistics of the batch are those of the population. Some prompts may occur more often than others.
    """
    index, owner, orders = population_batch(environment, size, reused, script.exchangeable)
    context = Context(script, environment, hp or script.hp, reused, owner)
    slopes, _ = context.slopes(index[None])
    gradient = context.gradients(index[None], slopes)[0]  # [groups, P]
    share = orders / orders.sum()
    total = torch.zeros(len(orders), gradient.shape[-1], dtype=torch.float64).index_add_(0, owner, gradient)
    sizes = torch.zeros(len(orders), dtype=torch.float64).index_add_(0, owner, gradient.abs().sum(-1))
    return without_rounding(total, sizes) / share[:, None]


def population_batch(
    environment: Environment, size: int, reused: bool = False, exchangeable: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """That batch: outcomes [groups, G], the prompt of each group, and how many groups each prompt has [B]."""
    multisets, orders = groups(len(environment.tree.responses), size, exchangeable)
    parts = []
    for prompt in environment.prompts:
        count = torch.tensor(counts(prompt.behaviour if reused else prompt.policy, environment.tree))
        parts.append(multisets.repeat_interleave(orders.long() * count[multisets].prod(-1), dim=0))
    sizes = torch.tensor([len(part) for part in parts])
    return torch.cat(parts), torch.arange(len(parts)).repeat_interleave(sizes), sizes.double()


def population_size(environment: Environment, size: int, reused: bool = False) -> int:
    """The responses in that batch."""
    policies = [p.behaviour if reused else p.policy for p in environment.prompts]
    return size * sum(int(sum(counts(policy, environment.tree)) ** size) for policy in policies)


@dataclass(frozen=True)
class Context:
    """What it takes to run the script on batches of an environment's outcomes."""

    script: Script
    environment: Environment
    hp: Any
    reused: bool
    owner: Tensor | None = None
    """the prompt of each group, where a batch holds several groups of one prompt"""

    def rows(self, table: Tensor, index: Tensor) -> Tensor:
        """The entries of the outcomes: table [B, M, ...], index [n, B, G] -> [n, B, G, ...]."""
        owner = torch.arange(table.shape[0]) if self.owner is None else self.owner
        return table[owner[:, None], index]

    def slopes(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """- d loss / d log pi of every token, and the advantages, on many batches: [n, B, G] -> twice [n, B, G, T]."""
        tables, module, hp = (
            self.environment.tables,
            self.script.module,
            self.script.for_groups(self.hp, index.shape[-1]),
        )
        sampled = tables.old_logprobs if self.reused else tables.logprobs
        given = {
            "rewards_BG": self.rows(tables.rewards, index),
            "mask_BGT": self.rows(tables.mask.expand(len(tables.rewards), -1, -1), index),
            "old_logprobs_BGT": self.rows(sampled, index),
            "ref_logprobs_BGT": self.rows(tables.ref_logprobs, index),
            "values_BGT": self.rows(tables.values, index),
            "step_rewards_BGT": self.rows(tables.step_rewards, index),
        }
        if "step_ends_BGT" in self.script.reads:
            given["step_ends_BGT"] = self.rows(tables.step_ends, index)
        logprobs = self.rows(tables.logprobs, index)
        ended = tables.tree.ended[index]
        greedy = tables.rewards.gather(1, tables.greedy(self.reused)[:, None]).squeeze(1)
        greedy = greedy if self.owner is None else greedy[self.owner]
        state = self.state

        def gain(logprobs: Tensor, ended: Tensor, given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            """Minus the loss of one batch, and the advantages of its responses, 0 for those that are not selected."""
            if self.script.has("drop_truncated"):
                given = given | {"mask_BGT": module.drop_truncated(given["mask_BGT"], ended)}
            chosen = torch.arange(given["rewards_BG"].shape[1]).expand(given["rewards_BG"].shape)
            if self.script.has("select"):
                prompts, chosen = module.select(given["rewards_BG"], hp)
                given = {name: taken(value, chosen) for name, value in given.items()}
                kept = prompts[:, None] & (chosen >= 0)
                given["rewards_BG"] = given["rewards_BG"].masked_fill(~kept, torch.nan)
                given["mask_BGT"] = given["mask_BGT"] & kept[..., None]
            rollouts = rollouts_of(module, **given, greedy_rewards_B=greedy, state=state)
            advantages = module.compute_advantages(rollouts, hp)
            if self.script.has("select_after"):
                prompts, responses = module.select_after(given["rewards_BG"], hp)
                kept = prompts[:, None] & (responses[..., None] == chosen[:, None]).any(1)
                given = given | {"mask_BGT": given["mask_BGT"] & kept[..., None]}
                advantages = advantages.masked_fill(~given["mask_BGT"], 0.0)
            weights = module.aggregation_weights(given["mask_BGT"], hp)
            old, ref, mask = (given[name] for name in ("old_logprobs_BGT", "ref_logprobs_BGT", "mask_BGT"))
            rows = [x.flatten(0, 1) for x in (taken(logprobs, chosen), old, ref, advantages, weights, mask)]
            found = {name: self.script.loss_input(name, rollouts, state) for name in self.script.loss_inputs}
            extra = {name: torch.zeros_like(rows[0]) if value is None else value for name, value in found.items()}
            spots = chosen.clamp(min=0)[..., None].expand(advantages.shape)
            return -module.policy_loss(*rows, hp, **extra), torch.zeros_like(logprobs).scatter_add(1, spots, advantages)

        # The batches are independent lanes, so the gradient of the sum of their losses is each one's own. This is
        # vmap(grad(...)) without torch.func.grad, whose first call imports torch._dynamo for a second.
        logprobs.requires_grad_()
        with self.script.running():
            gains, advantages = torch.func.vmap(gain)(logprobs, ended, given)
            if not gains.requires_grad:
                return torch.zeros_like(logprobs), advantages
            (slopes,) = torch.autograd.grad(gains.sum(), logprobs)
        return slopes, advantages.detach()

    def gradients(self, index: Tensor, slopes: Tensor) -> Tensor:
        """The gradient of each batch in the logits of each prompt. [n, B, G, T] -> [n, B, P]."""
        return torch.einsum("nbgt,nbgtp->nbp", slopes, self.rows(self.environment.tables.scores, index))

    @property
    def state(self) -> dict[str, Tensor]:
        """The statistics of the past steps, for scripts that carry any: the expectation is given these."""
        return {**past_state(self.script), **getattr(self.hp, "state", {})}


@cache
def past_state(script: Script) -> dict[str, Tensor]:
    """What `update_state` makes of two batches of a fixed environment, in which the outcomes take turns.

    The KL counts for nothing there, so that a mean of past returns is one of rewards.
    """
    if not script.has("update_state"):
        return {}
    without = script.with_numbers(kl_coefficient=0.0)
    carried = {name: value for name, value in two_steps(script, script.hp, {}).items() if name in without.state}
    return two_steps(script, without, without.state) | carried


def two_steps(script: Script, hp: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state after two batches, from the one before."""
    tables, module = PASTS[script.past].tables, script.module
    outcomes = tables.rewards.shape[1]
    for step in range(2):
        index = (torch.arange(max(2, int(script.number("group_size", 2)))) + step) % outcomes
        with script.running():
            rollouts = rollouts_of(
                module,
                rewards_BG=tables.rewards[:, index],
                mask_BGT=tables.mask[index].expand(len(tables.rewards), -1, -1),
                old_logprobs_BGT=tables.logprobs[:, index],
                ref_logprobs_BGT=tables.ref_logprobs[:, index],
                values_BGT=tables.values[:, index],
                step_rewards_BGT=tables.step_rewards[:, index],
                **({"step_ends_BGT": tables.step_ends[:, index]} if "step_ends_BGT" in script.reads else {}),
                greedy_rewards_B=tables.rewards[:, 0],
                state=state,
            )
            state = {k: v.detach() for k, v in module.update_state(rollouts, hp).items()}
    return state


def taken(table: Tensor, chosen: Tensor) -> Tensor:
    """The chosen responses of each prompt: [B, G, ...], [B, M] -> [B, M, ...]; any of them where the choice is -1."""
    spots = chosen.clamp(min=0).view(*chosen.shape, *[1] * (table.ndim - 2)).expand(*chosen.shape, *table.shape[2:])
    return table.gather(1, spots)
