"""The verdict on a spec's estimator from the spec alone, by one rule for each answer, without running anything.

Each answer says in `effects` what it does to E[g], beside the gradient of E[R]; here the parts are put together, the
weakest statement of any of them being that of the whole. `specc verify` finds the same verdict by enumeration, and the
two have to agree on every spec.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specc.answers.base import VERDICTS, Effect, Finding, Number, Penalty, weakest
from specc.answers.objective import WIN_RATE
from specc.weights import GRID, Weight, slope_of

if TYPE_CHECKING:
    from specc.spec import Spec

SYMBOLS = (
    "s = grad log pi of a response, T = E|s|^2, G = grad E[R], mu and sigma^2 of R, A2 = E[(R - mu)^2 |s|^2], "
    "V_b = E[(R - b)^2 |s|^2] - |G|^2"
)
"""what the formulas of `Derived.variance` are in"""

FIRST_STEP = "at the first step, on pairs that the policy has sampled"
LATER_STEPS = "later steps follow the loss and not the win rate"

UNDERIVED = "not derived"
"""in the place of a verdict, where the spec alone does not tell"""

CLOSE = 1e-10
"""relative difference up to which a factor is 1"""


@dataclass(frozen=True)
class Derived:
    """What follows for E[g], against the gradient of the mean of E[R] over the batch's prompts."""

    binary: str
    """the verdict for 0/1 rewards, at a KL coefficient of 0"""
    real: str
    """the verdict for rewards of any size and sign"""
    overall: str
    """the verdict of the spec, which its claim has to equal"""
    factor: str
    """c as a formula in k responses a prompt and B prompts, where E[g] is c times the gradient; empty elsewhere"""
    effects: tuple[Effect, ...]
    """the parts that are not exact, the worst first"""
    penalty: Penalty | None
    """the KL part"""
    off_policy_binary: str
    """the verdict for 0/1 rewards when the batch is from another policy, as in the later updates of a batch"""
    off_policy_real: str
    reused: bool
    """whether the spec has such updates"""
    weight: Weight | None
    """w(p) and F(p) at the spec's own k, for 0/1 rewards and responses of equal length; factors that the policy decides
    are left out, and it is None where w depends on more than p"""
    variance: str
    """tr Cov for one prompt as a formula in k and `SYMBOLS`, where there is one"""
    group_size: int
    target: str = ""
    """what the verdict for 0/1 rewards is about, where that is not E[R]"""
    pairs: bool = False
    """whether it is about the first step on pairs of the policy's own responses, and the gradient of the win rate"""

    @property
    def known(self) -> bool:
        """Whether the spec alone tells the verdict."""
        return self.overall != UNDERIVED

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """Why the verdict is not `unbiased`: the key of each part that has to do with it, and a sentence."""
        return [(effect.where, effect.reason) for effect in self.effects]

    def value(self, prompts: int | None = None) -> Number | None:
        """c at B = `prompts`; None where it is not a number, or not one without B."""
        return product([part.value(self.group_size, prompts) for part in self.effects]) if self.factor else None

    def said(self, rewards: str) -> str:
        """The verdict for `binary` or `real` rewards with what it means here."""
        aim = f"grad {self.target}" if rewards == "binary" and self.target else "grad E[R]"
        aim = f"the gradient of the {WIN_RATE}" if self.pairs else aim
        reweighted = f"each prompt's {aim} times a weight that depends on its success rate p"
        limit = ", as the batch grows" * any(getattr(part, rewards) == "asymptotic" for part in self.effects)
        return {
            "unbiased": f"unbiased: E[g] = {aim}",
            "proportional": f"proportional to {aim}" + (f" with c = {self.factor}" if self.factor else ""),
            "asymptotic": f"asymptotic: proportional to {aim} as the batch grows"
            + (f", with c = {self.factor}" if self.factor else ""),
            "reweighted": f"reweighted: {reweighted}{limit}",
            "biased": f"biased: not along {aim}",
            UNDERIVED: "not derived from the spec: `specc verify` finds it by running the script",
        }[getattr(self, rewards)]

    @property
    def lines(self) -> dict[str, str]:
        """The verdicts in words, for the docstring of the script."""
        said = self.said("binary")
        if self.binary == "biased":
            said += f", since {next(part.reason for part in self.effects if part.binary == 'biased')}"
        if not self.known:
            return {"verdict": said}
        if self.pairs:
            return {"verdict": f"{FIRST_STEP}, {said}; {LATER_STEPS}"}
        if self.binary != self.real:
            said = f"for 0/1 rewards {said}; for real-valued rewards {self.real}"
        if self.reused:
            off = (self.off_policy_binary, self.off_policy_real)
            said += f"; in later updates of a batch {' and '.join(dict.fromkeys(off))}"
        return {"verdict": said} | ({"kl part": self.penalty.sentence} if self.penalty else {})


def derive(spec: Spec) -> Derived:
    """The verdict on a spec, composed from its answers' effects."""
    parts = effects_of(spec)
    if not all(answer.derivable for answer in spec.answers.values()):
        return underived(spec, parts)
    size = spec.sampling.group_size
    binary, real = weakest(part.binary for part in parts), weakest(part.real for part in parts)
    c = product([part.value(size) for part in parts])
    if c is not None and math.isclose(c, 1.0, rel_tol=CLOSE):  # e.g. half of it, divided by a std of 1/2
        binary, real = ("unbiased" if verdict == "proportional" else verdict for verdict in (binary, real))
    weight, slope = weight_of(spec), slope_of(spec.target) if spec.online else None
    if slope is not None:
        binary = towards(slope, binary, weight, exact=all(part.binary != "asymptotic" for part in parts))
    told = sorted(parts, key=lambda part: -VERDICTS.index(part.binary) - VERDICTS.index(part.real))
    scaled = {binary, real} & {"unbiased", "proportional", "asymptotic"}
    off_policy = (binary, real) if spec.objective.corrects_reuse else ("biased", "biased")
    return Derived(
        binary=binary,
        real=real,
        overall=binary if spec.reward.scores_are_binary or slope is not None else weakest((binary, real)),
        factor=" + ".join(
            [
                " x ".join(part.factor for part in parts if part.factor) or "1",
                *(part.term for part in parts if part.term),
            ]
        )
        if scaled
        else "",
        effects=tuple(told),
        penalty=spec.kl.penalty(spec),
        off_policy_binary=off_policy[0],
        off_policy_real=off_policy[1],
        reused=spec.sampling.updates_per_batch > 1,
        weight=weight,
        variance=variance_of(spec),
        group_size=size,
        target=spec.target if slope is not None and spec.target else "",
        pairs=not spec.online,
    )


def underived(spec: Spec, parts: list[Effect]) -> Derived:
    """Nothing, where an answer has no rule, as a function of the author's own: running the script tells the verdict."""
    unknown = [part for answer in spec.answers.values() if not answer.derivable for part in answer.effects(spec)]
    return Derived(
        binary=UNDERIVED,
        real=UNDERIVED,
        overall=UNDERIVED,
        factor="",
        effects=tuple(dict.fromkeys([*unknown, *parts])),
        penalty=None,
        off_policy_binary=UNDERIVED,
        off_policy_real=UNDERIVED,
        reused=spec.sampling.updates_per_batch > 1,
        weight=None,
        variance="",
        group_size=spec.sampling.group_size,
        pairs=not spec.online,
    )


def effects_of(spec: Spec) -> list[Effect]:
    """What every part does to E[g]. A selection is judged together with the baseline and a prompt's own divisor."""
    together = {"baseline", "normalization"} if spec.normalization.rescales_prompts else {"baseline"}
    merged = together if spec.sampling.selects and not spec.sampling.vanishes(spec) else set()
    found = [e for word, answer in spec.answers.items() if word not in merged for e in answer.effects(spec)]
    return [*found, *spec.sampling.effects(spec)]


def towards(slope: Callable[[float], float], verdict: str, weight: Weight | None, *, exact: bool) -> str:
    """The verdict for 0/1 rewards against another target, where a prompt weighs w / slope, from that against E[R]."""
    if verdict == "biased":
        return verdict
    if verdict == "reweighted" and weight is not None and weight.constant_over(slope):
        same = math.isclose(weight.at(0.5), slope(0.5), rel_tol=CLOSE)
        return ("unbiased" if same else "proportional") if exact else "asymptotic"
    return verdict if math.isclose(slope(0.1), slope(0.9), rel_tol=CLOSE) else "reweighted"


def product(values: list[Number | None]) -> Number | None:
    """The product of the numbers; None where one is missing."""
    known = [value for value in values if value is not None]
    return math.prod(known) if len(known) == len(values) else None


def weight_of(spec: Spec) -> Weight | None:
    """w(p) at the spec's own group size, where it depends on counts alone."""
    if not spec.online:
        return None
    differences = spec.sampling.own_differences(spec) if spec.sampling.selects else spec.normalization.on_counts(spec)
    scaling = list(spec.objective.effects(spec))
    if not spec.normalization.rescales_prompts:
        scaling += spec.normalization.effects(spec)
    if differences is None or any(part.needs_batch or part.term for part in scaling):
        return None
    scale = math.prod(part.number for part in scaling if part.number is not None)
    return Weight((tuple(float(d * scale) for d in differences),))


def variance_of(spec: Spec) -> str:
    """The closed form of tr Cov(g) for one prompt, of an estimator that is its baseline and nothing else."""
    parts = [*spec.normalization.effects(spec), *spec.sampling.effects(spec)]
    touched = parts or not spec.normalization.leaves_as_is or spec.kl.in_reward or spec.kl.in_loss
    if (
        touched
        or spec.reward.credits_steps
        or spec.objective.adds_terms
        or spec.objective.weighting != "exact"
        or not spec.baseline.variance
    ):
        return ""
    scale = product([part.number for part in spec.objective.effects(spec)])
    return spec.baseline.variance if scale == 1 else f"({scale})^2 ({spec.baseline.variance})"


def refuted_claim(spec: Spec) -> Iterator[Finding]:
    """A warning where the spec claims another verdict than its own; about a target not known here none is judged."""
    known = spec.target is None or (slope_of(spec.target) is not None if spec.online else spec.target == WIN_RATE)
    if spec.claim is None or not known:
        return
    derived = derive(spec)
    if spec.claim == derived.overall or not derived.known:
        return
    claimed = VERDICTS.index(spec.claim)
    worse = [part for part in derived.effects if VERDICTS.index(weakest((part.binary, part.real))) > claimed]
    reasons = "; ".join(
        f"{part.where}: {part.reason}" + f" ({part.amount})" * bool(part.amount) for part in worse or derived.effects
    )
    yield Finding(
        "claim-refuted",
        ("claim",),
        f"this estimator is {derived.overall}, not {spec.claim}",
        (reasons or "no part of it changes the gradient of E[R]") + in_numbers(spec, derived),
        f"claim: {derived.overall}",
        warning=True,
    )


def in_numbers(spec: Spec, derived: Derived) -> str:
    """What multiplies the gradient at the spec's own settings, for a message: w(p), or c where it is a number."""
    weight, k = derived.weight, derived.group_size
    if weight is not None and not weight.constant and derived.binary in ("reweighted", "biased"):
        return f". For 0/1 rewards and equal lengths E[g] goes as w(p) grad p, at k = {k} with {at_rates(weight)}"
    c = derived.value(spec.defaults.prompts_per_step)
    return "" if c is None or c == 1 else f". In all, E[g] is {float(c):.4g} times the gradient"


def at_rates(weight: Weight) -> str:
    """w(p) at three success rates."""
    return ", ".join(f"w({p:g}) = {weight.at(p):.3g}" for p in (0.1, 0.5, 0.9))


def odd_weights(spec: Spec) -> Iterator[Finding]:
    """Warnings where nothing is learned from 0/1 rewards, or the opposite of what they say.

    Other weights are no news by themselves: a spec without a claim says nothing that they could contradict, and
    `specc explain` and the script state them.
    """
    scored = spec.reward.scores_are_binary and not spec.reward.transforms
    weight = weight_of(spec) if scored and spec.objective.uses_return and not spec.kl.in_reward else None
    if weight is None:
        return
    found = {p: weight.at(p) for p in GRID}
    largest = max(abs(d) for row in weight.differences for d in row)
    place = ("sampling", "keep") if spec.sampling.selects else spec.baseline.at()
    if largest < CLOSE:
        yield Finding(
            "learns-nothing",
            place,
            "every advantage is 0 with 0/1 rewards",
            f"under keep: {spec.sampling.rule} each response that is kept has the reward 1, and baseline: "
            f"{spec.baseline.name} takes 1 from it: E[g] is 0 at every success rate",
            "baseline: none, or keep: mixed",
            warning=True,
        )
    elif (worst := min(found, key=lambda p: found[p])) and found[worst] < -CLOSE * largest:
        down = [p for p in GRID if found[p] < 0]
        yield Finding(
            "weight-negative",
            place,
            "correct responses are made less likely at some success rates",
            f"E[g] is w(p) grad p for 0/1 rewards, and w is below 0 at {len(down)} of the {len(GRID)} rates "
            f"{GRID[0]:g}, ..., {GRID[-1]:g}: {at_rates(weight)}, and w({worst:g}) = {found[worst]:.3g}",
            "baseline: none, or one between the two rewards",
            warning=True,
        )
