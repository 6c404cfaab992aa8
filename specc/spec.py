"""The spec: five answers, which responses enter, and the hyperparameters that a paper published."""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from specc.answers import QUESTIONS, answers_to
from specc.answers.base import Answer, Block, Finding, Parameter, union_of
from specc.answers.baseline import Baseline
from specc.answers.kl import KL
from specc.answers.normalization import Normalization
from specc.answers.objective import PolicyGradient
from specc.answers.reward import Reward
from specc.sampling import Sampling

if TYPE_CHECKING:
    AnyReward = Reward
    AnyKL = KL
    AnyBaseline = Baseline
    AnyNormalization = Normalization
    AnyObjective = PolicyGradient
else:
    AnyReward, AnyKL, AnyBaseline, AnyNormalization, AnyObjective = (union_of(base) for base in QUESTIONS.values())

Verdict = Literal["unbiased", "proportional", "asymptotic", "reweighted", "biased"]


def is_name(name: str) -> str:
    """A name becomes a file name and a word of the docs, so it is a Python identifier."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise ValueError("a name is a Python identifier: ASCII letters, digits and _, not starting with a digit")
    return name


class Defaults(Block):
    """Published hyperparameters: they become the defaults of the script's arguments of the same names."""

    learning_rate: Annotated[float, Field(gt=0)] | None = None
    """peak learning rate of AdamW"""
    critic_learning_rate: Annotated[float, Field(gt=0)] | None = None
    """peak learning rate of the AdamW of a critic with a backbone of its own; the policy's where it is not given"""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] | None = None
    """decay of AdamW's first moment"""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] | None = None
    """decay of AdamW's second moment"""
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    """AdamW's weight decay"""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = None
    """the gradient's norm is clipped to this"""
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    """optimizer steps over which the learning rate rises"""
    lr_scheduler: Literal["constant", "linear", "cosine"] | None = None
    """schedule of the learning rate after the warm-up"""
    steps: Annotated[int, Field(ge=1)] | None = None
    """training steps, one batch of rollouts each"""
    prompts_per_step: Annotated[int, Field(ge=1)] | None = None
    """prompts in each step's batch, over all processes (B)"""
    max_prompt_length: Annotated[int, Field(ge=1)] | None = None
    """longest prompt, in tokens"""
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None
    """longest response, in tokens"""


def short_form(question: str) -> Any:
    """Reads `baseline: leave_one_out` as `baseline: {source: leave_one_out}`."""
    discriminator = QUESTIONS[question].discriminator
    return BeforeValidator(lambda answer: {discriminator: answer} if isinstance(answer, str) else answer)


class Spec(Block):
    """A whole spec, as `algorithms/*.yaml` hold them."""

    specc: Literal[1] = 1
    """version of the language"""
    name: Annotated[str, Field(max_length=64), AfterValidator(is_name)]
    """an identifier; the script is generated/<name>.py"""
    title: Annotated[str, Field(max_length=200)] | None = None
    """how the algorithm is called in prose"""
    cite: Annotated[str, Field(max_length=500)] | None = None
    """where it was published"""
    claim: Verdict | None = None
    """what the author states about the estimator"""
    target: Annotated[str, Field(max_length=200)] | None = None
    """what is claimed about, when it is not the spec's own objective"""
    accept: Annotated[list[str], Field(max_length=100, default_factory=list)]
    """warnings that the author has read and means to have"""

    reward: Annotated[AnyReward, short_form("reward")]
    """where the reward comes from"""
    kl: Annotated[AnyKL, short_form("kl")]
    """where the KL goes"""
    baseline: Annotated[AnyBaseline, short_form("baseline")]
    """where the baseline comes from"""
    normalization: Annotated[AnyNormalization, short_form("normalization")]
    """over what scope the advantage is normalized"""
    objective: Annotated[AnyObjective, short_form("objective")]
    """what quantity is optimized"""

    sampling: Sampling = Sampling()
    """which responses enter, and how often"""
    defaults: Defaults = Defaults()
    """published hyperparameters"""

    @property
    def answers(self) -> dict[str, Answer]:
        """The five answers, in the order of the signal chain."""
        return {question: getattr(self, question) for question in QUESTIONS}

    @property
    def online(self) -> bool:
        """Whether the policy is trained on responses that it samples, and not on pairs that are given."""
        return "rollouts" in self.objective.works_on

    def findings(self) -> Iterator[Finding]:
        """What the answers say of each other: contradictions, and warnings."""
        if apart := list(self.mismatches()):
            yield from apart
            return
        for answer in self.answers.values():
            yield from answer.check(self)
        if self.online:
            yield from self.sampling.check(self)
        else:
            for name in sorted(self.sampling.model_fields_set):
                yield Finding(
                    "dead-option",
                    ("sampling", name),
                    f"sampling.{name} has no effect with objective: {self.objective.name}",
                    "the responses are those of the data: none is sampled, each pair is used once in a step, and "
                    "log-probs are taken at temperature 1",
                    f"remove {name}",
                )

    def mismatches(self) -> Iterator[Finding]:
        """Answers that learn from other data than the objective: from sampled responses, or from given pairs."""
        (data,) = self.objective.works_on
        learns = {
            "rollouts": "learns from responses that the policy samples, each with a reward",
            "pairs": "learns from pairs of given answers, of which one was chosen; nothing is sampled or scored",
        }[data]
        for question, answer in self.answers.items():
            if data not in answer.works_on:
                others = [name for name, other in answers_to(question).items() if data in other.works_on]
                yield Finding(
                    "pairs-and-rollouts",
                    answer.at(),
                    f"{question}: {answer.name} does not go with objective: {self.objective.name}",
                    f"{self.objective.name} {learns}",
                    f"{question}: {' or '.join(filter(None, [', '.join(others[:-1]), others[-1]]))}"
                    + ("; or quantity: preference, with reward: preferences and baseline: pair" * (data == "rollouts")),
                )

    def advantages_on_counts(
        self, correct: int, wrong: int, baseline: float | None, mean: float
    ) -> tuple[float, float] | None:
        """The advantages of a wrong and of a correct response in a group of so many, with 0/1 rewards; 0 for none.

        `baseline` is a number that takes the baseline's place, and `mean` one that is taken from every advantage. None
        where they are not a matter of counts.
        """
        size, advantages = correct + wrong, [0.0, 0.0]
        for reward, there in enumerate((wrong, correct)):
            if there:
                own = self.baseline.on_counts(reward, correct, size) if baseline is None else baseline
                if own is None and self.sampling.lengths_bend_no_sign(self):
                    own = self.baseline.at_equal_lengths(reward, correct, size)
                if own is None:
                    return None
                advantages[reward] = self.objective.return_on_counts(reward) - own - mean
        gap = advantages[1] - advantages[0] if correct and wrong else 0.0
        divisor = self.normalization.divisor_on_counts(gap, correct, size)
        return None if divisor is None else (advantages[0] / divisor, advantages[1] / divisor)

    def divisor_on_counts(self, correct: int, wrong: int) -> float | None:
        """What the advantages of a group with both kinds of responses are divided by; None where it is not a matter of
        counts."""
        size = correct + wrong
        low, high = (self.baseline.at_equal_lengths(reward, correct, size) for reward in (0, 1))
        gap = 1.0 if low is None or high is None else 1.0 + low - high  # else the baseline is the same in the group
        return self.normalization.divisor_on_counts(gap, correct, size)

    def algorithm_parameters(self) -> dict[str, list[Parameter]]:
        """The numbers of the spec by question, and those of `sampling`."""
        blocks: dict[str, Block] = {**self.answers, "sampling": self.sampling}
        return {name: list(block.parameters()) for name, block in blocks.items()}
