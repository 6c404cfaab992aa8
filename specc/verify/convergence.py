"""How far E[g] of a finite batch is from proportional, for statistics of the whole batch.

One prompt of each of two kinds can be enumerated. Larger batches are sampled, with the difference to the limit on the
same responses: E[g] = (the limit, which is exact) + E[difference], and the difference is small.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specc.verify.enumerate import Context, groups, moments, population, population_batch
from specc.verify.environment import Environment, in_proportion
from specc.verify.script import Script
from specc.verify.verdict import sizes_of

SAMPLED_RESPONSES = 100_000


@dataclass(frozen=True)
class Error:
    """|E[g] - c gradient| / |c gradient| with the best c, for a batch; `within` is half of a 95% interval."""

    prompts: int
    size: int
    error: float
    within: float | None = None
    """None where it is enumerated"""


def convergence(script: Script, size: int, seed: int) -> list[Error]:
    """The error at two prompts, exactly, and at 16 and the script's own batch, sampled."""
    k, _ = sizes_of(script, size)
    hp = script.with_numbers(kl_coefficient=0.0)
    world = in_proportion("binary")[0]
    mean = moments(script, world, k, hp).mean
    found = [Error(2, k, off(mean * 2, world.tables.gradient))]
    own = int(script.number("prompts_per_step", 16)) * size // k // 2 * 2
    limit = population(script, world, k, hp)
    for prompts in sorted({16, max(own, 4)}):
        found.append(sampled(script, world, k, hp, prompts, limit, seed))
    return found


def off(mean: Tensor, gradient: Tensor) -> float:
    """The relative distance of E[g] from the nearest multiple of the gradient, all prompts together."""
    factor = float((mean * gradient).sum() / gradient.square().sum())
    return float((mean - factor * gradient).norm() / (abs(factor) * gradient.norm()))


def sampled(script: Script, world: Environment, size: int, hp: object, prompts: int, limit: Tensor, seed: int) -> Error:
    """The error of a batch in which half of the prompts is of either kind."""
    tables, kinds = world.tables, len(world.prompts)
    multisets, orders = groups(len(world.tree.responses), size)
    chances = orders * tables.probs[:, multisets].prod(-1)  # [kinds, C]
    whole, owner_of, _ = population_batch(world, size)
    slopes_there, _ = Context(script, world, hp, False, owner_of).slopes(whole[None])
    # In a batch of n groups each one's slope is n times smaller.
    table = torch.zeros(kinds, len(multisets), size, tables.mask.shape[-1], dtype=torch.float64)
    numbers = {tuple(row): index for index, row in enumerate(multisets.tolist())}
    rows = torch.tensor([numbers[tuple(row)] for row in whole.tolist()])
    table[owner_of, rows] = slopes_there[0] * len(whole) / prompts

    owner = torch.arange(prompts) % kinds
    count = max(20, SAMPLED_RESPONSES // (prompts * size))
    generator = torch.Generator().manual_seed(seed)
    total, square, done = torch.zeros_like(limit), torch.zeros_like(limit), 0
    context = Context(script, world, hp, False, owner)
    while done < count:
        n = min(count - done, max(1, 40_000 // (prompts * size)))
        drawn = torch.multinomial(chances[owner], n, replacement=True, generator=generator).T  # [n, B]
        index = multisets[drawn]
        slopes, _ = context.slopes(index)
        difference = torch.einsum("nbgt,nbgtp->nbp", slopes - table[owner, drawn], context.rows(tables.scores, index))
        of_kind = torch.zeros(n, *limit.shape, dtype=torch.float64).index_add_(1, owner, difference) * kinds
        total, square, done = total + of_kind.sum(0), square + of_kind.square().sum(0), done + n
    bias = total / count
    spread = ((square / count - bias.square()).clamp(min=0) / count).sum().sqrt()
    size_of_limit = float(limit.norm())
    return Error(prompts, size, off(limit + bias, tables.gradient), 1.96 * float(spread) / size_of_limit)
