"""Question 4: over what scope is the advantage normalized?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from specc.answers.base import Answer, Effect, Finding
from specc.weights import Weight

if TYPE_CHECKING:
    from specc.answers.baseline import Baseline
    from specc.spec import Spec


class Normalization(Answer):
    """What the advantage is divided by, and what may be taken from it before."""

    question: ClassVar[str] = "normalization"
    discriminator: ClassVar[str] = "scope"
    argument_prefix: ClassVar[str] = "normalization_"

    per_prompt: ClassVar[bool] = False

    @property
    def divides(self) -> bool:
        return False

    @property
    def over_tokens(self) -> bool:
        return False

    def effects(self, spec: Spec) -> Iterator[Effect]:
        yield from ()

    def weighting_of_kl(self, spec: Spec, after_baseline: bool) -> str:
        """What becomes of a KL penalty in the reward: `exact` up to a factor, or `asymptotic`."""
        return "exact"

    def on_counts(self, spec: Spec) -> tuple[float, ...] | None:
        """d_j = a(j + 1, 1) - a(j, 0) for 0/1 rewards, j = 0..k-1; None where advantages depend on more than counts."""
        k, baseline = spec.sampling.group_size, spec.baseline
        advantages = [[baseline_of(baseline, r, K, k) for r in (0, 1)] for K in range(k + 1)]
        if any(b is None for row in advantages for b in row):
            return None
        scale = [self.divisor_on_counts(spec, K) for K in range(k + 1)]
        ones = [(1 - (advantages[j + 1][1] or 0.0)) / scale[j + 1] for j in range(k)]
        zeros = [(0 - (advantages[j][0] or 0.0)) / scale[j] for j in range(k)]
        return tuple(one - zero for one, zero in zip(ones, zeros, strict=True))

    def divisor_on_counts(self, spec: Spec, correct: int) -> float:
        """What the advantages of a group with `correct` right responses are divided by, as far as counts decide it."""
        return 1.0


def baseline_of(baseline: Baseline, reward: int, correct: int, size: int) -> float | None:
    """The baseline on counts, 0 for a response that such a group does not have."""
    if not reward <= correct <= size - 1 + reward:
        return 0.0
    return baseline.on_counts(reward, correct, size)


class NoNormalization(Normalization):
    """No normalization: the advantage stays in the units of the reward."""

    scope: Literal["none"] = "none"


class Statistic(Normalization):
    """Dividing by a statistic of the scope, after subtracting its mean where asked.

    std is that of the advantages; mean is that of the returns, since the advantages' own is about 0.
    """

    where: ClassVar[str]

    unit: Literal["response", "token"] = "response"
    """what counts once in the statistic: each response, or each response token"""
    ddof: Annotated[int, Field(ge=0, le=1)] = 1
    """the std divides by count - ddof: 1 is torch.std's default, 0 the population's"""
    epsilon: Annotated[float, Field(ge=0)] = 1e-6
    """added to the divisor"""

    @property
    def divisor(self) -> str:
        """`std`, `mean` or `none`."""
        return str(getattr(self, "divide_by"))  # noqa: B009 - each scope narrows the choice

    @property
    def centred(self) -> bool:
        return bool(getattr(self, "subtract_mean", False))

    @property
    def divides(self) -> bool:
        return self.divisor != "none"

    @property
    def over_tokens(self) -> bool:
        return self.unit == "token"

    def short(self) -> str:
        return f"{self.name} " + " and ".join(["mean"] * self.centred + [self.divisor] * self.divides)

    def describe(self) -> str:
        steps = ["minus the mean"] * self.centred + [f"divided by the {self.divisor}"] * self.divides
        return f"{', '.join(steps)} of {self.where}, each {self.unit} counting once"

    def fragments(self) -> tuple[str, ...]:
        return tuple([f"{self.name}_centre"] * self.centred + [f"{self.name}_{self.divisor}"] * self.divides)

    def check(self, spec: Spec) -> Iterator[Finding]:
        if not self.centred and not self.divides:
            yield Finding(
                "normalizes-nothing",
                self.at("divide_by"),
                "this normalization neither subtracts nor divides",
                "divide_by is none and subtract_mean is not set, so the advantage would stay as it is",
                "normalization: none, or subtract_mean: true",
            )


class Group(Statistic):
    """The group of responses to one prompt, as in GRPO (arXiv:2402.03300): each prompt has a divisor of its own."""

    where: ClassVar[str] = "the prompt's group"
    per_prompt: ClassVar[bool] = True
    min_group_size: ClassVar[int] = 2

    scope: Literal["group"] = "group"
    divide_by: Literal["std", "mean"] = "std"
    """the statistic that the advantage is divided by: std of the advantages, or mean of the returns"""

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """The divisor depends on the response's own reward. For 0/1 rewards it depends on the count of correct
        responses only, so E[g] = w(p) grad p (Mroueh, arXiv:2503.06639, for the std); otherwise it is no gradient."""
        what = f"the {self.divisor} of the prompt's own responses"
        binary, factor = self.for_counts(spec)
        if binary in ("reweighted", "proportional"):
            how = (
                "weights each prompt by its success rate" if binary == "reweighted" else "is a constant for 0/1 rewards"
            )
            why = f"dividing by {what} {how}, and bends the gradient for other rewards"
        else:
            why = f"dividing by {what} bends the gradient"
        yield Effect(self.question, binary, "biased", why, factor)

    def for_counts(self, spec: Spec) -> tuple[str, str]:
        """The verdict for 0/1 rewards, and the factor that the baseline's is multiplied by where that is constant."""
        k, baseline = spec.sampling.group_size, spec.baseline
        if self.over_tokens or baseline.column(k) == "lengths":
            return "biased", ""
        differences = self.on_counts(spec)
        if (
            differences is None
        ):  # a baseline in [0, 1] that is one number in the group: (1 - b)/s + b/s' varies, and is > 0
            return "reweighted", ""
        weight = Weight((differences,))
        if weight.constant and weight.positive:
            own = 1 - 1 / k if baseline.own(k) == "1/k" else 1.0
            return "proportional", f"{differences[0] / own:.6g}"
        return ("reweighted" if weight.positive else "biased"), ""

    def divisor_on_counts(self, spec: Spec, correct: int) -> float:
        k = spec.sampling.group_size
        rewards = [1] * correct + [0] * (k - correct)
        if self.divisor == "mean":
            return correct / k + self.epsilon or 1.0
        values = [r - (baseline_of(spec.baseline, r, correct, k) or 0.0) for r in rewards]
        mean = sum(values) / k
        std = math.sqrt(sum((v - mean) ** 2 for v in values) / max(k - self.ddof, 1)) if 0 < correct < k else 0.0
        return std + self.epsilon if std > 0 else 1.0

    def check(self, spec: Spec) -> Iterator[Finding]:
        yield from super().check(spec)
        if spec.sampling.group_size < 2:
            yield Finding(
                "group-of-one",
                self.at(),
                f"a group needs at least 2 responses a prompt, and sampling.group_size is {spec.sampling.group_size}",
                "the statistic is taken over the responses to the same prompt; one response has no spread",
                "sampling: {group_size: 4}, or scope: batch",
            )


class Batch(Statistic):
    """The whole batch of one step, over all processes, as in REINFORCE++ (arXiv:2501.03262)."""

    where: ClassVar[str] = "the whole batch"

    scope: Literal["batch"] = "batch"
    divide_by: Literal["std", "mean", "none"] = "std"
    """the statistic that the advantage is divided by: std of the advantages, mean of the returns, or none"""
    subtract_mean: bool = False
    """take the batch's mean advantage away first"""

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """A statistic of the batch holds every response's own reward, in a share that vanishes as the batch grows."""
        if self.centred:
            column = spec.baseline.column(spec.sampling.group_size)
            if self.over_tokens or column == "lengths":
                why = "the batch's mean depends on the lengths of its responses, less and less as it grows"
                yield Effect(f"{self.question}.subtract_mean", "asymptotic", "asymptotic", why)
            elif column == "0":
                why = "a response's own reward is in the mean that is taken away"
                yield Effect(f"{self.question}.subtract_mean", "proportional", "proportional", why, "(kB - 1)/(kB)")
        if self.divides:
            why = f"the batch's {self.divisor} depends on the response's own reward, less and less as the batch grows"
            real = "asymptotic"
            if self.divisor == "mean":
                real, why = "biased", f"{why}; a negative mean turns the gradient round"
            yield Effect(self.question, "asymptotic", real, why, f"1/({self.divisor} of the batch)")

    def weighting_of_kl(self, spec: Spec, after_baseline: bool) -> str:
        lengths = not after_baseline and spec.baseline.column(spec.sampling.group_size) == "lengths"
        return "asymptotic" if self.divides or (self.centred and (self.over_tokens or lengths)) else "exact"

    def check(self, spec: Spec) -> Iterator[Finding]:
        yield from super().check(spec)
        if self.centred and spec.baseline.one_number:
            yield Finding(
                "dead-option",
                spec.baseline.at(),
                f"{spec.baseline.name} has no effect with normalization.subtract_mean",
                "this baseline is one number for the whole batch, and subtracting the batch's mean takes it away again",
                "baseline: none, or remove subtract_mean",
            )


class Running(Statistic):
    """Statistics of the past steps, never of this one; in the first step nothing is done."""

    where: ClassVar[str] = "the past steps"

    scope: Literal["running"] = "running"
    divide_by: Literal["std", "none"] = "std"
    """the statistic that the advantage is divided by: std of the past advantages, or none"""
    subtract_mean: bool = False
    """take the past steps' mean advantage away first"""

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """Given the past steps both statistics are constants."""
        if self.divides:
            why = "the std of the past steps is a constant in this one"
            yield Effect(self.question, "proportional", "proportional", why, "1/(std of the past steps)")
