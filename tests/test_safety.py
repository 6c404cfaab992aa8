"""A spec is data: no string of it becomes code, and no string of it says where anything is written.

The places are found in the classes of the language, so that a text that is added to it is tried as well. `custom` is
the one answer that brings code, and names the file that it is in.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from click.testing import CliRunner
from conftest import ROOT
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from test_generated import HARMLESS, NASTY

from specc.answers import QUESTIONS
from specc.answers.base import Answer, Block
from specc.answers.objective import TokenLoss, TokenWeight
from specc.answers.reward import Transform
from specc.cli import main
from specc.compiler import compile_spec, provenance
from specc.load import Loaded, load_spec
from specc.plan import Plan
from specc.problems import SpecError, blocks
from specc.render import render
from specc.source import Source
from specc.spec import IMPORTED, Spec, is_name

OF_STEPS: dict[str, Any] = {
    **HARMLESS,
    "reward": {"source": "process_reward", "separator": "."},
    "objective": {"quantity": "token_advantage", "aggregation": "token_mean"},
}
"""a spec with a text in every place that is tried"""

SEPARATOR, NAME = ("reward", "separator"), ("name",)
SAID = [("title",), ("cite",), ("target",)]
ACCEPTED = ("accept",)

hostile = st.one_of(
    st.sampled_from(NASTY), st.text(st.one_of(st.sampled_from("\"'\\{}%#\n\r; "), st.characters()), max_size=40)
)
quick = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def arms(annotation: Any) -> Iterator[Any]:
    """The plain types and literals in an annotation."""
    if get_origin(annotation) is Literal or not get_args(annotation):
        yield annotation
    else:
        for arm in get_args(annotation):
            yield from arms(arm)


def fields_with(kind: str) -> set[tuple[str, str]]:
    """The fields that take free text, or one of some words: the class's name and the field's."""
    found = set()
    for _, block in blocks():
        if issubclass(block, Answer) and block.answer_name() == "custom":
            continue  # it brings code, which is what it is for
        for name, info in block.model_fields.items():
            for arm in arms(info.annotation):
                is_kind = arm is str if kind == "text" else get_origin(arm) is Literal
                found |= {(block.__name__, name)} if is_kind else set()
    return found


def test_these_are_all_the_places_for_text() -> None:
    places = {("Spec", name) for (name,) in [*SAID, NAME, ACCEPTED]}
    named = {(own.__name__, "arguments") for own in (TokenLoss, TokenWeight, Transform)}  # by numbers of a function
    assert fields_with("text") == {*places, ("ProcessReward", "separator"), *named}


def shape(script: str) -> str:
    """The syntax tree of a script with every text in it taken out."""
    tree = ast.parse(script)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def compiled(data: dict[str, Any], origin: str = "spec.yaml") -> str:
    return render(Plan(Spec.model_validate(data)), origin, "0" * 16)


SHAPE, LINES = shape(compiled(OF_STEPS)), compiled(OF_STEPS).count("\n")


def with_text(place: tuple[str, ...], text: str) -> dict[str, Any]:
    *above, last = place
    return {**OF_STEPS, above[0]: {**OF_STEPS[above[0]], last: text}} if above else {**OF_STEPS, last: text}


@pytest.mark.parametrize("place", [*SAID, SEPARATOR])
@quick
@given(text=hostile)
def test_a_text_is_a_text_in_the_script(place: tuple[str, ...], text: str) -> None:
    """As many lines, and the same tree: the docstring tells it on its line, and the separator is a literal."""
    try:
        script = compiled(with_text(place, text))
    except ValidationError:  # longer than fits
        return
    assert shape(script) == SHAPE
    if place != SEPARATOR:
        told = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        assert script.count("\n") == LINES
        assert not told or any(told in line for line in (ast.get_docstring(ast.parse(script)) or "").split("\n"))
    else:
        literals = {n.value for n in ast.walk(ast.parse(script)) if isinstance(n, ast.Constant)}
        assert text in literals


@quick
@given(texts=st.lists(hostile, max_size=3))
def test_what_is_accepted_is_nowhere_in_the_script(texts: list[str]) -> None:
    assert compiled({**OF_STEPS, "accept": texts}) == compiled(OF_STEPS)


@quick
@given(name=st.one_of(hostile, st.from_regex(r"[A-Za-z_]\w{0,70}", fullmatch=True)))
def test_a_name_is_an_identifier_or_refused(name: str) -> None:
    try:
        spec = Spec.model_validate({**OF_STEPS, "name": name})
    except ValidationError:
        return
    assert name.isidentifier() and name.isascii() and len(name) <= 64
    assert shape(render(Plan(spec), "spec.yaml", "0" * 16)) == SHAPE


@pytest.mark.parametrize("name", ["CON", "nul", "Com1", "__init__", "__main__", "torch", "copy", "yaml", "x" * 65, "é"])
def test_a_name_that_is_taken_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        Spec.model_validate({**HARMLESS, "name": name})


def test_no_script_shadows_what_scripts_import() -> None:
    imported = set()
    for path in (ROOT / "generated").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    assert imported <= IMPORTED
    assert all(is_name(path.stem) for path in (ROOT / "generated").glob("*.py"))


# --- by way of a file ---


@quick
@given(place=st.sampled_from([*SAID, SEPARATOR, NAME]), text=hostile)
@example(place=SEPARATOR, text="\\N{BULLET}")
def test_through_yaml_a_text_is_the_same_text_or_refused(
    place: tuple[str, ...], text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("spec") / "spec.yaml"
    path.write_text(json.dumps(with_text(place, text)), encoding="utf-8")
    try:
        spec = load_spec(path).spec
    except SpecError as refused:
        assert refused.problems
        return
    *above, last = place
    assert getattr(getattr(spec, above[0]) if above else spec, last) == text
    assert shape(render(Plan(spec), "spec.yaml", "0" * 16)) == SHAPE


BLOCKS: list[tuple[str, ...]] = [(), *((question,) for question in QUESTIONS), ("sampling",), ("defaults",)]


@quick
@given(at=st.sampled_from(BLOCKS), key=hostile, value=st.one_of(hostile, st.integers(), st.booleans()))
def test_a_key_that_the_language_does_not_have_is_refused(at: tuple[str, ...], key: str, value: Any) -> None:
    base = Spec.model_validate(OF_STEPS).model_dump(exclude_unset=True)
    block = base
    for name in at:
        block = block.setdefault(name, {})
    known = type(getattr(Spec.model_validate(OF_STEPS), at[0]) if at else Spec.model_validate(OF_STEPS))
    if key in known.model_fields:
        return
    block[key] = value
    with pytest.raises(ValidationError):
        Spec.model_validate(base)


def literals() -> list[tuple[type[Block], str]]:
    names = fields_with("word")
    return [(b, name) for _, b in blocks() for name in b.model_fields if (b.__name__, name) in names]


@quick
@given(field=st.sampled_from(literals()), text=hostile)
def test_a_choice_is_one_of_the_words(field: tuple[type[Block], str], text: str) -> None:
    block, name = field
    words = {word for arm in arms(block.model_fields[name].annotation) for word in get_args(arm)}
    if text in words:
        return
    with pytest.raises(ValidationError) as refused:
        block.model_validate({name: text})
    assert name in {error["loc"][0] for error in refused.value.errors()}


# --- the name of the file ---

FILES = [
    'a"b', "it's", '"""', "new\nline", "back\\slash", "tab\t", "\u2028", "\u202e", "報酬", "\udcff", "{{}}", "#"
]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_the_name_of_a_file_is_a_text_in_the_script(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text(json.dumps(OF_STEPS), encoding="utf-8")
    script = compile_spec(path).script
    script.encode()
    assert shape(script) == shape(compile_spec(write(tmp_path / "plain.yaml")).script)
    [line] = [line for line in script.splitlines() if line.startswith("Generated by specc from ")]
    assert line.endswith(").")


def write(path: Path) -> Path:
    path.write_text(json.dumps(OF_STEPS), encoding="utf-8")
    return path


@quick
@given(name=hostile)
def test_whatever_a_file_is_called(name: str) -> None:
    loaded = Loaded(Spec.model_validate(OF_STEPS), Source(f"/tmp/{name}.yaml"))
    try:
        origin, digest = provenance(loaded, Plan(loaded.spec))
    except ValueError:  # a NUL: there is no such file
        assert "\0" in name
        return
    script = render(Plan(loaded.spec), origin, digest)
    assert shape(script) == SHAPE and script.count("\n") == LINES


# --- where things are written ---


def everything_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("options", [[], ["-o", "other/"], ["-o", "one.py"]])
def test_what_is_written_is_where_it_was_asked_for(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spec far away, whose texts look like paths, with a way out of the folder by its own name."""
    away, here = tmp_path / "away", tmp_path / "here"
    (away / "..down").mkdir(parents=True)
    here.mkdir()
    spec = away / "..down" / "..yaml"
    spec.write_text(json.dumps({**OF_STEPS, "title": "../../title.py", "target": "/tmp/target"}), encoding="utf-8")
    monkeypatch.chdir(here)
    done = CliRunner().invoke(main, ["compile", "../away/..down/..yaml", *options])
    assert done.exit_code == 0, done.output
    assert everything_in(tmp_path) - {"away/..down/..yaml"} == {
        "here/" + {"other/": "other/harmless.py", "one.py": "one.py"}.get("".join(options[1:]), "generated/harmless.py")
    }


def test_a_link_in_place_of_the_script_does_not_lead_to_a_file_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.py"
    mine.write_text("precious = 1\n", encoding="utf-8")
    (tmp_path / "generated").mkdir()
    os.symlink(mine, tmp_path / "generated" / "harmless.py")
    done = CliRunner().invoke(main, ["compile", str(write(tmp_path / "spec.yaml"))])
    assert done.exit_code == 1 and "was not generated by specc" in done.output
    assert mine.read_text(encoding="utf-8") == "precious = 1\n"


# --- the script's docstring read back ---


def test_a_title_is_not_taken_for_a_claim() -> None:
    from specc.verify.script import load_script

    said = {key: value for key, value in OF_STEPS.items() if key not in ("claim", "target")}
    script = load_script(compiled({**said, "title": "claim unbiased, for all"}), "spoofed.py")
    assert (script.claim, script.target) == (None, None)
    script = load_script(compiled({**OF_STEPS, "title": "claim unbiased, for all"}), "spoofed.py")
    assert (script.claim, script.target) == ("biased", "a target")
