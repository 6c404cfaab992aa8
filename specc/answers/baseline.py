"""Question 3: where does the baseline come from?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from specc.answers.base import Answer, Finding

if TYPE_CHECKING:
    from specc.spec import Spec


class Baseline(Answer):
    """What is taken from the return to make the advantage."""

    question: ClassVar[str] = "baseline"
    discriminator: ClassVar[str] = "source"
    argument_prefix: ClassVar[str] = "baseline_"

    reads_returns: ClassVar[bool] = True
    """whether it is computed from the returns of this batch"""
    one_number: ClassVar[bool] = False
    """whether it is the same for every response of the batch"""


class NoBaseline(Baseline):
    """No baseline: the advantage is the return (Williams 1992)."""

    reads_returns: ClassVar[bool] = False

    source: Literal["none"] = "none"


class Constant(Baseline):
    """A constant, the same for every prompt."""

    reads_returns: ClassVar[bool] = False
    one_number: ClassVar[bool] = True

    source: Literal["constant"] = "constant"
    value: float
    """the constant"""


class BatchMean(Baseline):
    """The mean return of the whole batch, the response's own included."""

    one_number: ClassVar[bool] = True

    source: Literal["batch_mean"] = "batch_mean"


class MovingAverage(Baseline):
    """A moving average of the mean returns of past batches; 0 in the first step."""

    reads_returns: ClassVar[bool] = False
    one_number: ClassVar[bool] = True

    source: Literal["moving_average"] = "moving_average"
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """share of the old average that one step keeps"""


class GroupBaseline(Baseline):
    """A baseline from the responses to the same prompt, which needs more than one of them."""

    min_group_size: ClassVar[int] = 2

    def check(self, spec: Spec) -> Iterator[Finding]:
        if spec.sampling.group_size < 2:
            yield Finding(
                "group-of-one",
                self.at(),
                f"{self.name} needs at least 2 responses a prompt; sampling.group_size is {spec.sampling.group_size}",
                "the baseline comes from the responses to the same prompt; one response has nothing to compare with, "
                "and every advantage would be 0 or undefined",
                "sampling: {group_size: 4}",
            )


class GroupMean(GroupBaseline):
    """The mean return of the prompt's group, the response's own included."""

    source: Literal["group_mean"] = "group_mean"


class LeaveOneOut(GroupBaseline):
    """The mean return of the other responses to the same prompt (Kool et al. 2019)."""

    source: Literal["leave_one_out"] = "leave_one_out"


class LengthWeighted(GroupBaseline):
    """The group's mean return weighted by length, near the minimum-variance baseline (OPO, arXiv:2505.23585)."""

    source: Literal["length_weighted"] = "length_weighted"
    leave_one_out: bool = False
    """leave the response's own return out of its baseline"""

    def fragments(self) -> tuple[str, ...]:
        return (self.name + "_leave_one_out" * self.leave_one_out,)

    def describe(self) -> str:
        who = "the other responses'" if self.leave_one_out else "the group's"
        return f"{who} mean return weighted by length, near the minimum-variance baseline (OPO, arXiv:2505.23585)"


class Greedy(Baseline):
    """The reward of the prompt's greedy response (ReMax, arXiv:2310.10505)."""

    reads_returns: ClassVar[bool] = False

    source: Literal["greedy"] = "greedy"
