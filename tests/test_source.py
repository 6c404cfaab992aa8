"""Reading YAML: what the values are, where they are, and that no file of any kind is more than a problem."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from specc.load import check
from specc.problems import Place, SpecError, render
from specc.source import MAX_BYTES, MAX_DEPTH, Source, parse, read_source

GOOD = """\
# GRPO, with everything that a spec can have.
specc: 1
name: example
title: "An example: with a colon"
cite: 'arXiv:2402.03300'
claim: biased
accept: [kl-partial-gradient]

reward: {source: verifier, missing_eos: -1.0, clip: [-5, 5], overlong: {limit: 100, buffer: 20}}
kl: {placement: loss, estimator: k3, coefficient: 4e-2}
baseline: group_mean
normalization: {scope: group, divide_by: std}
objective:
  quantity: sequence_advantage
  ratio: token
  clip: {low: 0.2, high: 0.28}
  aggregation: seq_mean_token_mean
sampling:
  group_size: 16
  minibatches: 2
defaults: {learning_rate: 1e-6, prompts_per_step: 32}
"""


def slugs(text: str) -> list[str]:
    """The slugs of what is wrong with a text, every one with a place."""
    try:
        source = parse(text, "x.yaml")
    except SpecError as error:
        return [problem.slug for problem in error.problems]
    return [problem.slug for problem in source.problems]


# --- values ---


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("'1e-6'", "1e-6"),
        ('"1e-6"', "1e-6"),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-0.1", -0.1),
        ("+3", 3),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        (".inf", float("inf")),
        ("-.INF", float("-inf")),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("no", "no"),
        ("yes", "yes"),
        ("True", True),
        ("false", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("'null'", "null"),
        ("=", "="),
        ("e5", "e5"),
        ("1e", "1e"),
        ("k3 # comment", "k3"),
        ("|\n  a\n  b\n", "a\nb\n"),
        (">-\n  a\n  b\n", "a b"),
        ("[1, [x, 2.0], {a: b}]", [1, ["x", 2.0], {"a": "b"}]),
        ("[]", []),
        ("{}", {}),
    ],
)
def test_values_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    read = parse(f"a: {text}\n").data["a"]
    assert read == value
    assert type(read) is type(value)


def test_nan_is_a_number() -> None:
    read = parse("a: .nan").data["a"]
    assert isinstance(read, float) and read != read


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_breaks_of_every_system(newline: str) -> None:
    source = parse(newline.join(["a: 1", "b:", "  c: 2", ""]))
    assert source.data == {"a": 1, "b": {"c": 2}}
    assert source.place(("b", "c")) == Place(3, 6, 1)
    assert source.line(3) == "  c: 2"


def test_a_json_file_is_a_spec_file() -> None:
    assert parse('{"a": {"b": [1, "x", null]}}').data == {"a": {"b": [1, "x", None]}}


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    source = read_source(path)
    assert (source.text, source.data, source.path) == ("a: 1\n", {"a": 1}, str(path))


# --- places ---


def written(source: Source, place: Place) -> str:
    return source.line(place.line)[place.col - 1 : place.col - 1 + place.length]


@pytest.mark.parametrize(
    ("loc", "key", "text"),
    [
        (("name",), True, "name"),
        (("name",), False, "example"),
        (("title",), False, '"An example: with a colon"'),
        (("reward", "clip", 1), False, "5"),
        (("reward", "clip"), False, "[-5, 5]"),
        (("reward", "overlong", "limit"), True, "limit"),
        (("reward", "overlong"), False, "{limit: 100, buffer: 20}"),
        (("kl", "coefficient"), False, "4e-2"),
        (("objective", "clip", "high"), False, "0.28"),
        (("objective",), False, "quantity: sequence_advantage"),
        # what is not in the file is at the nearest thing around it
        (("kl", "unit"), False, "kl"),
        (("kl", "unit"), True, "kl"),
        (("baseline", "source"), False, "baseline"),
        (("objective", "clip", "dual", "deeper"), False, "clip"),
        (("nothing",), False, "specc"),
        ((), False, "specc"),
    ],
)
def test_places(loc: tuple[str | int, ...], key: bool, text: str) -> None:
    source = parse(GOOD)
    assert written(source, source.place(loc, key=key)) == text


def test_every_value_has_a_place() -> None:
    source = parse(GOOD)

    def walk(loc: tuple[str | int, ...], value: Any) -> None:
        assert loc == () or loc in source.values
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            walk((*loc, key), inner)

    walk((), source.data)


def test_of_two_values_for_a_key_the_first_stays() -> None:
    source = parse("a: {b: 1}\na: {b: 2, c: 3}\n")
    assert source.data == {"a": {"b": 1}}
    assert source.place(("a", "b")) == Place(1, 8, 1)
    assert [problem.slug for problem in source.problems] == ["duplicate-key"]


def test_an_empty_value_is_at_its_key() -> None:
    source = parse("a:\n\n\nb: 1\n")
    assert source.place(("a",)) == Place(1, 1, 1)


# --- files ---


def refusal(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        read_source(path)
    return render(caught.value.problems)


def test_no_file(tmp_path: Path) -> None:
    assert "there is no such file" in refusal(tmp_path / "a.yaml")
    assert "error[unreadable-file]" in refusal(tmp_path / ("long" * 1000))
    assert "error[unreadable-file]" in refusal(Path("nul\0"))


def test_a_folder(tmp_path: Path) -> None:
    assert "this is a folder" in refusal(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.touch(0)
    assert "cannot be read" in refusal(path)


def test_a_file_that_is_not_a_spec_by_far(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"a" * (MAX_BYTES + 1))
    assert "larger than 100 kB" in refusal(path)
    path.write_bytes(b"a: 1\nb: \xff\n")
    assert f"{path}:2:4: error[not-utf8]" in refusal(path)
    path.write_bytes(b"a: \0\n")
    assert f"{path}:1:4: error[control-character]" in refusal(path)
    assert "error[too-large]" in refusal(Path("/dev/zero"))


@pytest.mark.parametrize(
    "text",
    [
        "[" * MAX_BYTES,
        "{a: " * (MAX_BYTES // 4),
        "- " * (MAX_BYTES // 2),
        "? " * (MAX_BYTES // 2),
        "a: '" + "x" * (MAX_BYTES - 5) + "'",
        "x" * MAX_BYTES,
        "a\n" * (MAX_BYTES // 20),
        "".join(f"a{i}: 1\n" for i in range(70_000)),
        "".join(f"&a{i} " for i in range(100_000)),
        "a: [" + "1," * (MAX_BYTES // 2 - 10),
        " " * MAX_BYTES,
        "\n" * (MAX_BYTES // 10),
        "#" * MAX_BYTES,
    ],
    ids=lambda text: text[:6],
)
def test_a_large_file_is_refused_soon(text: str) -> None:
    started = time.process_time()
    assert slugs(text) or parse(text).data == {"a": "x" * (MAX_BYTES - 5)}
    assert time.process_time() - started < 5


def test_depth_is_bounded() -> None:
    assert slugs("a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)) == []
    assert slugs("a: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH) == ["too-deep"]


def test_a_problem_that_is_not_the_end_leaves_the_rest_to_be_checked() -> None:
    with pytest.raises(SpecError) as caught:
        check(parse(GOOD.replace("example", "&x example", 1).replace("4e-2", "'4e-2'")))
    assert [problem.slug for problem in caught.value.problems] == ["not-plain-data", "wrong-type"]


def test_a_parser_that_fails_in_a_way_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(self: YAML, stream: str) -> None:
        raise RecursionError("deep inside")

    monkeypatch.setattr(YAML, "parse", parse)
    assert slugs("a: 1") == ["bad-yaml"]


# --- any file at all ---

WORDS = ["none", "loss", "reward", "k1", "kl", "clip", "1e-6", "0", "-1", "true", "null", ".nan", "1e999", "9" * 30]
PIECES = [
    ": ",
    ":",
    "\n",
    "\n  ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    ",",
    "'",
    '"',
    "#",
    "&a ",
    "*a",
    "!!str ",
    "<<: ",
    "? ",
    "|\n",
]
ODD = ["\t", "\0", "\x1b", "\u2028", "\u202e", "\ufeff", "\\", "é", "報", "%YAML 1.1\n---\n", "---\n", "...\n", "\r"]
token = st.sampled_from(WORDS + PIECES + ODD) | st.text(max_size=3)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """The good spec after a few edits: pieces of it cut out, doubled, or replaced by something else."""
    text = GOOD
    for _ in range(draw(st.integers(1, 4))):
        words = [match.span() for match in re.finditer(r"\w+|[^\w\s]|\s+", text)] or [(0, 0)]
        start, stop = draw(st.sampled_from(words))
        what = draw(st.sampled_from(["replace", "insert", "cut", "swap"]))
        if what == "replace":
            text = text[:start] + draw(token) + text[stop:]
        elif what == "insert":
            text = text[:start] + draw(token) + text[start:]
        elif what == "cut":
            text = text[:start] + text[start + draw(st.integers(1, 40)) :]
        else:
            first, last = draw(st.sampled_from(words))
            text = text[:start] + text[first:last] + text[stop:]
    return text


def accepted_or_refused(text: str) -> None:
    try:
        loaded = check(parse(text, "x.yaml"))
        problems = loaded.warnings
    except SpecError as error:
        problems = error.problems
        assert any(not problem.warning for problem in problems)
    for problem in problems:
        assert problem.place is not None or problem.slug == "empty-file"
        assert problem.what and problem.why and problem.help and re.fullmatch(r"[a-z0-9-]+", problem.slug)
        if problem.place is not None and problem.source is not None:
            line = problem.source.line(problem.place.line)
            assert 1 <= problem.place.col <= len(line) + 1
    assert "\x1b" not in render(problems)


FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@FUZZ
@given(mutated())
@example(GOOD)
@example("{a: 1, ? [b]: c}")
@example("kl: {placement: {loss: 1}}")
@example("kl: {placement: [loss]}\nbaseline: [[]]\nreward: {source: {}}")
@example("objective: {quantity: 1, clip: []}")
def test_a_mutated_spec_is_accepted_or_refused_with_a_place(text: str) -> None:
    accepted_or_refused(text)


@FUZZ
@given(st.text(max_size=60) | st.lists(token, max_size=25).map("".join))
def test_any_text_is_accepted_or_refused_with_a_place(text: str) -> None:
    accepted_or_refused(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*WORDS, "source", "low"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@FUZZ
@given(st.data())
def test_any_data_in_a_good_spec_is_accepted_or_refused_with_a_place(data: st.DataObject) -> None:
    source = parse(GOOD, "x.yaml")
    loc = data.draw(st.sampled_from([loc for loc in source.values if loc]))
    inner: Any = source.data
    for part in loc[:-1]:
        inner = inner[part]
    inner[loc[-1]] = data.draw(values)
    try:
        check(source)
    except SpecError as error:
        assert all(problem.place is not None for problem in error.problems)


@FUZZ
@given(st.binary(max_size=40), st.integers(0, len(GOOD)))
def test_any_bytes_are_accepted_or_refused(tmp_path_factory: pytest.TempPathFactory, raw: bytes, at: int) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(GOOD.encode()[:at] + raw + GOOD.encode()[at:])
    try:
        check(read_source(path))
    except SpecError as error:
        assert render(error.problems)
