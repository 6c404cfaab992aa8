"""The sixth block: which responses enter the estimator, and how often each is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from specc.answers.base import Block, Effect, Finding
from specc.formula import Line
from specc.weights import Weight

if TYPE_CHECKING:
    from specc.spec import Spec


MAX_GROUP = 1024
"""responses a prompt, up to which verdicts are summed over the counts of correct ones"""


class MaxVariance(Block):
    """The responses whose rewards have the largest variance (PODS, arXiv:2504.13818)."""

    max_variance: Annotated[int, Field(ge=2)]
    """responses a prompt that are kept (m)"""


class Sampling(Block):
    """Which responses enter the estimator, and how often each is used."""

    group_size: Annotated[int, Field(ge=1)] = 1
    """responses sampled for each prompt (G)"""
    keep: Literal["all", "mixed", "best", "positive"] | MaxVariance = "all"
    """responses that are kept: all, mixed (of groups whose rewards differ), best (one a group), positive (those with a
    reward above 0), or {max_variance: m}"""
    resample: bool | None = None
    """with keep: mixed, whether other prompts take the place of those whose groups are dropped"""
    advantages_over: Literal["kept", "all"] = "kept"
    """whether baselines and statistics are over the responses that are kept or over all that were sampled"""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """temperature of the policy, when sampling and when scoring"""
    epochs: Annotated[int, Field(ge=1)] = 1
    """passes over each batch of responses"""
    minibatches: Annotated[int, Field(ge=1)] = 1
    """optimizer steps in each pass; the loss averages over a minibatch"""
    mask_truncated: bool = False
    """leave responses that did not end out of the loss"""

    ABOUT: ClassVar[dict[str, str]] = {
        "mixed": "only groups whose rewards differ",
        "best": "only the best response to each prompt",
        "positive": "only responses with a reward above 0",
        "max_variance": "only the {} responses of each group whose rewards have the largest variance",
    }

    @property
    def updates_per_batch(self) -> int:
        return self.epochs * self.minibatches

    # what is kept

    @property
    def rule(self) -> str:
        """How responses are selected: `all`, or the name of the fragment."""
        return self.keep if isinstance(self.keep, str) else "max_variance"

    @property
    def selects(self) -> bool:
        return self.rule != "all"

    @property
    def of_kept(self) -> bool:
        """Whether baselines and statistics see only what is kept."""
        return self.selects and self.advantages_over == "kept"

    @property
    def size(self) -> int:
        """Responses of a group that the baseline and the normalization see."""
        if not self.of_kept:
            return self.group_size
        fixed = {"best": 1, "max_variance": getattr(self.keep, "max_variance", 0)}
        return min(fixed.get(self.rule, self.group_size), self.group_size)

    @property
    def why_one(self) -> str:
        """Why a baseline sees one response of a group, where it does."""
        return f"keep: {self.rule} leaves 1" if self.of_kept else f"sampling.group_size is {self.group_size}"

    @property
    def more_than_one(self) -> str:
        """What to write instead."""
        return f"sampling: {{group_size: {max(4, self.group_size)}" + ", advantages_over: all" * self.of_kept + "}"

    def fragments(self) -> tuple[str, ...]:
        """The fragments under `templates/sampling/`."""
        return (self.rule,) * self.selects

    def describe(self) -> str:
        return self.ABOUT[self.rule].format(getattr(self.keep, "max_variance", "")) if self.selects else "all responses"

    def kept_counts(self, correct: int) -> tuple[int, int]:
        """How many correct and how many wrong responses are kept of a group, with 0/1 rewards."""
        k, wrong = self.group_size, self.group_size - correct
        if self.rule == "best":
            return (1, 0) if correct else (0, 1)
        if self.rule == "positive":
            return correct, 0
        if self.rule == "mixed":
            return (correct, wrong) if 0 < correct < k else (0, 0)
        if self.rule == "max_variance":  # as many of both as there are
            m = min(self.size if self.of_kept else getattr(self.keep, "max_variance", k), k)
            right = max(min(correct, m // 2), m - wrong)
            return right, m - right
        return correct, wrong

    def formula(self) -> Iterator[Line]:
        """Which responses the sums and the statistics are over, in words."""
        if self.selects:
            others = ", with other prompts in place of the rest" * bool(self.resample)
            over = "and the statistics " * self.of_kept
            yield Line("", "", f"the sums {over}are over what is kept: {self.describe()}{others}")
        if self.mask_truncated:
            yield Line("", "", "responses that did not end have no tokens in the sums of the update")

    @property
    def counted(self) -> int:
        """What each prompt's sum is divided by, up to what is common to the batch: fixed where the number kept is."""
        fixed = {"best": 1, "max_variance": getattr(self.keep, "max_variance", self.group_size)}
        return min(fixed.get(self.rule, self.group_size), self.group_size)

    @property
    def counts_vary(self) -> bool:
        """Whether how many responses a batch keeps is random."""
        return self.rule in ("mixed", "positive")

    def vanishes(self, spec: Spec) -> bool:
        """Whether what is dropped has no gradient: groups of equal rewards, under a baseline that is their own mean."""
        own = spec.baseline.column(self.group_size) in ("1", "lengths") and not spec.baseline.one_number
        return self.rule == "mixed" and own and spec.objective.uses_return and spec.normalization.keeps_zero(spec)

    def differences(self, spec: Spec, baseline: float | None = None, mean: float = 0.0) -> tuple[float, ...] | None:
        """d_j = a(j + 1, 1) - a(j, 0), j = 0..k-1, as in `Weight`, up to what is common to the batch.

        a(K, r) is what a response with the 0/1 reward r is worth in a group with K correct ones: its advantage where it
        is kept, and 0 else. `baseline` is one that does not depend on the group; None takes the spec's own, and the
        result is None where that is not a matter of counts. `mean` is taken from the advantages of all groups.
        """
        k, found = self.group_size, dict[tuple[int, int], float]()
        for correct in range(k + 1):
            kept = self.kept_counts(correct)
            seen = kept if self.of_kept else (correct, k - correct)
            advantages = spec.advantages_on_counts(*seen, baseline, mean)
            if advantages is None:
                return None
            for reward, chosen, there in ((1, kept[0], correct), (0, kept[1], k - correct)):
                if there:
                    found[correct, reward] = k / self.counted * chosen / there * advantages[reward]
        return tuple(found[j + 1, 1] - found[j, 0] for j in range(k))

    def weights(self, spec: Spec) -> list[Weight]:
        """w(p) of what is kept: one, or those at the ends of what a baseline can be that is a number in between.

        A mean of the advantages, which a normalization takes away, is between the least and the largest of them; it is
        0 where those of each group are around their own mean, and with one number for all it is a mean of rewards.
        """
        baseline, normalization = spec.baseline, spec.normalization
        numbers: list[float | None] = [None]
        means = [0.0]
        if normalization.centred and baseline.same_for == "run":
            numbers = self.ends_of_a_mean(of_batch=not normalization.reads_past)
        else:
            if baseline.on_counts(1, 1, max(self.size, 2)) is None:
                of_rewards = baseline.one_number and self.ends_of_a_mean(of_batch=baseline.reads_returns)
                numbers = of_rewards or [0.0, 1.0] if baseline.same_in_group else numbers
            around_own_mean = baseline.column(self.size) == "1" and not normalization.over_tokens
            if normalization.centred and not around_own_mean:
                means = self.ends_of_advantages(spec, numbers)
        differences = [self.differences(spec, number, mean) for number in numbers for mean in means]
        return [Weight((d,)) for d in differences if d is not None]

    def ends_of_a_mean(self, of_batch: bool) -> list[float | None]:
        """What a mean of 0/1 rewards can be, near its ends, which it has only where all rewards are the same."""
        return [1.0] if of_batch and self.of_kept and self.rule == "positive" else [1e-3, 1 - 1e-3]

    def ends_of_advantages(self, spec: Spec, numbers: list[float | None]) -> list[float]:
        """The least and the largest advantage of a response with a 0/1 reward, under any of these baselines."""
        found = [0.0]
        for number in numbers:
            for correct in range(self.group_size + 1):
                seen = self.kept_counts(correct) if self.of_kept else (correct, self.group_size - correct)
                found += spec.advantages_on_counts(*seen, number, 0.0) or ()
        return [min(found), max(found)]

    def lengths_bend_no_sign(self, spec: Spec) -> bool:
        """Whether a baseline of others' returns, weighted by length, leaves the advantages the signs that they have at
        equal lengths, and a divisor what it is: it is 0 or 1 where all others' rewards are, and else in between."""
        baseline, normalization = spec.baseline, spec.normalization
        of_others = self.selects and baseline.reads_returns and baseline.own(self.size) == "0"
        return of_others and (not normalization.rescales_prompts or getattr(normalization, "of_returns", False))

    def at_any_lengths(self, spec: Spec) -> bool:
        """Whether the weights are what they are at equal lengths: the baseline falls out of groups that are mixed with
        a correct response and with a wrong one, as that of others does not depend on the response's own reward."""
        on_counts = spec.baseline.on_counts(1, 1, max(self.size, 3)) is not None or self.size < 3
        falls_out = self.rule == "mixed" and not spec.normalization.rescales_prompts
        return on_counts or falls_out or not self.lengths_bend_no_sign(spec)

    def alike(self, spec: Spec, found: list[Weight]) -> bool:
        """Whether what its weights depend on, beside p, is the same for all prompts of a batch."""
        one_number = len(found) == 1 or spec.baseline.one_number or spec.baseline.same_for == "run"
        return one_number and self.at_any_lengths(spec)

    def own_differences(self, spec: Spec) -> tuple[float, ...] | None:
        """The d_j of what is kept, where they are those of the spec's own group and of no number of the batch."""
        found = self.weights(spec)
        return found[0].differences[0] if len(found) == 1 and self.at_any_lengths(spec) else None

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """What it does to E[g]; of what is kept, together with the baseline and a divisor of each prompt's own."""
        if self.mask_truncated:
            why = "responses that did not end give no gradient"
            yield Effect("sampling.mask_truncated", "biased", "biased", why)
        if not self.selects:
            return
        if self.vanishes(spec):
            why = "how many groups are kept, and so what the sum is divided by, is random, and less so in large batches"
            yield Effect("sampling.keep", "asymptotic", "asymptotic", why, "1/(share of groups that are mixed)")
            return
        found, number = self.weights(spec), None
        if not found or not all(weight.positive for weight in found):
            verdict, how = "biased", "bends the gradient, or turns it round"
        elif all(weight.constant for weight in found) and self.alike(spec, found):
            verdict, how = "asymptotic", "weights all prompts alike as the batch grows, for 0/1 rewards"
            if len(found) == 1 and not self.counts_vary:
                verdict, how, number = "proportional", "weights all prompts alike, for 0/1 rewards", found[0].at(0.5)
        else:
            verdict, how = "reweighted", "weights prompts by their success rates, for 0/1 rewards"
        why = f"keeping {self.describe()} {how}" + ", and bends the gradient for others" * (verdict != "biased")
        yield Effect("sampling.keep", verdict, "biased", why, f"{number:.6g}" if number else "", number)

    def check(self, spec: Spec) -> Iterator[Finding]:
        """What of it has no effect here."""
        kept = getattr(self.keep, "max_variance", 2)
        if self.group_size > MAX_GROUP:
            yield Finding(
                "out-of-range",
                ("sampling", "group_size"),
                f"`sampling.group_size` is {self.group_size}, and must be at most {MAX_GROUP}",
                "the verdict on a spec is a sum over every number of correct responses in a group, and is exact",
                f"group_size: {MAX_GROUP}, or fewer",
            )
        if self.selects and self.rule != "positive" and self.group_size < 2:
            yield Finding(
                "group-of-one",
                ("sampling", "keep"),
                f"keep: {self.rule} needs at least 2 responses a prompt; sampling.group_size is {self.group_size}",
                "it compares the responses to the same prompt, and one response has nothing to compare with",
                "sampling: {group_size: 4}",
            )
        elif self.rule == "max_variance" and kept >= self.group_size:
            yield Finding(
                "keeps-all",
                ("sampling", "keep"),
                f"max_variance: {kept} keeps all of the {self.group_size} responses to a prompt",
                "it is meant to train on fewer responses than are sampled",
                f"max_variance: {max(2, self.group_size // 4)}, or a larger group_size",
            )
        if self.resample is not None and self.rule != "mixed":
            yield Finding(
                "dead-option",
                ("sampling", "resample"),
                f"resample has no effect with keep: {self.rule}",
                "other prompts are sampled in place of those whose groups are dropped, which keep: mixed does",
                "remove resample, or keep: mixed",
            )
        if self.advantages_over != "kept" and not self.matters_before(spec):
            why = "no baseline and no statistic here looks at what is dropped, so it is all one over which they are"
            yield Finding(
                "dead-option",
                ("sampling", "advantages_over"),
                f"advantages_over has no effect with keep: {self.rule}",
                why if self.selects else "nothing is dropped",
                "remove advantages_over",
            )

    def matters_before(self, spec: Spec) -> bool:
        """Whether a baseline or a statistic sees responses that are dropped, if it is over all."""
        baseline, normalization = spec.baseline, spec.normalization
        of_batch = not normalization.leaves_as_is and not normalization.per_prompt
        if self.rule == "mixed":  # which keeps groups whole
            return of_batch or baseline.reads_past or (baseline.reads_returns and baseline.one_number)
        return self.selects and (baseline.reads_returns or baseline.reads_past or not normalization.leaves_as_is)

    @property
    def weighting(self) -> str:
        """What it does to a KL penalty."""
        return "biased" if self.mask_truncated else "exact"
