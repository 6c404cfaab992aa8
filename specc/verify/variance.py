"""The noise of the gradient at an equal sample budget, beside no baseline and leave-one-out.

The references are scripts of their own, compiled like any other. Since an estimator may be any multiple of the
gradient, what is compared is noise per signal: tr Cov(g) / |E g|^2, which no constant factor changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from specc.plan import Plan
from specc.render import render
from specc.spec import Spec
from specc.verify.enumerate import moments
from specc.verify.environment import Environment, Tables, coin, fixed
from specc.verify.script import Script, load_script
from specc.verify.verdict import SAME, count_slopes, distinct, sizes_of
from specc.weights import GRID, binomial

PLAIN = {
    "name": "reference",
    "reward": "verifier",
    "kl": "none",
    "normalization": "none",
    "objective": {"quantity": "sequence_advantage", "aggregation": "seq_mean_token_sum"},
}

BESIDE = {"no baseline": "none", "leave-one-out": "leave_one_out"}
"""What every estimator is compared with: its title, and the answer to the question of the baseline."""


@cache
def reference(title: str) -> Script:
    """The script of one of the estimators that all are compared with."""
    spec = Spec.model_validate({**PLAIN, "baseline": BESIDE[title], "sampling": {"group_size": 2}})
    plan = Plan(spec)
    return load_script(render(plan, "reference", "0" * 16), f"<{title}>", plan)


@dataclass(frozen=True)
class Noise:
    """One estimator on one environment."""

    trace: float  # tr Cov(g)
    signal: float  # |E g|^2
    advantage: float  # Var[A], of the first token's

    @property
    def per_signal(self) -> float:
        return self.trace / self.signal if self.signal > 0 else math.inf


@dataclass(frozen=True)
class Variance:
    """The noise on the fixed environments, one prompt each, and along a sweep of success rates."""

    size: int
    environments: list[dict[str, Noise]]
    """of the estimator (`this`) and of those beside it, at group size `size`"""
    closed_form: str | None
    """the formula that gives tr Cov(g) on every one of them"""
    sweep_size: int
    sweep: dict[str, list[float]]
    """noise per signal at p = .01 ... .99 for 0/1 rewards and one-token responses, at the spec's own group size"""

    def worse_than(self, title: str) -> list[float]:
        """The success rates at which the estimator has more noise per signal than another."""
        pairs = zip(GRID, self.sweep["this"], self.sweep[title], strict=True)
        return [p for p, mine, other in pairs if mine > other * (1 + 1e-9)]


def measure(script: Script, size: int) -> Variance:
    """The noise of a script at group size `size`."""
    k, _ = sizes_of(script, size)
    worlds = [world.only(b) for kind in ("binary", "real") for world in fixed(kind)[:3] for b in (0, 1)]
    rows, traces = [], []
    for world in worlds:
        row = {}
        for title, each in compared_with(script, k).items():
            found = moments(each, world, k, each.with_numbers(kl_coefficient=0.0), covariance=True)
            row[title] = Noise(found.trace, float(found.mean.square().sum()), found.advantage_variance)
        rows.append(row)
        traces.append(row["this"].trace)
    sweep = {title: sweep_of(each, size) for title, each in compared_with(script, size).items()}
    return Variance(k, rows, closed_form(script, worlds, k, traces), size, sweep)


def compared_with(script: Script, size: int) -> dict[str, Script]:
    """The estimator and those beside it that a group of this size allows."""
    titles = [title for title in BESIDE if size >= reference(title).plan.min_group_size]  # type: ignore[union-attr]
    return {"this": script, **{title: reference(title) for title in titles}}


def sweep_of(script: Script, size: int) -> list[float]:
    """Noise per signal at each success rate, exactly, by the count of correct responses of one token."""
    hp = script.with_numbers(kl_coefficient=0.0)
    sides = [count_slopes(script, coin(chances), size, hp) for chances in ((1, 2), (2, 1))]
    found = []
    for p in GRID:
        right, wrong = sides[p > 0.5]
        gradients = [K * right[K] * (1 - p) - (size - K) * wrong[K] * p for K in range(size + 1)]
        chances = binomial(size, p)
        mean = math.fsum(c * g for c, g in zip(chances, gradients, strict=True))
        spread = math.fsum(c * (g - mean) ** 2 for c, g in zip(chances, gradients, strict=True))
        found.append(spread / mean**2 if mean else math.inf)
    return found


def closed_form(script: Script, worlds: list[Environment], size: int, traces: list[float]) -> str | None:
    """The formula for one prompt that gives these traces, up to one constant factor, on all the environments."""
    for text, (least, formula) in forms(script).items():
        if size < least:
            continue
        ratios = [trace / formula(world.tables, size) for world, trace in zip(worlds, traces, strict=True)]
        if len(constants := distinct(ratios)) == 1:
            scale = constants[0]
            return text if math.isclose(scale, 1.0, rel_tol=SAME * 10) else f"{scale:.6g} x [{text}]"
    return None


def forms(script: Script) -> dict[str, tuple[int, Callable[[Tables, int], float]]]:
    """tr Cov(g) of one prompt: its formula, the least k that it is for, and its value.

    G = grad E[R], T = E|s|^2, s = grad log pi(y), A2 = E[(R - mu)^2 |s|^2].
    """
    b = script.number("baseline_value", 0.0)

    def constant(tables: Tables, k: int) -> float:
        return (weighted(tables, b) - float(tables.gradient.square().sum())) / k

    def leave_one_out(tables: Tables, k: int) -> float:
        mu = float(tables.means[0])
        sigma2 = float((tables.probs[0] * (tables.rewards[0] - mu).square()).sum())
        G2, T = float(tables.gradient.square().sum()), weighted(tables, None)
        return weighted(tables, mu) / k - (k - 2) * G2 / (k * (k - 1)) + sigma2 * T / (k * (k - 1))

    shift = f"(R - {b:g})^2" if b else "R^2"
    return {
        f"(E[{shift} |s|^2] - |G|^2) / k": (1, constant),
        "A2/k - (k - 2)|G|^2 / (k(k - 1)) + sigma^2 T / (k(k - 1))": (2, leave_one_out),
    }


def weighted(tables: Tables, baseline: float | None) -> float:
    """E[(R - baseline)^2 |s|^2] of the first prompt, or E|s|^2."""
    squares = tables.scores[0].sum(1).square().sum(-1)
    factor = (tables.rewards[0] - baseline).square() if baseline is not None else 1.0
    return float((tables.probs[0] * factor * squares).sum())
