"""What of the language is on its way out: it works as before, and a warning says the edit.

A field is marked in its type, `Annotated[float, Deprecated("write decay", since="0.2")]`; one of its words by `word`; a
whole answer by its class's `deprecated`. docs/api.md has the rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specc.answers.base import Block, Finding, Loc

if TYPE_CHECKING:
    from specc.spec import Spec

SLUG = "deprecated"


@dataclass(frozen=True)
class Deprecated:
    """A mark on a field, on one of its words, or on an answer: the edit that does without it."""

    help: str
    since: str
    """the release of specc that says so first"""
    word: str | None = None
    """the one value of the field that is meant; None for the field itself"""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """Editors strike a deprecated field through."""
        return {**handler(schema), **({"deprecated": True} if self.word is None else {})}


def deprecations(spec: Spec) -> Iterator[Finding]:
    """A warning for everything of the spec that is deprecated, and written in it."""
    for answer in spec.answers.values():
        if (mark := getattr(type(answer), "deprecated", None)) is not None:
            yield warning(mark, answer.at(), f"`{answer.question}: {answer.name}`")
    yield from in_block(spec)


def in_block(block: Block, at: Loc = ()) -> Iterator[Finding]:
    for name in sorted(block.model_fields_set):
        value = getattr(block, name)
        for mark in type(block).model_fields[name].metadata:
            if isinstance(mark, Deprecated) and mark.word in (None, value):
                word = f": {mark.word}" * (mark.word is not None)
                yield warning(mark, (*at, name), f"`{'.'.join(map(str, (*at, name)))}{word}`")
        if isinstance(value, Block):
            yield from in_block(value, (*at, name))


def warning(mark: Deprecated, at: Loc, what: str) -> Finding:
    why = f"it works as before, and will until version 2 of the language; specc says so since {mark.since}"
    return Finding(SLUG, at, f"{what} is deprecated", why, mark.help, warning=True)
