"""The plan to the text of a script: the page with the fragments in their places, and nothing that is not used."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import jinja2

from specc.answers import ASKED
from specc.fragments import Fragment, read_fragment
from specc.page_cache import PageCache
from specc.paths import templates_dir
from specc.plan import Plan
from specc.user_code import bound_by

SECTIONS = (
    "statistics",
    "running",
    "data",
    "rollouts",
    "selection",
    "steps",
    "logprobs",
    "critic",
    "updates",
    "pairs",
    "arguments",
    "pair_arguments",
    "models",
    "checkpoints",
    "reporting",
)

# What a user calls in a script besides main(): the estimator interface.
INTERFACE = (
    "Rollouts",
    "select",
    "select_after",
    "transform_rewards",
    "compute_advantages",
    "update_state",
    "aggregation_weights",
    "likelihood_weights",
    "policy_loss",
    "compute_value_targets",
    "value_loss",
    "trains_policy",
    "preference_loss",
)

WIDTH = 120
SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def render(plan: Plan, origin: str, digest: str, own: bool = True) -> str:
    """The script for a plan, not yet formatted. `origin` names the spec's file and `digest` its bytes.

    With `own` false it is without the code of the author's own functions, for a look at the names of the rest.
    """
    sections = {name: read_fragment("sections", name) for name in SECTIONS}
    chosen = [f for fragments in plan.fragments.values() for f in fragments if own or not f.parts]
    page = environment().get_template("trainer.py.j2" if plan.online else "preference_trainer.py.j2")
    text = page.render(
        plan=plan,
        spec=plan.spec,
        origin=docstring_safe(origin),
        digest=docstring_safe(digest),
        answers=docstring_lines(
            (word, docstring_safe(answer.describe())) for word, answer in plan.spec.answers.items()
        ),
        verdict=docstring_lines(plan.derived.lines.items()),
        asked=ASKED,
        imports="\n".join(sorted({line for fragment in [*sections.values(), *chosen] for line in fragment.imports})),
        arguments=arguments(plan, sections["arguments"]),
        section=lambda name: sections[name].code,
        body=lambda question: body(plan, question, own),
        selection="\n\n\n".join(fragment.code for fragment in plan.fragments["sampling"]),
        call=lambda name, **bindings: call(plan, name, bindings),
    )
    return prune(text)


OPTIONS = {
    "trim_blocks": True,
    "lstrip_blocks": True,
    "keep_trailing_newline": True,
    "autoescape": False,  # the output is Python: what comes from a spec goes through docstring_safe or repr
}


@cache
def environment() -> jinja2.Environment:
    folder = templates_dir()
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        bytecode_cache=PageCache(folder, OPTIONS),
        **OPTIONS,  # type: ignore[arg-type]
    )
    made.filters["docstring"] = docstring_safe
    return made


def docstring_safe(text: str) -> str:
    """Text from outside as one line that can stand in a docstring and stays text there."""
    return one_line(text).replace("\\", "\\\\").replace('"', '\\"')


def one_line(text: str) -> str:
    """Text from outside as one line of what can be printed."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def docstring_lines(said: Iterable[tuple[str, str]]) -> str:
    """What is said of each word for the docstring, a line each or more where they are long."""
    return "\n".join(textwrap.fill(f"{word:<14}{text}", WIDTH, subsequent_indent=" " * 14) for word, text in said)


def body(plan: Plan, question: str, own: bool) -> str:
    """The section of a question: one comment that says the answer, and the code of its fragments."""
    answer = one_line(plan.spec.answers[question].describe())
    comment = textwrap.fill(f"{answer[0].upper()}{answer[1:]}.", WIDTH, initial_indent="# ", subsequent_indent="# ")
    chosen = [fragment for fragment in plan.fragments[question] if fragment.code and (own or not fragment.parts)]
    return "\n\n\n".join([comment, *(fragment.code for fragment in chosen)])


def call(plan: Plan, name: str, bindings: dict[str, str]) -> str:
    """The call of a chosen fragment's function: by its parameters' names, and its keyword-only ones from the arguments,
    which are `hp` in the estimator; `bindings` may call them otherwise.

    A new fragment needs no change here: it gets what it names.
    """
    shared = read_fragment("sections", "running").functions
    question, function = plan.functions.get(name) or ("normalization", shared[name])
    fields = ("greedy_rewards_B", "old_logprobs_BGT", "ref_logprobs_BGT", "state")
    known = {name: f"rollouts.{name}" for name in fields}
    known |= {argument: f"args.{argument}" for argument in plan.reward_arguments} | bindings
    hp, numbers = bindings.get("hp", "hp"), plan.question_parameters[question]
    passed = [known.get(parameter, parameter) for parameter in function.positional]
    renamed = {} if function.fields else bindings  # a number of the author's own may be called like anything
    passed += [
        f"{keyword}={renamed.get(keyword) or f'{hp}.{numbers[function.field_of(keyword)].argument}'}"
        for keyword in function.keyword_only
    ]
    return f"{function.name}({', '.join(passed)})"


def arguments(plan: Plan, section: Fragment) -> str:
    """The section of the arguments, with the spec's numbers and where the reward is, and the published defaults."""
    published = plan.spec.defaults.model_dump(exclude_none=True)
    lines = []
    code = section.code
    if not plan.online:
        code = code.replace(class_of(code, "Args"), class_of(read_fragment("sections", "pair_arguments").code, "Args"))
    for line in code.splitlines():
        name = line.split(":")[0].strip()
        if "= arg(" in line and name in published:
            line = replace_default(line, published[name])
        if name in {parameter.argument for parameter in plan.parameters} and "= arg(" in line:
            continue
        lines.append(line)
        if name == "learning_rate" and plan.own_critic:
            rate = published.get("critic_learning_rate", default_of(line))
            help = "peak learning rate of the critic's AdamW"
            lines.append(argument_line("critic_learning_rate", "float", rate, help, {"gt": 0}))
        if line.strip() == "# the algorithm":
            lines += [argument_line(p.argument, p.type, p.value, p.help, p.bounds) for p in plan.parameters]
        if name == "train_data":
            lines += [argument_line(n, "str", "", help, {}) for n, (help, _) in plan.reward_arguments.items()]
    return "\n".join(lines)


def class_of(code: str, name: str) -> str:
    """The text of a class, without its decorators."""
    (found,) = (node for node in ast.parse(code).body if isinstance(node, ast.ClassDef) and node.name == name)
    return ast.get_source_segment(code, found) or ""


def argument_line(name: str, type: str, default: Any, help: str, bounds: dict[str, float]) -> str:
    """A field of Args, whose bounds the script checks by the signs in its annotation."""
    limits = "".join(f', "{SIGNS[bound]} {limit:g}"' for bound, limit in bounds.items())
    annotation = f"Annotated[{type}{limits}]" if limits else type
    return f"    {name}: {annotation} = arg({default!a}, {help!r})"  # text is a literal of plain ASCII


def replace_default(line: str, value: Any) -> str:
    """The line of an argument with another default."""
    assignment, made = argument_in(line)
    made.args[0] = ast.Constant(value)
    return "    " + ast.unparse(assignment)


def default_of(line: str) -> Any:
    """The default in the line of an argument."""
    return ast.literal_eval(argument_in(line)[1].args[0])


def argument_in(line: str) -> tuple[ast.AnnAssign, ast.Call]:
    """The line of an argument, and the call of `arg` in it."""
    (assignment,) = ast.parse(line.strip()).body
    assert isinstance(assignment, ast.AnnAssign) and isinstance(assignment.value, ast.Call)
    return assignment, assignment.value


def prune(script: str) -> str:
    """The script without the functions, classes and constants that nothing in it reaches from main or the interface.

    Likewise the arguments and the fields of Rollouts that nothing in it reads.
    """
    definitions: dict[str, tuple[int, Statement]] = {}
    used: list[str] = []
    for above, statement in statements(script):
        if statement.defines:
            definitions[statement.defines] = (above, statement)
        else:
            used += statement.names
    reached: set[str] = set()
    todo = [name for name in (*used, *INTERFACE) if name in definitions]
    while todo:
        if (name := todo.pop()) not in reached:
            reached.add(name)
            todo += [other for other in definitions[name][1].names if other in definitions]
    read = {attribute for name in reached for attribute in definitions[name][1].attributes}
    lines: list[str | None] = [*script.split("\n")]  # a text may hold what else breaks lines
    for name, (above, statement) in definitions.items():
        unread = [span for field, span in statement.fields if field not in read] if name in FILTERED else []
        for first, last in unread if name in reached else [statement.span]:
            lines[above + first - 1 : above + last] = [None] * (last - first + 1)
    return "\n".join(line for line in lines if line is not None)


FILTERED = ("Args", "Rollouts")
"""the dataclasses whose fields are left out where nothing reads them"""

Span = tuple[int, int]


class Statement(NamedTuple):
    """A statement of a script: the lines that it is on, what it defines, and the names and attributes in it."""

    span: Span
    defines: str
    names: tuple[str, ...]
    attributes: tuple[str, ...]
    fields: tuple[tuple[str, Span], ...]
    """the fields with a default of a class"""


def statements(script: str) -> Iterator[tuple[int, Statement]]:
    """The statements of a script, each with the number of lines above what its own lines are counted from.

    Scripts are largely the same, so they are taken apart between definitions, and a part that was seen before is not
    parsed again. A part that ends within a string or a bracket is no Python; then the script is parsed whole.
    """
    starts = [0, *(match.end() for match in BETWEEN.finditer(script)), len(script)]
    parts = [script[start:stop] for start, stop in pairwise(starts)]
    try:
        found = [parsed(part) for part in parts]
    except SyntaxError:
        parts, found = [script], [parsed(script)]
    above = 0
    for part, inside in zip(parts, found, strict=True):
        yield from ((above, statement) for statement in inside)
        above += part.count("\n")


BETWEEN = re.compile(r"\n\n\n+(?=\S)")


@lru_cache(maxsize=4096)
def parsed(text: str) -> tuple[Statement, ...]:
    with warnings.catch_warnings():  # an odd escape in a function of the author's own is theirs
        warnings.simplefilter("ignore")
        return tuple(map(statement_of, ast.parse(text).body))


def statement_of(node: ast.stmt) -> Statement:
    defines, fields = "", []
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        defines = node.name
    elif isinstance(node, ast.Assign):
        bound = list(bound_by(node))
        defines = bound[0] if len(bound) == 1 else ""  # what binds several names is kept
    if isinstance(node, ast.ClassDef):
        with_default = [item for item in ast.walk(node) if isinstance(item, ast.AnnAssign) and item.value]
        fields = [(ast.unparse(field.target), lines_of(field)) for field in with_default]
    names, attributes = mentioned(node)
    return Statement(lines_of(node), defines, tuple(names), tuple(attributes), tuple(fields))


def lines_of(node: ast.stmt) -> Span:
    """The first line of a statement, decorators included, and its last one."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min(node.lineno, *(each.lineno for each in decorators), node.lineno), node.end_lineno or node.lineno


def mentioned(node: ast.AST) -> tuple[dict[str, None], dict[str, None]]:
    """The names and the attributes in a statement, each once."""
    names: dict[str, None] = {}
    attributes: dict[str, None] = {}
    todo = [node]
    while todo:
        inner = todo.pop()
        if isinstance(inner, ast.Name):
            names[inner.id] = None
            continue
        if isinstance(inner, ast.Attribute):
            attributes[inner.attr] = None
        for value in inner.__dict__.values():
            if isinstance(value, ast.AST):
                todo.append(value)
            elif isinstance(value, list):
                todo += [item for item in value if isinstance(item, ast.AST)]
    return names, attributes


def names_in(node: ast.AST) -> list[str]:
    return list(mentioned(node)[0])
