"""Question 4: over what scope is the advantage normalized?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from specc.answers.base import Answer, Finding

if TYPE_CHECKING:
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
