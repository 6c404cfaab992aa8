"""Good specs, mutated: whatever is in the file, it is accepted or refused with a place, and soon.

    python tests/spec_fuzz.py --minutes 10 --seed 1

Each mutant is a shipped spec after one to three edits of its keys, values, indentation, bytes or YAML. It is written to
a file and taken through what `specc compile` does with it. Prints what was tried and found; exit code 1 where something
was.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from errors import ENTRIES, TESTS

from specc.answers import QUESTIONS, answers_to
from specc.compiler import compile_spec
from specc.load import load_spec
from specc.paths import algorithms_dir
from specc.problems import EXCERPT_WIDTH, Place, Problem, SpecError, as_errors, blocks, choices_of, render, width
from specc.render import render as render_script
from specc.report import explain
from specc.source import parse

SECOND = 1.0
"""what no spec may take to be refused or accepted, in seconds of one core"""

WITHOUT_A_PLACE = {"empty-file", "too-large", "not-utf8", "unreadable-file"}
"""problems that are about the file as such"""

SHIPPED = [path.read_text(encoding="utf-8") for path in sorted(algorithms_dir().glob("*.yaml"))]


def vocabulary() -> tuple[list[str], list[str]]:
    """The keys of the language, and the words that stand as values, off the live classes."""
    keys, words = set(), {"true", "false", "null"}
    for question in QUESTIONS:
        words |= set(answers_to(question))
    for _, block in blocks():
        keys |= set(block.model_fields)
        for info in block.model_fields.values():
            words |= set(choices_of(info.annotation)) if get_args(info.annotation) else set()
    return sorted(keys), sorted(words)


KEYS, WORDS = vocabulary()

NUMBERS = """\
0 -0 1 -1 2 3 7 1.0 4.0 0.5 1e-6 -1e-6 1e308 -1e308 1e999 5e-324 .inf -.inf .nan 1_000 1:30 0x1F 0o17 010 +3 .5 5. 1e
9223372036854775807 9223372036854775808 -9223372036854775809 1,5 50% 2024-01-01 1024 1025 99999999 1000000
""".split()  # noqa: SIM905 - as a list it would be a page
NUMBERS += ["9" * 5000, "0." + "3" * 3000]

ODD_VALUES = [
    *NUMBERS,
    *(f'"{number}"' for number in ("1e-6", "4", "0.2", "true", "null", "")),
    *[
        "~",
        "''",
        "{}",
        "[]",
        "[[]]",
        "{a: 1}",
        "{source: critic}",
        "{adaptive: 1}",
        "{max_variance: 2}",
        "[1]",
        "[1, 2]",
    ],
    *["[a, b, c]", "[-5, 5]", "[5, -5]", "yes", "no", "on", "off", "{low: 0.2}", "{low: 2, high: -1}", "[1, [2, [3]]]"],
    *["{? a : b}", "{a: {b: {c: {d: 1}}}}", "&a 3", "*a", "!!str 3", "!!int '3'", "!custom x", "<<", "=", "@x", "`x`"],
    *["!!python/object/apply:os.system [ls]", "|\n  a\n  b", ">-\n  a", "'it''s'", "'it's'", '"open', "'open", "%"],
    *[
        '"\\x41"',
        '"\\u202e"',
        '"\\UFFFFFFFF"',
        '"\\q"',
        "報酬",
        "a\u0301",
        "\U0001f600",
        "a b c",
        "a: b",
        "a #b",
        "- a",
    ],
    *["? a", "__import__('os')", "{{ 7 * 7 }}", "x" * 500],
]


# --- mutations ---

Edit = Callable[[random.Random, str], str]


def spans(text: str, which: str) -> list[tuple[int, int]]:
    """Where the keys or the values of a text are, where it can be read."""
    try:
        source = parse(text)
    except SpecError:
        return [match.span() for match in re.finditer(r"[\w.]+", text)] or [(0, len(text))]
    places: list[Place] = list(getattr(source, which).values())
    starts = [source.line_starts[place.line - 1] + place.col - 1 for place in places]
    return [(start, start + place.length) for start, place in zip(starts, places, strict=True)] or [(0, len(text))]


def replaced(text: str, span: tuple[int, int], new: str) -> str:
    return text[: span[0]] + new + text[span[1] :]


def misspelt(rng: random.Random, word: str) -> str:
    at = rng.randrange(len(word) + 1)
    return rng.choice(
        [word[:at] + word[at + 1 :], word[:at] + rng.choice("xe_-1 ") + word[at:], word.upper(), word.replace("_", "-")]
    )


def rename_key(rng: random.Random, text: str) -> str:
    span = rng.choice(spans(text, "keys"))
    word = text[slice(*span)]
    odd = ["1", "''", "true", "null", "1e-6", "[a]", "{a: b}", "? a", "<<", "a b", "&a key", "*a", "'", "報酬", ""]
    return replaced(
        text, span, rng.choice([misspelt(rng, word), misspelt(rng, word), rng.choice(KEYS), rng.choice(odd)])
    )


def replace_value(rng: random.Random, text: str) -> str:
    return replaced(text, rng.choice(spans(text, "values")), rng.choice([rng.choice(WORDS), rng.choice(ODD_VALUES)]))


def replace_number(rng: random.Random, text: str) -> str:
    found = [match.span() for match in re.finditer(r"(?<![\w.])-?\d[\d.e-]*", text)] or [(0, 0)]
    return replaced(text, rng.choice(found), rng.choice(NUMBERS))


def misspell_value(rng: random.Random, text: str) -> str:
    span = rng.choice(spans(text, "values"))
    return replaced(text, span, misspelt(rng, text[slice(*span)]))


def swap_values(rng: random.Random, text: str) -> str:
    first, last = sorted([rng.choice(spans(text, "values")), rng.choice(spans(text, "values"))])
    if first[1] > last[0]:
        return text
    return text[: first[0]] + text[slice(*last)] + text[first[1] : last[0]] + text[slice(*first)] + text[last[1] :]


def add_field(rng: random.Random, text: str) -> str:
    """A field of the language where there is a brace, or at the left margin."""
    new = f"{rng.choice(KEYS)}: {rng.choice([rng.choice(WORDS), rng.choice(ODD_VALUES)])}"
    braces = [match.end() for match in re.finditer(r"\{", text)]
    if braces and rng.random() < 0.6:
        at = rng.choice(braces)
        return text[:at] + new + ", " + text[at:]
    return text + new + "\n"


def edit_line(rng: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at = rng.randrange(len(lines))
    edit = rng.choice(["drop", "double", "move", "indent", "outdent", "tab", "split", "join"])
    line = lines[at]
    if edit == "drop":
        del lines[at]
    elif edit == "double":
        lines.insert(at, line)
    elif edit == "move":
        lines.insert(rng.randrange(len(lines)), " " * rng.choice([0, 2, 4]) + lines.pop(at))
    elif edit == "indent":
        lines[at] = " " * rng.randrange(1, 5) + line
    elif edit == "outdent":
        lines[at] = line.lstrip(" ")
    elif edit == "tab":
        lines[at] = "\t" + line.lstrip(" ")
    elif edit == "split":
        cut = rng.randrange(len(line) + 1)
        lines[at] = line[:cut] + "\n" + line[cut:]
    else:
        lines[at] = line.rstrip("\n")
    return "".join(lines)


def other_yaml(rng: random.Random, text: str) -> str:
    """A file with something of YAML, or of no YAML, that a spec does not have."""
    return rng.choice(
        [
            "%YAML 1.1\n---\n" + text,
            "%TAG ! tag:x,2000:\n---\n" + text,
            "---\n" + text + "...\n",
            text + "---\n" + text,
            "\ufeff" + text,
            text.replace("\n", "\r\n"),
            text.replace("\n", "\r"),
            text.replace("\n", "\u2028"),
            text.replace(": ", ":"),
            text.replace("  ", "\t"),
            text.replace("{", "["),
            text.replace("}", ""),
            text.upper(),
            "- " + text.replace("\n", "\n  "),
            "base: &base {a: 1}\n" + text.replace("{", "{<<: *base, "),
            text + "x: " + "[" * rng.choice([5, 19, 20, 21, 5000]) + "\n",
            text + "x: " + "{a: " * rng.choice([5, 19, 20, 21, 5000]) + "\n",
            text + "".join(f"k{i}: {i}\n" for i in range(rng.choice([10, 3000]))),
            text + "title: " + "x" * rng.choice([199, 200, 201, 50_000]) + "\n",
            text + "accept: [" + "a, " * rng.choice([99, 100, 101, 3000]) + "]\n",
            "".join(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}]\n" if i else "a0: &a0 x\n" for i in range(9)) + text,
            "",
            "# nothing\n",
            "\n" * 5000,
            "a",
            "{}",
            "[]",
            "null",
            "a: &a *a",
            "? " * 3000,
            "- " * 3000,
        ]
    )


BLOCK = re.compile(r"^[a-z_]+:.*\n(?:[ \t]+.*\n)*", re.MULTILINE)
"""a key at the left margin, with what is indented under it"""

OTHERS = [path.read_bytes().decode("utf-8", "replace") for path in sorted((TESTS / "bad_specs").glob("*.yaml"))]
BLOCKS = [block for text in [*SHIPPED, *OTHERS] for block in BLOCK.findall(text[:5000])]


def cross(rng: random.Random, text: str) -> str:
    """The answer of another spec in place of this one's."""
    here, other = [match.span() for match in BLOCK.finditer(text)], rng.choice(BLOCKS)
    same = [span for span in here if text[slice(*span)].partition(":")[0] == other.partition(":")[0]]
    return replaced(text, same[0], other) if same else text + other


def unsaid(rng: random.Random, text: str) -> str:
    """Without what the author says of it, so that warnings are seen."""
    return re.sub(r"^(accept|claim):.*\n", "", text, flags=re.MULTILINE)


TEXT: list[tuple[int, Edit]] = [
    (4, rename_key),
    (6, replace_value),
    (4, replace_number),
    (3, misspell_value),
    (2, swap_values),
    (4, add_field),
    (4, edit_line),
    (2, other_yaml),
    (8, cross),
    (3, unsaid),
]


def edit_bytes(rng: random.Random, raw: bytes) -> bytes:
    at = rng.randrange(len(raw) + 1)
    some = bytes(rng.randrange(256) for _ in range(rng.choice([1, 1, 2, 8])))
    piece = rng.choice(
        [b"\0", b"\t", b"\x1b[31m", b"\xff", b"\xe2\x80\xae", b"\xed\xa0\x80", b":", b"'", b'"', b"}", b"\r", some]
    )
    cut = rng.randrange(1, 30)
    return rng.choice(
        [
            raw[:at] + piece + raw[at:],
            raw[:at] + piece + raw[at + len(piece) :],
            raw[:at] + raw[at + cut :],
            raw[:at],
            raw[:at] + rng.choice(SHIPPED).encode()[rng.randrange(200) :],
            raw[:at] + bytes([raw[at] ^ (1 << rng.randrange(8))]) + raw[at + 1 :] if at < len(raw) else raw,
        ]
    )


def whole_file(rng: random.Random, raw: bytes) -> bytes:
    """Another encoding, or a file that is far too large."""
    size = rng.choice([50_000, 99_000, 100_001, 10_000_000])
    letter = rng.choice(
        [b"x", b" ", b"\n", b"#", b"[", b"a: ", b"- ", b"'", b'"\\', b"\xff", b"\0", b"a\n", b"? ", b"0,"]
    )
    return rng.choice(
        [
            raw.decode("utf-8", "replace").encode("utf-16"),
            raw.decode("utf-8", "replace").encode("utf-16-le"),
            raw.decode("utf-8", "replace").encode("utf-32"),
            raw.replace(b"a", b"\xe4"),
            raw + letter * (size // len(letter)),
            letter * (size // len(letter)),
            b"title: " + letter * (size // len(letter)),
            raw + b"x: [" + letter * (size // len(letter)),
        ]
    )


def mutants(seed: int, large: float = 0.01) -> Iterator[bytes]:
    """Mutants without end; a share of `large` is of whole files."""
    rng = random.Random(seed)
    weights, edits = zip(*TEXT, strict=True)
    while True:
        text = rng.choice(SHIPPED)
        for _ in range(rng.choice([1, 1, 2, 3])):
            text = rng.choices(edits, weights)[0](rng, text)
        raw = text.encode("utf-8", "surrogatepass")
        if rng.random() < 0.2:
            raw = edit_bytes(rng, raw)
        if rng.random() < large:
            raw = whole_file(rng, raw)
        yield raw


# --- what has to hold ---


class Wrong(AssertionError):
    """Something that a user must never see."""


@dataclass
class Seen:
    """What mutants came to."""

    tried: int = 0
    accepted: int = 0
    warned: int = 0
    slugs: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    slowest_of: bytes = b""

    def take(self, path: Path, raw: bytes, finish: bool) -> None:
        """Takes a mutant through the pipeline; raises `Wrong`."""
        path.write_bytes(raw)
        started = time.process_time()
        try:
            problems, accepted = problems_of(path, finish)
            text = render(problems)
        except Exception as error:
            raise Wrong("".join(traceback.format_exception(error))) from error
        took = time.process_time() - started
        self.tried += 1
        self.accepted += accepted
        self.warned += accepted and bool(problems)
        self.slugs.update({problem.slug for problem in problems})
        if took > self.slowest:
            self.slowest, self.slowest_of = took, raw
        for problem in problems:
            look_at(problem)
        look_at_text(text, problems)


def problems_of(path: Path, finish: bool) -> tuple[list[Problem], bool]:
    """What is said of a file, and whether it is accepted; then all that follows from it is made, too."""
    try:
        loaded = load_spec(path)
    except SpecError as error:
        if not any(not problem.warning for problem in error.problems):
            raise Wrong("refused without an error") from error
        return error.problems, False
    if any(not problem.warning for problem in as_errors(loaded.warnings)) != bool(loaded.warnings):
        raise Wrong("--strict does not make errors of warnings")
    if finish:
        compiled = compile_spec(path)
        compile(compiled.script, str(path), "exec")
        explain(compiled)
    else:
        from specc.plan import Plan

        compile(render_script(Plan(loaded.spec), path.name, "0" * 16), str(path), "exec")
    return loaded.warnings, True


def look_at(problem: Problem) -> None:
    """One problem: its words are there, and its place is in the file."""
    if problem.slug not in ENTRIES:
        raise Wrong(f"{problem.slug} is no slug of the docs")
    if not (problem.what and problem.why and problem.help):
        raise Wrong(f"{problem.slug} has no {'what' * (not problem.what)} {'why' * (not problem.why)}")
    if "`None`" in problem.help or "..., ..." in problem.what:
        raise Wrong(f"{problem.slug} says {problem.help}")
    if problem.place is None:
        if problem.slug not in WITHOUT_A_PLACE:
            raise Wrong(f"{problem.slug} has no place")
        return
    line, col, length = problem.place
    source = problem.source
    if source is None or not 1 <= line <= len(source.line_starts):
        raise Wrong(f"{problem.slug} is at line {line} of a file with fewer")
    if not 1 <= col <= max(1, len(source.line(line))) + 1 or length < 1:
        raise Wrong(f"{problem.slug} is at column {col} of {source.line(line)!r}")


def look_at_text(text: str, problems: list[Problem]) -> None:
    """The printed problems: carets are under their line, and nothing in them moves a cursor."""
    if odd := re.search("[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e]", text):
        raise Wrong(f"{odd.group()!r} is printed")
    rows = text.splitlines()
    carets = [at for at, row in enumerate(rows) if re.fullmatch(r" +\| +\^+|  +\| \^+", row)]
    if len(carets) < sum(problem.place is not None for problem in problems):
        raise Wrong("an excerpt without a caret")
    for at in carets:
        above, below = rows[at - 1], rows[at]
        if width(below) > max(width(above) + 2, len("  | ") + 8) or len(above) > EXCERPT_WIDTH + 20:
            raise Wrong(f"carets beside the line:\n{above}\n{below}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seen, found, kinds = Seen(), 0, Counter[str]()
    until = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        for number, raw in enumerate(mutants(options.seed)):
            if time.monotonic() > until:
                break
            try:
                seen.take(Path(folder) / "mutant.yaml", raw, finish=number % 10 == 0)
            except Wrong as wrong:
                found += 1
                last = str(wrong).strip().splitlines()[-1]
                kinds[last[:100]] += 1
                if kinds[last[:100]] == 1:
                    print(f"mutant {number} of seed {options.seed}: {wrong}\n{raw[:1500]!r}\n", flush=True)
    print(
        f"{seen.tried} mutants: {seen.accepted} accepted ({seen.warned} with warnings), "
        f"{seen.tried - seen.accepted} refused"
    )
    print("  " + ", ".join(f"{slug} {count}" for slug, count in seen.slugs.most_common()))
    print(f"  never said: {', '.join(sorted(set(ENTRIES) - set(seen.slugs))) or 'none'}")
    print(f"  slowest: {seen.slowest:.2f} s of one core, {len(seen.slowest_of)} bytes: {seen.slowest_of[:60]!r}")
    print(f"{found} wrong" + "".join(f"\n  {count} x {kind}" for kind, count in kinds.most_common()))
    return int(found > 0 or seen.slowest > SECOND)


if __name__ == "__main__":
    sys.exit(main())
