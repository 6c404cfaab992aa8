"""The text of `specc new`: a commented spec, from nothing or from another spec."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from specc import __version__
from specc.answers import ASKED, QUESTIONS, answers_to
from specc.answers.base import VERDICTS
from specc.load import check, load_spec
from specc.plan import Plan
from specc.problems import wanted
from specc.report import as_yaml, describe_field, one_line_each
from specc.sampling import Sampling
from specc.source import parse, resolve
from specc.spec import Spec

SCHEMA_FILE = "spec.schema.json"
MODELINE = f"# yaml-language-server: $schema={SCHEMA_FILE}"
"""By this line VS Code's YAML extension, and others with the same server, complete and check the file."""

START = {
    "reward": "verifier",
    "kl": "none",
    "baseline": "leave_one_out",
    "normalization": "none",
    "objective": "{quantity: sequence_advantage, aggregation: seq_mean_token_sum}",
}
"""An unbiased estimator with nothing optional in it."""

GROUP_SIZE = 4


def from_nothing(name: str) -> str:
    """Each question with an answer, and the other answers beside it."""
    questions = "\n\n".join(question_of(number, word) for number, word in enumerate(QUESTIONS, start=1))
    return f"""\
{MODELINE}
# Five answers make an estimator. What these ones mean: specc explain {name}.yaml
name: {scalar(name)}
title: {scalar(name.replace("_", " "))}
# cite: where it was published

# What you state about the gradient of one step, beside that of the expected reward; specc verify holds you to it.
# One of {", ".join(VERDICTS)}. Without this line nothing is claimed.
claim: unbiased

{questions}

# Which responses enter, and how often. What is commented out is at its default.
sampling:
{sampling_fields()}
# What a paper or your own runs have found to work: defaults of the script's arguments, e.g.
# defaults: {{learning_rate: 1e-6, prompts_per_step: 64, max_new_tokens: 1024}}
"""


def question_of(number: int, word: str) -> str:
    lines = [f"# {number}. {ASKED[word]}", *(f"#   {line}" for line in one_line_each(word))]
    if any(len(cls.model_fields) > 1 for cls in answers_to(word).values()):
        lines.append(f"# Their fields: specc answers {word}")
    return "\n".join([*lines, f"{word}: {START[word]}"])


def sampling_fields() -> str:
    """Each field of the block, those at their defaults commented out."""
    rows = []
    for name, info in Sampling.model_fields.items():
        given = name == "group_size"
        value = f"{name}: {GROUP_SIZE if given else as_yaml(info.default)}"
        if not given and info.default is None:
            value = f"{name}: {wanted(info.annotation, info.metadata)}"
        rows.append(f"  {'# ' * (not given) + value:<28}# {describe_field(Sampling, name)}")
    return "\n".join(rows) + "\n"


def from_spec(name: str, origin: Path, told: str, folder: Path = Path()) -> str:
    """The text of a spec under another name, its comments kept; `told` is how the origin was asked for, and `folder`
    where the text will be, from which it names the author's own functions.

    Raises `SpecError` where it is no valid spec, and `ValueError` where a line of it could not be changed.
    """
    loaded = load_spec(origin)
    spec, text = loaded.spec, loaded.source.text
    changed = {"name": name, "title": f"{name}, from {spec.title or spec.name}"}
    changed |= {"cite": f"after {spec.cite}"} if spec.cite else {}
    for key, value in changed.items():
        text = with_value(text, key, value)
    came = f"# Started from {told} of specc {__version__}: specc new {name} --from {told}"
    text = "\n".join([*[MODELINE] * ("yaml-language-server:" not in text), came, text])
    made = check(parse(text, str(origin))).spec
    if made != spec.model_copy(update={key: changed[key] for key in changed if getattr(spec, key) is not None}):
        raise ValueError(f"{origin} cannot be renamed line by line; copy it and change its name")
    return moved(text, made, origin.parent, folder)


def moved(text: str, spec: Spec, before: Path, folder: Path) -> str:
    """The text with the functions of the author's own named from another folder, which need not be there yet."""
    if before.resolve() == folder.resolve():
        return text
    named = {}
    for reference in {function.reference for function in Plan(spec).own_functions}:
        file, _, name = reference.rpartition("::")
        if not Path(file).is_absolute():
            named[reference] = f"{Path(os.path.relpath(before.resolve() / file, folder.resolve())).as_posix()}::{name}"
    found = text
    for reference, there in named.items():
        found = there.join(re.split(rf"(?<![\w./]){re.escape(reference)}(?!\w)", found))
    if parse(found).data != renamed(parse(text).data, named):
        raise ValueError("the functions that it names cannot be named from there; copy it beside them")
    return found


def renamed(data: Any, named: dict[str, str]) -> Any:
    """Data with other texts in the places of some."""
    if isinstance(data, dict):
        return {key: renamed(value, named) for key, value in data.items()}
    if isinstance(data, list):
        return [renamed(value, named) for value in data]
    return named.get(data, data) if isinstance(data, str) else data


def with_value(text: str, key: str, value: str) -> str:
    """The text of a spec with another value on the line of this key, the comment behind it kept."""
    line = re.compile(rf"^({key}:\s*).*?(\s+#.*)?$", re.MULTILINE)
    return line.sub(lambda found: found[1] + scalar(value) + (found[2] or ""), text)


def scalar(text: str) -> str:
    """A text as YAML writes it on one line, in quotes where it has to be."""
    plain = re.fullmatch(r"[A-Za-z][\w .,/()+-]*(:\w[\w .,/()+-]*)*", text) and isinstance(resolve(text), str)
    return text if plain else json.dumps(text)
