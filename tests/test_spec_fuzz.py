"""Hundreds of mutants of good specs, and that what they are held to can fail. `spec_fuzz.py` runs for longer."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import spec_fuzz
from spec_fuzz import SHIPPED, TEXT, Seen, Wrong, look_at, look_at_text, mutants, whole_file

from specc.problems import Place, Problem, render
from specc.source import Source

SOON = 20.0
"""seconds of one core that no mutant comes near to: most take a hundredth of one (`benchmarks/compile.py`)"""


@pytest.mark.parametrize("seed", range(4))
def test_a_mutant_is_accepted_or_refused_with_a_place(seed: int, tmp_path: Path) -> None:
    seen = Seen()
    for number, raw in enumerate(itertools.islice(mutants(seed), 80)):
        seen.take(tmp_path / "mutant.yaml", raw, finish=number % 16 == 0)
    assert seen.slowest < SOON, f"{seen.slowest_of[:200]!r} took {seen.slowest:.1f} s"
    assert 0 < seen.accepted < seen.tried and len(seen.slugs) > 8


def test_whole_files(tmp_path: Path) -> None:
    rng, seen = random.Random(0), Seen()
    for _ in range(20):
        seen.take(tmp_path / "mutant.yaml", whole_file(rng, SHIPPED[0].encode()), finish=False)
    assert seen.slowest < SOON
    assert {"too-large", "not-utf8"} <= set(seen.slugs)


def test_every_shipped_spec_is_accepted(tmp_path: Path) -> None:
    seen = Seen()
    for text in SHIPPED:
        seen.take(tmp_path / "mutant.yaml", text.encode(), finish=False)
    assert seen.accepted == seen.tried and not seen.slugs


def test_mutants_are_drawn_by_the_seed() -> None:
    first, again, other = (list(itertools.islice(mutants(seed), 20)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("edit", [edit for _, edit in TEXT], ids=lambda edit: edit.__name__)
def test_every_edit_changes_specs_of_any_text(edit: spec_fuzz.Edit) -> None:
    rng = random.Random(0)
    assert any(edit(rng, text) != text for text in SHIPPED)
    for text in ("", "\n", "a", "a: 1", "[" * 30, "報酬: x\r\n"):
        assert isinstance(edit(rng, text), str)


# --- what a mutant is held to ---


def test_an_exception_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path) -> None:
        raise KeyError("a traceback")

    monkeypatch.setattr(spec_fuzz, "load_spec", fails)
    with pytest.raises(Wrong, match="a traceback"):
        Seen().take(tmp_path / "mutant.yaml", b"a: 1\n", finish=False)


@pytest.mark.parametrize(
    "problem",
    [
        ("no-such-slug", "what", "why", "help", Place(1, 1, 1)),
        ("tab", "", "why", "help", Place(1, 1, 1)),
        ("tab", "what", "why", "", Place(1, 1, 1)),
        ("tab", "what", "why", "help", None),
        ("tab", "what", "why", "help", Place(3, 1, 1)),
        ("tab", "what", "why", "help", Place(1, 6, 1)),
        ("tab", "what", "why", "help", Place(1, 0, 1)),
        ("tab", "what", "why", "help", Place(1, 1, 0)),
    ],
)
def test_a_problem_without_its_words_or_place_is_wrong(problem: tuple[str, str, str, str, Place | None]) -> None:
    source = Source("a.yaml", "x: 1\n")
    look_at(Problem("tab", "what", "why", "help", Place(1, 5, 1), source=source))
    with pytest.raises(Wrong):
        look_at(Problem(*problem, source=source))


def test_carets_beside_the_line_are_wrong() -> None:
    source = Source("a.yaml", "x: 1\n")
    problem = Problem("tab", "what", "why", "help", Place(1, 4, 1), source=source)
    text = render([problem])
    look_at_text(text, [problem])
    for wrong in (text.replace("    ^", " " * 40 + "^"), text.replace("^", ""), text + "\x1b"):
        with pytest.raises(Wrong):
            look_at_text(wrong, [problem])
