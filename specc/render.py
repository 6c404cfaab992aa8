"""The plan to the text of a script: the page with the fragments in their places, and nothing that is not used."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable
from functools import cache
from typing import Any

import jinja2

from specc.answers import ASKED
from specc.fragments import Fragment, read_fragment
from specc.paths import templates_dir
from specc.plan import Plan

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


@cache
def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the output is Python: what comes from a spec goes through docstring_safe or repr
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
    passed += [
        f"{keyword}={bindings.get(keyword) or f'{hp}.{numbers[function.field_of(keyword)].argument}'}"
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
    tree = ast.parse(script)
    definitions: dict[str, ast.stmt] = {}
    used: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            definitions[node.targets[0].id] = node
        else:
            used += names_in(node)
    reached: set[str] = set()
    todo = [name for name in (*used, *INTERFACE) if name in definitions]
    while todo:
        if (name := todo.pop()) not in reached:
            reached.add(name)
            todo += [other for other in names_in(definitions[name]) if other in definitions]
    lines = script.splitlines(keepends=True)
    for name in {"Args", "Rollouts"} & definitions.keys():
        for field in unread_fields(definitions[name], [definitions[other] for other in reached]):
            first, last = field.lineno - 1, field.end_lineno or field.lineno
            lines[first:last] = [""] * (last - first)
    for name, node in definitions.items():
        if name not in reached:
            decorators = getattr(node, "decorator_list", [])
            first = min(node.lineno, *(decorator.lineno for decorator in decorators), node.lineno)
            lines[first - 1 : node.end_lineno] = [""] * ((node.end_lineno or first) - first + 1)
    return "".join(lines)


def unread_fields(data: ast.stmt, reached: list[ast.stmt]) -> list[ast.AnnAssign]:
    """The fields with a default of a dataclass that no function of the script looks at."""
    read = {node.attr for part in reached for node in ast.walk(part) if isinstance(node, ast.Attribute)}
    fields = [node for node in ast.walk(data) if isinstance(node, ast.AnnAssign) and node.value]
    return [field for field in fields if ast.unparse(field.target) not in read]


def names_in(node: ast.AST) -> list[str]:
    return [inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)]
