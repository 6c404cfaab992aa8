"""What the KL part of E[g] is, beside the gradient of the KL of whole responses, KL(pi || ref).

A part can be the whole gradient of the reverse KL (`full`); the one with the distribution of the prefixes held fixed
(`partial`); that of the forward KL(ref || pi) (`forward`); `zero`; the full one at another coefficient for every prompt
(`rescaled`); or none of these (`other`). Which it is shows on responses of equal length; whether it stays so when
lengths differ is the part's weighting: `exact`, `asymptotic` (as the batch grows) or `biased`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from specc.verify.enumerate import moments, population
from specc.verify.environment import Environment, Tables, extreme, fixed, in_proportion, level
from specc.verify.script import Script
from specc.verify.verdict import SAME, compare, sizes_of

TIES = ((0.0, 1.0, 1.0, -1.0), (-2.0, 1.0, 1.0, 0.0))
"""rewards of two prompts of which some are equal, so that groups of different responses may be dropped"""

LONG = {"baseline_length_adaptive_alpha": 1.0}
"""a lambda by length acts on responses of more than 1/alpha tokens, and those here have one to eight"""

BESIDE = {"positive_nll_coefficient": 0.0, **LONG}
"""What is in the loss beside reward and KL is left out here: a divisor of both would not divide it."""

REFERENCES = ("full", "partial", "forward", "forward of responses")


@dataclass(frozen=True)
class Penalty:
    """The verdict on the KL part."""

    kind: str
    weighting: str  # exact, asymptotic, biased; empty where the kind says it all
    factor: float | None  # b in E[g] = reward part - b beta (gradient of the kind), where it is exact


def references(tables: Tables) -> dict[str, Tensor]:
    """The gradients that a KL part can be, each at a coefficient of 1. [B, P]."""
    mask = tables.mask
    ratio = (tables.logprobs - tables.ref_logprobs).masked_fill(~mask, 0.0)  # k1 of each token
    inverse = ratio.neg().exp().masked_fill(~mask, 0.0)  # ref / pi
    whole = tables.scores.sum(2)  # grad log pi(y)
    prob = tables.probs
    return {
        "full": torch.einsum("bm,bm,bmp->bp", prob, ratio.sum(-1), whole),
        "partial": torch.einsum("bm,bmt,bmtp->bp", prob, ratio, tables.scores),
        "forward": -torch.einsum("bm,bmt,bmtp->bp", prob, inverse, tables.scores),
        "forward of responses": -torch.einsum("bm,bmp->bp", tables.ref_logprobs.sum(-1).exp(), whole),
    }


def judge_penalty(script: Script, size: int) -> Penalty | None:
    """The verdict on the KL part at group size `size`; None for a script without one."""
    if not script.has_kl:
        return None
    k, _ = sizes_of(script, size)
    if not script.selects and rescales_each_prompt(script, k):
        return Penalty("rescaled", "", None)
    world = level(TIES) if script.selects else level()
    small = k if script.exchangeable else min(k, 3)  # sequences in place of multisets are many
    kind = kind_on(script, world, small, exact=True) or kind_on(script, world, small, exact=False)
    if kind is None:
        return Penalty("other", "", None)
    by_prompts: dict[int, list[float | None]] = {}  # a factor may depend on the number of prompts
    for world in (*fixed("real")[:3], extreme("real")):
        found = factor_on(script, world, k, kind, exact=True)
        by_prompts.setdefault(len(world.prompts), []).append(found)
    if all(same(factors) for factors in by_prompts.values()):
        every = [factor for factors in by_prompts.values() for factor in factors]
        return Penalty(short(kind), "exact", every[0] if kind != "zero" and same(every) else None)
    limits = [factor_on(script, world, k, kind, exact=False) for world in in_proportion("real")]
    return Penalty(short(kind), "asymptotic" if all(f is not None for f in limits) else "biased", None)


def same(factors: list[float | None]) -> bool:
    """Whether there is a factor each time, and the same one."""
    known = [factor for factor in factors if factor is not None]
    return len(known) == len(factors) and all(math.isclose(known[0], factor, rel_tol=1e-9) for factor in known)


def short(kind: str) -> str:
    """The name of the kind; the forward KL of prefixes and of whole responses share theirs."""
    return kind.split()[0]


def kind_on(script: Script, environment: Environment, size: int, *, exact: bool) -> str | None:
    """The kind that fits, on responses of equal length."""
    for kind in ("zero", *REFERENCES):
        if factor_on(script, environment, size, kind, exact=exact) is not None:
            return kind
    return None


def factor_on(script: Script, environment: Environment, size: int, kind: str, *, exact: bool) -> float | None:
    """The b in E[g] = reward part - b beta (reference gradient), the same for every prompt; None where none fits.

    Exactly, the reward part is E[g] at beta = 0. As the batch grows, a divisor of the whole batch may depend on beta,
    so E[g] may be any multiple of (gradient - beta b reference).
    """
    tables = environment.tables
    plain, once = (expected(script, environment, size, beta, exact) for beta in (0.0, 1.0))
    part = once - plain
    scale = float(once.norm() + plain.norm())
    if not math.isfinite(scale):
        return None
    if kind == "zero":
        return 0.0 if float(part.norm()) <= SAME * scale else None
    reference = references(tables)[kind].flatten()
    if (
        float((expected(script, environment, size, 2.0, exact) - once - part).norm()) <= SAME * 10 * scale
    ):  # linear in beta
        return fitted(part.flatten()[:, None], -reference[:, None], scale)
    if exact:
        return None
    turned = torch.sign((plain * tables.gradient).sum())  # a negative mean as divisor turns both parts round
    columns = torch.stack([plain.flatten(), -reference * turned], dim=1)
    return fitted(once.flatten()[:, None], columns, scale)


@lru_cache(maxsize=8)
def expected(script: Script, environment: Environment, size: int, beta: float, exact: bool) -> Tensor:
    """E[g] at a coefficient of the KL, times the prompts of the batch; or its limit as the batch grows. [B, P]."""
    # Beside a return divided by almost nothing, the KL part of the loss would be lost in rounding.
    epsilon = max(script.number("normalization_epsilon", 0.0), 1e-3)
    hp = script.with_numbers(kl_coefficient=beta, normalization_epsilon=epsilon, **BESIDE)
    if exact:
        return moments(script, environment, size, hp).mean * len(environment.prompts)
    return population(script, environment, size, hp)


def fitted(values: Tensor, columns: Tensor, scale: float) -> float | None:
    """The last coefficient over the first of a least-squares fit that leaves nothing; of one column, itself."""
    solution = torch.linalg.lstsq(columns, values).solution
    if float((columns @ solution - values).norm()) > SAME * 10 * scale:
        return None
    last, first = float(solution[-1]), float(solution[0])
    ratio = last if columns.shape[1] == 1 else last / first if first else math.nan
    return ratio if ratio > 0 else None


def rescales_each_prompt(script: Script, size: int) -> bool:
    """Whether each prompt's own rewards and KL scale its KL part.

    Then that part is not linear in beta; and, unlike under a divisor of the whole batch, large rewards of another
    prompt do not make it small.
    """
    alone = level().only(0)

    def expected(beta: float) -> Tensor:
        hp = script.with_numbers(kl_coefficient=beta, normalization_epsilon=0.0, **BESIDE)
        return compare(script, alone, size, hp)[0].mean

    none, once, twice = (expected(beta) for beta in (0.0, 30.0, 60.0))  # enough to change the order of the returns
    if size < 2 or float((twice - 2 * once + none).norm()) <= SAME * 10 * float(once.norm() + none.norm()):
        return False

    def beside(scale: float) -> float:
        world = level(((0, 0, 0, 0), (-2 * scale, scale, 3 * scale, 0)), uniform=True)
        first, second = (prompt.values for prompt in world.prompts)
        world = world.with_values((first, [scale * value for value in second]))
        hp = script.with_numbers(kl_coefficient=1.0, normalization_epsilon=0.0, **BESIDE)
        return float(population(script, world, size, hp)[0].norm())

    return beside(1000) > 0.1 * beside(1)
