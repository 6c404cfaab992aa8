"""The shipped page on errors and warnings, by slug: `specc errors` prints it, and messages link to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specc.paths import data_dir

DOCS_URL = ""
"""where the docs are published, with a slash at the end; empty while they are only in the package and the repository"""

PAGE = "errors.md"


@dataclass(frozen=True)
class Section:
    """What the page says of a slug."""

    group: str
    slug: str
    text: str
    """without its heading, in Markdown"""

    @property
    def summary(self) -> str:
        """The first sentence."""
        paragraph = " ".join(self.text.split("\n\n")[0].split())
        return paragraph.partition(". ")[0].rstrip(".")

    @property
    def plain(self) -> str:
        """The section for a terminal."""
        lines = [line for line in self.text.splitlines() if not line.startswith("```")]
        return "\n".join([self.slug, "", *lines])


def page() -> Path:
    return data_dir("docs") / PAGE


def address(slug: str) -> str:
    """Where the section of a slug can be read in a browser or an editor."""
    return (f"{DOCS_URL}{PAGE}" if DOCS_URL else page().as_uri()) + f"#{slug}"


def sections() -> dict[str, Section]:
    """The sections of the page by slug, in its order."""
    return {section.slug: section for section in read(page().read_text(encoding="utf-8"))}


def read(text: str) -> Iterator[Section]:
    """Groups have headings of the second level, and slugs of the third."""
    for part in text.split("\n## ")[1:]:
        group, *found = part.split("\n### ")
        for each in found:
            slug, _, rest = each.partition("\n")
            yield Section(group.strip(), slug.strip(), rest.strip())
