"""The pages of the docs that show what commands print: `python tests/pages.py --write` runs them and writes it anew.

A page is Markdown. A block of `console` holds commands, each after a `$`, and below each what it prints; a block whose
language is followed by a file's name, as in ```yaml mine.yaml, is that file. Blocks are run in their order in an empty
folder, by bash, with the specc of this checkout. A test holds the pages to this. Where two runs need not print the
same (times, and numbers of a training run, which differ in the last digits from one processor to another) the command
says so by a comment, `# numbers vary`, and then numbers are not compared. Commands of the repository that take minutes,
`make` and `python tests/`, are not run, and what they printed stays.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "docs" / name for name in ("tutorial.md", "own_answers.md", "verification.md")]

BLOCK = re.compile(r"^```(\w+)(?: ([\w./-]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*(?:\n> .*)*)$", re.MULTILINE)
VARIES = "  # numbers vary"
TAKES_MINUTES = ("make ", "python tests/")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")


@dataclass(frozen=True)
class Run:
    """A command and what it printed, standard output and errors together."""

    command: str
    output: str

    def compared(self) -> str:
        """What has to be the same in another run."""
        return re.sub(r"[ ─]+", " ", NUMBER.sub("N", self.output)) if VARIES in self.command else self.output


def runs_of(block: str) -> Iterator[Run]:
    """The commands of a console block, with what the page says they print."""
    found = list(COMMAND.finditer(block))
    ends = [*(match.start() for match in found[1:]), len(block)]
    for match, end in zip(found, ends, strict=True):
        yield Run(match.group(1), block[match.end() + 1 : end])


def run(command: str, folder: Path) -> Run:
    """Runs one command as a reader would; of what it printed, the lines without trailing spaces."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPECC_", "COV_"))}
    environment |= {"PATH": path, "COLUMNS": "110", "NO_COLOR": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment |= {"TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
    script = command.removesuffix(VARIES).replace("\n> ", "\n")
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return Run(command, "".join(line + "\n" for line in lines))


def tiny_demo() -> Path:
    """The folder of the tiny demo, made once; its settings name files in `demo-tiny`."""
    from specc.demo import FORMAT, prepare

    folder = ROOT / ".cache" / f"demo-tiny-{FORMAT}"
    prepare(folder, tiny=True, report=lambda line: None)
    return folder


def written(page: str) -> str:
    """The page with what its commands print now."""
    with tempfile.TemporaryDirectory() as folder:
        if "specc demo --tiny" in page:  # which takes a minute, and says the same of one that is there already
            shutil.copytree(tiny_demo(), Path(folder) / "demo-tiny")

        def block(match: re.Match[str]) -> str:
            language, name, body = match.groups()
            if name:
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(body, encoding="utf-8")
            if language != "console":
                return match.group()
            parts = []
            for said in runs_of(body):
                now = said if said.command.startswith(TAKES_MINUTES) else run(said.command, Path(folder))
                parts.append(f"$ {now.command}\n{said.output if now.compared() == said.compared() else now.output}")
            return f"```console\n{''.join(parts)}```"

        return BLOCK.sub(block, page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the pages; else print how they differ")
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES)
    given = parser.parse_args()
    stale = False
    for page in given.pages:
        text = page.read_text(encoding="utf-8")
        now = written(text)
        if given.write:
            page.write_text(now, encoding="utf-8")
        lines = difflib.unified_diff(text.splitlines(), now.splitlines(), str(page), "as it runs", lineterm="")
        print("\n".join(lines))
        stale |= now != text
    sys.exit(int(stale and not given.write))


if __name__ == "__main__":
    main()
