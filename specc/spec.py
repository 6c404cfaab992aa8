"""The spec: five answers, which responses enter, and the hyperparameters that a paper published."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from specc.answers import QUESTIONS, answers_to
from specc.answers.base import Answer, Block, Finding, Parameter, union_of
from specc.answers.baseline import Baseline
from specc.answers.kl import KL
from specc.answers.normalization import Normalization
from specc.answers.objective import PolicyGradient
from specc.answers.reward import Reward
from specc.sampling import Sampling

Verdict = Literal["unbiased", "proportional", "asymptotic", "reweighted", "biased"]


DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
"""what no file may be called on Windows, whatever its ending"""

PACKAGES = "accelerate datasets math_verify matplotlib numpy peft tensorboard tokenizers torch transformers vllm yaml"
IMPORTED = {*PACKAGES.split()} | sys.stdlib_module_names - {"test"}
"""what scripts import: a script of such a name would be imported in its place, by itself and by those beside it"""
LONGEST_NAME = 64


def is_name(name: str) -> str:
    """A name becomes a file name and a word of the docs, so it is a Python identifier that is not taken."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise ValueError("a name is a Python identifier: ASCII letters, digits and _, not starting with a digit")
    if name.lower() in DEVICES:
        raise ValueError("the script is named after it, and Windows keeps this name for a device")
    if name.startswith("__") or name in IMPORTED:
        raise ValueError(f"the script is {name}.py, which Python would import in place of its own module of this name")
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


@dataclass(frozen=True)
class AnswerTo:
    """The type of a question's key: the union of the answers that there are when the schema is built.

    After more of them are imported, `Spec.model_rebuild(force=True)` takes them in.
    """

    question: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(union_of(QUESTIONS[self.question]))


def short_form(question: str) -> Any:
    """Reads `baseline: leave_one_out` as `baseline: {source: leave_one_out}`."""
    discriminator = QUESTIONS[question].discriminator
    return BeforeValidator(lambda answer: {discriminator: answer} if isinstance(answer, str) else answer)


class Spec(Block):
    """A whole spec, as `algorithms/*.yaml` hold them."""

    specc: Annotated[Literal[1], BeforeValidator(lambda given: str(given) if given is True else given)] = 1
    """version of the language"""
    name: Annotated[str, Field(max_length=LONGEST_NAME), AfterValidator(is_name)]
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

    reward: Annotated[Reward, AnswerTo("reward"), short_form("reward")]
    """where the reward comes from"""
    kl: Annotated[KL, AnswerTo("kl"), short_form("kl")]
    """where the KL goes"""
    baseline: Annotated[Baseline, AnswerTo("baseline"), short_form("baseline")]
    """where the baseline comes from"""
    normalization: Annotated[Normalization, AnswerTo("normalization"), short_form("normalization")]
    """over what scope the advantage is normalized"""
    objective: Annotated[PolicyGradient, AnswerTo("objective"), short_form("objective")]
    """what quantity is optimized"""

    sampling: Annotated[Sampling, Field(default_factory=Sampling)]
    """which responses enter, and how often"""
    defaults: Annotated[Defaults, Field(default_factory=Defaults)]
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
