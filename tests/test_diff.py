"""`specc diff`: what it says of two specs, and that their scripts differ where the specs do and nowhere else."""

from __future__ import annotations

import ast
import itertools
import json
import re
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from conftest import ALGORITHMS, ROOT
from strategies import BESIDE, every_spec

from specc.answers import QUESTIONS, answers_to
from specc.cli import main
from specc.compiler import compile_spec
from specc.derive import derive
from specc.diff import JUDGED, fields_of, sections, swap
from specc.finish import finish
from specc.load import findings_of, load_spec
from specc.plan import Plan
from specc.render import render
from specc.spec import Spec

PAIRS = list(itertools.combinations(ALGORITHMS, 2))


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, ["diff", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def found(*arguments: str | Path) -> dict:
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


@cache
def spec_of(name: str) -> Spec:
    return load_spec(ROOT / "algorithms" / f"{name}.yaml").spec


@cache
def script_of(name: str) -> str:
    return (ROOT / "generated" / f"{name}.py").read_text(encoding="utf-8")


# -------- what is printed --------


def test_the_docs_show_what_it_prints() -> None:
    text = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
    assert f"$ specc diff grpo drgrpo\n{run('grpo', 'drgrpo').stdout}```" in text


def test_one_number(tmp_path: Path) -> None:
    """A number is an argument of the script: only the docstring and the arguments differ."""
    text = (ROOT / "algorithms" / "grpo.yaml").read_text(encoding="utf-8")
    mine = tmp_path / "mine.yaml"
    mine.write_text(text.replace("coefficient: 0.04", "coefficient: 0.5"), encoding="utf-8")
    said = found("grpo", mine)
    assert said["fields"] == [{"field": "kl.coefficient", "values": [0.04, 0.5]}]
    assert [section["title"] for section in said["sections"]] == ["docstring", "arguments"]
    assert said["sections"][1] == {"title": "arguments", "removed": 1, "added": 1}
    [only] = said["swaps"]
    assert only["answer"] == "kl" and only["reasons"] == [] and only["verdict"] == said["specs"][0]["verdict"]
    lines = run("grpo", mine, "--full").stdout.splitlines()
    assert lines[0].endswith(f"algorithms/grpo.yaml -> {mine}")
    assert [line for line in lines if line.startswith(("+    kl", "-    kl"))] == [
        f'{sign}    kl_coefficient: Annotated[float, "> 0"] = arg({value}, "weight of the KL, often called beta")'
        for sign, value in (("-", 0.04), ("+", 0.5))
    ]


def test_each_answer_alone() -> None:
    """By hand: without the std, GRPO is biased by 1/length still; without 1/length, the std only reweights."""
    swaps = {each["answer"]: each for each in found("grpo", "drgrpo")["swaps"]}
    verdicts = {answer: (each["verdict"]["binary"], each["verdict"]["kl"]) for answer, each in swaps.items()}
    assert verdicts == {
        "kl": ("biased", None),
        "normalization": ("biased", "forward biased"),
        "objective": ("reweighted", "forward exact"),
        "sampling": ("biased", "forward biased"),
    }
    assert [(reason["change"], reason["where"]) for reason in swaps["normalization"]["reasons"]] == [
        ("gone", "normalization")
    ]


def test_what_is_not_valid_together() -> None:
    swaps = {each["answer"]: each for each in found("reinforce", "grpo")["swaps"]}
    assert swaps["baseline"]["verdict"] is None and "2 responses" in swaps["baseline"]["not_valid"]
    assert "not valid together: " in run("reinforce", "grpo").stdout


def test_a_spec_and_itself() -> None:
    said = found("grpo", "grpo")
    assert said["fields"] == said["swaps"] == said["sections"] == []
    assert "no field differs" in run("grpo", "grpo").stdout


def test_errors_are_those_of_every_command(tmp_path: Path) -> None:
    result = run("gpro", "grpo")
    assert (result.exit_code, result.stdout, "error[unreadable-file]" in result.stderr) == (1, "", True)
    assert run("grpo").exit_code == 2
    assert "specc diff grpo drgrpo" in run("--help").stdout


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_a_swap_takes_one_answer_and_nothing_else(first: str, second: str) -> None:
    """Where the two answer alike nothing changes; where all but one are alike, the swap is the other spec."""
    a, b = spec_of(first), spec_of(second)
    differing = [part for part in JUDGED if differs(a, b, part)]
    for part in JUDGED:
        if part not in differing:
            assert swap(a, b, part).verdict == derive(a)
        elif derived := swap(a, b, part).verdict:
            mixed = a.model_copy(update={part: getattr(b, part)})
            assert derived == derive(mixed)
        if differing == [part]:
            assert swap(a, b, part).verdict == derive(b)


def differs(a: Spec, b: Spec, part: str) -> bool:
    before, after = ([item for item in fields_of(spec) if item[0].split(".")[0] == part] for spec in (a, b))
    return before != after


# -------- sections that mean the same are the same bytes --------

# The functions that the pages write, and what some of them are made from; the others may be made from any answer. Any
# function that is not the page's is the same text in every script that has it, or that of a fragment of an answer.
PAGES = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "templates").glob("*.j2"))]
PAGE = [name for page in PAGES for name in re.findall(r"^(?:def|class) (\w+)", page, re.MULTILINE)]
PAGE += ["select", "select_after"]  # whose names the plan says
FED_BY = {
    "Rollouts": ("reward", "kl", "baseline", "normalization", "objective"),
    "transform_rewards": ("reward",),
    "drop_truncated": (),
    "compute_advantages": ("reward", "kl", "baseline", "normalization", "objective"),
    "update_state": ("reward", "kl", "baseline", "normalization", "objective"),
    "aggregation_weights": ("objective",),
    "policy_loss": ("kl", "objective"),
    "count_clipped": ("objective",),
}


def choices(spec: Spec, question: str) -> dict[str, object]:
    """An answer without its numbers, which are arguments of the script: what selects code."""
    numbers = {parameter.field for parameter in getattr(spec, question).parameters()}
    return {
        name: value
        for name, value in fields_of(spec)
        if name.partition(".")[0] == question and not (name.rpartition(".")[2] in numbers and value is not None)
    }


def definitions(text: str) -> dict[str, str]:
    """The functions and classes at the top of a script, with their decorators."""
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def same_question(first: Spec, second: Spec, question: str) -> bool:
    return choices(first, question) == choices(second, question)


def common(section: str, other: str) -> list[str]:
    """The lines of a section without the functions that nothing calls, and that are left out, in the other script."""
    for name, text in definitions(section).items():
        if name not in definitions(other):
            section = section.replace(text, "")
    return [line for line in section.splitlines() if line]


def differences(a: Spec, b: Spec, scripts: tuple[str, str]) -> list[str]:
    """What differs in two scripts although whatever feeds it does not."""
    wrong = []
    before, after = map(sections, scripts)
    for number, question in enumerate(QUESTIONS, start=1):
        [title] = [title for title in before if title.startswith(f"{number}. {question}:")]
        same = common(before[title], scripts[1]) == common(after[title], scripts[0])
        if same_question(a, b, question) and not same:
            wrong.append(title)
    of_answers = {name for spec in (a, b) for name in Plan(spec).functions}
    first, second = map(definitions, scripts)
    for name in first.keys() & second.keys() - of_answers - {"Args", "train"}:
        fed_by = FED_BY.get(name, (*QUESTIONS, "sampling") if name in PAGE else ())
        if all(same_question(a, b, part) for part in fed_by) and first[name] != second[name]:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_shipped_scripts_differ_where_their_answers_do(first: str, second: str) -> None:
    assert differences(spec_of(first), spec_of(second), (script_of(first), script_of(second))) == []


@pytest.mark.parametrize("question", QUESTIONS)
def test_one_answer_differs_in_its_section_and_its_call(question: str) -> None:
    """Every answer beside the same four others: the other answers' sections, and what they feed, stay as they are."""
    every = [every_spec(answer)[0] for answer in answers_to(question).values() if every_spec(answer)]
    base = Spec.model_validate({"name": "every", **BESIDE, "sampling": {"group_size": 4}})
    assert not [finding for finding in findings_of(base) if not finding.warning] and len(every) > 1
    scripts = finish([render(Plan(spec), "every.yaml", "0" * 16) for spec in (base, *every)])
    for spec, script in zip(every, scripts[1:], strict=True):
        if all(same_question(base, spec, other) for other in (*QUESTIONS, "sampling") if other != question):
            assert differences(base, spec, (scripts[0], script)) == []
            differing = [title for title, text in sections(script).items() if sections(scripts[0])[title] != text]
            assert any(question in title for title in differing) == (not same_question(base, spec, question))


def test_the_sections_are_the_whole_script() -> None:
    for name in ALGORITHMS:
        assert "".join(sections(script_of(name)).values()) == script_of(name)
    assert compile_spec(ROOT / "algorithms" / "grpo.yaml").script == script_of("grpo")
