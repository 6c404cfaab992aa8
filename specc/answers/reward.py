"""Question 1: where does the reward come from?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from specc.answers.base import Answer, Block, Effect, Finding
from specc.answers.custom import Own
from specc.custom import Interface, UserFunction
from specc.formula import Line, number, product

if TYPE_CHECKING:
    from specc.spec import Spec


class Overlong(Block):
    """The soft overlong punishment of DAPO (arXiv:2503.14476, equation 13), in response tokens."""

    argument_prefix: ClassVar[str] = "overlong_"

    limit: Annotated[int, Field(ge=1)]
    """response tokens from which on the whole penalty is due"""
    buffer: Annotated[int, Field(ge=1)]
    """response tokens before the limit over which the penalty grows linearly"""
    penalty: Annotated[float, Field(gt=0)] = 1.0
    """what a response over the limit loses"""


def two_numbers(value: Any) -> Any:
    """`[low, high]` as the mapping that `ScoreRange` reads; of whatever else it is, pydantic says what is wrong."""
    return {"low": value[0], "high": value[1]} if isinstance(value, list) and len(value) == 2 else value


class ScoreRange(Block):
    """`clip: [low, high]`, read into two numbers."""

    argument_prefix: ClassVar[str] = "reward_clip_"

    low: float
    """lowest score; lower ones are raised to it"""
    high: float
    """highest score; higher ones are lowered to it"""


class Reward(Answer):
    """The reward of a finished response."""

    question: ClassVar[str] = "reward"
    discriminator: ClassVar[str] = "source"
    argument_prefix: ClassVar[str] = "reward_"

    script_arguments: ClassVar[dict[str, tuple[str, str]]] = {}
    """arguments of the script that say where the reward is: name -> text for --help, and an example"""
    models: ClassVar[dict[str, str]] = {}
    """models that it keeps in memory: name -> where the script holds them"""

    scores_are_binary: ClassVar[bool] = False
    """whether its scores are usually 0 and 1, so that a verdict on success rates is one on the spec"""

    @property
    def scorer_fragments(self) -> tuple[str, ...]:
        """The fragments that give the raw scores."""
        return (self.name,)

    @property
    def transforms(self) -> tuple[str, ...]:
        """The fragments that the score of a response goes through."""
        return ()

    @property
    def where(self) -> dict[str, tuple[str, str]]:
        """The arguments of the script that say where this reward is."""
        return self.script_arguments

    @property
    def in_memory(self) -> dict[str, str]:
        """The models that this reward keeps in memory."""
        return self.models

    @property
    def scores_steps(self) -> bool:
        """Whether the steps of a response are scored, whose sum is its reward."""
        return False

    @property
    def credits_steps(self) -> bool:
        """Whether each token is credited with the steps from it on, and not with all of them."""
        return False

    @classmethod
    def is_read_by(cls, arguments: set[str]) -> bool:
        """Whether a script with these arguments has this source."""
        return bool(cls.script_arguments) and set(cls.script_arguments) <= arguments

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """None: what is maximized is the reward that the estimator sees, after its transforms."""
        yield from ()

    def formula(self) -> Iterator[Line]:
        """How r, the reward that the estimator sees, is made of the score; nothing where it is the score."""
        yield from ()


class Transform(Own):
    """A function of yours that changes the score of each response by itself."""

    OF: ClassVar[Interface] = Interface(
        "transform",
        {
            "rewards_BG": "the score of each response; NaN = it could not be scored",
            "ended_BG": "bool, whether it ended",
            "lengths_BG": "its tokens, EOS included",
        },
        "the new scores, [B, G]",
    )
    argument_prefix: ClassVar[str] = "reward_transform_"

    function: Annotated[UserFunction, OF]
    """the function, as file.py::function from the spec's folder"""


class ScoredReward(Reward):
    """A score of each response, and what is done to it before anything else looks at it.

    The transforms run in this order: `clip` bounds the raw score, `missing_eos` replaces it where the response never
    ended, `overlong` takes its penalty from what is left, and `transform` does what its author wants.
    """

    missing_eos: float | None = None
    """score of a response that never ends, in place of its own"""
    overlong: Overlong | None = None
    """soft penalty on long responses: {limit, buffer, penalty}"""
    clip: Annotated[ScoreRange | None, BeforeValidator(two_numbers)] = None
    """[low, high]: bounds of the raw score"""
    transform: Transform | None = None
    """a function of yours that changes the score: file.py::function"""

    @property
    def transforms(self) -> tuple[str, ...]:
        """The fragments that the score of a response goes through."""
        wanted = {"clip": self.clip, "missing_eos": self.missing_eos, "overlong": self.overlong}
        return tuple(fragment for fragment, field in wanted.items() if field is not None)

    def fragments(self) -> tuple[str, ...]:
        return (*self.scorer_fragments, *self.transforms)

    def own_functions(self) -> list[UserFunction]:
        return [self.transform.function] if self.transform is not None else []

    def formula(self) -> Iterator[Line]:
        reward = "score"
        if self.clip is not None:
            reward = f"clip({reward}, {number(self.clip.low)}, {number(self.clip.high)})"
        if self.missing_eos is not None:
            reward = f"where(ended, {reward}, {number(self.missing_eos)})"
        if self.overlong is not None:
            over = f"(length - {self.overlong.limit - self.overlong.buffer}) / {self.overlong.buffer}"
            reward = f"{reward} - {product(self.overlong.penalty, f'clip({over}, 0, 1)')}"
        if self.transform is not None:
            given = {"rewards_BG": reward, "ended_BG": "ended", "lengths_BG": "length"}
            yield Line("r", self.transform.call(given), self.transform.function.described)
        elif self.transforms:
            yield Line("r", reward)

    def check(self, spec: Spec) -> Iterator[Finding]:
        if self.transform is not None:
            yield from self.transform.check_parameters(self.question, "transform")
        if self.clip is not None and self.clip.low >= self.clip.high:
            yield Finding(
                "clip-empty",
                self.at("clip"),
                f"the score range [{self.clip.low:g}, {self.clip.high:g}] is empty",
                "every score would become the same number and nothing could be learned",
                f"clip: [{self.clip.high:g}, {self.clip.low:g}]"
                if self.clip.high < self.clip.low
                else f"clip: [{self.clip.low:g}, {self.clip.low + 1:g}], or another upper bound above the lower one",
            )
        if self.overlong is not None and self.overlong.buffer > self.overlong.limit:
            yield Finding(
                "overlong-buffer",
                self.at("overlong", "buffer"),
                f"the buffer ({self.overlong.buffer}) is longer than the limit ({self.overlong.limit})",
                "the penalty grows over the `buffer` tokens before `limit`, so it would start below zero tokens",
                f"buffer: {max(1, self.overlong.limit // 5)}, or another of at most {self.overlong.limit}",
            )


class Verifier(ScoredReward):
    """A function of yours that scores each response: `--reward file.py:function`.

    It is called as `function(prompts=[...], completions=[...], **columns)` with one list for every other column of the
    data, and returns one number for each completion, or None for one that cannot be scored.
    """

    script_arguments: ClassVar[dict[str, tuple[str, str]]] = {
        "reward": ("the verifier, as file.py:function", "verifier.py:score")
    }
    scores_are_binary: ClassVar[bool] = True

    source: Literal["verifier"] = "verifier"


class RewardModel(ScoredReward):
    """A reward model's checkpoint scores each response: `--reward_model DIR`, one scalar for prompt and response."""

    script_arguments: ClassVar[dict[str, tuple[str, str]]] = {
        "reward_model": ("the reward model: a checkpoint's folder or a Hugging Face id", "REWARD_MODEL_DIR")
    }
    models: ClassVar[dict[str, str]] = {"reward model": "scorer.model"}

    source: Literal["reward_model"] = "reward_model"


class ProcessReward(ScoredReward):
    """A score for each step of a response, whose sum is its reward: from a verifier of yours or a process reward model.

    A step ends with the token that completes `separator`, and the last one with the response. The verifier is called
    as `function(prompts=[...], completions=[...], steps=[[...], ...], **columns)` and returns a list of numbers for
    each completion, one a step; None among them, or in place of the list, leaves the response unscored.
    """

    SCORERS: ClassVar[dict[str, tuple[str, str, str]]] = {
        "verifier": ("reward", "the step verifier, as file.py:function", "verifier.py:score_steps"),
        "reward_model": (
            "reward_model",
            "the process reward model: a checkpoint's folder or a Hugging Face id",
            "PROCESS_REWARD_MODEL_DIR",
        ),
    }

    source: Literal["process_reward"] = "process_reward"
    separator: Annotated[str, Field(max_length=10)] = "\n"
    """text that ends a step; empty where every token is one"""
    scorer: Literal["verifier", "reward_model"] = "verifier"
    """what scores the steps: a function, or a model that is read at the last token of each step"""
    credit: Literal["outcome", "process"] = "process"
    """what a token is credited with: the whole response's steps, or those that end at it or later"""

    @property
    def scorer_fragments(self) -> tuple[str, ...]:
        found = {"verifier": ("verifier", "process_verifier"), "reward_model": ("process_reward_model",)}[self.scorer]
        return (*found, *["process_credit"] * self.credits_steps)

    @property
    def where(self) -> dict[str, tuple[str, str]]:
        argument, help, example = self.SCORERS[self.scorer]
        return {argument: (help, example)}

    @property
    def in_memory(self) -> dict[str, str]:
        return {"process reward model": "scorer.model"} if self.scorer == "reward_model" else {}

    @property
    def scores_steps(self) -> bool:
        return True

    @property
    def credits_steps(self) -> bool:
        return self.credit == "process"

    @classmethod
    def is_read_by(cls, arguments: set[str]) -> bool:
        return "reward_separator" in arguments

    def describe(self) -> str:
        by = "a step verifier of yours" if self.scorer == "verifier" else "a process reward model"
        to = "to the tokens up to its end" if self.credits_steps else "to the whole response"
        return f"the score of each step, by {by}, {to}"

    def short(self) -> str:
        return f"process, {self.scorer.replace('_', ' ')}" + ", on the outcome" * (not self.credits_steps)

    def check(self, spec: Spec) -> Iterator[Finding]:
        yield from super().check(spec)
        if not self.credits_steps:
            return
        if not spec.objective.token_level:
            yield Finding(
                "credit-without-tokens",
                self.at("credit"),
                f"credit: process needs an advantage for each token, and quantity is {spec.objective.name}",
                "one advantage for the whole response cannot tell the steps before a token from those after it",
                "objective: {quantity: token_advantage}, or credit: outcome",
            )
        if spec.sampling.selects:
            yield Finding(
                "keep-of-steps",
                ("sampling", "keep"),
                f"keep: {spec.sampling.rule} selects whole responses, and credit: process uses the scores of steps",
                "a response is kept for its reward, whatever its single steps are credited with; their scores do not "
                "go through the selection",
                "keep: all, or credit: outcome",
            )
        for name in ("clip", "missing_eos", "overlong", "transform"):
            if getattr(self, name) is not None:
                yield Finding(
                    "transform-of-steps",
                    self.at(name),
                    f"{name} is of a response's score, and credit: process uses the scores of its steps",
                    "the advantages come from the steps' own scores, which this would not change",
                    f"remove {name}, which the scorer can do as well, or credit: outcome",
                )


class Preferences(Reward):
    """Pairs of answers to a prompt, of which one was chosen: columns `prompt`, `chosen` and `rejected` of the data.

    The reward of a response is its chance to be chosen over another one; nothing is sampled in training.
    """

    works_on: ClassVar[frozenset[str]] = frozenset({"pairs"})

    source: Literal["preferences"] = "preferences"
