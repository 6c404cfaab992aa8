"""`specc new`: what it writes compiles as it is, and is the algorithm that it was started from."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from conftest import ALGORITHMS

from specc.answers import ASKED, answers_to
from specc.cli import main
from specc.compiler import compile_spec
from specc.load import load_spec
from specc.new import MODELINE, scalar
from specc.paths import algorithms_dir
from specc.sampling import Sampling
from specc.source import parse


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_spec_from_nothing_compiles_without_a_word(here: Path) -> None:
    result = run("new", "mine")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == "mine.yaml: written"
    assert "specc explain mine.yaml" in result.stdout and "specc verify mine.yaml" in result.stdout
    compiled = run("compile", "mine.yaml", "--strict")
    assert (compiled.exit_code, compiled.stderr) == (0, "")
    assert load_spec("mine.yaml").spec.name == "mine"


def test_it_asks_every_question_and_names_every_answer() -> None:
    text = run("new", "mine", "-o", "-").stdout
    for number, (word, question) in enumerate(ASKED.items(), start=1):
        asked = re.search(rf"^# {number}\. {re.escape(question)}\n((?:#.*\n)+){word}: ", text, re.MULTILINE)
        assert asked is not None, question
        said = {line.split()[1]: line for line in asked[1].splitlines() if line.startswith("#   ")}
        assert list(said) == list(answers_to(word))
        assert all(cls.summary() in said[name] for name, cls in answers_to(word).items())
        assert (f"specc answers {word}" in asked[1]) == any(len(c.model_fields) > 1 for c in answers_to(word).values())
    for field in Sampling.model_fields:
        assert re.search(rf"^  (# )?{field}: ", text, re.MULTILINE), field


def test_the_sampling_of_the_comments_is_the_default() -> None:
    """What is commented out changes nothing when it is not, where it has a value."""
    text = run("new", "mine", "-o", "-").stdout
    there = re.sub(r"^  # (?!resample)", "  ", text, flags=re.MULTILINE)
    data = parse(there).data["sampling"]
    assert set(data) == set(Sampling.model_fields) - {"resample"}
    assert Sampling.model_validate(data) == Sampling(group_size=data["group_size"])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_from_an_algorithm_comes_the_same_script_under_another_name(name: str) -> None:
    result = run("new", "mine", "--from", name)
    assert (result.exit_code, result.stderr) == (0, "")
    assert run("compile", "mine.yaml", "--strict").exit_code == 0
    made, shipped = compile_spec("mine.yaml"), compile_spec(algorithms_dir() / f"{name}.yaml")
    docstrings = [ast.parse(script.script).body[0].end_lineno for script in (made, shipped)]
    bodies = [x.script.splitlines()[end:] for x, end in zip((made, shipped), docstrings, strict=True)]
    assert bodies[0] == bodies[1]
    ours, theirs = ([*x.loaded.spec.model_dump().items()] for x in (made, shipped))
    differing = {key for (key, value), (_, other) in zip(ours, theirs, strict=True) if value != other}
    assert differing == {"name", "title", "cite"}
    spec, origin = made.loaded.spec, shipped.loaded.spec
    assert (spec.title, spec.cite) == (f"mine, from {origin.title}", f"after {origin.cite}")
    head, text = Path("mine.yaml").read_text().split("\n", 2)[:2], Path("mine.yaml").read_text()
    assert head[0] == MODELINE and head[1].startswith(f"# Started from {name} of specc ")
    comments = {line.partition("#")[2] for line in shipped.loaded.source.text.splitlines() if "#" in line}
    assert comments <= {line.partition("#")[2] for line in text.splitlines()}


def test_from_a_file_of_ones_own() -> None:
    run("new", "first")
    assert run("new", "second", "--from", "first.yaml").exit_code == 0
    text = Path("second.yaml").read_text()
    assert text.count("yaml-language-server") == 1 and "title: second, from first\n" in text


def test_a_title_over_several_lines_is_not_changed_by_halves() -> None:
    run("new", "first")
    text = Path("first.yaml").read_text().replace("title: first", "title: >\n  of two\n  lines")
    Path("first.yaml").write_text(text)
    assert load_spec("first.yaml").spec.title == "of two lines\n"
    result = run("new", "second", "--from", "first.yaml")
    assert result.exit_code == 1 and "error" in result.stderr.lower() and not Path("second.yaml").exists()


def test_a_file_that_is_there_is_left_alone() -> None:
    Path("mine.yaml").write_text("mine")
    result = run("new", "mine")
    assert result.exit_code == 1 and "mine.yaml is there" in result.stderr and "-o PATH" in result.stderr
    assert Path("mine.yaml").read_text() == "mine"
    assert sorted(Path().iterdir()) == [Path("mine.yaml")]


def test_the_schema_beside_a_spec_is_written_once() -> None:
    assert "spec.schema.json: written" in run("new", "one").stdout
    assert Path("spec.schema.json").read_text() == run("schema").stdout
    Path("spec.schema.json").write_text("{}")
    assert "schema" not in run("new", "two").stdout and Path("spec.schema.json").read_text() == "{}"


def test_where_it_is_written() -> None:
    assert run("new", "mine", "-o", "deep/er/other.yaml").exit_code == 0
    assert run("new", "mine", "-o", "folder/").exit_code == 0
    assert Path("deep/er/other.yaml").read_text() == Path("folder/mine.yaml").read_text() != ""
    assert run("new", "mine", "-o", "-").stdout == Path("folder/mine.yaml").read_text()
    assert not Path("mine.yaml").exists() and not Path("-").exists()
    assert Path("folder/spec.schema.json").exists()


@pytest.mark.parametrize(
    ("name", "near"),
    [("my-algo", "my_algo"), ("mine.yaml", "mine"), ("2nd", "my_2nd"), ("class", "my_class"), ("a" * 65, "a" * 64)],
)
def test_a_bad_name(name: str, near: str) -> None:
    result = run("new", name)
    assert result.exit_code == 2 and result.stderr.endswith(f"did you mean {near}?\n")
    assert not list(Path().iterdir())
    assert run("new", near).exit_code == 0


@pytest.mark.parametrize("name", ["true", "null", "e1"])
def test_a_name_that_yaml_reads_as_something_else(name: str) -> None:
    assert run("new", name).exit_code == run("new", f"{name}_2", "--from", f"{name}.yaml").exit_code == 0
    assert load_spec(f"{name}.yaml").spec.name == name
    assert run("new", name, "--from", "grpo", "-o", "other.yaml").exit_code == 0
    assert load_spec("other.yaml").spec.name == name


def test_from_what_there_is_not() -> None:
    result = run("new", "mine", "--from", "gropo")
    assert result.exit_code == 1 and "did you mean `grpo`?" in result.stderr


@pytest.mark.parametrize(
    "text", ["mine, from GRPO", "a: b", "# no", "x #y", "- x", "true", 'say "so"', "a:b", "1e-6", ""]
)
def test_a_text_on_one_line(text: str) -> None:
    assert parse(f"name: mine\ntitle: {scalar(text)}\n").data["title"] == text
