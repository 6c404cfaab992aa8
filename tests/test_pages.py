"""The pages that show what commands print: they show what the commands print."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import BLOCK, PAGES, VARIES, Run, run, runs_of, written


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_is_printed(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == written(text), f"run python tests/pages.py --write, and read the diff of {page.name}"


def test_the_commands_of_a_block() -> None:
    found = list(runs_of("$ one\nits output\n$ two \\\n>   more\n$ three\n"))
    assert found == [Run("one", "its output\n"), Run("two \\\n>   more", ""), Run("three", "")]


def test_what_is_printed_is_written_and_files_are_there(tmp_path: Path) -> None:
    page = "```text a/b.txt\nhello\n```\n\n```console\n$ cat a/b.txt\nold\n$ false\n```\n"
    assert written(page) == page.replace("old\n", "hello\n")
    assert [kind for kind, *_ in BLOCK.findall(page)] == ["text", "console"]
    assert run("echo one; echo two >&2", tmp_path).output == "one\ntwo\n"


def test_what_takes_minutes_is_not_run() -> None:
    page = "```console\n$ make fuzz MINUTES=40\n0 failures\n$ python tests/fuzz.py\n0 failures\n```\n"
    assert written(page) == page


def test_numbers_that_vary_are_not_compared() -> None:
    page = f"```console\n$ echo 1.5e-3 s{VARIES}\n2.25 s\n$ echo other{VARIES}\nsame\n```\n"
    assert written(page) == page.replace("same", "other")
