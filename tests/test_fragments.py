"""The fragments: complete modules, with the numbers of their answer's class, which are the script's arguments."""

from __future__ import annotations

import ast
import importlib
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from conftest import ROOT
from ruff import find_ruff_bin
from strategies import choices, every_spec, takes_own

from specc.answers import QUESTIONS
from specc.answers.base import Answer, Block, leaves
from specc.fragments import read_fragment
from specc.plan import Plan
from specc.render import SECTIONS, arguments, render
from specc.spec import Sampling, Spec

TEMPLATES = ROOT / "templates"
FILES = sorted(TEMPLATES.rglob("*.py"))
ANSWERS = [answer for base in QUESTIONS.values() for answer in leaves(base)]


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@cache
def specs_with(answer: type[Answer]) -> list[Spec]:
    return every_spec(answer)


# -------- each fragment --------


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_fragments_are_lint_clean(command: list[str]) -> None:
    done = subprocess.run(
        [find_ruff_bin(), *command, "--no-cache", TEMPLATES], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_fragment_is_a_module(path: Path) -> None:
    """It imports, and says what it and each public thing in it is."""
    module = importlib.import_module(f"templates.{path.parent.name}.{path.stem}")
    assert module.__file__ == str(path)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            # Args is read line by line with its comments, and needs no other words.
            assert ast.get_docstring(node) or node.name == "Args", node.name


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_fragment_has_no_jinja(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not [mark for mark in ("{{", "}}", "{%", "%}", "{#", "#}", "jinja") if mark in text]


def test_only_the_pages_have_control_flow() -> None:
    others = [path.name for path in TEMPLATES.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert sorted(others) == ["preference_trainer.py.j2", "trainer.py.j2"]


# -------- answers and fragments --------


def test_every_fragment_is_reached_and_every_answer_has_its_own() -> None:
    """No orphans, and no answer without its file: `fragments` over every choice of every answer is what is on disk."""
    reached = {
        (answer.question, name)
        for answer in ANSWERS
        for spec in specs_with(answer)
        for name in spec.answers[answer.question].fragments()
    }
    reached |= {("sampling", name) for keep in KEPT for name in Sampling(keep=keep).fragments()}
    reached |= {("sections", name) for name in SECTIONS}
    assert reached == {(path.parent.name, path.stem) for path in FILES}
    for folder, name in reached:
        assert read_fragment(folder, name).path.is_file()


def test_a_name_is_one_thing() -> None:
    """The functions of one spec's fragments share a script, so no two of them have the same name."""
    for answer in ANSWERS:
        for spec in specs_with(answer):
            chosen = [fragment for fragments in Plan(spec).fragments.values() for fragment in fragments]
            names = [name for fragment in chosen for name in fragment.functions]
            names = [name for name in names if name != "update_normalization"]  # of both running statistics
            assert len(names) == len(set(names)), names


def numbers_of(block: type[Block]) -> dict[str, type]:
    """The arguments of all numbers that a block can hold, nested blocks included, from its annotations alone."""
    found: dict[str, type] = {}
    for name, info in block.model_fields.items():
        if takes_own(info.annotation) or get_origin(info.annotation) is dict:
            continue  # numbers of functions of the author's own: see test_custom.py
        for option in (info.annotation, *get_args(info.annotation)):
            bare = get_args(option)[0] if hasattr(option, "__metadata__") else option
            if bare in (int, float) or option is str:
                found[block.argument_prefix + name] = bare
            elif isinstance(bare, type) and issubclass(bare, Block):
                found |= numbers_of(bare)
    return found


def script_arguments(source: str) -> dict[str, tuple[str, object]]:
    """The fields of Args: the type and the default of each."""
    tree = ast.parse(source)
    (args,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Args")
    found = {}
    for field in args.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Call):
            kind = field.annotation
            kind = kind.slice.elts[0] if isinstance(kind, ast.Subscript) and isinstance(kind.slice, ast.Tuple) else kind
            found[ast.unparse(field.target)] = (ast.unparse(kind), ast.literal_eval(field.value.args[0]))
    return found


def own_arguments(plan: Plan) -> dict[str, tuple[str, object]]:
    return script_arguments(arguments(plan, read_fragment("sections", "arguments")))


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: f"{answer.question}-{answer.answer_name()}")
def test_numbers_are_parameters_are_arguments(answer: type[Answer]) -> None:
    """Fields of the class = keyword-only parameters of its fragments = arguments of the script, for every choice."""
    usual = own_arguments(Plan(Spec.model_validate({"name": "plain", **PLAIN}))).keys()
    possible, seen = numbers_of(answer), {}
    for spec in specs_with(answer):
        plan, given = Plan(spec), spec.answers[answer.question]
        parameters = {parameter.field: parameter for parameter in given.parameters()}
        assert len(parameters) == len(list(given.parameters())), "two numbers of one name"
        fragments = [read_fragment(answer.question, name) for name in given.fragments()]
        taken = {
            name for fragment in fragments for function in fragment.functions.values() for name in function.keyword_only
        }
        if plan.kl_moves:
            taken.remove("coefficient")  # a number of the state
        assert taken <= parameters.keys(), f"{given.fragments()} ask for a number that {given!r} does not set"
        found = own_arguments(plan)
        added = {name for name in found if name in possible}
        assert added == {parameters[field].argument for field in taken}
        for field in taken:
            parameter = parameters[field]
            assert found[parameter.argument] == (possible[parameter.argument].__name__, parameter.value)
            seen[parameter.argument] = True
        beside = {p.argument for q, ps in plan.question_parameters.items() if q != answer.question for p in ps.values()}
        beside |= {"critic_learning_rate"} if plan.own_critic else set()
        assert found.keys() - usual - plan.reward_arguments.keys() - beside <= possible.keys()
    assert seen.keys() == possible.keys(), "a number that no combination uses"


PLAIN = {
    "reward": "verifier",
    "kl": "none",
    "baseline": "none",
    "normalization": "none",
    "objective": {"quantity": "sequence_advantage", "aggregation": "token_mean"},
}


KEPT = choices(Sampling.model_fields["keep"].annotation, Sampling.model_fields["keep"], 0.5)


@pytest.mark.parametrize("keep", KEPT, ids=str)
def test_numbers_of_the_sampling_are_arguments(keep: Any) -> None:
    sampling = {"group_size": 5, "temperature": 0.5, "epochs": 2, "keep": keep}
    spec = Spec.model_validate({"name": "plain", **PLAIN, "sampling": sampling})
    found, set_here = own_arguments(Plan(spec)), {p.argument: p.value for p in spec.sampling.parameters()}
    for name, kind in numbers_of(Sampling).items():
        assert found.get(name) == ((kind.__name__, set_here[name]) if name in set_here else None)


def test_published_defaults_are_the_defaults() -> None:
    """And only theirs are changed."""
    published = {"learning_rate": 3e-6, "adam_beta2": 0.95, "steps": 7, "lr_scheduler": "cosine"}
    plain, changed = (
        own_arguments(Plan(Spec.model_validate({"name": "plain", **PLAIN, "defaults": defaults})))
        for defaults in ({}, published)
    )
    for name, (kind, value) in plain.items():
        assert changed[name] == (kind, published.get(name, value))


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: f"{answer.question}-{answer.answer_name()}")
def test_the_finished_script_has_these_arguments(answer: type[Answer]) -> None:
    """What the whole script holds is what `arguments` says, but for what no code of this script reads."""
    plan = Plan(specs_with(answer)[-1])
    found, offered = script_arguments(render(plan, "every.yaml", "0" * 16)), own_arguments(plan)
    assert found.items() <= offered.items()
    assert {parameter.argument for parameter in plan.parameters} <= found.keys()
