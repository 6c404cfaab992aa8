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
    for question, base in QUESTIONS.items():
        fields = whole["properties"][question]
        answers = {name: ref.rpartition("/")[2] for name, ref in fields["discriminator"]["mapping"].items()}
        for name, cls in answers_to(question).items():
            say_which(defined[answers[name]], cls)
            add_lists(defined[answers[name]], cls)
        short = [word_of(cls) for cls in answers_to(question).values() if not needs_fields(cls)]
        long = [{"$ref": f"#/$defs/{answers[name]}"} for name in answers_to(question)]
        described = {"title": f"{question}: {base.discriminator}", "description": ASKED[question]}
        whole["properties"][question] = {**described, "anyOf": [*short, *long]}
    whole["properties"]["name"]["pattern"] = "^[A-Za-z_][A-Za-z0-9_]*$"
    about = {"title": "a spec of specc", "description": "Five answers that make the estimator of a policy gradient."}
    return {"$schema": DIALECT, **whole, **about, "$defs": defined}


def tidy(block: Schema) -> None:
    """Without the titles that pydantic makes of the fields' names, and without defaults that say nothing."""
    for field in block["properties"].values():
        field.pop("title", None)
        if field.get("default", "") is None:
            del field["default"]
    block.pop("title", None)


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
