"""Question 4: over what scope is the advantage normalized?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from specc.answers.base import WITHOUT_OWN, Answer, Effect, Finding, Number, check_unit_of_steps
from specc.answers.custom import OwnAnswer
from specc.custom import Interface, UserFunction
from specc.formula import Line, number
from specc.weights import Weight

if TYPE_CHECKING:
    from specc.spec import Spec


CHARGES_STEPS = "a mean taken from every step charges a response for the number of its steps"
"""G_t - m N_t, N_t being the steps to come, is what is left: E[g] = grad E[R] - m grad E[N]."""


class Normalization(Answer):
    """What the advantage is divided by, and what may be taken from it before."""

    question: ClassVar[str] = "normalization"
    discriminator: ClassVar[str] = "scope"
    argument_prefix: ClassVar[str] = "normalization_"

    per_prompt: ClassVar[bool] = False
    leaves_as_is: ClassVar[bool] = False
    """whether the advantage stays what it is"""
    reads_past: ClassVar[bool] = False
    """whether its statistics are of past steps"""

    @property
    def of_returns(self) -> bool:
        """Whether the divisor is a statistic of the returns."""
        return False

    @property
    def divides(self) -> bool:
        return False

    @property
    def centred(self) -> bool:
        """Whether a mean is taken away."""
        return False

    @property
    def over_tokens(self) -> bool:
        return False

    @property
    def over_steps(self) -> bool:
        """Whether step rewards are normalized, before they are added up."""
        return False

    def formula(self, spec: Spec, before: str, name: str) -> Iterator[Line]:
        """What becomes of the advantage `before`, under the name that it then has."""
        yield Line(name, f"{self.name}_normalization({before})", self.describe())

    @property
    def rescales_prompts(self) -> bool:
        """Whether each prompt has a divisor of its own, which a KL in the reward goes through."""
        return self.divides and self.per_prompt and not self.over_steps

    def weighting_of_kl(self, spec: Spec, after_baseline: bool) -> str:
        """What becomes of a KL penalty in the reward, up to a factor: `exact`, `asymptotic` or `biased`, which is said
        of an answer without a rule of its own."""
        return "biased"

    def keeps_zero(self, spec: Spec) -> bool:
        """Whether an advantage of 0 stays 0."""
        return True

    def divisor_on_counts(self, gap: float, correct: int, size: int) -> float | None:
        """What a prompt's advantages are divided by, where 0/1 rewards decide it, `gap` being between the two of them:
        1 but for what scales all prompts alike. None where it is not a matter of counts."""
        return 1.0

    def on_counts(self, spec: Spec) -> tuple[Number, ...] | None:
        """d_j = a(j + 1, 1) - a(j, 0), j = 0..k-1, where a(K, r) is the advantage of a response with 0/1 reward r in a
        group with K correct ones, before what scales all prompts alike. None where it depends on more than K and r."""
        k = spec.sampling.group_size
        share = {"0": Fraction(0), "1/k": Fraction(1, k)}.get(spec.baseline.own(k))
        return None if share is None else (1 - share,) * k


class NoNormalization(Normalization):
    """No normalization: the advantage stays in the units of the reward."""

    leaves_as_is: ClassVar[bool] = True
    works_on: ClassVar[frozenset[str]] = frozenset({"rollouts", "pairs"})

    scope: Literal["none"] = "none"

    def effects(self, spec: Spec) -> Iterator[Effect]:
        yield from ()

    def weighting_of_kl(self, spec: Spec, after_baseline: bool) -> str:
        return "exact"


class Statistic(Normalization):
    """Dividing by a statistic of the scope, after subtracting its mean where asked.

    std is that of the advantages, or of the returns; mean is that of the returns, since the advantages' own is about 0.
    """

    where: ClassVar[str]
    over: ClassVar[str]
    """the scope in formulas"""
    one_number_over: ClassVar[tuple[str, ...]]
    """for which `Baseline.same_for` the scope's advantages are its returns but for one number"""

    unit: Literal["response", "token", "step"] = "response"
    """what counts once in the statistic: each response, each response token, or each step, before steps are added up"""
    ddof: Annotated[int, Field(ge=0, le=1)] = 1
    """the std divides by count - ddof; torch.std has 1"""
    epsilon: Annotated[float, Field(ge=0)] = 1e-6
    """added to the divisor"""
    std_of: Literal["advantages", "returns"] = "advantages"
    """what the std is of: the advantages, or the returns before the baseline is taken"""

    @property
    def of_returns(self) -> bool:
        """Whether the divisor is a statistic of the returns."""
        return self.divisor == "mean" or (self.divisor == "std" and self.std_of == "returns")

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

    @property
    def over_steps(self) -> bool:
        return self.unit == "step"

    def formula(self, spec: Spec, before: str, name: str) -> Iterator[Line]:
        over, what = self.over, "{}"
        if self.unit != "response":
            over = f"{self.over}.{self.unit}s"
        elif spec.objective.token_level:  # a response's return is that of its first token
            what = "first({})"
        returns = "s_t" if self.over_steps else "R_t" if spec.objective.token_level else "R"
        centred = before
        if self.centred:
            yield Line("m", f"mean({what.format(before)}, {over})")
            centred = f"({before} - m)"
        if not self.divides:
            yield Line(name, f"{before} - m")
            return
        seen, epsilon = what.format(returns if self.of_returns else before), number(self.epsilon)
        if self.divisor == "std":
            yield Line("s", f"std({seen}, {over}, ddof={self.ddof})")
            yield Line("D", "where(s > 0, s" + f" + {epsilon}" * (self.epsilon > 0) + ", 1)")
        else:
            yield Line("s", f"mean({seen}, {over})" + f" + {epsilon}" * (self.epsilon > 0))
            yield Line("D", "where(s != 0, s, 1)")
        yield Line(name, f"{centred} / D")

    def short(self) -> str:
        what = " and ".join(["mean"] * self.centred + [self.divisor_in_words] * self.divides)
        return f"{self.name} {what}" + " of steps" * self.over_steps

    @property
    def divisor_in_words(self) -> str:
        return f"{self.divisor}{' of returns' * (self.divisor == 'std' and self.of_returns)}"

    def describe(self) -> str:
        steps = ["minus the mean"] * self.centred + [f"divided by the {self.divisor_in_words}"] * self.divides
        return f"{', '.join(steps)} of {self.where}, each {self.unit} counting once"

    def fragments(self) -> tuple[str, ...]:
        divisor = self.divisor_in_words.replace(" ", "_")
        return tuple([f"{self.name}_centre"] * self.centred + [f"{self.name}_{divisor}"] * self.divides)

    def check(self, spec: Spec) -> Iterator[Finding]:
        if not self.centred and not self.divides:
            yield Finding(
                "normalizes-nothing",
                self.at("divide_by"),
                "this normalization neither subtracts nor divides",
                "divide_by is none and subtract_mean is not set, so the advantage would stay as it is",
                "normalization: none, or subtract_mean: true",
            )
        if self.std_of == "returns" and self.divisor != "std":
            yield Finding(
                "dead-option",
                self.at("std_of"),
                f"std_of: returns has no effect with divide_by: {self.divisor}",
                "it says what the std is of, and nothing is divided by a std here",
                "remove std_of",
            )
        elif self.std_of == "returns" and spec.baseline.same_for in self.one_number_over:
            yield Finding(
                "dead-option",
                self.at("std_of"),
                f"std_of: returns has no effect with baseline: {spec.baseline.name}",
                f"this baseline is one number for {self.where}, so returns and advantages have the same std",
                "remove std_of",
            )
        if not self.over_steps:
            return
        yield from check_unit_of_steps(self, spec)
        if not (spec.baseline.leaves_as_is or spec.baseline.over_steps):
            yield Finding(
                "mixed-units",
                self.at("unit"),
                f"the normalization is of steps, and baseline: {spec.baseline.name} is not",
                "step rewards are normalized before they are added up, and only then there is a return to take this "
                "baseline from",
                "baseline: none, or a baseline with unit: step, or remove unit",
            )


class Group(Statistic):
    """The group of responses to one prompt, as in GRPO (arXiv:2402.03300): each prompt has a divisor of its own."""

    where: ClassVar[str] = "the prompt's group"
    over: ClassVar[str] = "group"
    one_number_over: ClassVar[tuple[str, ...]] = ("run", "batch", "prompt")
    per_prompt: ClassVar[bool] = True
    min_group_size: ClassVar[int] = 2

    scope: Literal["group"] = "group"
    divide_by: Literal["std", "mean"] = "std"
    """the statistic that the advantage is divided by: std of the advantages, or mean of the returns"""

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """The divisor holds the response's own reward. Where 0/1 rewards decide it by their count, E[g] = w(p) grad p
        with w(p) = E d_j, j ~ Binomial(k - 1, p) (for the std: Mroueh, arXiv:2503.06639); else the gradient bends."""
        verdict, number = self.for_counts(spec)
        how = {
            "proportional": "is a constant for 0/1 rewards, and bends the gradient for others",
            "reweighted": "weights prompts by their success rates for 0/1 rewards, and bends the gradient for others",
            "biased": "bends the gradient",
        }[verdict]
        why = f"dividing by the {self.divisor} of the prompt's own responses {how}"
        factor = "" if number is None else f"{number:.6g}"
        yield Effect(self.question, verdict, "biased", why, factor, number)

    def for_counts(self, spec: Spec) -> tuple[str, float | None]:
        """The verdict for 0/1 rewards, and c over the baseline's part of it where w is the same for every p."""
        k, baseline = spec.sampling.group_size, spec.baseline
        if self.over_tokens or self.over_steps:
            return "biased", None
        if baseline.per_token:
            # The divisor goes with the response, and so does what it makes of the value of a token, unless it is 1.
            divisors = [self.divisor_on_counts(1.0, correct, k) or 0.0 for correct in range(k + 1)]
            ones = self.divisor == "std" and all(math.isclose(each, 1.0, rel_tol=1e-12) for each in divisors)
            return ("proportional", 1.0) if ones else ("biased", None)
        if (differences := self.on_counts(spec)) is None:
            # b in [0, 1], independent of the response: E[A g] is grad p times E[(1 - b)/s_(j+1) + b/s_j], above 0, and
            # it varies with p but at single values of b. The std of advantages is that of the rewards only if b is one
            # number. Of the others' rewards b is 0 for j = 0 and 1 for j = k - 1, and s_1 = s_2 for k up to 3.
            from_others = self.of_returns and baseline.own(k) == "0" and baseline.reads_returns
            if from_others and self.divisor == "std" and k <= 3:
                return "proportional", 1 / (math.sqrt((k - 1) / k / (k - self.ddof)) + self.epsilon)
            return ("reweighted" if baseline.same_in_group or from_others else "biased"), None
        weight = Weight((differences,))
        if not weight.positive:
            return "biased", None
        share = Fraction(1, k) if baseline.own(k) == "1/k" else 0
        return ("proportional", differences[0] / (1 - share)) if weight.constant else ("reweighted", None)

    def on_counts(self, spec: Spec) -> tuple[float, ...] | None:
        return spec.sampling.differences(spec)

    def weighting_of_kl(self, spec: Spec, after_baseline: bool) -> str:
        """A KL in the reward is no step reward, and joins the return after their division."""
        return "exact" if self.over_steps else "biased"

    def divisor_on_counts(self, gap: float, correct: int, size: int) -> float | None:
        if self.over_tokens or self.over_steps:
            return None
        if self.divisor == "mean":
            return (correct / size if size else 0.0) + self.epsilon or 1.0
        gap = 1.0 if self.of_returns else gap
        squares = gap**2 * correct * (size - correct) / max(size, 1)  # the sum of squared deviations
        return math.sqrt(squares / (size - self.ddof)) + self.epsilon if squares > 0 else 1.0

    def check(self, spec: Spec) -> Iterator[Finding]:
        yield from super().check(spec)
        if spec.sampling.size < 2:
            yield Finding(
                "group-of-one",
                self.at(),
                f"a group needs at least 2 responses a prompt, and {spec.sampling.why_one}",
                "the statistic is taken over the responses to the same prompt; one response has no spread",
                f"{spec.sampling.more_than_one}, or scope: batch",
            )


class Batch(Statistic):
    """The whole batch of one step, over all processes, as in REINFORCE++ (arXiv:2501.03262)."""

    where: ClassVar[str] = "the whole batch"
    over: ClassVar[str] = "batch"
    one_number_over: ClassVar[tuple[str, ...]] = ("run", "batch")

    scope: Literal["batch"] = "batch"
    divide_by: Literal["std", "mean", "none"] = "std"
    """the statistic that the advantage is divided by: std of the advantages, mean of the returns, or none"""
    subtract_mean: bool = False
    """take the batch's mean advantage away first"""

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """A statistic of the batch holds every response's own reward, in a share that vanishes as the batch grows.

        Centred, a response's own return has the coefficient (1 - own) - (1 - column)/(kB)."""
        if self.centred:
            where, column = f"{self.question}.subtract_mean", spec.baseline.column(spec.sampling.group_size)
            if self.over_steps:
                yield Effect(where, "biased", "biased", CHARGES_STEPS)
            elif self.over_tokens or column not in ("0", "1"):
                why = "a response's own reward is in the batch's mean, by lengths, and less so in large batches"
                yield Effect(where, "asymptotic", "asymptotic", why)
            elif column == "0":
                why = "a response's own reward is in the batch's mean, with a share of 1/(kB)"
                yield Effect(where, "proportional", "proportional", why, WITHOUT_OWN["1/(kB)"])
        if self.divides:
            why = f"a response's own reward is in the batch's {self.divisor} that divides it, less so in large batches"
            real = "asymptotic"
            if self.divisor == "mean":
                real, why = "biased", f"{why}; a mean below 0, of other than 0/1 rewards, turns the gradient round"
            yield Effect(self.question, "asymptotic", real, why, f"1/({self.divisor} of the batch)")

    def keeps_zero(self, spec: Spec) -> bool:
        """The mean of the batch is 0 where every group's is."""
        return not self.centred or (not self.over_tokens and spec.baseline.column(spec.sampling.group_size) == "1")

    def weighting_of_kl(self, spec: Spec, after_baseline: bool) -> str:
        if self.over_steps:
            return "exact"
        lengths = not after_baseline and spec.baseline.column(spec.sampling.group_size) not in ("0", "1")
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
    over: ClassVar[str] = "past"
    one_number_over: ClassVar[tuple[str, ...]] = ("run",)
    reads_past: ClassVar[bool] = True

    scope: Literal["running"] = "running"
    divide_by: Literal["std", "none"] = "std"
    """the statistic that the advantage is divided by: std of the past advantages, or none"""
    subtract_mean: bool = False
    """take the past steps' mean advantage away first"""

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """Given the past steps both statistics are constants."""
        if self.centred and self.over_steps:
            yield Effect(f"{self.question}.subtract_mean", "biased", "biased", CHARGES_STEPS)
        if self.divides:
            why = "the std of the past steps is a constant in this one"
            yield Effect(self.question, "proportional", "proportional", why, "1/(std of the past steps)")

    def keeps_zero(self, spec: Spec) -> bool:
        return not self.centred

    def weighting_of_kl(self, spec: Spec, after_baseline: bool) -> str:
        return "exact"


class Custom(OwnAnswer, Normalization):
    """A function of yours, `file.py::function`, which goes into the script as it is written."""

    OF: ClassVar[Interface] = Interface(
        "normalize",
        {
            "advantages": "[B, G], or [B, G, T] with token_advantage",
            "returns": "the same before the baseline is taken",
            "valid": "bool of the same shape, what counts",
            "mask_BGT": "bool, the tokens of each response",
        },
        "the normalized advantages, of the shape of `advantages`",
    )

    def formula(self, spec: Spec, before: str, name: str) -> Iterator[Line]:
        returns = "R_t" if spec.objective.token_level else "R"
        yield Line(name, self.call({"advantages": before, "returns": returns}), self.function.described)

    scope: Literal["custom"] = "custom"
    function: Annotated[UserFunction, OF]
    """the function, as file.py::function from the spec's folder"""

    def keeps_zero(self, spec: Spec) -> bool:
        return False

    def divisor_on_counts(self, gap: float, correct: int, size: int) -> float | None:
        return None

    def on_counts(self, spec: Spec) -> tuple[Number, ...] | None:
        return None
