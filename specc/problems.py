"""What is wrong with a spec, said so that the next edit is clear: what, where, why, and how to fix it.

Every problem has a slug, which is stable, and a place in the file. pydantic's errors are translated here; names of
answers, fields and bounds are read off the live classes, so a new answer needs no new message.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeGuard, Union, get_args, get_origin

from specc import paths
from specc.synonyms import Term, terms, word_for

if TYPE_CHECKING:
    from pydantic import ValidationError

    from specc.answers.base import Block, Finding
    from specc.source import Source

Loc = tuple[str | int, ...]

EXCERPT_WIDTH = 100
NAMES_AT_MOST = 6


class Place(NamedTuple):
    """A stretch of one line: line and column count from 1, in characters."""

    line: int
    col: int
    length: int


@dataclass(frozen=True)
class Problem:
    """An error or a warning about a file; `place` is None when it is about the file as such."""

    slug: str
    what: str
    why: str
    help: str
    place: Place | None = None
    warning: bool = False
    source: Source | None = None

    @property
    def kind(self) -> str:
        return "warning" if self.warning else "error"


class SpecError(Exception):
    """All problems of a run, at least one of them an error."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__(render(self.problems))


# --- the printer ---


def render(problems: Iterable[Problem], color: bool = False) -> str:
    """The problems as text, in the order of the files given and of the places in them, an empty line between two."""
    ordered = list(problems)
    files = list(dict.fromkeys(path_of(problem) for problem in ordered))
    ordered.sort(key=lambda problem: (files.index(path_of(problem)), problem.place or Place(0, 0, 0), problem.slug))
    return "\n\n".join("\n".join(lines_of(problem, color)) for problem in ordered)


def path_of(problem: Problem) -> str:
    return problem.source.path if problem.source is not None else "<spec>"


def lines_of(problem: Problem, color: bool) -> Iterator[str]:
    place = problem.place
    tone = "yellow" if problem.warning else "red"
    where = f"{visible(path_of(problem))}:{place.line}:{place.col}" if place else visible(path_of(problem))
    label = styled(f"{problem.kind}[{linked(problem.slug, color)}]:", color, fg=tone, bold=True)
    yield f"{where}: {label} {visible(problem.what)}"
    if place and problem.source is not None:
        yield from excerpt(problem.source.line(place.line), place, color, tone)
    yield f"  {styled('why:', color, bold=True)}  {visible(problem.why)}"
    yield f"  {styled('help:', color, bold=True)} {visible(problem.help)}"


def excerpt(line: str, place: Place, color: bool, tone: str) -> Iterator[str]:
    """The line with a row of carets under the place; of a long line, the part around the place."""
    start = max(0, place.col - 1 - EXCERPT_WIDTH // 2) if len(line) > EXCERPT_WIDTH else 0
    shown_line = visible(line[start : start + EXCERPT_WIDTH])
    before = place.col - 1 - start
    length = max(1, min(place.length, len(shown_line) - before))
    gutter = f"  {place.line} | "
    empty = " " * (len(gutter) - 2) + "| "
    carets = "^" * max(1, width(shown_line[before : before + length]))
    yield (gutter + shown_line).rstrip()
    yield empty + " " * width(shown_line[:before]) + styled(carets, color, fg=tone)


def visible(text: str) -> str:
    """`text` on one line, with nothing in it that a terminal would act upon."""
    return "".join(one_character(character) for character in text)


def one_character(character: str) -> str:
    if character == "\t":
        return "\N{RIGHTWARDS ARROW}"  # where a tab is the mistake, it is to be seen
    if character.isspace():
        return " "
    return "\N{REPLACEMENT CHARACTER}" if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Cn") else character


def width(text: str) -> int:
    """The cells that a terminal shows `text` in."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def linked(slug: str, color: bool) -> str:
    """The slug, in colour with a link to its section of the docs (OSC 8, which terminals without links ignore)."""
    if not color:
        return slug
    from specc.error_page import address

    return f"\x1b]8;;{address(slug)}\x1b\\{slug}\x1b]8;;\x1b\\"


def styled(text: str, color: bool, **style: Any) -> str:
    if not color:
        return text
    import click

    return click.style(text, **style)


# --- words of the messages ---


def shown(value: object, limit: int = 60, quote: str = "`") -> str:
    """A value of the file in a message: as YAML writes it, in backquotes, on one line and not too long."""
    words = {True: "true", False: "false", None: "null"}
    text = words[value] if value is None or isinstance(value, bool) else str(value)
    text = visible(text)
    return f"{quote}{text if len(text) <= limit else text[: limit - 3] + '...'}{quote}"


def kind_of(value: object) -> str:
    """What a piece of data is."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "a truth value"
    kinds = {int: "a number", float: "a number", str: "text", list: "a list", dict: "a block of fields"}
    return kinds.get(type(value), type(value).__name__)


def listed(names: Iterable[str], last: str = "or") -> str:
    """`a, b or c`."""
    every = list(names)
    return f" {last} ".join([", ".join(every[:-1]), every[-1]]) if len(every) > 1 else "".join(every)


def closest(word: object, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The name that was probably meant; `cutoff` is difflib's, 1 for the same letters only."""
    plain = {name: name for name in names}
    wanted = re.sub(r"[\s-]+", "_", str(word).strip().lower())
    if wanted in plain:
        return wanted
    return next(iter(difflib.get_close_matches(wanted, plain, n=1, cutoff=cutoff)), None)


def wanted(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What a field takes, in words, from its type: `a number above 0`, `one of k1, k2, k3`."""
    if get_origin(annotation) is Annotated:
        base, *more = get_args(annotation)
        return wanted(base, [*metadata, *more])
    if get_origin(annotation) in (Union, UnionType):
        # A union of several literals and types names each of them; None only says that the field may be absent.
        return " or ".join(dict.fromkeys(wanted(arm, metadata) for arm in get_args(annotation) if arm is not NoneType))
    if get_origin(annotation) is Literal:
        choices = [str(word) for word in get_args(annotation)]
        return f"one of {', '.join(choices)}" if len(choices) > 1 else f"`{choices[0]}`"
    if get_origin(annotation) is list:
        return "a list"
    if fields := getattr(annotation, "model_fields", None):
        names = ", ".join(fields)
        return f"a list [{names}]" if reads_list(metadata) else f"a block {{{names}}}"
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
    return words.get(annotation, getattr(annotation, "TAKES", "a value")) + bounds(metadata)


def reads_list(metadata: Iterable[Any]) -> bool:
    """Whether a block may be written as the list of its fields' values: such a field has a validator that reads it."""
    return any(type(item).__name__ == "BeforeValidator" for item in metadata)


def bounds(metadata: Iterable[Any]) -> str:
    """` above 0 and at most 1`, from the constraints on a type."""
    says = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most"}
    found = []
    for item in metadata:
        for limit in (item, *getattr(item, "metadata", ())):
            found += [f"{word} {getattr(limit, name):g}" for name, word in says.items() if hasattr(limit, name)]
    return f" {' and '.join(found)}".replace(" and of ", " and ") if found else ""


# --- pydantic's errors ---


@dataclass(frozen=True)
class Wrong:
    """One error of pydantic: `loc` is its place in the data, `path` the same in field names (`[low, high]` has two)."""

    kind: str
    loc: Loc
    path: Loc
    value: Any
    context: Mapping[str, Any]
    message: str
    source: Source

    @property
    def data(self) -> Mapping[str, Any]:
        return self.source.data

    @property
    def field(self) -> str:
        return next((part for part in reversed(self.path) if isinstance(part, str)), "")

    @property
    def dotted(self) -> str:
        """`kl.coefficient`."""
        return "`" + ".".join(map(str, self.path)) + "`"

    @property
    def block(self) -> type[Block] | None:
        """The class of the block that the field is in."""
        return block_at(self.path[:-1], self.data)

    @property
    def info(self) -> Any:
        return getattr(self.block, "model_fields", {}).get(self.path[-1]) if self.path else None

    @property
    def takes(self) -> str:
        """What the field takes, in words."""
        return wanted(self.info.annotation, self.info.metadata) if self.info is not None else "another value"

    @property
    def meaning(self) -> str:
        """What the field is for."""
        description = " ".join((self.info.description or "").split()) if self.info is not None else ""
        return f"{self.field}: {description}" if description else f"{self.field} takes {self.takes}"


class Says(NamedTuple):
    """The text of a problem."""

    slug: str
    what: str
    why: str
    help: str


def from_validation(error: ValidationError, source: Source) -> list[Problem]:
    """The problems that pydantic found, one for each edit that is to be made."""
    found = [in_file(details, source) for details in error.errors(include_url=False)]
    found = [wrong for wrong in found if not any(wrong.loc[: len(loc)] == loc for loc in source.broken)]
    meant = misspelt(found)
    problems: dict[tuple[Loc, str], Problem] = {}
    for wrong in without_echoes(found):
        for problem in wrong.context.get("problems", ()):  # they have places in another file
            problems.setdefault((wrong.loc, f"{problem.what} {problem.place}"), problem)
        if "problems" in wrong.context:
            continue
        if wrong.kind == "missing" and wrong.loc in meant.values():
            continue  # its key is there, misspelt
        says = unknown_key(wrong, meant.get(wrong.loc)) if wrong.kind == "extra_forbidden" else say(wrong)
        loc, key = to_mark(wrong)
        place = source.place(loc, key=key)
        problems.setdefault((wrong.loc, says.slug), Problem(*says, place, source=source))
    return list(problems.values())


def to_mark(wrong: Wrong) -> tuple[Loc, bool]:
    """What of the file an error points at, and whether it is the key."""
    if wrong.kind == "union_tag_invalid" and isinstance(wrong.data[str(wrong.loc[0])], dict):
        return (*wrong.loc, discriminator_of(wrong)), False
    if wrong.kind == "union_tag_not_found" and (key := misspelt_discriminator(wrong)) is not None:
        return (*wrong.loc, key), True
    return wrong.loc, wrong.kind in ("extra_forbidden", "missing")


def from_finding(finding: Finding, source: Source) -> Problem:
    """What an answer says about the rest of the spec, with its place."""
    loc, _ = in_data(finding.loc, source.data)  # of a field that is left at its default, the block
    place = source.place(loc, key=finding.at_key)
    return Problem(finding.slug, finding.what, finding.why, finding.help, place, finding.warning, source)


def in_file(details: Any, source: Source) -> Wrong:
    """The error with the loc that the file has: pydantic's names the arm of a union, too."""
    loc: Loc = details["loc"]
    if len(loc) > 1 and is_question(loc[0]):
        loc = (loc[0], *loc[2:])
    loc, path = in_data(loc, source.data, keep_last=details["type"] == "missing")
    return Wrong(details["type"], loc, path, details["input"], details.get("ctx", {}), details["msg"], source)


def in_data(loc: Loc, data: Any, keep_last: bool = False) -> tuple[Loc, Loc]:
    """The parts of `loc` that the data has, and the same in field names: `[low, high]` holds fields by position."""
    found: list[str | int] = []
    path: list[str | int] = []
    here = data
    for index, part in enumerate(loc):
        inside: Any = position(path, part, data) if isinstance(here, list) and isinstance(part, str) else part
        if (isinstance(here, dict) and inside in here) or (isinstance(here, list) and inside in range(len(here))):
            found.append(inside)
            path.append(part)
            here = here[inside]
        elif keep_last and index == len(loc) - 1:
            found.append(part)
            path.append(part)
    return tuple(found), tuple(path)


def position(path: list[str | int], field: str, data: Mapping[str, Any]) -> int:
    """The position of a field in the list that stands for its block, -1 when it is none."""
    names = list(getattr(block_at(tuple(path), data), "model_fields", {}))
    return names.index(field) if field in names else -1


def block_at(loc: Loc, data: Mapping[str, Any]) -> type[Block] | None:
    """The class of the block at `loc` of a spec's data, where the data says enough to know it."""
    from specc.answers import QUESTIONS, answers_to
    from specc.spec import Spec

    block: Any = Spec
    for depth, part in enumerate(loc):
        if depth == 0 and part in QUESTIONS:
            block = answers_to(str(part)).get(given_answer(str(part), data))
        elif isinstance(part, str):
            info = getattr(block, "model_fields", {}).get(part)
            block = nested_block(info.annotation) if info is not None else None
    return block  # type: ignore[no-any-return]


def nested_block(annotation: Any) -> type[Block] | None:
    """The block among the arms of a type."""
    if hasattr(annotation, "model_fields"):
        return annotation  # type: ignore[no-any-return]
    return next((block for arm in get_args(annotation) if (block := nested_block(arm)) is not None), None)


def given_answer(question: str, data: Mapping[str, Any]) -> str:
    """The answer that the file gives to a question, in the short or the long form."""
    from specc.answers import QUESTIONS

    answer = data.get(question)
    answer = answer.get(QUESTIONS[question].discriminator) if isinstance(answer, dict) else answer
    return answer if isinstance(answer, str) else ""


def name_of_block(loc: Loc, data: Mapping[str, Any]) -> str:
    """`kl: loss`, `sampling`, `reward.overlong`, or a spec."""
    if not loc:
        return "a spec"
    answer = given_answer(str(loc[0]), data) if len(loc) == 1 and is_question(loc[0]) else ""
    return f"`{loc[0]}: {answer}`" if answer else "`" + ".".join(map(str, loc)) + "`"


def is_question(word: object) -> bool:
    from specc.answers import QUESTIONS

    return word in QUESTIONS


def without_echoes(found: list[Wrong]) -> Iterator[Wrong]:
    """Without the arms of a union that the value was not meant for: that a block is no number, or the reverse."""
    inner = {wrong.loc[:end] for wrong in found for end in range(len(wrong.loc))}
    valued = {wrong.loc for wrong in found if wrong.kind != "model_type"}
    for wrong in found:
        no_block = wrong.kind == "model_type" and wrong.loc in valued
        if not (wrong.loc in inner and isinstance(wrong.value, dict | list) and wrong.loc) and not no_block:
            yield wrong


def misspelt(found: list[Wrong]) -> dict[Loc, Loc]:
    """The unknown keys that are missing ones, misspelt: loc of the first to loc of the second."""
    pairs: dict[Loc, Loc] = {}
    for wrong in found:
        if wrong.kind != "extra_forbidden":
            continue
        missing = [
            str(other.loc[-1])
            for other in found
            if other.kind == "missing" and other.loc[:-1] == wrong.loc[:-1] and other.loc not in pairs.values()
        ]
        called = (term.path[-1] for term in terms_of(wrong) if term.path[:-1] == wrong.path[:-1])
        meant = next((name for name in called if name in missing), None) or closest(wrong.field, missing)
        if meant is not None:
            pairs[wrong.loc] = (*wrong.loc[:-1], meant)
    return pairs


def unknown_key(wrong: Wrong, meant: Loc | None) -> Says:
    owner = name_of_block(wrong.loc[:-1], wrong.data)
    fields = list(getattr(wrong.block, "model_fields", {}))
    why = f"its fields are {', '.join(fields)}"
    from specc.answers.base import Answer

    if wrong.block is not None and issubclass(wrong.block, Answer) and len(fields) == 1:
        why = f"{owner} has no fields"
    elif len(wrong.loc) == 1:
        why = f"the keys of a spec are {', '.join(fields)}"
    homes, elsewhere = homes_of(wrong)
    if called := called_here(wrong) or one_level_too_high(wrong):
        help = called
    elif meant is not None:
        help = f"did you mean `{meant[-1]}`?"
    elif len(wrong.loc) == 1 and (algorithm := shipped(wrong.value)) is not None:
        help = f"remove it; `specc new NAME --from {algorithm}` writes a spec with the answers of {algorithm}"
    elif ":" in wrong.field:
        help = f"put a space after the colon: {shown(wrong.field.replace(':', ': ', 1))}"
    elif homes:
        help = f"`{wrong.field}` is a field of {listed(homes[:NAMES_AT_MOST])}: move it there, or remove it"
    elif called := called_elsewhere(wrong):
        help = called
    elif elsewhere:
        help = f"`{wrong.field}` is a field of {listed(elsewhere[:NAMES_AT_MOST])}: move it there, or remove it"
    elif (near := closest(wrong.field, fields)) is not None:
        help = f"did you mean `{near}`?"
    else:
        help = "remove it"
    return Says("unknown-key", f"{owner} has no field {shown(wrong.field)}", why, help)


def homes_of(wrong: Wrong) -> tuple[list[str], list[str]]:
    """The blocks that do have a field of this name: those that the spec may have, and those of other answers."""
    from specc.answers import QUESTIONS

    homes = [name for name, block in blocks() if block is not wrong.block and wrong.field in block.model_fields]
    others = {f"`{question}: {name}`" for question in QUESTIONS for name in other_answers(question, wrong.data)}
    return [name for name in homes if name not in others], [name for name in homes if name in others]


def other_answers(question: str, data: Mapping[str, Any]) -> set[str]:
    """The answers that the file does not give to a question, none where it gives no known one."""
    from specc.answers import answers_to

    names, given = set(answers_to(question)), given_answer(question, data)
    return names - {given} if given in names else set()


# --- names that other libraries have for our fields ---


def terms_of(wrong: Wrong) -> list[Term]:
    """What others call so, of the block that it is written in; the first is meant."""
    owner = tuple(map(str, wrong.path[:-1]))
    inside = [term for term in terms(wrong.field) if term.path[: len(owner)] == owner != ()]
    return [term for term in inside if field_at(wrong.block, term.path[len(owner) :]) is not None]


def called_here(wrong: Wrong) -> str:
    """The help for another library's name of a field of this block, empty where it is none."""
    for term in terms_of(wrong):
        path = term.path[len(wrong.path) - 1 :]
        info = field_at(wrong.block, path)
        if is_question(term.path[0]) and len(term.path) == 2 and path[-1] == discriminator_of(wrong):
            return with_note(f"remove it; `{path[-1]}` says this, with one of {listed(choices_at(term))}", term)
        value = as_ours(term, info, wrong.value)
        if len(path) == 1 and value is None:
            return with_note(f"did you mean `{path[0]}`?", term)
        text = value or (shown(wrong.value, quote="") if isinstance(wrong.value, str | int | float) else "...")
        return with_note(f"write `{nested(wrong.block, path, text)}`", term)
    return ""


def one_level_too_high(wrong: Wrong) -> str:
    """The help for a field of the one block inside this one that has it, empty where there is none or are several."""
    if wrong.block is None:
        return ""
    homes = [name for name, block in inner(wrong.block) if wrong.field in block.model_fields]
    if len(homes) != 1 or not isinstance(wrong.value, str | int | float):
        return ""
    return f"write `{nested(wrong.block, (homes[0], wrong.field), shown(wrong.value, quote=''))}`"


def nested(block: Any, path: tuple[str, ...], text: str) -> str:
    """A field as a spec writes it, `text` at the end of the path, with dots for what the blocks on the way need."""
    if len(path) == 1:
        return f"{path[0]}: {text}"
    inside = nested_block(block.model_fields[path[0]].annotation)
    fields = getattr(inside, "model_fields", {})
    needed = [f"{name}: ..." for name, info in fields.items() if info.is_required() and name != path[1]]
    return f"{path[0]}: {{{', '.join([nested(inside, path[1:], text), *needed])}}}"


def called_elsewhere(wrong: Wrong) -> str:
    """The help for another library's name of a field of another block, empty where it is none."""
    from specc.answers import answers_to

    for term in terms(wrong.field):
        question, *path = term.path
        if question in wrong.path[:1] or term.common:
            continue
        if not is_question(question):
            owners = [f"`{question}`"]
        else:
            names = [name for name, cls in answers_to(question).items() if field_at(cls, path) is not None]
            others = other_answers(question, wrong.data)
            owners = [f"`{question}: {name}`" for name in names if name not in others or others.issuperset(names)]
        if question in wrong.data and path == [discriminator_of_question(question)]:
            return with_note(f"remove it; `{question}` says this, with one of {listed(choices_at(term))}", term)
        if path == [discriminator_of_question(question)]:
            return with_note(f"write `{question}: ANSWER`, with one of {listed(choices_at(term))}", term)
        where = f"`{'.'.join(path)}`, a field of {listed(owners[:NAMES_AT_MOST])}"
        return with_note(f"here this is {where}: move it there, or remove it", term)
    return ""


def with_note(help: str, term: Term) -> str:
    return f"{help}{' ' if help.endswith('?') else '; '}{term.note}" if term.note else help


def choices_at(term: Term) -> list[str]:
    from specc.answers import answers_to

    return list(answers_to(term.path[0]))


def field_at(block: Any, path: Iterable[str]) -> Any:
    """The field at a path of names inside a block, None where there is none."""
    info = None
    for name in path:
        info = getattr(block, "model_fields", {}).get(name)
        block = nested_block(info.annotation) if info is not None else None
    return info


def as_ours(term: Term, info: Any, value: Any) -> str | None:
    """The value as our field takes it, where that is another one."""
    choices = list(choices_of(info.annotation))
    if isinstance(value, str) and choices:
        word = word_for(term.field, value) or closest(value, choices)
        return word if word != value else None
    return filled(info, value)


def blocks() -> Iterator[tuple[str, type[Block]]]:
    """Every block of the language with the name that messages call it by."""
    from specc.answers import QUESTIONS, answers_to
    from specc.spec import Spec

    yield "the spec itself, at the left margin", Spec
    for question in QUESTIONS:
        for answer, cls in answers_to(question).items():
            yield f"`{question}: {answer}`", cls
        found = (item for cls in answers_to(question).values() for item in inner(cls))
        yield from {block: (f"`{question}.{name}`", block) for name, block in found}.values()
    for name, block in inner(Spec):
        if name not in QUESTIONS:
            yield f"`{name}`", block


def inner(block: type[Block]) -> Iterator[tuple[str, type[Block]]]:
    for name, info in block.model_fields.items():
        if (found := nested_block(info.annotation)) is not None:
            yield name, found


def missing(wrong: Wrong) -> Says:
    from specc.answers import ASKED, QUESTIONS, answers_to

    field = wrong.field
    if len(wrong.loc) == 1 and field in QUESTIONS:
        return Says(
            "missing-question",
            f'no answer to "{ASKED[field]}"',
            "all five questions are answered in every spec: a silent default is how papers stop being comparable",
            f"add a line `{field}: ANSWER` with one of {', '.join(answers_to(field))}",
        )
    owner = name_of_block(wrong.loc[:-1], wrong.data)
    return Says("missing-field", f"{owner} needs `{field}`", wrong.meaning, add_field(wrong))


def add_field(wrong: Wrong) -> str:
    from specc.answers import QUESTIONS

    field, takes = wrong.field, f"with {wrong.takes} in place of the dots"
    if len(wrong.loc) == 1:
        word = identifier(Path(wrong.source.path).stem) if field == "name" else "..."
        return f"add a line `{field}: {word}`" + (f", {takes}" if word == "..." else "")
    question = str(wrong.loc[0])
    if isinstance(wrong.data.get(question), str):  # the short form has no room for it
        answer = wrong.data[question]
        return f"write `{question}: {{{QUESTIONS[question].discriminator}: {answer}, {field}: ...}}`, {takes}"
    return f"add `{field}: ...`, {takes}"


def identifier(text: str) -> str:
    """A name that looks like `text` and is allowed."""
    from specc.spec import is_name

    word = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower() or "algorithm"
    try:
        return is_name(word)
    except ValueError:
        return f"my_{word}"


def unknown_answer(wrong: Wrong) -> Says:
    from specc.answers import ASKED, QUESTIONS, answers_to

    question = str(wrong.loc[0])
    discriminator = QUESTIONS[question].discriminator
    names = answers_to(question)
    given = wrong.data[question]
    given = given.get(discriminator) if isinstance(given, dict) else given
    why = f'a spec answers "{ASKED[question]}" with one of {", ".join(names)}'
    if not isinstance(given, str):
        what = f"`{question}` is empty" if given is None else f"{shown(given)} is not an answer to `{question}`"
        if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str) and given[0] in names:
            return Says("unknown-answer", what, why, f"write `{discriminator}: {given[0]}`, without brackets")
        taking = [
            written_out(question, name, given) for name in names if is_number(given) and needs_number(names[name])
        ]
        forms = taking or [next(iter(names))]
        help = f"write `{question}: {forms[0]}`"
        help += "".join(f", or `{form}`" for form in forms[1:]) or ", or another of them" * (not taking)
        return Says("unknown-answer", what, why, help)
    near = word_for(f"{question}.{discriminator}", given)
    if near is None and (near := answer_of_algorithm(question, given)) is not None:
        return Says(
            "unknown-answer",
            f"there is no {question} called {shown(given)}",
            why,
            f"did you mean `{near}`? it is the {question} of the algorithm {shown(given)}",
        )
    near = near or closest(given, names)
    help = f"did you mean `{near}`?" if near else f"choose one of them; `specc answers {question}` says what each is"
    return Says("unknown-answer", f"there is no {question} called {shown(given)}", why, help)


def answer_of_algorithm(question: str, name: str) -> str | None:
    """What the shipped algorithm of this name answers to a question, None where there is no such algorithm."""
    from specc.source import read_source

    known = shipped(name)
    return known and (given_answer(question, read_source(paths.find_spec(known)).data) or None)


def shipped(name: object) -> str | None:
    """The shipped algorithm of this name, None where there is none."""
    known = str(name).strip().lower().replace("-", "_")
    return known if known in paths.algorithm_names() else None


def no_answer(wrong: Wrong) -> Says:
    """A block of fields without the word that says which answer it is."""
    from specc.answers import ASKED, QUESTIONS, answers_to

    question = str(wrong.loc[0])
    discriminator = QUESTIONS[question].discriminator
    names = answers_to(question)
    fitting = [name for name, cls in names.items() if set(wrong.value) <= set(cls.model_fields)]
    if (near := misspelt_discriminator(wrong)) is not None:
        help = f"did you mean `{discriminator}` in place of {shown(near)}?"
    else:
        fits = fitting or list(names)
        help = f"add `{discriminator}: {fits[0] if len(fits) == 1 else '...'}`"
        help += f" with one of {', '.join(fits)}" if len(fits) > 1 else ""
    return Says(
        "missing-answer",
        f"`{question}` has fields and does not say which answer they are of",
        f'`{discriminator}` answers "{ASKED[question]}"',
        help,
    )


def discriminator_of(wrong: Wrong) -> str:
    return discriminator_of_question(str(wrong.loc[0]))


def discriminator_of_question(question: str) -> str:
    """The key whose word is the answer; empty for a block that is no question."""
    from specc.answers import QUESTIONS

    return QUESTIONS[question].discriminator if question in QUESTIONS else ""


def misspelt_discriminator(wrong: Wrong) -> str | None:
    """The key that is like it, or that has one of the answers and is no field of any."""
    from specc.answers import answers_to

    names = answers_to(str(wrong.loc[0]))
    fields = {field for cls in names.values() for field in cls.model_fields}
    like = [key for key in wrong.value if closest(key, [discriminator_of(wrong)])]
    told = [key for key, value in wrong.value.items() if isinstance(value, str) and value in names]
    return next((key for key in [*like, *told] if key not in fields), None)


def wrong_type(wrong: Wrong) -> Says:
    if len(wrong.loc) == 1 and is_question(wrong.loc[0]):
        return unknown_answer(wrong) if not isinstance(wrong.value, list) else several_answers(wrong)
    value = wrong.value
    given = f"a list of {len(value)}" if isinstance(value, list) else kind_of(value)
    if isinstance(value, float) and wrong.kind == "int_type":
        given = "written with a decimal point"
    subject = shown(value) if isinstance(value, str | int | float) else "this"
    what = f"{wrong.dotted} takes {wrong.takes}, and {subject} is {given}"
    return Says("wrong-type", what, wrong.meaning, retyped(wrong))


def several_answers(wrong: Wrong) -> Says:
    question = str(wrong.loc[0])
    first = wrong.value[0] if wrong.value and isinstance(wrong.value[0], str) else "..."
    return Says(
        "wrong-type",
        f"`{question}` takes one answer, and this is a list",
        "each of the five questions has one answer",
        f"write `{question}: {written_out(question, first)}`",
    )


def needs_number(answer: type[Block]) -> bool:
    """Whether an answer has one field that has to be given, and that may be a number."""
    needed = [info for info in answer.model_fields.values() if info.is_required()]
    return len(needed) == 1 and bool({int, float} & {plain(arm) for arm in arms(needed[0].annotation)})


def arms(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def plain(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def written_out(question: str, answer: str, value: Any = "...") -> str:
    """An answer as a spec writes it, with dots or `value` for the fields that it needs."""
    from specc.answers import QUESTIONS, answers_to

    key = QUESTIONS[question].discriminator
    fields = getattr(answers_to(question).get(answer), "model_fields", {})
    needed = [name for name, info in fields.items() if info.is_required() and name != key]
    text = shown(answer, quote="")
    return f"{{{key}: {text}, {', '.join(f'{name}: {value}' for name in needed)}}}" if needed else text


def retyped(wrong: Wrong) -> str:
    """The edit that gives a value the type that its field takes."""
    value, field = wrong.value, wrong.field
    if isinstance(value, list) and len(value) == 1 and wrong.kind in ("int_type", "float_type", "bool_type"):
        return f"write {shown(value[0], quote='')}, without brackets"
    if value is None:
        required = wrong.info is None or wrong.info.is_required()
        return f"write {wrong.takes} after `{field}:`" if required else "write a value, or remove the line"
    if wrong.kind == "string_type" and isinstance(value, int | float):
        return f'put it in quotes: "{shown(value, quote="")}"'
    if wrong.kind == "list_type" and isinstance(value, str):
        return f"put it in brackets: {field}: [{shown(value, quote='')}]"
    if wrong.kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"write `{field}: {block_form(wrong)}`"
    if isinstance(value, float) and value.is_integer() and wrong.kind == "int_type":
        return f"write {int(value)}, without a decimal point"
    if isinstance(value, str) and wrong.kind in ("bool_type", "int_type", "float_type"):
        return read_as_meant(wrong, value)
    return f"write {wrong.takes}"


def block_form(wrong: Wrong) -> str:
    """How the block that a field takes is written, with the value that was given where that says enough."""
    names = list(getattr(block_at(wrong.path, wrong.data), "model_fields", {}))
    if wrong.info is not None and (text := filled(wrong.info, wrong.value)):
        return text
    if wrong.info is not None and reads_list(wrong.info.metadata):
        return f"[{', '.join(names)}]"
    return f"{{{', '.join(f'{name}: ...' for name in names)}}}"


def filled(info: Any, value: Any) -> str | None:
    """A block with the numbers given for it: one each, or one for all where these have one default, as in a clip."""
    from specc.source import resolve

    fields = getattr(nested_block(info.annotation), "model_fields", {})
    usual = {name: field for name, field in fields.items() if field.is_required() or field.default is not None}
    given = value if isinstance(value, list) else [value]
    values = [resolve(item) if isinstance(item, str) else item for item in given]
    if len(usual) < 2 or not all(map(is_number, values)):
        return None
    optional = not any(field.is_required() for field in usual.values())
    if len(values) == 1 and optional and len({field.default for field in usual.values()}) == 1:
        values = values * len(usual)
    if len(values) != len(usual):
        return None
    if reads_list(info.metadata):
        return f"[{', '.join(f'{number:g}' for number in values)}]"
    return "{" + ", ".join(f"{name}: {number:g}" for name, number in zip(usual, values, strict=True)) + "}"


def read_as_meant(wrong: Wrong, text: str) -> str:
    """The edit for a text that was meant as a number or a truth value."""
    from specc.source import resolve

    truths = dict.fromkeys(("yes", "on", "y", "true"), "true") | dict.fromkeys(("no", "off", "n", "false"), "false")
    if wrong.kind == "bool_type":
        word = truths.get(text.lower())
        return f"write {word}, without quotes" if word else "write true or false"
    number = resolve(text)
    if is_number(number):
        return f"remove the quotes: {wrong.field}: {text}"
    number = resolve(text.removesuffix("%").replace("_", "").replace(",", ".").strip())
    if not is_number(number):
        return f"write {wrong.takes}"
    return f"write {number / 100 if text.endswith('%') else number:g}"


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def out_of_range(wrong: Wrong) -> Says:
    needed = "finite" if wrong.kind == "finite_number" else wrong.takes
    what = f"{wrong.dotted} is {shown(wrong.value, quote='')}, and must be {needed}"
    return Says("out-of-range", what, wrong.meaning, f"write {wrong.takes}{without(wrong)}")


def without(wrong: Wrong) -> str:
    """How to have none of a thing, where 0 of it was written."""
    if wrong.value != 0 or wrong.info is None or wrong.kind != "greater_than":
        return ""
    if wrong.info.default is None:
        return f", or remove `{wrong.field}` to have none"
    if wrong.info.is_required() and len(wrong.loc) == 2 and is_question(wrong.loc[0]):
        from specc.answers import answers_to

        question = str(wrong.loc[0])
        return f", or `{question}: none` to have none" * ("none" in answers_to(question))
    return ""


def unknown_choice(wrong: Wrong) -> Says:
    if wrong.loc == ("specc",):
        return unknown_version(wrong)
    choices = list(choices_of(wrong.info.annotation)) if wrong.info is not None else []
    near = word_for(".".join(map(str, wrong.path)), wrong.value) or closest(wrong.value, choices)
    near = near if near in choices else None
    others = [name for name in homes_of_choice(wrong) if near is None]
    why = wrong.meaning
    if near is not None:
        help = f"did you mean `{near}`?"
        why += f"; it is one of {', '.join(choices)}"
    elif others:
        help = f"choose one of {listed(choices)}; {shown(wrong.value)} is a choice of {listed(others)}"
    else:
        help = f"choose one of {listed(choices)}" if len(choices) > 1 else f"write {wrong.takes}"
    return Says("unknown-choice", f"{wrong.dotted} cannot be {shown(wrong.value)}", why, help)


def choices_of(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    else:
        for arm in get_args(annotation):
            yield from choices_of(arm)


def homes_of_choice(wrong: Wrong) -> list[str]:
    """The other answers to the question in which the field of this name does have this choice."""
    from specc.answers import answers_to

    if len(wrong.loc) != 2 or not is_question(wrong.loc[0]):
        return []
    question, field = str(wrong.loc[0]), wrong.field
    return [
        f"`{question}: {name}`"
        for name, cls in answers_to(question).items()
        if field in cls.model_fields and str(wrong.value) in choices_of(cls.model_fields[field].annotation)
    ]


def unknown_version(wrong: Wrong) -> Says:
    return Says(
        "unknown-version",
        f"this spec is in version {shown(wrong.value)} of the language, and this specc reads version 1",
        "`specc` names the version of the language, so that a later one can change what a word means",
        "write `specc: 1` or leave it out; for a later version, upgrade: pip install -U specc",
    )


def too_long(wrong: Wrong) -> Says:
    limit = wrong.context.get("max_length")
    unit = "characters" if isinstance(wrong.value, str) else "entries"
    what = f"{wrong.dotted} has {len(wrong.value)} {unit}, and at most {limit} fit"
    return Says("too-long", what, wrong.meaning, "shorten it")


def bad_value(wrong: Wrong) -> Says:
    """What a validator of ours refused, in its own words; and what pydantic may come to say that is not known here."""
    why = str(wrong.context["error"]) if "error" in wrong.context else wrong.message[:1].lower() + wrong.message[1:]
    help = f"write {wrong.takes}"
    if wrong.loc == ("name",):
        help = f"e.g. `name: {identifier(str(wrong.value))}`"
    return Says("bad-value", f"{wrong.dotted} cannot be {shown(wrong.value)}", why, help)


SAYERS: dict[str, Callable[[Wrong], Says]] = {
    "missing": missing,
    "union_tag_invalid": unknown_answer,
    "union_tag_not_found": no_answer,
    "literal_error": unknown_choice,
    "greater_than": out_of_range,
    "greater_than_equal": out_of_range,
    "less_than": out_of_range,
    "less_than_equal": out_of_range,
    "finite_number": out_of_range,
    "string_too_long": too_long,
    "too_long": too_long,
    **dict.fromkeys(("float_type", "int_type", "bool_type", "string_type", "list_type"), wrong_type),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), wrong_type),
    "user_function": lambda wrong: wrong.context["says"],
}


def say(wrong: Wrong) -> Says:
    return SAYERS.get(wrong.kind, bad_value)(wrong)


def as_errors(problems: Iterable[Problem]) -> list[Problem]:
    """The same problems under `--strict`, where a warning is an error."""
    return [replace(problem, warning=False) for problem in problems]
