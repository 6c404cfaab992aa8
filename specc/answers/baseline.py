"""Question 3: where does the baseline come from?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from specc.answers.base import Answer, Effect, Finding

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

    def own(self, size: int) -> str:
        """The weight of a response's own return in its baseline, as a formula: 0, 1/k, 1/(kB), or `lengths`."""
        return "0"

    def column(self, size: int) -> str:
        """The weight of a response's return in all baselines together: 0, 1, or `lengths`."""
        return "0"

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        """The baseline of a response with a 0/1 reward in a group with `correct` right ones; None where it depends
        on more: on past steps, other prompts or the greedy response, but is the same in the whole group."""
        return None

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """A baseline sum_j alpha_ij R_j takes alpha_ii of E[g] away, since E[R_j g_i] = 0 for the other responses."""
        own = self.own(spec.sampling.group_size)
        if own == "lengths":
            why = "a response's own reward is in its baseline, with a weight that depends on its length"
            yield Effect(self.question, "biased", "biased", why)
        elif own != "0":
            why = "a response's own reward is in its baseline"
            yield Effect(self.question, "proportional", "proportional", why, one_minus(own))


def one_minus(share: str) -> str:
    """The formula of 1 - 1/n."""
    below = share.removeprefix("1/")
    return f"({below.strip('()')} - 1)/{below}"


class NoBaseline(Baseline):
    """No baseline: the advantage is the return (Williams 1992)."""

    reads_returns: ClassVar[bool] = False

    source: Literal["none"] = "none"

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        return 0.0


class Constant(Baseline):
    """A constant, the same for every prompt."""

    reads_returns: ClassVar[bool] = False
    one_number: ClassVar[bool] = True

    source: Literal["constant"] = "constant"
    value: float
    """the constant"""

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        return self.value


class BatchMean(Baseline):
    """The mean return of the whole batch, the response's own included."""

    one_number: ClassVar[bool] = True

    source: Literal["batch_mean"] = "batch_mean"

    def own(self, size: int) -> str:
        return "1/(kB)"

    def column(self, size: int) -> str:
        return "1"


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

    def own(self, size: int) -> str:
        return "1/k"

    def column(self, size: int) -> str:
        return "1"

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        return correct / size


class LeaveOneOut(GroupBaseline):
    """The mean return of the other responses to the same prompt (Kool et al. 2019)."""

    source: Literal["leave_one_out"] = "leave_one_out"

    def column(self, size: int) -> str:
        return "1"

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        return (correct - reward) / (size - 1)


class LengthWeighted(GroupBaseline):
    """The group's mean return weighted by length, near the minimum-variance baseline (OPO, arXiv:2505.23585)."""

    source: Literal["length_weighted"] = "length_weighted"
    leave_one_out: bool = False
    """leave the response's own return out of its baseline"""

    def own(self, size: int) -> str:
        return "0" if self.leave_one_out else "lengths"

    def column(self, size: int) -> str:
        """Of two responses each is the other's whole baseline, however long."""
        return "1" if self.leave_one_out and size == 2 else "lengths"

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        return float(correct - reward) if self.column(size) == "1" else None

    def fragments(self) -> tuple[str, ...]:
        return (self.name + "_leave_one_out" * self.leave_one_out,)

    def describe(self) -> str:
        who = "the other responses'" if self.leave_one_out else "the group's"
        return f"{who} mean return weighted by length, near the minimum-variance baseline (OPO, arXiv:2505.23585)"


class Greedy(Baseline):
    """The reward of the prompt's greedy response (ReMax, arXiv:2310.10505)."""

    reads_returns: ClassVar[bool] = False

    source: Literal["greedy"] = "greedy"
