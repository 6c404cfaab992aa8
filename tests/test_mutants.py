"""Every mutant of the templates is caught by the check that is meant to, and no check fails without one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from specc.load import findings_of
from specc.paths import templates_dir
from specc.verify.laws import LAWS
from tests.mutants import CHECKS, MUTANTS, PAGE, Mutant, caught, failing, script_of

EMPTY = {"kl/none.py", "baseline/none.py", "normalization/none.py"}
OUTSIDE = {"kl/refreshed.py"} | {
    f"reward/{name}.py"
    for name in ("verifier", "reward_model", "process_verifier", "process_reward_model", "preferences")
}
"""Fragments of the trainer, which no law runs: they load, score, and say when; tests of their own are about them."""

SPECS = {m.name: m.spec for place, m in enumerate(MUTANTS) if m.spec not in [o.spec for o in MUTANTS[:place]]}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    assert caught(mutant, only=mutant.caught_by) == [mutant.caught_by]


@pytest.mark.parametrize("name", SPECS)
def test_nothing_is_caught_without_a_mutant(name: str) -> None:
    script = script_of(SPECS[name])
    assert script.plan is not None
    assert [finding for finding in findings_of(script.plan.spec) if not finding.warning] == []
    assert failing(script) == []


def test_the_mutants_are_many_and_everywhere() -> None:
    assert len(MUTANTS) >= 25
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
    folders = Counter(mutant.folder for mutant in MUTANTS)
    assert folders.keys() == {"kl", "baseline", "normalization", "objective", "sampling", "reward", "sections", "page"}
    assert min(folders.values()) > 1
    fragments = {path.relative_to(templates_dir()).as_posix() for path in templates_dir().glob("*/*.py")}
    without = {file for file in fragments - {mutant.file for mutant in MUTANTS} if not file.startswith("sections/")}
    assert without == EMPTY | OUTSIDE


def test_the_docs_list_every_mutant() -> None:
    """As `make mutants` prints them, but for what else catches each, which takes minutes to find."""
    text = (Path(__file__).parents[1] / "docs" / "verification.md").read_text(encoding="utf-8")
    for mutant in MUTANTS:
        assert f"\n| {mutant.name} | `{mutant.file}` | `{mutant.caught_by}` | " in text
    assert text.count(".j2` | `") + text.count(".py` | `") == len(MUTANTS)


def test_every_check_catches_some() -> None:
    """But for the laws of which every fault is one of another law, too: vmap and bfloat16."""
    rest = {"vmap_and_grad_go_through", "on_policy_in_bfloat16"}
    assert {mutant.caught_by for mutant in MUTANTS} == ({law.name for law in LAWS} | CHECKS.keys()) - rest


def test_nothing_is_left_of_a_mutant() -> None:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.file == PAGE and "after_baseline" in mutant.name]
    before = script_of(mutant.spec).module.__dict__["__source__"]
    assert script_of(mutant.spec, mutant).module.__dict__["__source__"] != before
    assert script_of(mutant.spec).module.__dict__["__source__"] == before
