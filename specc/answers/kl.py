"""Question 2: where does the KL go?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from specc.answers.base import Answer, Finding

if TYPE_CHECKING:
    from specc.spec import Spec


class KL(Answer):
    """What holds the policy near the reference policy."""

    question: ClassVar[str] = "kl"
    discriminator: ClassVar[str] = "placement"
    argument_prefix: ClassVar[str] = "kl_"

    in_reward: ClassVar[bool] = False
    in_loss: ClassVar[bool] = False


class NoKL(KL):
    """No KL: nothing holds the policy near a reference, and no reference model is in memory."""

    placement: Literal["none"] = "none"


class PenaltyKL(KL):
    """An estimate of the KL on the sampled tokens, with log-ratio x = log pi/ref.

    k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x (Schulman 2020). `unit: token` applies the estimator to every token's
    log-ratio, `unit: sequence` to their sum.
    """

    estimator: Literal["k1", "k2", "k3"] = "k1"
    """k1 = log pi/ref, k2 = k1^2 / 2, k3 = ref/pi - 1 + k1"""
    unit: Literal["token", "sequence"] = "token"
    """whether the estimator is applied to each token's log-ratio or to the response's"""
    coefficient: Annotated[float, Field(gt=0)]
    """weight of the KL, often called beta"""

    def fragments(self) -> tuple[str, ...]:
        return (self.estimator, f"per_{self.unit}")

    def short(self) -> str:
        return f"{self.estimator} in the {self.name}"

    def check(self, spec: Spec) -> Iterator[Finding]:
        if spec.normalization.divides and self.in_reward and spec.normalization.per_prompt:
            yield Finding(
                "kl-rescaled",
                self.at("coefficient"),
                "this coefficient is rescaled for every prompt",
                "KL in the reward passes through the division by the group's statistic, so the effective coefficient "
                f"is {self.coefficient:g} divided by it, another one for each prompt",
                "put the KL in the loss (placement: loss), or normalize over the batch (scope: batch)",
                warning=True,
            )


class RewardKL(PenaltyKL):
    """KL in the reward: its estimate, detached, is taken from the return, as part of what is maximized."""

    in_reward: ClassVar[bool] = True

    placement: Literal["reward"] = "reward"
    after_baseline: bool = False
    """take the KL from the advantage, after the baseline was taken from the reward alone"""

    def describe(self) -> str:
        when = ", after the baseline is taken" if self.after_baseline else ""
        return f"{self.estimator} per {self.unit}, in the reward{when}"

    def check(self, spec: Spec) -> Iterator[Finding]:
        yield from super().check(spec)
        if self.estimator != "k1":
            yield Finding(
                "kl-estimator-in-reward",
                self.at("estimator"),
                f"{self.estimator} in the reward is not the KL penalty",
                "a reward is differentiated through the sampling only, and there only k1 gives -beta grad "
                f"KL(pi || ref); {self.estimator} penalizes another quantity",
                "estimator: k1, or placement: loss",
                warning=True,
            )
        if self.after_baseline and not spec.baseline.reads_returns:
            yield Finding(
                "dead-option",
                self.at("after_baseline"),
                f"after_baseline has no effect with baseline: {spec.baseline.name}",
                "this baseline does not depend on the batch's returns, so the order of the subtractions is all one",
                "remove after_baseline",
            )


class LossKL(PenaltyKL):
    """KL in the loss: its estimate is a term of the loss and is differentiated itself."""

    in_loss: ClassVar[bool] = True

    placement: Literal["loss"] = "loss"

    def describe(self) -> str:
        return f"{self.estimator} per {self.unit}, in the loss"

    def check(self, spec: Spec) -> Iterator[Finding]:
        yield from super().check(spec)
        if self.estimator == "k1":
            yield Finding(
                "kl-zero-gradient",
                self.at("estimator"),
                "k1 in the loss has an expected gradient of zero",
                "on samples of the policy, E[grad log pi] = 0: the term adds noise and holds nothing back",
                "estimator: k2 (its gradient is that of the reverse KL), or placement: reward",
                warning=True,
            )
        elif (self.estimator, self.unit) != ("k2", "sequence"):
            means = {
                ("k2", "token"): "reverse KL with the distribution of prefixes frozen, a partial gradient",
                ("k3", "token"): "forward KL(ref || pi) at each visited prefix",
                ("k3", "sequence"): "forward KL(ref || pi) of whole responses",
            }[self.estimator, self.unit]
            yield Finding(
                "kl-partial-gradient",
                self.at("estimator"),
                f"a per-{self.unit} {self.estimator} loss is not the gradient of the reverse KL of whole responses",
                f"its expected gradient is that of the {means}",
                "estimator: k2 with unit: sequence for the full gradient, or accept: [kl-partial-gradient]",
                warning=True,
            )
