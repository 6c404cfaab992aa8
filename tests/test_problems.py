"""What a user sees for every mistake: each file of `bad_specs/` has a transcript, byte for byte.

`SPECC_WRITE_TRANSCRIPTS=1 pytest tests/test_problems.py` writes them anew; read the diff before committing it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from errors import SCRIPTS, slugs_in_code
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specc import paths
from specc.cli import main
from specc.load import load_spec
from specc.problems import Place, Problem, SpecError, bounds, closest, listed, render, wanted
from specc.source import SYNTAX, Source, parse

TESTS = Path(__file__).parent
CASES = sorted({path.stem for path in (TESTS / "bad_specs").iterdir()})
WRITE = os.environ.get("SPECC_WRITE_TRANSCRIPTS") == "1"


@pytest.mark.parametrize("case", CASES)
def test_transcript(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TESTS)
    monkeypatch.setattr(paths, "algorithm_names", lambda: ["grpo", "rloo"])  # not those of the day
    result = CliRunner().invoke(main, ["compile", f"bad_specs/{case}.yaml", "-o", os.devnull])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    transcript = TESTS / "bad_specs" / f"{case}.txt"
    seen = f"exit code {result.exit_code}\n\n{result.stderr}"
    if WRITE:
        transcript.write_text(seen, encoding="utf-8")
    assert seen == transcript.read_text(encoding="utf-8")
    assert ("error[" in seen) == (result.exit_code == 1)
    assert re.search(r"(error|warning)\[", seen)


def test_every_slug_has_a_bad_spec() -> None:
    shown = "".join(path.read_text(encoding="utf-8") for path in (TESTS / "bad_specs").glob("*.txt"))
    elsewhere = {slug for slug, group in slugs_in_code() if group == SCRIPTS}
    elsewhere |= {"own-answer", "deprecated"}  # of test_own_answers.py, and of a class that is made for a test
    said = {slug for slug, _ in slugs_in_code()} - elsewhere
    assert said == set(re.findall(r"(?:error|warning)\[([a-z0-9-]+)\]", shown))


def test_every_message_of_the_parser_has_a_bad_spec() -> None:
    shown = "".join(path.read_text(encoding="utf-8") for path in (TESTS / "bad_specs").glob("*.txt"))
    unseen = [row[3] for row in SYNTAX if row[3] not in shown]
    assert unseen == []


def test_problems_are_sorted_by_file_and_place() -> None:
    first, second = Source("b.yaml", "x: 1\ny: 2\n"), Source("a.yaml", "z: 3\n")
    problems = [
        Problem("three", "w", "y", "h", Place(1, 1, 1), source=second),
        Problem("two", "w", "y", "h", Place(2, 1, 1), source=first),
        Problem("one", "w", "y", "h", Place(1, 4, 1), source=first),
        Problem("zero", "w", "y", "h", source=first),
    ]
    text = render(problems[1:] + problems[:1])
    assert re.findall(r"\[(\w+)\]", text) == ["zero", "one", "two", "three"]


def test_colour_is_only_added() -> None:
    problem = Problem("slug", "what", "why", "help", Place(1, 1, 1), source=Source("a.yaml", "x: 1\n"))
    without_links = re.sub("\x1b]8;;[^\x1b]*\x1b\\\\", "", render([problem], color=True))
    assert click.unstyle(without_links) == render([problem])
    assert "\x1b[" in render([problem], color=True)
    assert "\x1b[" not in render([problem])


def test_the_excerpt_of_a_long_line_shows_the_place() -> None:
    source = Source("a.yaml", "title: " + "x" * 5000 + "HERE" + "y" * 5000)
    text = render([Problem("slug", "what", "why", "help", Place(1, 5008, 4), source=source)])
    _, line, carets, *_ = text.splitlines()
    assert len(line) < 130
    assert line[carets.index("^") :].startswith("HERE")
    assert carets.count("^") == 4


def test_carets_stand_below_wide_characters() -> None:
    source = Source("a.yaml", "title: 報酬 x")
    text = render([Problem("slug", "what", "why", "help", Place(1, 11, 1), source=source)])
    assert text.splitlines()[2] == "    | " + " " * 12 + "^"  # two cells for each of the two


def test_nothing_that_a_terminal_would_act_upon_is_printed() -> None:
    source = Source("a\x1b[31m.yaml", "x: \x1b[31m\u202e\n")
    text = render([Problem("slug", "\x07 what\nnow", "why", "help", Place(1, 4, 1), source=source)])
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    assert len(text.splitlines()) == 5


def test_all_files_of_a_run_are_reported_at_once(tmp_path: Path) -> None:
    names = ["unknown_answer", "tab", "no_such_file"]
    result = CliRunner().invoke(main, ["compile", *(str(TESTS / "bad_specs" / f"{name}.yaml") for name in names)])
    assert result.exit_code == 1
    assert re.findall(r"error\[([\w-]+)\]", result.stderr) == ["unreadable-file", "unknown-answer", "tab"]


def test_accept_hides_a_warning_and_strict_mode_counts_what_is_left(tmp_path: Path) -> None:
    warned = (TESTS / "bad_specs" / "clip_idle.yaml").read_text()
    path = tmp_path / "a.yaml"
    path.write_text("accept: [clip-idle]\n" + warned)
    assert load_spec(path).warnings == []
    path.write_text("accept: [clip-idle, clip-idle]\n" + warned)
    [warning] = load_spec(path).warnings
    assert warning.slug == "accept-unused" and warning.place == Place(1, 21, 9)


# --- the words ---


class Inner(BaseModel):
    a: int = 0


class Model(BaseModel):
    model_config = ConfigDict(strict=True)

    above: float = Field(1, gt=0, le=1)
    either: int | Inner | None = None
    names: list[str] = []

    @model_validator(mode="after")
    def refuse(self) -> Model:
        raise ValueError("never right")


def test_what_a_field_takes_is_read_off_its_type() -> None:
    fields = Model.model_fields
    assert wanted(fields["above"].annotation, fields["above"].metadata) == "a number above 0 and at most 1"
    assert wanted(fields["either"].annotation) == "a whole number or a block {a}"
    assert wanted(fields["names"].annotation) == "a list"
    assert bounds([]) == ""


def test_names_in_a_sentence() -> None:
    assert [listed([]), listed("a"), listed("ab"), listed("abc")] == ["", "a", "a or b", "a, b or c"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [("leave-one-out", "leave_one_out"), ("Greedy", "greedy"), ("gredy", "greedy"), ("xyz", None), (3, None)],
)
def test_did_you_mean(word: object, meant: str | None) -> None:
    assert closest(word, ["greedy", "leave_one_out"]) == meant


def test_an_error_that_pydantic_may_come_to_say_is_still_a_problem() -> None:
    from specc.problems import from_validation

    source = parse("above: 0.5\n")
    with pytest.raises(ValidationError) as caught:
        Model.model_validate(source.data)
    [problem] = from_validation(caught.value, source)
    assert (problem.slug, problem.why) == ("bad-value", "never right")


def test_spec_error_reads_as_its_problems() -> None:
    with pytest.raises(SpecError, match="unknown-answer") as caught:
        load_spec(TESTS / "bad_specs" / "unknown_answer.yaml")
    assert [problem.slug for problem in caught.value.problems] == ["unknown-answer"]
