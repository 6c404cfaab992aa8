"""How long `specc compile` takes as a whole process, beyond Python's own start: `python benchmarks/compile.py`.

The aims are 0.5 s for one spec and 1.5 s for 30.

And how long a file takes to be accepted or refused at the most, of mutants of the shipped specs and of files that are
far too large; that is to be less than a second.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from specc.paths import algorithm_names, algorithms_dir


def seconds(command: list[str], repeats: int = 7) -> float:
    """The shortest of several runs: the others waited for something else."""
    times = []
    # As it is where it is installed: modules and pages are compiled once.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=environment)
        times.append(time.perf_counter() - start)
    return min(times)


sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from spec_fuzz import SHIPPED, Seen, mutants, whole_file  # noqa: E402 - of the tests

MUTANTS = 1000


def slowest_files(folder: Path) -> Iterator[tuple[str, float]]:
    """The processor time of the slowest file of each kind, in this process."""
    rng, large = random.Random(0), random.Random(1)
    kinds = {
        f"slowest of {MUTANTS} mutants": itertools.islice(mutants(rng.randrange(1000), large=0), MUTANTS),
        "slowest of 60 files of up to 10 MB": (whole_file(large, SHIPPED[0].encode()) for _ in range(60)),
    }
    for label, files in kinds.items():
        seen = Seen()
        seen.take(
            folder / "mutant.yaml", SHIPPED[0].encode(), finish=True
        )  # what is imported late is there from here on
        seen.slowest = 0.0
        for raw in files:
            seen.take(folder / "mutant.yaml", raw, finish=False)
        yield label, seen.slowest


def main() -> None:
    start = seconds([sys.executable, "-c", "pass"])
    shipped = [str(algorithms_dir() / f"{name}.yaml") for name in algorithm_names()]
    with tempfile.TemporaryDirectory() as folder:
        specs = Path(folder) / "specs"
        specs.mkdir()
        thirty = []
        for number in range(30):
            text = Path(shipped[number % len(shipped)]).read_text(encoding="utf-8")
            name = next(line for line in text.splitlines() if line.startswith("name:"))
            path = specs / f"spec_{number}.yaml"
            path.write_text(text.replace(name, f"name: spec_{number}", 1), encoding="utf-8")
            thirty.append(str(path))
        print(f"{'python -c pass':<36}{start:6.2f} s")
        for label, chosen in (("1 spec", shipped[:1]), (f"{len(shipped)} specs", shipped), ("30 specs", thirty)):
            # a fresh folder each time: files that are there already are not written again
            took = seconds([sys.executable, "-m", "specc", "compile", *chosen, "-o", f"{folder}/{len(chosen)}/"])
            print(f"{f'specc compile, {label}, beyond that':<36}{took - start:6.2f} s")
        for label, took in slowest_files(Path(folder)):
            print(f"{label:<36}{took:6.2f} s")


if __name__ == "__main__":
    main()
