"""What the answers share that hold functions of the author's own: `file.py::function` in a spec."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from specc.answers.base import Answer, Block, Effect, Finding, Parameter
from specc.custom import Interface, UserFunction, is_number
from specc.problems import closest, listed, shown
from specc.user_code import refuse_here

if TYPE_CHECKING:
    from specc.spec import Spec


def a_number(value: Any) -> Any:
    """Refuses what is no number, once and not for each of its types."""
    if not is_number(value):
        told = f"{shown(value)} is no number that an argument can have"
        plain = value.strip() if isinstance(value, str) else ""
        help = f"remove the quotes: {plain}" if re.fullmatch(r"[-+]?\d+(\.\d+)?", plain) else "write a number, e.g. 0.5"
        refuse_here(
            "custom-arguments", told, "each becomes an argument of the script: a whole or a finite number", help
        )
    return value


class Own(Block):
    """A function of the author's, `file.py::function`, and values of its keyword-only numbers.

    A class that extends it declares `function` with an `Interface`.
    """

    OF: ClassVar[Interface]

    function: Any
    """the function, as file.py::function from the spec's folder"""
    arguments: Annotated[dict[str, Annotated[int | float, BeforeValidator(a_number)]], Field(default_factory=dict)]
    """values of its keyword-only numbers; the defaults in its file hold for the others"""

    @model_validator(mode="before")
    @classmethod
    def read_short(cls, value: Any) -> Any:
        """`token_weight: file.py::function` says the function."""
        return {"function": value} if isinstance(value, str) else value

    def parameters(self, block: str = "") -> Iterator[Parameter]:
        """The function's numbers on their way into the script."""
        used: UserFunction = self.function
        for number in used.numbers:
            value = self.arguments.get(number.name, number.default)
            if value is not None:
                help = f"{number.name} of {used.called}"
                name = f"{type(self).OF.called}.{number.name}"
                yield Parameter(
                    self.argument_prefix + number.name, name, number.type(value), help, {}, block or "arguments"
                )

    def call(self, given: Mapping[str, str]) -> str:
        """Its call in a formula, `given` being what the formula calls those of its inputs that are in it."""
        used: UserFunction = self.function
        asked = [given[name] for name in used.inputs if name in given]
        numbers = {n.name: self.arguments.get(n.name, n.default) for n in used.numbers}
        told = [f"{name}={value!r}" for name, value in numbers.items() if value is not None]
        return f"{used.name}({', '.join([*asked, *told])})"

    def check_parameters(self, *loc: str) -> Iterator[Finding]:
        """Values for numbers that the function does not have, and the reverse."""
        used: UserFunction = self.function
        known = {number.name: number for number in used.numbers}
        for name, value in self.arguments.items():
            place = (*loc, "arguments", name)
            if name not in known:
                near = closest(name, known)
                has = f"has the numbers {listed(known, 'and')}" if known else "has no keyword-only parameters"
                help = f"did you mean `{near}`?" if near else f"remove it, or add it to {used.name} after a *"
                what = f"{used.name} has no number {shown(name)}"
                yield Finding("custom-arguments", place, what, f"it {has}", help, at_key=True)
            elif known[name].type is int and isinstance(value, float):
                yield Finding(
                    "custom-arguments",
                    place,
                    f"{name} is a whole number, and {value} is not",
                    f"{used.name} declares it as int",
                    f"write {round(value)}",
                )
        for number in used.numbers:
            if number.default is None and number.name not in self.arguments:
                yield Finding(
                    "custom-arguments",
                    (*loc, "function"),
                    f"{used.name} needs a value for {number.name}",
                    "it is keyword-only and has no default in its file",
                    f"arguments: {{{number.name}: ...}}, or a default in {used.file}",
                )


UNKNOWN = "a function of the author's own, whose effect only running it tells"


class OwnAnswer(Own, Answer):
    """An answer that is a function of the author's own; the question's own class comes after it among the bases."""

    @property
    def derivable(self) -> bool:
        return False

    def fragments(self) -> tuple[str, ...]:
        return ()

    def own_functions(self) -> list[UserFunction]:
        return [self.function]

    def describe(self) -> str:
        used: UserFunction = self.function
        return used.described

    def short(self) -> str:
        used: UserFunction = self.function
        return used.called

    def effects(self, spec: Spec) -> Iterator[Effect]:
        yield Effect(self.question, "biased", "biased", f"{self.function.name}: {UNKNOWN}")

    def check(self, spec: Spec) -> Iterator[Finding]:
        yield from super().check(spec)
        yield from self.check_parameters(self.question)
