"""Every link of the docs leads somewhere: to a file of the repository, and where it names a section, to that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specc.error_page import address

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md"), *ROOT.glob("tests/**/*.md")]
)
LINK = re.compile(r"\]\(([^()\s]+(?:\([^()\s]*\)[^()\s]*)?)(?: \"[^\"]*\")?\)")


def prose(page: Path) -> str:
    """A page without its blocks of code and its code spans, in which brackets are no links."""
    text = re.sub(r"^(```+).*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`(?!\])", "", text)


def anchors(page: Path) -> set[str]:
    """What GitHub calls the sections of a page: lower case, spaces as hyphens, a number after a title that is there."""
    text = re.sub(r"^(```+).*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found: list[str] = []
    for title in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        plain = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        found.append(f"{plain}-{found.count(plain)}" if plain in found else plain)
    return {*found, *re.findall(r'<a (?:id|name)="([^"]+)"', text)}


def dead(page: Path) -> list[str]:
    """The links of a page that lead nowhere; those to other sites are not followed."""
    found = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, section = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        inside = target.is_relative_to(ROOT.resolve()) or target.is_relative_to(ROOT)
        if not inside or not target.exists() or (section and section not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert dead(page) == []


def test_dead_links_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "# One title\n## One title\n## `code`, and more\n"
        "[a](page.md) [b](#one-title) [c](page.md#one-title-1) [d](#code-and-more) [e](https://example.org/none)\n"
        "[no file](none.md) [no section](#two) [outside](../..) `[code](none)`\n```\n[code](none.md)\n# no title\n```\n"
        "[in a block](#no-title)\n"
    )
    assert dead(page) == ["none.md", "#two", "../..", "#no-title"]


def test_every_page_of_the_docs_is_linked_from_the_readme() -> None:
    """In one step or more."""
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page not in reached:
            reached.add(page)
            links = [link.partition("#")[0] for link in LINK.findall(prose(page))]
            todo += [(page.parent / link).resolve() for link in links if link.endswith(".md") and ":" not in link]
    assert {page.resolve() for page in PAGES if page.parent.name == "docs"} <= {page.resolve() for page in reached}


def test_the_address_of_a_section_in_errors_is_there() -> None:
    page, _, section = address("unknown-key").partition("#")
    assert page.endswith("docs/errors.md")
    assert section in anchors(ROOT / "docs" / "errors.md")
