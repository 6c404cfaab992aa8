"""`docs/errors.md` and `specc errors`: a section for each slug, up to date, with an edit that does what it says."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from errors import ENTRIES, FILE, GROUPS, OWN, PAGE, SCRIPTS, WARNINGS, after, page, problems_of, slugs_in_code

from specc.cli import echo_problems, main
from specc.error_page import address, sections
from specc.problems import Place, Problem, SpecError, lines_of
from specc.source import Source


def test_every_slug_has_an_entry_and_a_section() -> None:
    said = {slug for slug, _ in slugs_in_code()}
    assert said == set(ENTRIES), "write an entry of tests/errors.py, and run python tests/errors.py --write"
    assert said == set(sections())


def test_the_page_is_what_its_specs_are_told() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/errors.py --write"


@pytest.mark.parametrize("slug", ENTRIES)
def test_the_edit_mends_the_example(slug: str) -> None:
    """Nothing at all is left to say, of whatever kind."""
    one = ENTRIES[slug]
    found = [problem for problem in problems_of(one.case) if problem.slug == slug]
    assert found or not one.case
    if one.edits:
        assert after(one) == []


def test_only_what_is_no_spec_has_no_edit() -> None:
    groups = dict(slugs_in_code())
    without = {groups[slug] for slug, one in ENTRIES.items() if one.case and not one.edits}
    assert without <= {FILE, OWN, SCRIPTS}


def test_sections_are_in_groups_and_sorted() -> None:
    found = sections().values()
    assert list(dict.fromkeys(section.group for section in found)) == list(GROUPS)
    for group in GROUPS:
        slugs = [section.slug for section in found if section.group == group]
        assert slugs == sorted(slugs)
    for section in found:
        kinds = set(re.findall(r"^\w+\.(?:yaml|py).*? (error|warning)\[", section.text, flags=re.MULTILINE))
        assert not ENTRIES[section.slug].case or kinds == {"warning" if section.group == WARNINGS else "error"}


def test_sections_on_the_command_line() -> None:
    result = CliRunner().invoke(main, ["errors", "clip-idle", "tab"])
    assert result.exit_code == 0
    assert result.stdout.startswith("clip-idle\n\n") and "\n\ntab\n\n" in result.stdout and "```" not in result.stdout
    listed = CliRunner().invoke(main, ["errors"]).stdout
    assert re.findall(r"^  ([a-z0-9-]+) +\S", listed, flags=re.MULTILINE) == list(sections())


def test_a_slug_that_there_is_not() -> None:
    result = CliRunner().invoke(main, ["errors", "clip-idel"])
    assert result.exit_code == 2 and "did you mean clip-idle?" in result.stderr


def test_the_last_line_of_a_run_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    def last_line(*slugs: str) -> str:
        echo_problems(Problem(slug, "what", "why", "help") for slug in slugs)
        return capsys.readouterr().err.splitlines()[-1]

    assert last_line("tab", "bad-key", "tab") == "more: specc errors bad-key tab"
    assert last_line("tab", "bad-key", "bad-yaml", "too-deep", "too-large") == "more: specc errors SLUG"
    assert last_line("of-ones-own") == "  help: help"
    result = CliRunner().invoke(main, last_line("tab", "bad-key").split()[2:])
    assert result.exit_code == 0 and result.stdout.startswith("bad-key")


def test_the_slug_is_a_link_in_colour_alone() -> None:
    problem = Problem("tab", "what", "why", "help", Place(1, 1, 1), source=Source("a.yaml", "x: 1\n"))
    link = re.compile("\x1b]8;;([^\x1b]*)\x1b\\\\tab\x1b]8;;\x1b\\\\")
    [target] = link.findall("\n".join(lines_of(problem, color=True)))
    assert target == address("tab") == PAGE.resolve().as_uri() + "#tab"
    assert "\x1b" not in "\n".join(lines_of(problem, color=False))


def test_an_address_in_the_published_docs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specc.error_page.DOCS_URL", "https://example.org/docs/")
    assert address("tab") == "https://example.org/docs/errors.md#tab"


def test_spec_error_has_no_link() -> None:
    assert "\x1b" not in str(SpecError([Problem("tab", "what", "why", "help")]))
