"""YAML text to plain data in which every key and value has a place.

A spec is data: YAML 1.2 with its core schema, and nothing that makes a reader of the file look elsewhere for what it
says (anchors, aliases, merge keys, tags). The tree is built from the parser's events, without recursion and with
bounds, so no file can exhaust the stack or the memory.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StringMark
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
)

from specc.problems import Place, Problem, SpecError, kind_of, shown

Loc = tuple[str | int, ...]
Plain = dict[str, Any] | list[Any] | str | int | float | bool | None

MAX_BYTES = 100_000
MAX_DEPTH = 20
MAX_NODES = 2_000
MAX_INT = 2**63 - 1

# What would make a file read otherwise than it looks: control characters, odd line breaks, reversed text, half pairs.
UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]")
NEWLINE = re.compile(r"\r\n|\r|\n")

NULL = frozenset(("", "~", "null", "Null", "NULL"))
BOOL = {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass
class Source:
    """A spec's file: its path as the user wrote it, its text, its data, and where in the text each piece of data is."""

    path: str
    text: str = field(default="", repr=False)
    data: dict[str, Any] = field(default_factory=dict, repr=False)
    keys: dict[Loc, Place] = field(default_factory=dict, repr=False)
    values: dict[Loc, Place] = field(default_factory=dict, repr=False)
    problems: list[Problem] = field(default_factory=list, repr=False)
    """what is wrong with the file and did not stop the reading of it"""
    broken: set[Loc] = field(default_factory=set, repr=False)
    """the values that those problems left without a meaning: nothing more is said about them"""

    def __post_init__(self) -> None:
        self.line_starts = [0, *(match.end() for match in NEWLINE.finditer(self.text))]

    def line(self, number: int) -> str:
        """Line `number`, from 1, without its line break."""
        start = self.line_starts[number - 1]
        stop = self.line_starts[number] if number < len(self.line_starts) else len(self.text)
        return self.text[start:stop].rstrip("\r\n")

    def place_at(self, start: int, stop: int | None = None) -> Place:
        """The place of the characters `start` up to `stop`, as much of it as is on the first line."""
        start = max(0, min(start, len(self.text)))
        line = bisect_right(self.line_starts, start)
        written = len(self.line(line).rstrip())
        column = min(start - self.line_starts[line - 1], written)  # of blanks at the end of a line nothing is seen
        rest = written - column
        return Place(line, column + 1, max(1, min(rest, (stop if stop is not None else start + 1) - start)))

    def place(self, loc: Loc, *, key: bool = False) -> Place:
        """Where the value (or the key) of `loc` is, or else the nearest thing around it that the file has."""
        wanted = self.keys if key else self.values
        for end in range(len(loc), 0, -1):
            part = loc[:end]
            if part in wanted or part in self.values:
                return wanted.get(part) or self.values[part]
            # A missing field has no place of its own; the key of the block that lacks it says best where to write.
            wanted = self.keys
        return next(iter(self.keys.values()), Place(1, 1, 1))


def read_source(path: Path | str) -> Source:
    """The file's data and places; raises `SpecError` when it cannot be read as one mapping of plain data.

    Problems that leave the rest readable (a duplicate key, an anchor) are in `Source.problems`.
    """
    text = read_text(Path(path), os.fspath(path))
    return parse(text, os.fspath(path))


def parse(text: str, path: str = "<text>") -> Source:
    """As `read_source`, for a text that is already here."""
    source = Source(path, text)
    if unseen := UNSEEN.search(text):
        refuse(
            source,
            "control-character",
            f"the character U+{ord(unseen.group()):04X} cannot be in a spec",
            "it is not visible, so the file would not say what it seems to say",
            "delete it; in an editor that hides it, retype the line",
            source.place_at(unseen.start()),
        )
    return Builder(source).build()


def read_text(path: Path, shown_path: str) -> str:
    """The text of a file of at most `MAX_BYTES` of UTF-8, without a byte order mark."""
    source = Source(shown_path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        refuse(source, "unreadable-file", *unreadable(path, error))
    if len(raw) > MAX_BYTES:
        refuse(
            source,
            "too-large",
            f"this file is larger than {MAX_BYTES // 1000} kB",
            "a spec is a page of text, so this is probably another file",
            "name the spec's YAML file",
        )
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        refuse(
            source,
            "not-utf8",
            "this file is UTF-16, not UTF-8",
            "its first two bytes are a UTF-16 byte order mark",
            "save it as UTF-8",
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        source = Source(shown_path, raw[: error.start].decode("utf-8-sig", "replace") + "\N{REPLACEMENT CHARACTER}")
        refuse(
            source,
            "not-utf8",
            f"byte 0x{raw[error.start]:02x} is not UTF-8",
            "specs are UTF-8 text; this one is in another encoding, or not text at all",
            "save it as UTF-8",
            source.place_at(len(source.text) - 1),
        )


def unreadable(path: Path, error: OSError | ValueError) -> tuple[str, str, str]:
    """What, why and help for a file that cannot be opened."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    why = f"the system says: {reason}"
    if isinstance(error, FileNotFoundError):
        return "there is no such file", why, "check the path; `ls` shows what is there"
    if isinstance(error, IsADirectoryError):
        return "this is a folder, not a file", why, f"name a file in it, e.g. {path / 'NAME.yaml'}"
    return "this file cannot be read", why, "check the path, and that you may read it"


def refuse(source: Source, slug: str, what: str, why: str, help: str, place: Place | None = None) -> NoReturn:
    raise SpecError([*source.problems, Problem(slug, what, why, help, place, source=source)])


@dataclass
class Open:
    """A mapping or list whose end has not been read yet."""

    container: dict[str, Any] | list[Any]
    loc: Loc
    start: int
    key: str | None = None

    @property
    def awaits_key(self) -> bool:
        return isinstance(self.container, dict) and self.key is None

    def next_loc(self) -> Loc:
        return (*self.loc, len(self.container) if self.key is None else self.key)

    def add(self, value: Plain) -> None:
        if isinstance(self.container, list):
            self.container.append(value)
        elif self.key is not None:
            self.container.setdefault(self.key, value)  # of two values for one key, the first stays
            self.key = None


class Builder:
    """Builds a source's data from the parser's events."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.stack: list[Open] = []
        self.documents = 0
        self.nodes = 0
        self.reached = 0

    def build(self) -> Source:
        for event in self.events():
            self.reached = event.end_mark.index
            self.take(event)
        if not self.documents:
            self.refuse_empty()
        return self.source

    def events(self) -> Iterator[Event]:
        """The parser's events; what the parser raises becomes a problem."""
        try:
            yield from YAML(typ="safe", pure=True).parse(self.source.text)
        except SpecError:
            raise
        except MarkedYAMLError as error:
            # What is not closed, or is no key, is where the parser began, not where it gave up.
            began = re.search(r"stream end|end of stream|could not find expected ':'", str(error.problem))
            mark = error.context_mark if began and error.context_mark else error.problem_mark
            self.refuse_syntax(error, mark)
        except Exception as failure:
            # The parser lets a few of Python's own errors through, e.g. of chr for "\UFFFFFFFF".
            beyond = isinstance(failure, OverflowError | ValueError) and "\\U" in self.source.text
            says = NO_CHARACTER if beyond else f"{type(failure).__name__} in the YAML parser"
            self.refuse_syntax(MarkedYAMLError(problem=says), None)

    def refuse_syntax(self, error: MarkedYAMLError, mark: StringMark | None) -> NoReturn:
        slug, what, why, help = syntax(str(error.problem or error.context), str(error.context or ""))
        place = self.source.place_at(mark.index if mark is not None else self.reached)
        opened = error.context_mark
        if opened is not None and "flow" in str(error.context) and opened.line + 1 < place.line:
            why += f"; it was opened on line {opened.line + 1}"
        refuse(self.source, slug, what, why, help, place)

    def refuse_empty(self) -> NoReturn:
        refuse(
            self.source,
            "empty-file",
            "this file holds no data",
            "a spec is a mapping that names the algorithm and answers five questions",
            "start from a shipped one: specc new NAME --from reinforcepp",
        )

    def note(self, event: Event, slug: str, what: str, why: str, help: str, loc: Loc | None = None) -> None:
        """A problem that the reading goes on after; a value at `loc` has no meaning."""
        place = self.source.place_at(event.start_mark.index, event.end_mark.index)
        self.source.problems.append(Problem(slug, what, why, help, place, source=self.source))
        if loc is not None:
            self.source.broken.add(loc)

    def take(self, event: Event) -> None:
        if isinstance(event, DocumentStartEvent):
            self.start_document(event)
        elif isinstance(event, CollectionEndEvent):
            self.close(event)
        elif isinstance(event, NodeEvent):
            self.count(event)
            if self.stack and self.stack[-1].awaits_key:
                self.take_key(event)
            else:
                self.take_value(event)

    def start_document(self, event: DocumentStartEvent) -> None:
        self.documents += 1
        if self.documents > 1:
            refuse(
                self.source,
                "several-documents",
                "a second YAML document starts here",
                "a file holds one spec",
                "remove the `---`, or move what follows into a file of its own",
                self.source.place_at(event.start_mark.index, event.end_mark.index),
            )
        if event.version not in (None, (1, 2)) or event.tags:
            refuse(
                self.source,
                "not-plain-data",
                "a spec has no YAML directives",
                "specs are read as YAML 1.2 with its core types; a directive would change what the words below mean",
                "remove the line that starts with %",
                self.source.place_at(max(0, self.source.text.find("%")), event.start_mark.index),
            )

    def count(self, event: Event) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            refuse(
                self.source,
                "too-large",
                f"this file has more than {MAX_NODES:,} entries",
                "a spec has a few dozen, so this is probably another file",
                "name the spec's YAML file",
                self.source.place_at(event.start_mark.index),
            )

    def take_key(self, event: NodeEvent) -> None:
        frame = self.stack[-1]
        if not isinstance(event, ScalarEvent):
            refuse(
                self.source,
                "bad-key",
                "a key must be a word",
                "a list, a mapping or an alias stands here as a key",
                "write `key: value`",
                self.source.place_at(event.start_mark.index, event.end_mark.index),
            )
        frame.key = str(event.value)
        loc = frame.next_loc()
        assert isinstance(frame.container, dict)
        self.check_key(event, loc, known=frame.key in frame.container)
        place = self.source.place_at(event.start_mark.index, event.end_mark.index)
        self.source.keys.setdefault(loc, place)

    def check_key(self, event: ScalarEvent, loc: Loc, known: bool) -> None:
        name = shown(event.value)
        plain = event.implicit[0]
        if known:
            self.note(
                event,
                "duplicate-key",
                f"the key {name} is here a second time",
                f"it is already on line {self.source.keys[loc].line}, and only one of the two could count",
                "remove one of them",
            )
        elif plain and event.value == "<<":
            self.note(
                event,
                "not-plain-data",
                "merge keys (`<<`) are not part of the language",
                "a spec says each thing where it stands",
                "write the fields out",
                loc,
            )
        elif plain and not isinstance(resolve(event.value), str):
            self.note(
                event,
                "bad-key",
                f"a key must be a word, and {name if event.value else 'this one'} is {kind_of(resolve(event.value))}",
                "the keys of a spec are the names of questions and of their fields",
                "remove it, or write the key that was meant",
                loc,
            )
        self.check_node(event, loc)

    def take_value(self, event: NodeEvent) -> None:
        loc = self.stack[-1].next_loc() if self.stack else ()
        self.check_node(event, loc)
        place = self.source.place_at(event.start_mark.index, event.end_mark.index)
        if isinstance(event, ScalarEvent) and event.start_mark.index == event.end_mark.index:
            # Nothing is written, and the parser is at the next thing already.
            place = self.source.keys.get(loc, place)
        self.source.values.setdefault(loc, place)
        if isinstance(event, MappingStartEvent | SequenceStartEvent):
            self.open(event, loc)
        elif not self.stack:
            self.refuse_root(event)
        else:
            value = self.scalar(event, loc) if isinstance(event, ScalarEvent) else None
            self.stack[-1].add(value)

    def check_node(self, event: NodeEvent, loc: Loc) -> None:
        """Refuses what is not plain data: aliases, anchors and tags."""
        tag = getattr(event, "tag", None)
        if isinstance(event, AliasEvent):
            found, edit = f"alias {shown('*' + str(event.anchor))}", "write the value out"
        elif event.anchor is not None:
            found, edit = (
                f"anchor {shown('&' + str(event.anchor))}",
                "remove it, and write the value out where it is used",
            )
        elif tag is not None:
            found = f"tag {shown(str(tag).replace('tag:yaml.org,2002:', '!!'))}"
            edit = "remove it; text that looks like a number goes in quotes"
        else:
            return
        what = f"the {found} is not part of the language"
        self.note(event, "not-plain-data", what, "a spec says each thing where it stands", edit, loc)

    def open(self, event: Event, loc: Loc) -> None:
        container: dict[str, Any] | list[Any] = {} if isinstance(event, MappingStartEvent) else []
        if not self.stack:
            if isinstance(container, list):
                self.refuse_root(event)
            self.source.data = container
        else:
            self.stack[-1].add(container)
        if len(self.stack) >= MAX_DEPTH:
            refuse(
                self.source,
                "too-deep",
                f"blocks are nested more than {MAX_DEPTH} deep here",
                "no field of a spec lies that deep",
                "look for brackets that are not closed",
                self.source.place_at(event.start_mark.index),
            )
        self.stack.append(Open(container, loc, event.start_mark.index))

    def close(self, event: Event) -> None:
        frame = self.stack.pop()
        opened, whole = self.source.values[frame.loc], self.source.place_at(frame.start, event.end_mark.index)
        if opened[:2] == whole[:2]:  # of two values for one key, the first stays
            self.source.values[frame.loc] = whole

    def refuse_root(self, event: Event) -> NoReturn:
        if isinstance(event, ScalarEvent) and event.implicit[0] and event.value == "":
            self.refuse_empty()
        what = "a list" if isinstance(event, SequenceStartEvent) else "a single value"
        refuse(
            self.source,
            "not-a-mapping",
            f"a spec is a mapping of keys to values, and this file is {what}",
            "the five questions are keys: reward, kl, baseline, normalization, objective",
            "write `key: value` lines, with a space after each colon",
            self.source.place_at(event.start_mark.index, event.end_mark.index),
        )

    def scalar(self, event: ScalarEvent, loc: Loc) -> Plain:
        text = str(event.value)
        if UNSEEN.search(text):
            self.note(
                event,
                "control-character",
                "this text holds a control character, written as an escape",
                "it would not be visible wherever the text is shown",
                "remove the escape",
                loc,
            )
            return UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text)
        if not event.implicit[0]:
            return text
        try:
            value = resolve(text)
        except ValueError:
            value = MAX_INT + 1  # more digits than Python converts
        if isinstance(value, int) and abs(value) > MAX_INT:
            self.note(
                event,
                "bad-number",
                f"the number {shown(text)} is too large",
                f"whole numbers go up to {MAX_INT}",
                "write a smaller number",
                loc,
            )
            return 0
        return value


def resolve(text: str) -> Plain:
    """A plain scalar's value in the core schema of YAML 1.2, where 1e-6 is a number and no is a word."""
    if text in NULL:
        return None
    if text in BOOL:
        return BOOL[text]
    if INT.fullmatch(text):
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)
    if FLOAT.fullmatch(text):
        return float(text)
    if INFINITE.fullmatch(text):
        return float(text.lower().replace(".", ""))
    return text


NO_CHARACTER = "escape of no character"

# What the parser says, as a part of its message; its context, likewise; and what, why and help of ours.
SYNTAX = [
    (
        "'\\t'",
        "",
        "tab",
        "a tab stands where YAML allows only spaces",
        "indentation is counted in spaces, and a tab has no width",
        "put two spaces for each tab",
    ),
    (
        "mapping values are not allowed",
        "",
        "bad-yaml",
        "a colon that YAML does not expect here",
        "either this line is indented further than the one before it, or its text has a `: ` in it, or a colon above "
        "has no space after it",
        "align the keys of a block, and write an answer that has fields as `kl: {placement: loss, coefficient: 0.04}`; "
        "put text with a colon in quotes; put a space after each key's colon",
    ),
    (
        "could not find expected ':'",
        "",
        "bad-yaml",
        "this line is not `key: value`",
        "a key needs a colon and a space after it",
        "write `key: value`",
    ),
    (
        "expected ',' or ']'",
        "",
        "bad-yaml",
        "a list in brackets does not go on or end here",
        "its entries are separated by commas, and it ends with `]`",
        "put the missing `,` or `]`",
    ),
    (
        "expected ',' or '}'",
        "",
        "bad-yaml",
        "a block in braces does not go on or end here",
        "its fields are separated by commas, and it ends with `}`",
        "put the missing `,` or `}`",
    ),
    (
        "unexpected end of stream",
        "quoted",
        "bad-yaml",
        "a quote is opened here and never closed",
        "the text in quotes would go on to the end of the file",
        "close the quote",
    ),
    (
        NO_CHARACTER,
        "",
        "bad-yaml",
        "an escape in double quotes that is no character",
        r"after \U stand eight digits of a character of Unicode, which goes up to \U0010FFFF",
        "write the character itself, or its digits",
    ),
    (
        "escape",
        "double-quoted",
        "bad-yaml",
        "a backslash in double quotes starts an escape that YAML does not have",
        "in double quotes a backslash is special",
        "put the text in single quotes, where it is not",
    ),
    (
        "found '<scalar>'",
        "block mapping",
        "bad-yaml",
        "text after a closed quote",
        "a quoted value ends with its closing quote; a single quote in single quotes is written twice",
        "put the whole value in double quotes",
    ),
    (
        "expected <block end>",
        "",
        "bad-yaml",
        "this line does not fit the block that it is in",
        "its indentation, or its `- `, differs from the lines before it",
        "align it with the other lines of the block",
    ),
    (
        "cannot start any token",
        "",
        "bad-yaml",
        "a value cannot start with this character",
        "YAML keeps it for itself",
        "put the value in quotes",
    ),
    (
        "expected the node content",
        "",
        "bad-yaml",
        "a value is missing here",
        "a bracket, a brace or the end of the document stands where a value should be",
        "write the value, or remove the bracket that has no partner",
    ),
]


def syntax(problem: str, context: str) -> tuple[str, str, str, str]:
    """Slug, what, why and help for an error of the YAML parser."""
    for says, within, slug, what, why, help in SYNTAX:
        if says in problem and within in context:
            return slug, what, why, help
    where = f", {context}" if context else ""
    why = f"the parser says: {shown(problem + where, 200, quote='')}"
    return "bad-yaml", "this is not YAML", why, "retype the line, or start from a shipped spec"
