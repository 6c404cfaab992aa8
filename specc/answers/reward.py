"""Question 1: where does the reward come from?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from specc.answers.base import Answer, Block, Effect, Finding

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
    """The reward of a finished response, and what is done to the score before anything else looks at it.

    The transforms run in this order: `clip` bounds the raw score, `missing_eos` replaces it where the response never
    ended, `overlong` takes its penalty from what is left.
    """

    question: ClassVar[str] = "reward"
    discriminator: ClassVar[str] = "source"
    argument_prefix: ClassVar[str] = "reward_"

    script_arguments: ClassVar[dict[str, tuple[str, str]]]
    """arguments of the script that say where the reward is: name -> text for --help, and an example"""
    models: ClassVar[dict[str, str]] = {}
    """models that it keeps in memory: name -> where the script holds them"""

    scores_are_binary: ClassVar[bool] = False
    """whether its scores are usually 0 and 1, so that a verdict on success rates is one on the spec"""

    missing_eos: float | None = None
    """score of a response that never ends, in place of its own"""
    overlong: Overlong | None = None
    """soft penalty on long responses: {limit, buffer, penalty}"""
    clip: Annotated[ScoreRange | None, BeforeValidator(two_numbers)] = None
    """[low, high]: bounds of the raw score"""

    def fragments(self) -> tuple[str, ...]:
        transforms = {"clip": self.clip, "missing_eos": self.missing_eos, "overlong": self.overlong}
        return (self.name, *(fragment for fragment, wanted in transforms.items() if wanted is not None))

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """None: what is maximized is the reward that the estimator sees, after its transforms."""
        yield from ()

    def check(self, spec: Spec) -> Iterator[Finding]:
        if self.clip is not None and self.clip.low >= self.clip.high:
            yield Finding(
                "clip-empty",
                self.at("clip"),
                f"the score range [{self.clip.low:g}, {self.clip.high:g}] is empty",
                "every score would become the same number and nothing could be learned",
                "write the lower bound first: clip: [-5, 5]",
            )
        if self.overlong is not None and self.overlong.buffer > self.overlong.limit:
            yield Finding(
                "overlong-buffer",
                self.at("overlong", "buffer"),
                f"the buffer ({self.overlong.buffer}) is longer than the limit ({self.overlong.limit})",
                "the penalty grows over the `buffer` tokens before `limit`, so it would start below zero tokens",
                f"choose a buffer of at most {self.overlong.limit}",
            )


class Verifier(Reward):
    """A function of yours that scores each response: `--reward file.py:function`.

    It is called as `function(prompts=[...], completions=[...], **columns)` with one list for every other column of the
    data, and returns one number for each completion, or None for one that cannot be scored.
    """

    script_arguments: ClassVar[dict[str, tuple[str, str]]] = {
        "reward": ("the verifier, as file.py:function", "verifier.py:score")
    }
    scores_are_binary: ClassVar[bool] = True

    source: Literal["verifier"] = "verifier"


class RewardModel(Reward):
    """A reward model's checkpoint scores each response: `--reward_model DIR`, one scalar for prompt and response."""

    script_arguments: ClassVar[dict[str, tuple[str, str]]] = {
        "reward_model": ("the reward model: a checkpoint's folder or a Hugging Face id", "REWARD_MODEL_DIR")
    }
    models: ClassVar[dict[str, str]] = {"reward model": "scorer.model"}

    source: Literal["reward_model"] = "reward_model"
