"""What the answers to the five questions have in common.

A new answer is one class in this folder and one fragment under `templates/<question>/`, named after it: the unions of
the language are made from the subclasses, and everything else (arguments of the script, `specc answers`, the plan) is
read off the class and the fragment.

A field is of one of two kinds. A *choice* (one of some words, or a truth value) selects fragments, in
`Answer.fragments`; a *number*, or free text, becomes a keyword-only parameter of the fragment's function and an
argument of the script. `None` means "not there".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from specc.descriptions import describe_fields

if TYPE_CHECKING:
    from specc.custom import UserFunction
    from specc.spec import Spec

Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class Finding:
    """Something to say about a spec, at a place in its data; `problems.py` adds the file, the line and the column."""

    slug: str
    loc: Loc
    what: str
    why: str
    help: str
    warning: bool = False
    at_key: bool = False
    """whether it is about the key at its place, and not the value"""


VERDICTS = ("unbiased", "proportional", "asymptotic", "reweighted", "biased")
"""What E[g] can be, beside the gradient of E[R]: from the strongest statement to the weakest."""


def weakest(verdicts: Iterable[str]) -> str:
    """The verdict on what is made of parts with these verdicts."""
    return max(verdicts, key=VERDICTS.index, default=VERDICTS[0])


Number = Fraction | float

WITHOUT_OWN = {"1/k": "(k - 1)/k", "1/(kB)": "(kB - 1)/(kB)"}
"""What is left where this share of a response's own return is taken away."""


@dataclass(frozen=True)
class Effect:
    """What an answer does to E[g], at the first update of a batch and a KL coefficient of 0.

    `binary` is for rewards of 0 and 1, `real` for rewards of any size and sign. `factor` is the part of c that is due
    to it: a formula in k and B, or words where the policy decides it; `number` is its value where the spec decides it.
    `term` is what a loss that is added to that of the reward adds to c.
    """

    where: str
    binary: str
    real: str
    reason: str
    factor: str = ""
    number: Number | None = None
    term: str = ""
    amount: str = field(default="", compare=False)
    """by how much at the spec's own settings, where a number says it; an example, and no part of what it does"""

    @property
    def needs_batch(self) -> bool:
        """Whether the factor is a number once the number of prompts in the batch is known."""
        return self.factor == WITHOUT_OWN["1/(kB)"]

    def value(self, size: int, prompts: int | None = None) -> Number | None:
        """The factor at k = `size` and B = `prompts`; None where it is not a number, or not one without B."""
        if self.needs_batch and prompts:
            return 1 - Fraction(1, size * prompts)
        return self.number if self.factor or self.term else Fraction(1)


@dataclass(frozen=True)
class Penalty:
    """What the KL part of E[g] is.

    `kind`: the gradient of KL(pi || ref) of whole responses (`full`), with the distribution of prefixes held fixed
    (`partial`), of KL(ref || pi) (`forward`), `zero`, the full one at another coefficient for each prompt (`rescaled`),
    or none of these (`other`). `weighting` is how it fares when lengths and batches differ: `exact`, `asymptotic`,
    `biased`; empty where the kind says it all.
    """

    where: str
    kind: str
    weighting: str
    reason: str

    @property
    def sentence(self) -> str:
        how = {"asymptotic": ", as the batch grows", "biased": ", bent by weights that depend on what was sampled"}
        return f"{self.kind}: {self.reason}{how.get(self.weighting, '')}"


@dataclass(frozen=True)
class Parameter:
    """A number of the spec on its way into the script: `--kl_coefficient`, passed to the fragment as `coefficient`.

    It may be text as well, which is a quoted literal there and nothing else.
    """

    argument: str
    field: str
    value: int | float | str
    help: str
    bounds: dict[str, float]
    block: str = ""  # the nested block that it is a field of, e.g. `clip`

    @property
    def type(self) -> str:
        return type(self.value).__name__


class Block(BaseModel):
    """A group of fields. `argument_prefix` goes before the names of its numbers in the script's arguments."""

    # Only what a spec is read with is built: the schema of a whole spec, when the first one is read.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)

    argument_prefix: ClassVar[str] = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """The string below a field is its description."""
        super().__pydantic_init_subclass__(**kwargs)
        describe_fields(cls)

    def parameters(self, block: str = "") -> Iterator[Parameter]:
        """The numbers and texts that this block sets, its own first, then those of its nested blocks; not None."""
        nested: list[tuple[str, Block]] = []
        for name, info in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Block):
                nested.append((name, value))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                help = " ".join((info.description or "").split())
                number = float_if_declared(value, info.annotation)
                yield Parameter(self.argument_prefix + name, name, number, help, bounds_of(info), block)
            elif info.annotation is str:
                help = " ".join((info.description or "").split())
                yield Parameter(self.argument_prefix + name, name, value, help, {}, block)
        for name, inner in nested:
            yield from inner.parameters(block=name)


def float_if_declared(value: int | float, annotation: Any) -> int | float:
    """`coefficient: 1` in a spec is the float 1.0 where the field is a float."""
    declared = {annotation, *get_args(annotation)}
    return float(value) if float in declared else value


def bounds_of(info: FieldInfo) -> dict[str, float]:
    """The bounds that a field declares (gt, ge, lt, le), also where it may be absent."""
    declared = [
        *info.metadata,
        *(item for option in get_args(info.annotation) for item in getattr(option, "__metadata__", ())),
    ]
    declared += [item for field in list(declared) for item in getattr(field, "metadata", ())]
    found = {name: getattr(item, name) for item in declared for name in ("gt", "ge", "lt", "le") if hasattr(item, name)}
    return {name: limit for name, limit in found.items() if limit is not None}


class Answer(Block):
    """An answer to one of the five questions; its docstring's first line is what `specc answers` prints."""

    question: ClassVar[str]
    discriminator: ClassVar[str]
    min_group_size: ClassVar[int] = 1
    """responses a prompt that it cannot do without"""
    works_on: ClassVar[frozenset[str]] = frozenset({"rollouts"})
    """what it goes with: `rollouts`, responses that the policy samples in training, or `pairs` that are given"""

    @classmethod
    def answer_name(cls) -> str:
        """The word that a spec writes for this answer, e.g. `leave_one_out`."""
        return str(get_args(cls.model_fields[cls.discriminator].annotation)[0])

    @classmethod
    def summary(cls) -> str:
        return (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")

    @property
    def name(self) -> str:
        return self.answer_name()

    def fragments(self) -> tuple[str, ...]:
        """The fragments under `templates/<question>/` that this answer is made of, in the order of the script."""
        return (self.name,)

    def own_functions(self) -> list[UserFunction]:
        """The functions of the author's own that this answer holds, which the script has after the fragments."""
        return []

    @property
    def derivable(self) -> bool:
        """Whether what it does to E[g] follows from the spec. Else `specc verify` finds out, by running the script."""
        return type(self).effects is not Answer.effects

    def describe(self) -> str:
        """One line for the docstring of the script and its section title, without a full stop."""
        return self.summary()

    def short(self) -> str:
        """A few words for a table."""
        return self.name.replace("_", " ")

    def check(self, spec: Spec) -> Iterator[Finding]:
        """Contradictions with the rest of the spec, and warnings about what it means there."""
        yield from ()

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """What it does to E[g]. Of an answer without a rule nothing is known, and so nothing of a spec that has it."""
        yield Effect(self.question, "biased", "biased", f"nothing is known about {self.name}")

    def at(self, *names: str) -> Loc:
        """The place of a field of this answer in the spec."""
        return (self.question, *(names or (self.discriminator,)))


EXAMPLE_LENGTH = 1000
"""tokens of a long response, in the messages on a spec that bounds none"""


def longest_response(spec: Spec) -> int:
    """Tokens of a long response: the spec's own bound where it has one."""
    return spec.defaults.max_new_tokens or EXAMPLE_LENGTH


def power(base: float, exponent: float) -> str:
    """base^exponent in a message, also where it is beyond a float."""
    digits = exponent * math.log10(base)
    return f"{base**exponent:.3g}" if abs(digits) < 5 else f"10^{digits:.0f}"


def check_unit_of_steps(answer: Answer, spec: Spec) -> Iterator[Finding]:
    """Whether a statistic over the steps of responses finds steps whose rewards tokens are credited with."""
    if not spec.reward.credits_steps:
        yield Finding(
            "unit-without-steps",
            answer.at("unit"),
            "unit: step needs rewards of single steps",
            f"with reward: {spec.reward.name} here, a response has one reward for all of its tokens",
            "reward: {source: process_reward, credit: process}"
            + "; quantity: token_advantage" * (not spec.objective.token_level)
            + "; or remove unit",
        )


WITHDRAWN: set[type[Answer]] = set()
"""classes that are no part of the language after all: those of a folder that could not be loaded"""


def leaves(base: type[Answer]) -> list[type[Answer]]:
    """The concrete answers below `base`, in the order of their definition."""
    found = []
    for sub in base.__subclasses__():
        if sub in WITHDRAWN:
            continue
        found += [sub] if sub.discriminator in sub.model_fields else []
        found += leaves(sub)
    return found


def union_of(base: type[Answer]) -> Any:
    """The discriminated union of every answer below `base`: pydantic's type of the question's key."""
    return Annotated[reduce(or_, leaves(base)), Field(discriminator=base.discriminator)]
