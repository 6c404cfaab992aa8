"""The JSON Schema of the language, by which editors complete and check a spec.

It is pydantic's, with the short forms of the language and with the words of `specc answers`. What it refuses, the
compiler refuses; what goes across fields and questions, the compiler alone knows.
"""

from __future__ import annotations

from typing import Any

from specc.answers import ASKED, QUESTIONS, answers_to
from specc.answers.base import Answer, Block
from specc.problems import nested_block, reads_list
from specc.spec import Spec

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def schema() -> Schema:
    """The schema of a whole spec, with every block of fields under `$defs`."""
    whole: Schema = Spec.model_json_schema()
    defined: dict[str, Schema] = whole.pop("$defs")
    for block in defined.values():
        tidy(block)
    tidy(whole)
    for question in QUESTIONS:
        whole["properties"][question] = question_schema(question, whole["properties"][question], defined)
    whole["properties"]["name"]["pattern"] = "^[A-Za-z_][A-Za-z0-9_]*$"
    about = {"title": "a whole spec", "description": "Five answers that make the estimator of a policy gradient."}
    return {"$schema": DIALECT, **whole, **about, "$defs": defined}


def question_schema(question: str, given: Schema, defined: dict[str, Schema]) -> Schema:
    """An answer as a word, or as a block of fields by its word; `given` is pydantic's schema of the blocks.

    Editors offer all words for the discriminator, and then the fields of the one that is there, of an if with a then;
    of a choice between blocks they would leave out those that miss a field.
    """
    answers, discriminator = answers_to(question), QUESTIONS[question].discriminator
    chosen = []
    for name, reference in given["discriminator"]["mapping"].items():
        block = defined[reference.rpartition("/")[2]]
        say_which(block, answers[name])
        add_lists(block, answers[name])
        chosen.append({"if": {"properties": {discriminator: {"const": name}}}, "then": {"$ref": reference}})
    words = {"description": ASKED[question], "anyOf": [word_of(cls) for cls in answers.values()]}
    long = {"type": "object", "required": [discriminator], "properties": {discriminator: words}, "allOf": chosen}
    short = [word_of(cls) for cls in answers.values() if not needs_fields(cls)]
    long["title"] = f"{{{discriminator}, ...}}"
    return {"title": question, "description": ASKED[question], "anyOf": [*short, long]}


def tidy(block: Schema) -> None:
    """Without the titles that pydantic makes of names, and without defaults that say nothing; a block is called by its
    fields."""
    for field in block["properties"].values():
        field.pop("title", None)
        if field.get("default", "") is None:
            del field["default"]
    names = list(block["properties"])
    block["title"] = f"{{{', '.join([*names[:4], *['...'] * (len(names) > 4)])}}}"


def say_which(block: Schema, cls: type[Answer]) -> None:
    """The word of an answer goes first in its long form, and has to be there."""
    fields = block["properties"]
    fields.pop(cls.discriminator)
    block["title"] = f"{cls.question}: {cls.answer_name()}"
    block["properties"] = {cls.discriminator: word_of(cls), **fields}
    block["required"] = [cls.discriminator, *block.get("required", [])]


def word_of(cls: type[Answer]) -> Schema:
    return {"const": cls.answer_name(), "description": cls.summary()}


def needs_fields(cls: type[Answer]) -> bool:
    """Whether the word alone is no answer."""
    return any(info.is_required() for info in cls.model_fields.values())


def add_lists(block: Schema, cls: type[Block]) -> None:
    """`clip: [low, high]` beside the block {low, high}."""
    for name, info in cls.model_fields.items():
        if (inner := nested_block(info.annotation)) is not None and reads_list(info.metadata):
            values = list(inner.model_json_schema()["properties"].values())
            listed = {"type": "array", "prefixItems": values, "minItems": len(values), "maxItems": len(values)}
            block["properties"][name]["anyOf"].insert(0, listed)
