"""Question 3: where does the baseline come from?"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from specc.answers.base import WITHOUT_OWN, Answer, Effect, Finding

if TYPE_CHECKING:
    from specc.spec import Spec


class Baseline(Answer):
    """What is taken from the return to make the advantage."""

    question: ClassVar[str] = "baseline"
    discriminator: ClassVar[str] = "source"
    argument_prefix: ClassVar[str] = "baseline_"

    reads_returns: ClassVar[bool] = True
    """whether it is computed from the returns of this batch"""
    leaves_as_is: ClassVar[bool] = False
    """whether the advantage is the return"""
    reads_past: ClassVar[bool] = False
    """whether it is computed from the returns of past batches"""
    one_number: ClassVar[bool] = False
    """whether it is the same for every response of the batch"""
    per_prompt: ClassVar[bool] = False
    """whether it is the same for all responses to a prompt, and may differ between prompts"""
    variance: ClassVar[str] = ""
    """tr Cov for one prompt, of a sum over tokens without a normalization, where it has a closed form"""

    # A baseline is b_i = sum_j alpha_ij R_j, or independent of the batch's responses. One that reads the returns and
    # does not say how is taken to be biased.

    def own(self, size: int) -> str:
        """alpha_ii, the share of a response's own return in its baseline: 0, 1/k, 1/(kB), `lengths` or `unknown`."""
        return "unknown" if self.reads_returns else "0"

    def column(self, size: int) -> str:
        """sum_j alpha_ji, the share of a response's return in all baselines together: 0, 1, `lengths` or `unknown`."""
        return "unknown" if self.reads_returns else "0"

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        """The baseline of a response with a 0/1 reward in a group with `correct` right ones; None where it depends
        on more than these."""
        return None

    @property
    def same_for(self) -> str:
        """Over what it is one number: `run`, `batch`, `prompt` or `response`, the narrowest that is sure."""
        if self.leaves_as_is or (self.one_number and not self.reads_returns and not self.reads_past):
            return "run"
        return "batch" if self.one_number else "prompt" if self.per_prompt else "response"

    @property
    def same_in_group(self) -> bool:
        """Whether all responses to a prompt have the same baseline, between 0 and 1 where their rewards are."""
        return self.one_number or not self.reads_returns

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """A baseline takes alpha_ii of E[g] away, since E[R_j g_i] = 0 for the other responses (Williams 1992)."""
        k = spec.sampling.group_size
        if (own := self.own(k)) in WITHOUT_OWN:
            why = f"a response's own reward is in its baseline, with a share of {own}"
            number = 1 - Fraction(1, k) if own == "1/k" else None
            yield Effect(self.question, "proportional", "proportional", why, WITHOUT_OWN[own], number)
        elif own != "0":
            why = "a response's own reward is in its baseline, with a share that depends on its length"
            unknown = f"nothing is known about the share of a response's own reward in {self.name}"
            yield Effect(self.question, "biased", "biased", why if own == "lengths" else unknown)


class NoBaseline(Baseline):
    """No baseline: the advantage is the return (Williams 1992)."""

    reads_returns: ClassVar[bool] = False
    leaves_as_is: ClassVar[bool] = True

    variance: ClassVar[str] = "V_0/k"

    source: Literal["none"] = "none"

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        return 0.0


class Constant(Baseline):
    """A constant, the same for every prompt."""

    reads_returns: ClassVar[bool] = False
    one_number: ClassVar[bool] = True

    variance: ClassVar[str] = "V_b/k"

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
    reads_past: ClassVar[bool] = True
    one_number: ClassVar[bool] = True

    source: Literal["moving_average"] = "moving_average"
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """share of the old average that one step keeps"""


class GroupBaseline(Baseline):
    """A baseline from the responses to the same prompt, which needs more than one of them."""

    min_group_size: ClassVar[int] = 2

    def check(self, spec: Spec) -> Iterator[Finding]:
        if spec.sampling.size < 2:
            yield Finding(
                "group-of-one",
                self.at(),
                f"{self.name} needs at least 2 responses a prompt, and {spec.sampling.why_one}",
                "the baseline comes from the responses to the same prompt; one response has nothing to compare with, "
                "and every advantage would be 0 or undefined",
                spec.sampling.more_than_one,
            )


PAIRS = "A2/k - (k - 2)|G|^2/(k(k - 1)) + sigma^2 T/(k(k - 1))"
"""tr Cov of the unbiased sample covariance of return and score, which leave-one-out is."""


class GroupMean(GroupBaseline):
    """The mean return of the prompt's group, the response's own included."""

    variance: ClassVar[str] = f"((k - 1)/k)^2 ({PAIRS})"

    per_prompt: ClassVar[bool] = True

    source: Literal["group_mean"] = "group_mean"

    def own(self, size: int) -> str:
        return "1/k"

    def column(self, size: int) -> str:
        return "1"

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        return correct / size


class LeaveOneOut(GroupBaseline):
    """The mean return of the other responses to the same prompt (Kool et al. 2019)."""

    variance: ClassVar[str] = PAIRS

    source: Literal["leave_one_out"] = "leave_one_out"

    def own(self, size: int) -> str:
        return "0"

    def column(self, size: int) -> str:
        return "1"

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        return (correct - reward) / (size - 1) if size > 1 else float(reward)  # alone, it has no advantage


class LengthWeighted(GroupBaseline):
    """The group's mean return weighted by length, near the minimum-variance baseline (OPO, arXiv:2505.23585)."""

    source: Literal["length_weighted"] = "length_weighted"
    leave_one_out: bool = False
    """leave the response's own return out of its baseline"""

    @property
    def same_for(self) -> str:
        return "response" if self.leave_one_out else "prompt"

    def own(self, size: int) -> str:
        return "0" if self.leave_one_out else "lengths"

    def column(self, size: int) -> str:
        """Of two responses each is the other's whole baseline, however long."""
        return "1" if self.leave_one_out and size == 2 else "lengths"

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        return float(correct - reward) if self.column(size) == "1" else None

    def fragments(self) -> tuple[str, ...]:
        return (self.name + "_leave_one_out" * self.leave_one_out,)

    def short(self) -> str:
        return super().short() + " leave one out" * self.leave_one_out

    def describe(self) -> str:
        who = "the other responses'" if self.leave_one_out else "the group's"
        return f"{who} mean return weighted by length, near the minimum-variance baseline (OPO, arXiv:2505.23585)"


class Greedy(Baseline):
    """The reward of the prompt's greedy response (ReMax, arXiv:2310.10505)."""

    reads_returns: ClassVar[bool] = False

    per_prompt: ClassVar[bool] = True

    source: Literal["greedy"] = "greedy"
