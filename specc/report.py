"""The text of `specc explain`, `specc answers` and `specc demo`."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.answers import ASKED, QUESTIONS, answers_to
from specc.answers.base import Answer, Block
from specc.derive import FIRST_STEP, LATER_STEPS, SYMBOLS
from specc.formula import formula, latex, legend
from specc.problems import nested_block, visible, wanted
from specc.spec import Spec

if TYPE_CHECKING:
    from specc.compiler import Compiled
    from specc.demo import DemoFiles
    from specc.derive import Derived
    from specc.load import Loaded


def explain(compiled: Compiled) -> str:
    """What a spec means: its answers, every value in force and where it is from, and what a step costs."""
    loaded = compiled.loaded
    sections = {
        "The five answers": answered(loaded.spec),
        "The loss": loss(loaded.spec),
        "What it optimizes": optimized(compiled.plan.derived),
        "Every field, and where its value is from": table(in_force(loaded)),
        "Numbers that the script takes as arguments": table(arguments(compiled)),
        "Models in memory": compiled.plan.models,
        "Forward passes of a step": compiled.plan.passes,
    }
    text = "\n\n".join("\n".join([title, *indented(lines)]) for title, lines in sections.items())
    return f"{heading(loaded.spec)}\n\n{text}"


def explain_in_latex(compiled: Compiled) -> str:
    """The formulas of the loss alone, as LaTeX that needs amsmath."""
    spec = compiled.loaded.spec
    return f"% {heading(spec)}\n{latex(formula(spec))}"


def algorithms(markdown: bool = False) -> str:
    """The shipped algorithms by their five answers."""
    from specc.load import load_spec
    from specc.paths import algorithm_names, algorithms_dir

    specs = [load_spec(algorithms_dir() / f"{name}.yaml").spec for name in algorithm_names()]
    rows = [("algorithm", *QUESTIONS), *((spec.name, *(a.short() for a in spec.answers.values())) for spec in specs)]
    if not markdown:
        return "\n".join(table(rows))
    rows[1:] = [(f"[{name}](algorithms/{name}.yaml)", *rest) for name, *rest in rows[1:]]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def heading(spec: Spec) -> str:
    said = [spec.title, spec.cite, spec.claim and f"claimed to be {spec.claim}", spec.target and f"for {spec.target}"]
    return visible(": ".join([spec.name, *[", ".join(part for part in said if part)] * any(said)]))


def answered(spec: Spec) -> list[str]:
    return table((ASKED[word], answer.name, answer.describe()) for word, answer in spec.answers.items())


def loss(spec: Spec) -> list[str]:
    """The formulas of the loss, by the answers that they are of, and what their names stand for."""
    lines = formula(spec)
    words = [word for word, _ in lines]
    firsts = [word if place == 0 or word != words[place - 1] else "" for place, word in enumerate(words)]
    rows = [
        (first, line.name, f"= {line.text}" if line.text else visible(line.note), visible(line.note) * bool(line.text))
        for first, (_, line) in zip(firsts, lines, strict=True)
    ]
    return [*table(rows), "where", *indented(table(legend(line for _, line in lines)))]


def optimized(derived: Derived) -> list[str]:
    """What the estimator's expectation is, and why."""
    rows = [
        ("verdict", derived.overall),
        ("for 0/1 rewards", derived.said("binary")),
        ("for real-valued rewards", derived.said("real")),
    ]
    if not derived.known:
        rows = [("verdict", derived.said("binary")), *derived.reasons]
        return table(rows)
    if derived.pairs:
        rows[1:] = [(FIRST_STEP, derived.said("real")), (LATER_STEPS, "")]
    c = derived.value()
    if c is not None and c != 1:
        rows.append(("c at this k", f"{c} = {float(c):.6g}" if isinstance(c, Fraction) else f"{c:.6g}"))
    if derived.weight is not None and not derived.weight.constant:
        at = ", ".join(f"{derived.weight.at(p):.4g} at p = {p:g}" for p in (0.1, 0.5, 0.9))
        rows.append(("w(p) at equal lengths", at))
    if derived.reused:
        off = f"{derived.off_policy_binary} for 0/1 rewards, {derived.off_policy_real} for real-valued ones"
        rows.append(("in later updates of a batch", off))
    if derived.penalty is not None:
        rows.append(("KL part", derived.penalty.sentence))
    if derived.variance:
        rows += [("tr Cov of one prompt", derived.variance), ("", f"with {SYMBOLS}")]
    if derived.reasons:
        rows += [("what changes it", ""), *derived.reasons]
    return table(rows)


def in_force(loaded: Loaded) -> Iterator[tuple[str, str, str]]:
    """Each field of the spec with its value and where that is from."""
    spec, data = loaded.spec, loaded.source.data
    for name, value in spec:
        if not isinstance(value, Block):
            yield row(name, value, name in data)
    for name, value in spec:
        if isinstance(value, Block):
            yield from of_block(name, value, data.get(name))


def of_block(prefix: str, block: Block, given: Any) -> Iterator[tuple[str, str, str]]:
    """The fields of a block; `given` is what the spec says about it, in any of the forms that the language has."""
    for name, value in in_order(block):
        said = name in given if isinstance(given, Mapping) else given is not None and is_said_short(block, name, given)
        if isinstance(value, Block):
            yield from of_block(f"{prefix}.{name}", value, given.get(name) if isinstance(given, Mapping) else None)
        else:
            yield row(f"{prefix}.{name}", value, said)


def in_order(block: Block) -> Iterator[tuple[str, Any]]:
    """The fields of a block, an answer's own name first."""
    first = block.discriminator if isinstance(block, Answer) else None
    yield from sorted(block, key=lambda item: item[0] != first)


def is_said_short(block: Block, name: str, given: object) -> bool:
    """Whether a short form says this field: `baseline: greedy` says `source`, `transform: file.py::function` the
    function, and `clip: [0, 1]` both numbers."""
    said = block.discriminator if isinstance(block, Answer) else next(iter(type(block).model_fields))
    return isinstance(given, list) or name == said


def row(name: str, value: Any, said: bool) -> tuple[str, str, str]:
    return name, as_yaml(value), "from the spec" if said else "default"


def as_yaml(value: Any) -> str:
    """A value as a spec writes it; `-` where nothing is set."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(as_yaml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{visible(str(name))}: {as_yaml(item)}' for name, item in value.items())}}}"
    return f"{value:g}" if isinstance(value, float) else visible(str(value))


def arguments(compiled: Compiled) -> Iterator[tuple[str, str, str]]:
    """The spec's numbers under the names by which the script's command line changes them."""
    for parameter in compiled.plan.parameters:
        yield f"--{parameter.argument}", as_yaml(parameter.value), parameter.help
    defaults = compiled.loaded.spec.defaults
    for name, value in defaults:
        if value is not None:
            yield f"--{name}", as_yaml(value), describe_field(type(defaults), name)


def answers() -> str:
    """The five questions, their answers one line each."""
    told = ["\n".join([f"{word}: {ASKED[word]}", *indented(one_line_each(word))]) for word in QUESTIONS]
    blocks = ", ".join(f"specc answers {name}" for name in BLOCKS)
    more = ["Fields, and how an answer is written: specc answers QUESTION [ANSWER]", f"Beside the questions: {blocks}"]
    return "\n\n".join([*told, "\n".join(more)])


def one_line_each(question: str) -> list[str]:
    """The answers with what they are, and with the fields that have no default."""
    rows = []
    for name, cls in answers_to(question).items():
        needed = [field for field, info in cls.model_fields.items() if info.is_required()]
        rows.append((name, cls.summary() + f"; needs {', '.join(needed)}" * bool(needed)))
    return table(rows)


def written(question: str) -> str:
    """The two forms of an answer."""
    discriminator = QUESTIONS[question].discriminator
    return f"Written `{question}: WORD`, or with fields `{question}: {{{discriminator}: WORD, FIELD: VALUE}}`."


BLOCKS: dict[str, type[Block]] = {
    name: block
    for name, info in Spec.model_fields.items()
    if name not in QUESTIONS and (block := nested_block(info.annotation)) is not None
}
"""The blocks of a spec that are no answers."""


def answers_of(question: str, answer: str | None = None) -> str:
    """The answers to one question, or one of them, with their fields: default in brackets, what it takes, what it is
    for. A block beside the questions has fields alone."""
    if question not in QUESTIONS:
        block = BLOCKS[question]
        return "\n".join([f"{question}: {' '.join((block.__doc__ or '').split())}", *indented(fields_of(block))])
    parts = [f"{question}: {ASKED[question]}\n{written(question)}"]
    told_of: dict[tuple[str, ...], str] = {}
    for name, cls in answers_to(question).items():
        if answer in (None, name):
            told = f"{cls.summary()}." if answer is None else inspect.cleandoc(cls.__doc__ or "")
            fields = list(fields_of(cls, skip=cls.discriminator))
            if (like := told_of.setdefault(tuple(fields), name)) != name and fields:
                fields = [f"its fields are those of {like}"]
            parts.append("\n".join([name, *indented(told.splitlines()), *indented(fields, "    ")]))
    return "\n\n".join(parts)


def fields_of(cls: type[Block], skip: str = "") -> Iterator[str]:
    """The lines about each field, those of nested blocks indented below their own."""
    for name, info in cls.model_fields.items():
        if name == skip:
            continue
        default = "required" if info.is_required() else f"[{as_yaml(info.get_default(call_default_factory=True))}]"
        yield f"{name} {default}: {wanted(info.annotation, info.metadata)}"
        yield f"  {describe_field(cls, name)}"
        if (nested := nested_block(info.annotation)) is not None:
            yield from indented(fields_of(nested))


def describe_field(cls: type[Block], name: str) -> str:
    return " ".join((cls.model_fields[name].description or "").split())


def table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """The rows as lines, in columns two spaces apart."""
    listed = list(rows)
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in listed
    ]


def indented(lines: Iterable[str], by: str = "  ") -> list[str]:
    return [by + line for line in lines]


def demo(files: DemoFiles, algorithm: str = "reinforcepp") -> str:
    """Where the parts of the demo are, and the commands that train on it."""
    parts = {
        "policy": files.model,
        "training prompts": files.train,
        "held-out prompts": files.heldout,
        "verifier": files.verifier,
        "step verifier": files.step_verifier,
        "reward model": files.reward_model,
        "training settings": files.training,
    }
    where = table((name, short(path)) for name, path in parts.items() if path is not None)
    options = {"--reward": f"{short(files.verifier)}:score", "--output_dir": f"runs/{algorithm}"}
    given = (f"{key} {shlex.quote(value)}" for key, value in options.items())
    words = [f"python generated/{algorithm}.py {shlex.quote(short(files.training))}", *given]
    commands = [f"specc compile {algorithm}", *" \\\n    ".join(words).split("\n")]
    return "\n".join([*where, "", "To train on it:", "", *indented(commands)])


def short(path: Path) -> str:
    """The path from the current folder where it is inside it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
