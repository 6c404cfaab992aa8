"""Question 2: where does the KL go?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from specc.answers.base import Answer, Block, Effect, Finding, Penalty, longest_response
from specc.formula import Line, number, product

if TYPE_CHECKING:
    from specc.spec import Spec


class Adaptive(Block):
    """The controller of Ziegler et al. 2019 (arXiv:1909.08593): the coefficient follows the measured KL."""

    argument_prefix: ClassVar[str] = "kl_adaptive_"

    initial: Annotated[float, Field(gt=0)]
    """the KL's coefficient in the first step"""
    target: Annotated[float, Field(gt=0)]
    """the KL of whole responses that the coefficient is to hold, in nats"""
    horizon: Annotated[float, Field(gt=0)]
    """responses over which the coefficient changes by its own size times the clipped error"""


class Moving(Block):
    """A coefficient that moves from step to step."""

    adaptive: Adaptive
    """moved towards a target of the KL: {initial, target, horizon}"""


class Refreshed(Block):
    """A reference that follows the policy in steps, as in iterative GRPO (arXiv:2402.03300, algorithm 1)."""

    argument_prefix: ClassVar[str] = "kl_"

    refresh_every: Annotated[int, Field(ge=1)]
    """steps after which the reference becomes the policy of that moment"""


class KL(Answer):
    """What holds the policy near the reference policy."""

    question: ClassVar[str] = "kl"
    discriminator: ClassVar[str] = "placement"
    argument_prefix: ClassVar[str] = "kl_"

    in_reward: ClassVar[bool] = False
    in_loss: ClassVar[bool] = False
    in_contrast: ClassVar[bool] = False
    """whether responses are compared by their log-ratios to the reference"""

    @property
    def flat_at_reference(self) -> bool:
        """Whether its term of the loss has no gradient where the policy is the reference, whatever the samples."""
        return True

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """None: the KL part of E[g] is judged apart, by `penalty`."""
        yield from ()

    def penalty(self, spec: Spec) -> Penalty | None:
        """What the KL part of E[g] is; None where there is none. An answer without a rule of its own has some other."""
        return Penalty(self.question, "other", "", f"nothing is known about {self.name}")

    def formula(self) -> Iterator[Line]:
        """What a token is charged, c_t, by the log-ratio x_t to the reference."""
        yield Line("x_t", f"log({'old_t' if self.in_reward else 'pi_t'} / ref_t)")
        yield Line("c_t", f"{self.name}_kl(x_t)", self.describe())


OF_KEPT = "the KL of the responses that are kept alone, which are not samples of the policy"
"""what a KL penalty is under a selection"""


ESTIMATES: dict[str, Callable[[float], float]] = {
    "k1": lambda x: x,
    "k2": lambda x: x * x / 2,
    "k3": lambda x: math.expm1(-x) + x,
}
"""each estimator at the log-ratio x = log pi/ref"""

SLOPES: dict[str, Callable[[float], float]] = {"k1": lambda x: 1.0, "k2": lambda x: x, "k3": lambda x: -math.expm1(-x)}
"""their derivatives, by which grad log pi is multiplied where the estimate is a term of the loss"""

DRIFT = 1e-3
"""nats by which a token drifts from the reference, in the messages"""


def acts_as(estimator: str, pi: float, ref: float) -> float:
    """What an estimate in the reward has of the gradient of KL(pi || ref), at a choice of two of chances pi, 1 - pi.

    E[f(x) grad log pi] over two outcomes is pi (1 - pi) (f(x) - f(x')) in the logit, and that of k1 is the gradient.
    """
    estimate, one, other = ESTIMATES[estimator], math.log(pi / ref), math.log((1 - pi) / (1 - ref))
    return (estimate(one) - estimate(other)) / (one - other)


def worst_weighting(*weightings: str) -> str:
    """How the KL part fares under all of these."""
    return max(weightings, key=("exact", "asymptotic", "biased").index)


class NoKL(KL):
    """No KL: nothing holds the policy near a reference, and no reference model is in memory."""

    works_on: ClassVar[frozenset[str]] = frozenset({"rollouts", "pairs"})

    placement: Literal["none"] = "none"

    def formula(self) -> Iterator[Line]:
        yield from ()

    def penalty(self, spec: Spec) -> Penalty | None:
        return None


class PenaltyKL(KL):
    """An estimate of the KL on the sampled tokens, with log-ratio x = log pi/ref.

    k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x (Schulman 2020). `unit: token` applies the estimator to every token's
    log-ratio, `unit: sequence` to their sum.
    """

    estimator: Literal["k1", "k2", "k3"] = "k1"
    """k1 = log pi/ref, k2 = k1^2 / 2, k3 = ref/pi - 1 + k1"""
    unit: Literal["token", "sequence"] = "token"
    """whether the estimator is applied to each token's log-ratio or to the response's"""
    coefficient: Annotated[float, Field(gt=0)] | Moving
    """weight of the KL, often called beta"""
    reference: Literal["initial"] | Refreshed = "initial"
    """the policy that the KL is to: that of step 0, or one that is refreshed"""

    OF_RATIO: ClassVar[dict[str, str]] = {"k1": "{x}", "k2": "{x} ** 2 / 2", "k3": "(exp(-{x}) - 1 + {x})"}
    """the estimators as expressions in the log-ratio"""

    def formula(self) -> Iterator[Line]:
        yield Line("x_t", f"log({'old_t' if self.in_reward else 'pi_t'} / ref_t)")
        beta = "beta" if isinstance(self.coefficient, Moving) else number(self.coefficient)
        if isinstance(self.coefficient, Moving):
            moves = self.coefficient.adaptive
            towards = f"moved from step to step towards a KL of {moves.target:g} nats a response"
            yield Line("beta", "", f"{moves.initial:g} in the first step, and {towards}")
        if self.unit == "sequence":
            yield Line("x", "sum_t(x_t)")
            yield Line("c_t", product("last_t", beta, self.OF_RATIO[self.estimator].format(x="x")))
        else:
            yield Line("c_t", product(beta, self.OF_RATIO[self.estimator].format(x="x_t")))

    @property
    def weight(self) -> float:
        """The coefficient, of one that moves the first."""
        return self.coefficient.adaptive.initial if isinstance(self.coefficient, Moving) else self.coefficient

    def fragments(self) -> tuple[str, ...]:
        moving = ("adaptive",) if isinstance(self.coefficient, Moving) else ()
        refreshed = ("refreshed",) if isinstance(self.reference, Refreshed) else ()
        return (self.estimator, f"per_{self.unit}", *moving, *refreshed)

    def describe(self) -> str:
        moving = ", with an adaptive coefficient" if isinstance(self.coefficient, Moving) else ""
        refreshed = ", to a reference that is refreshed" if isinstance(self.reference, Refreshed) else ""
        return f"{self.estimator} per {self.unit}, in the {self.name}{moving}{refreshed}"

    def short(self) -> str:
        return f"{self.estimator} in the {self.name}"

    def check(self, spec: Spec) -> Iterator[Finding]:
        if self.in_reward and spec.normalization.rescales_prompts:
            yield Finding(
                "kl-rescaled",
                self.at("coefficient"),
                "this coefficient is rescaled for every prompt",
                "KL in the reward passes through the division by the group's statistic, another one for each prompt"
                + self.rescaled(spec),
                "kl: {placement: loss, estimator: k2, unit: sequence, ...}, or normalization: {scope: batch}",
                warning=True,
            )

    def rescaled(self, spec: Spec) -> str:
        """What the coefficient comes to in groups with few, half and most responses correct, for a message.

        With equal rewards the divisor is the KL's own, and the coefficient cancels in a std.
        """
        k = spec.sampling.size
        counts = sorted({min(max(round(p * k), 1), k - 1) for p in (0.1, 0.5, 0.9)})
        divisors = [spec.divisor_on_counts(correct, k - correct) for correct in counts]
        known = [f"{self.weight / divisor:.3g}" for divisor in divisors if divisor is not None]
        if len(known) < len(counts):
            return ""
        first = " at first" * isinstance(self.coefficient, Moving)
        return (
            f": for 0/1 rewards {self.weight:g} acts as {', '.join(known)}{first} where "
            f"{', '.join(map(str, counts))} of the {k} responses are correct"
        )


class RewardKL(PenaltyKL):
    """KL in the reward: its estimate, detached, is taken from the return, as part of what is maximized."""

    in_reward: ClassVar[bool] = True

    placement: Literal["reward"] = "reward"
    after_baseline: bool = False
    """take the KL from the advantage, after the baseline was taken from the reward alone"""

    def describe(self) -> str:
        when = ", after the baseline is taken" if self.after_baseline else ""
        return f"{super().describe()}{when}"

    def check(self, spec: Spec) -> Iterator[Finding]:
        yield from super().check(spec)
        if self.estimator != "k1":
            moved = (0.6, 0.9)
            yield Finding(
                "kl-estimator-in-reward",
                self.at("estimator"),
                f"{self.estimator} in the reward is not the KL penalty",
                "a reward is differentiated through the sampling only, and there only k1 gives -beta grad "
                f"KL(pi || ref). Where a choice of two has moved from 0.5 to {' and to '.join(map(str, moved))}, "
                f"{self.estimator} acts as k1 with a coefficient of "
                + " and ".join(f"{self.weight * acts_as(self.estimator, p, 0.5):.3g}" for p in moved)
                + f" in place of {self.weight:g}: below 0, away from the reference",
                "estimator: k1",
                warning=True,
            )
        if self.after_baseline and (spec.baseline.over_steps or not spec.baseline.reads_returns):
            why = "this baseline does not depend on the batch's returns, so the order of the subtractions is all one"
            if spec.baseline.over_steps:
                why = "the baseline is taken from the steps' rewards, which the KL joins afterwards in any case"
            yield Finding(
                "dead-option",
                self.at("after_baseline"),
                f"after_baseline has no effect with baseline: {spec.baseline.name}",
                why,
                "remove after_baseline",
            )

    def penalty(self, spec: Spec) -> Penalty | None:
        """k1 as a reward is exactly -beta grad KL(pi || ref), and goes through all that the reward goes through."""
        if spec.sampling.selects:
            return Penalty(self.question, "other", "", OF_KEPT)
        if spec.normalization.rescales_prompts:
            why = "the division by each prompt's own statistic rescales the coefficient for every prompt"
            return Penalty(self.question, "rescaled", "", why)
        if self.estimator != "k1":
            why = f"{self.estimator} as a reward is not the KL penalty: only k1 has the gradient of KL(pi || ref) there"
            return Penalty(self.question, "other", "", why)
        kind = spec.baseline.kl_kind(self.unit)
        if kind == "other":
            why = "a token is charged a discounted part of the KL to come, which has the gradient of no KL"
            return Penalty(self.question, "other", "", why)
        after = self.after_baseline or spec.baseline.over_steps
        own = not after and spec.baseline.own(spec.sampling.group_size) in ("lengths", "unknown")
        weighting = worst_weighting(
            spec.objective.weighting,
            spec.sampling.weighting,
            "biased" if own else "exact",
            spec.normalization.weighting_of_kl(spec, after),
        )
        if kind == "partial":
            return Penalty(self.question, kind, weighting, LossKL.MEANS["k2", "token"][1])
        return Penalty(self.question, kind, weighting, "the gradient of KL(pi || ref) of whole responses")


class LossKL(PenaltyKL):
    """KL in the loss: its estimate is a term of the loss and is differentiated itself."""

    in_loss: ClassVar[bool] = True

    placement: Literal["loss"] = "loss"

    MEANS: ClassVar[dict[tuple[str, str], tuple[str, str]]] = {
        ("k1", "token"): ("zero", "k1 in the loss has an expected gradient of zero"),
        ("k1", "sequence"): ("zero", "k1 in the loss has an expected gradient of zero"),
        ("k2", "token"): ("partial", "the gradient of KL(pi || ref) with the distribution of prefixes held fixed"),
        ("k2", "sequence"): ("full", "the gradient of KL(pi || ref) of whole responses"),
        ("k3", "token"): ("forward", "the gradient of KL(ref || pi) at each visited prefix"),
        ("k3", "sequence"): ("forward", "the gradient of KL(ref || pi) of whole responses"),
    }

    @property
    def flat_at_reference(self) -> bool:
        return self.estimator != "k1"

    def check(self, spec: Spec) -> Iterator[Finding]:
        yield from super().check(spec)
        selective = spec.sampling.weighting == "biased" or spec.sampling.selects
        if self.estimator == "k1":
            yield Finding(
                "kl-zero-gradient",
                self.at("estimator"),
                "k1 in the loss holds nothing back" if selective else self.MEANS["k1", self.unit][1],
                f"it is as if {self.weight:g} was taken from every advantage, wherever the policy is{self.noise(spec)}",
                "kl: {placement: loss, estimator: k2, unit: sequence, ...}, which has the gradient of the reverse KL, "
                "or placement: reward",
                warning=True,
            )
        elif (self.estimator, self.unit) != ("k2", "sequence"):
            yield Finding(
                "kl-partial-gradient",
                self.at("estimator"),
                f"a per-{self.unit} {self.estimator} loss is not the gradient of the reverse KL of whole responses",
                self.instead(spec) + "; all this over the responses that are kept alone" * spec.sampling.selects,
                "estimator: k2 with unit: sequence for the full gradient, or accept: [kl-partial-gradient]",
                warning=True,
            )

    def noise(self, spec: Spec) -> str:
        """What that comes to, for k1."""
        if spec.sampling.selects or spec.sampling.weighting == "biased":
            return ": the responses that enter the loss are made less likely by as much"
        bent = ", but for weights that depend on lengths" if spec.objective.weighting == "biased" else ""
        return (
            f": on samples of the policy E[grad log pi] = 0{bent}, so this is noise of {self.weight:g} grad log pi, "
            "which no coefficient makes a penalty"
        )

    def instead(self, spec: Spec) -> str:
        """What its expected gradient is, where it is not that of the reverse KL, and by how much it differs."""
        if self.estimator == "k2":
            length = longest_response(spec)
            later = DRIFT * (length - 1)
            return (
                "it is that of the reverse KL with the distribution of prefixes held fixed: a token is not charged for "
                f"the KL of the tokens after it. One after which {length - 1} tokens drift by {DRIFT:g} nats each is "
                f"spared {self.weight:g} x {later:.3g} = {self.weight * later:.3g} of return, against one after which "
                "none does"
            )
        where = "at each visited prefix" if self.unit == "token" else "of whole responses"
        slope, x = SLOPES[self.estimator], 1.0
        return (
            f"it is that of the forward KL(ref || pi) {where}: grad log pi at log pi/ref = {x:g} has a weight of "
            f"{-self.weight * slope(x):.3g} in place of {-self.weight * x:.3g}, and at {-x:g} of "
            f"{-self.weight * slope(-x):.3g} in place of {self.weight * x:.3g}"
        )

    def penalty(self, spec: Spec) -> Penalty | None:
        """On samples of the policy: grad k1 is 0 in expectation, grad k2 is k1 grad log pi, and grad k3 is
        -(ref / pi - 1) grad log pi, whose expectation is grad KL(ref || pi)."""
        if spec.sampling.selects:
            return Penalty(self.question, "other", "", OF_KEPT)
        weighting = worst_weighting(spec.objective.weighting, spec.sampling.weighting)
        kind, reason = self.MEANS[self.estimator, self.unit]
        return Penalty(self.question, kind, weighting, reason)


class ImplicitKL(KL):
    """The log-ratio to the reference takes the place of the log-prob in the comparison of two responses.

    -log sigmoid(beta x of the chosen response - beta x of the rejected one), x = log pi/ref, is least where pi is the
    policy of the largest E[r] - beta KL(pi || ref), r being the reward of Bradley and Terry (Rafailov et al. 2023).
    """

    in_contrast: ClassVar[bool] = True
    works_on: ClassVar[frozenset[str]] = frozenset({"pairs"})

    placement: Literal["implicit"] = "implicit"

    def penalty(self, spec: Spec) -> Penalty | None:
        """None: there is no part of E[g] that is the KL's own, and at the reference its gradient is 0."""
        return None

    def short(self) -> str:
        return "log-ratio to ref"

    def formula(self) -> Iterator[Line]:
        yield Line("x_t", "log(pi_t / ref_t)")
