"""What E[g] is, beside the gradient that it claims to be.

A verdict is found by comparing the exact E[g] of several environments with the gradient of the mean of E[R] over the
batch's prompts. Rewards of 0 and 1 and rewards of any size and sign are judged apart; the KL part is judged apart from
both, with the reward part taken at a KL coefficient of 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from specc.answers.base import VERDICTS, weakest
from specc.verify.enumerate import Context, count_groups, groups, moments, population, population_size
from specc.verify.environment import (
    Environment,
    Table,
    Tree,
    coin,
    extreme,
    far,
    fixed,
    in_proportion,
    pairs_in_proportion,
    stepped,
    world,
)
from specc.verify.preferences import RESPONSES, pair_moments, win_rate_gradient
from specc.verify.script import Script
from specc.weights import Weight

KINDS = ("binary", "real")

SAME = 1e-10
"""relative difference up to which two results of float64 arithmetic are the same number"""

MOST_OUTCOMES = 4000
"""batches that one enumeration of a verdict may have; more prompts than that are taken one by one"""


MOST_RESPONSES = 20_000
"""responses of a batch that stands for the limit of large ones"""


@dataclass(frozen=True)
class Compared:
    """E[g] of each prompt beside the gradient of its share of the objective. [B, P]."""

    environment: Environment
    size: int
    mean: Tensor
    gradient: Tensor

    @cached_property
    def factors(self) -> list[float]:
        """c of each prompt in the best E[g] = c gradient; nan where the gradient is 0."""
        norms = (self.gradient * self.gradient).sum(-1)
        dots = (self.mean * self.gradient).sum(-1)
        return [float(d / n) if n > 0 else math.nan for d, n in zip(dots, norms, strict=True)]

    @cached_property
    def residuals(self) -> list[float]:
        """How far each prompt's E[g] is from parallel, relative to its size."""
        found = []
        for mean, gradient, factor in zip(self.mean, self.gradient, self.factors, strict=True):
            part = 0.0 if math.isnan(factor) else factor
            if not mean.isfinite().all():
                found.append(math.inf)
                continue
            size = float(mean.norm() + abs(part) * gradient.norm())
            found.append(float((mean - part * gradient).norm()) / size if size > 1e-12 else 0.0)
        return found

    @property
    def idle(self) -> bool:
        """Whether this is a batch of one response that learns nothing: the factor is 0, as (kB - 1)/(kB) is there."""
        return self.size * len(self.environment.prompts) == 1 and not self.mean.any()

    @property
    def parallel(self) -> bool:
        """Whether every prompt's E[g] points along its gradient."""
        return all(r <= SAME for r in self.residuals) and all(math.isnan(c) or c > 0 for c in self.factors)

    @property
    def common(self) -> bool:
        """Whether all prompts have the same factor besides."""
        return self.parallel and len(distinct(self.factors)) <= 1

    @property
    def equal(self) -> bool:
        return self.common and all(math.isclose(c, 1.0, rel_tol=SAME) for c in distinct(self.factors))

    @property
    def angles(self) -> list[float]:
        """Degrees between each prompt's E[g] and its gradient."""
        found = []
        for mean, gradient in zip(self.mean, self.gradient, strict=True):
            sizes = float(mean.norm() * gradient.norm())
            cosine = float(mean @ gradient) / sizes if sizes > 0 else float(gradient.norm() == 0)
            along = gradient / gradient.norm() if gradient.norm() > 0 else gradient
            across = float((mean - (mean @ along) * along).norm())
            found.append(math.degrees(math.atan2(across, float(mean @ along))) if abs(cosine) > 0 else 90.0)
        return found


def distinct(factors: Sequence[float]) -> list[float]:
    """The factors that differ by more than rounding; nan, where any factor would do, is none."""
    found: list[float] = []
    for factor in factors:
        if not math.isnan(factor) and not any(math.isclose(factor, other, rel_tol=SAME * 10) for other in found):
            found.append(factor)
    return found


def compare(script: Script, environment: Environment, size: int, hp: Any, reused: bool = False) -> list[Compared]:
    """E[g] of a batch of all the environment's prompts; of each prompt alone where that would be too many outcomes."""
    prompts = len(environment.prompts)
    count = count_groups(script, len(environment.tree.responses), size)
    batches = [environment] if count**prompts <= MOST_OUTCOMES else [environment.only(b) for b in range(prompts)]
    found = []
    for batch in batches:
        mean = expected(script, batch, size, hp, reused)
        found.append(Compared(batch, size, mean, aim(script, batch, reused) / len(batch.prompts)))
    return found


def expected(script: Script, environment: Environment, size: int, hp: Any, reused: bool = False) -> Tensor:
    """E[g] of one batch with all of the environment's prompts. [B, P]."""
    if script.on_pairs:
        return pair_moments(script, environment, hp, later=reused).mean
    return moments(script, environment, size, hp, reused=reused).mean


def compare_limit(script: Script, environment: Environment, size: int, hp: Any, reused: bool = False) -> Compared:
    """The limit of E[g] as the batch grows, beside each prompt's gradient; of pairs it is what one of each gives."""
    if script.on_pairs:
        mean = pair_moments(script, environment, hp, later=reused).mean * len(environment.prompts)
        return Compared(environment, size, mean, aim(script, environment, reused))
    mean = population(script, environment, size, hp, reused=reused)
    return Compared(environment, size, mean, aim(script, environment))


def aim(script: Script, environment: Environment, reused: bool = False) -> Tensor:
    """Each prompt's gradient of what is claimed: of E[R], for 0/1 rewards of another target, or of pairs of the win
    rate. [B, P]."""
    if script.on_pairs:
        return win_rate_gradient(environment, later=reused)
    tables = environment.tables
    if script.slope is None or not ((tables.rewards == 0) | (tables.rewards == 1)).all():
        return tables.gradient
    slopes = torch.tensor([script.slope(float(p)) for p in tables.means], dtype=torch.float64)
    return tables.gradient * slopes[:, None]


def classify(exact: Sequence[Compared], limit: Callable[[], Sequence[Compared]]) -> tuple[str, bool]:
    """The strongest verdict that all comparisons allow, and whether it holds exactly (or only as the batch grows).

    `exact` are of batches of the same group size; a factor may depend on that and on the number of prompts.
    """
    by_shape: dict[int, list[float]] = {}
    for each in exact:
        by_shape.setdefault(len(each.environment.prompts), []).extend(each.factors)
    if all(each.parallel for each in exact) and all(len(distinct(f)) <= 1 for f in by_shape.values()):
        return ("unbiased" if all(each.equal for each in exact) else "proportional"), True
    limits = limit()
    if limits and all(each.common for each in limits):
        return "asymptotic", False
    if not all(each.parallel for each in limits):  # which are of more prompts than the exact ones
        return "biased", True
    if all(each.parallel for each in exact):
        return "reweighted", True
    return ("reweighted", False) if limits else ("biased", True)


def allowed(verdict: str, script: Script, environment: Environment, size: int, hp: Any) -> bool:
    """Whether one environment is consistent with a verdict: the condition whose failure is a counterexample.

    An environment whose limit would take too large a batch is taken to be consistent.
    """
    small = population_size(environment, size) <= MOST_RESPONSES
    if verdict == "asymptotic":
        return not small or compare_limit(script, environment, size, hp).common
    found = [each for each in compare(script, environment, size, hp) if not each.idle]
    if verdict == "unbiased":
        return all(each.equal for each in found)
    if verdict == "proportional":
        return all(each.parallel for each in found) and len(distinct([c for each in found for c in each.factors])) <= 1
    if all(each.parallel for each in found):
        return True
    return not small or compare_limit(script, environment, size, hp).parallel


# -------- The factor --------


@dataclass(frozen=True)
class Factor:
    """c, at the group size of the verdict, and as a formula where one fits every k and B that was tried."""

    value: float
    formula: str | None

    def __str__(self) -> str:
        return self.formula if self.formula is not None else f"{self.value:.6g}"


FORMULAS: dict[str, Callable[[int, int], Fraction]] = {
    "": lambda k, B: Fraction(1),
    "(k - 1)/k": lambda k, B: Fraction(k - 1, k),
    "(kB - 1)/(kB)": lambda k, B: Fraction(k * B - 1, k * B),
    "k/(k - 1)": lambda k, B: Fraction(k, max(k - 1, 1)),
    "sqrt((k - 1)/k)": lambda k, B: Fraction(math.sqrt((k - 1) / k)).limit_denominator(10**12),
    "1/k": lambda k, B: Fraction(1, k),
    "k": lambda k, B: Fraction(k),
}


def find_factor(script: Script, size: int, smallest: int, hp: Any) -> Factor:
    """c, measured on coins at several k and B, and the formula that goes through all of them."""
    measured: dict[tuple[int, int], float] = {}
    for k in sorted({*range(max(smallest, 1), max(smallest, 1) + 3), size}):
        for chances in (((1, 1),), ((1, 1), (1, 3)), ((1, 1), (1, 3), (2, 1))):
            if count_groups(script, 2, k) ** len(chances) <= MOST_OUTCOMES:
                (found,) = compare(script, coin(*chances), k, hp)
                if len(same := distinct(found.factors)) == 1 and found.parallel:
                    measured[k, len(chances)] = same[0]
    value = next((c for (k, _), c in sorted(measured.items()) if k == size), math.nan)
    for text, formula in FORMULAS.items():
        scales = [c / float(formula(*shape)) if formula(*shape) else math.nan for shape, c in measured.items()]
        if len(measured) > 2 and len(distinct(scales)) == 1 and not any(map(math.isnan, scales)):
            return Factor(value, " x ".join(filter(None, [text, as_number(scales[0])])) or "1")
    return Factor(value, None)


def as_number(scale: float) -> str:
    """A number as a fraction where it is a simple one; nothing for 1."""
    if math.isclose(scale, 1.0, rel_tol=SAME):
        return ""
    near = Fraction(scale).limit_denominator(100_000)
    return str(near) if near and math.isclose(scale, near, rel_tol=1e-9) else f"{scale:.6g}"


# -------- The weight of a prompt by its success rate --------


def find_weight(script: Script, size: int, hp: Any) -> Weight:
    """w(p) from the script's slopes on groups with 0..k correct responses of one token, on a prompt alone."""
    rows = []
    greedy_matters = "greedy_rewards_B" in script.reads
    for chances in ((1, 2), (2, 1))[: 1 + greedy_matters]:
        right, wrong = count_slopes(script, coin(chances), size, hp)
        rows.append(tuple(size * (right[j + 1] - wrong[j]) for j in range(size)))
    return Weight(tuple(rows[:1] if rows[0] == rows[-1] else rows))


def count_slopes(script: Script, environment: Environment, size: int, hp: Any) -> tuple[list[float], list[float]]:
    """- d loss / d log pi of a correct and of a wrong response, by the number of correct ones in the group, 0..k."""
    index, _ = groups(2, size)
    correct = index.sum(-1)
    index = index[correct.argsort()]
    slopes, _ = Context(script, environment, hp, reused=False).slopes(index[:, None])
    of_response = slopes[:, 0, :, 0]  # [k + 1, k]
    right, wrong = index == 1, index == 0
    mean = [(of_response * side).sum(-1) / side.sum(-1).clamp(min=1) for side in (right, wrong)]
    return mean[0].tolist(), mean[1].tolist()


# -------- One class of rewards --------


@dataclass(frozen=True)
class Judged:
    """The verdict for one class of rewards."""

    rewards: str
    verdict: str
    exact: bool
    """whether it holds exactly, or as the batch grows"""
    factor: Factor | None
    angle: float
    """largest angle between E[g] and the gradient over the environments, in degrees"""
    environments: int
    outcomes: int
    evidence: list[Compared] = field(default_factory=list, repr=False, compare=False)


def sizes_of(script: Script, size: int) -> tuple[int, int]:
    """The group size at which whole environments are enumerated, for a spec's own k, and the smallest that works."""
    smallest = script.plan.min_group_size if script.plan else (2 if size > 1 else 1)
    return min(size, 4), smallest


def judge(
    script: Script, kind: str, size: int, *, reused: bool = False, weight: Weight | None = None, coupled: bool = True
) -> Judged:
    """The verdict on the reward part for rewards of a kind, at group size `size`.

    `coupled` is whether statistics of the batch are in it, so that it may be nearer to proportional in large ones.
    """
    if script.on_pairs:
        return judge_pairs(script, kind, script.with_numbers(kl_coefficient=0.0), reused)
    if script.selects and script.has("update_state") and script.past == 0:
        # E[g] of samples of the policy does not depend on a number that is taken from all advantages; of these it does.
        other = replace(script, past=1)
        beside = find_weight(other, size, other.with_numbers(kl_coefficient=0.0)) if weight is not None else None
        pasts = ((script, weight), (other, beside))
        both = [judge_given(s, kind, size, reused=reused, weight=w, coupled=coupled) for s, w in pasts]
        return max(both, key=lambda judged: VERDICTS.index(judged.verdict))
    return judge_given(script, kind, size, reused=reused, weight=weight, coupled=coupled)


def judge_given(script: Script, kind: str, size: int, *, reused: bool, weight: Weight | None, coupled: bool) -> Judged:
    """The verdict given the script's past steps."""
    if "likelihood_weights" in script.loss_inputs:
        return with_term(script, kind, size, reused=reused, weight=weight, coupled=coupled)
    return judge_at(script, kind, size, script.with_numbers(kl_coefficient=0.0), reused, weight, coupled)


def with_term(script: Script, kind: str, size: int, *, reused: bool, weight: Weight | None, coupled: bool) -> Judged:
    """The verdict where the likelihood of correct responses is added, which is not a matter of the reward's part.

    How much it adds is up to the policy, so that it makes up for no weight of the wrong sign: the verdict is the weaker
    one of those with it and without.
    """
    hp = script.with_numbers(kl_coefficient=0.0)
    without = script.with_numbers(kl_coefficient=0.0, positive_nll_coefficient=0.0)
    alone = find_weight(script, size, without) if weight is not None else None
    both = [judge_at(script, kind, size, h, reused, w, coupled) for h, w in ((hp, weight), (without, alone))]
    return max(both, key=lambda judged: VERDICTS.index(judged.verdict))


def judge_at(
    script: Script, kind: str, size: int, hp: Any, reused: bool, weight: Weight | None, coupled: bool
) -> Judged:
    """The verdict at the numbers of `hp`."""
    k, smallest = sizes_of(script, size)
    # The std of two or three 0/1 rewards is the same whenever they differ: one response a prompt takes four prompts.
    worlds = [*(fixed(kind) if k == 1 else fixed(kind)[:-1]), extreme(kind)]
    worlds += [stepped(kind)] if "step_rewards_BGT" in script.reads else []
    if reused:
        bounds = [
            math.exp(value) if name.startswith("token_") else value  # of a log-ratio
            for name, value in vars(script.hp).items()
            if "clip_" in name and isinstance(value, float)
        ]
        worlds.append(far(kind, rarity=24 + int(8 * min(max(bounds, default=0.0), 1e6))))
    exact = [each for world in worlds for each in compare(script, world, k, hp, reused) if not each.idle]
    if size > k and count_groups(script, 3, size) <= MOST_OUTCOMES and not reused:
        short = fixed(kind)[0]
        own = [
            Compared(e, size, moments(script, e, size, hp).mean, aim(script, e)) for e in (short.only(0), short.only(1))
        ]
    else:
        own = []

    @cache
    def limit() -> list[Compared]:
        if reused and not coupled:
            return []
        found = [compare_limit(script, world, k, hp, reused) for world in in_proportion(kind)]
        pairs = [*pairs_in_proportion(kind), *([far(kind)] if reused else [])]
        return found + [compare_limit(script, world, min(k, 2), hp, reused) for world in pairs]

    verdict, exactly = classify(exact, limit)
    if verdict == "asymptotic" and size > k and not reused and not shares_slope(script, kind, size, hp):
        verdict, exactly = "reweighted" if kind == "binary" and weight and weight.positive else "biased", False
    if own:  # the strongest statement has to hold at the spec's own group size as well
        second, also = classify(own, limit)
        verdict, exactly = max((verdict, exactly), (second, also), key=lambda pair: VERDICTS.index(pair[0]))
    if kind == "binary" and weight is not None:
        verdict = weaker(verdict, weight, script.slope)
    factor = find_factor(script, size, smallest, hp) if verdict in ("unbiased", "proportional") and not reused else None
    angle = max(angle for each in exact for angle in each.angles)
    outcomes = sum(
        count_groups(script, len(e.environment.tree.responses), e.size) ** len(e.environment.prompts) for e in exact
    )
    return Judged(kind, verdict, exactly, factor, angle, len(exact) + len(own), outcomes, exact)


def judge_pairs(script: Script, kind: str, hp: Any, later: bool) -> Judged:
    """The verdict on a script on pairs, at the first step or `later`. A pair's gradient knows of no other pair."""
    worlds = [*fixed(kind), extreme(kind)]
    exact = [each for world in worlds for each in compare(script, world, RESPONSES, hp, later)]
    verdict, _ = classify(exact, lambda: [])
    factor = None
    if verdict in ("unbiased", "proportional") and not later:
        (found,) = compare(script, coin((1, 1)), RESPONSES, hp)
        factor = Factor(found.factors[0], as_number(found.factors[0]) or "1")
    angle = max(angle for each in exact for angle in each.angles)
    outcomes = sum(each.environment.tables.rewards.shape[1] ** 2 for each in exact for _ in each.environment.prompts)
    return Judged(kind, verdict, True, factor, angle, len(exact), outcomes, exact)


def shares_slope(script: Script, kind: str, size: int, hp: Any) -> bool:
    """Whether, given one batch's statistics, a reward counts the same beside all other rewards of its group.

    One batch holds every group of one-token responses once, so what is common to a batch is common to these. Between
    groups that differ in one response, the difference of that response's slopes is to be the same multiple of the
    difference of its rewards: a baseline from the others drops out of it.
    """
    rewards = (0.0, 1.0) if kind == "binary" or count_groups(script, 3, size) > MOST_OUTCOMES else (0.0, 1.0, 3.0)
    even: Table = ((1,) * len(rewards),)
    batch = world(Tree(len(rewards), 1, eos=len(rewards)), (even, rewards, even, even))
    multisets, _ = groups(len(rewards), size)
    context = Context(script, batch, hp, False, torch.zeros(len(multisets), dtype=torch.long))
    slopes = context.slopes(multisets[None])[0][0, ..., 0]  # [groups, G]
    found = {tuple(row): slope for row, slope in zip(multisets.tolist(), slopes.tolist(), strict=True)}
    factors = []
    for others in groups(len(rewards), size - 1)[0].tolist():
        values = [found[whole][whole.index(y)] for y in range(len(rewards)) for whole in [tuple(sorted([*others, y]))]]
        factors += [(v - values[0]) / (r - rewards[0]) for v, r in zip(values[1:], rewards[1:], strict=True)]
    return bool(min(factors) > 0 and max(factors) - min(factors) <= 1e-7 * max(factors))


def explains(weight: Weight, exact: Sequence[Compared]) -> bool:
    """Whether w(p) is the factor of every prompt, alone and in a batch: whether it depends on p alone."""
    pairs = [(c, float(p)) for e in exact for c, p in zip(e.factors, e.environment.tables.means, strict=True)]
    return all(math.isnan(c) or math.isclose(c, weight.at(p), rel_tol=1e-7) for c, p in pairs if 0 < p < 1)


def weaker(verdict: str, weight: Weight, slope: Callable[[float], float] | None) -> str:
    """The verdict for 0/1 rewards, in the light of w(p) at the spec's own group size."""
    if weight.size == 1 or verdict in ("asymptotic", "biased"):  # whose divisor is not that of a prompt alone
        return verdict
    if not any(map(any, weight.differences)):  # alone, one response that is kept is its own baseline
        return verdict
    if not weight.positive:
        return "biased"
    same = weight.constant if slope is None else weight.constant_over(slope)
    return verdict if same else weakest((verdict, "reweighted"))
