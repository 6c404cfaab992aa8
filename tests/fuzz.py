"""Draws specs at random, and compiles, lints, imports and verifies each: `python tests/fuzz.py --minutes 5`.

Rules and enumeration have to agree on every one, every law has to hold, and equal mathematics has to give equal
gradients. What is found is printed, with how many specs a second were tried and what they covered.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

from hypothesis import HealthCheck, Phase, given, seed, settings
from identities import broken_identities
from strategies import specs

from specc.answers import QUESTIONS
from specc.answers.base import leaves
from specc.derive import derive
from specc.finish import finish
from specc.plan import Plan
from specc.render import render
from specc.spec import Spec
from specc.verify.laws import check_laws
from specc.verify.penalty import judge_penalty
from specc.verify.script import Script, load_script
from specc.verify.verdict import KINDS, find_weight, judge

ROOT = Path(__file__).resolve().parent.parent
AT_ONCE = 25
"""specs that one run of ruff formats and lints together"""


@dataclass
class Found:
    """What came of some specs."""

    tried: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    verdicts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: Found) -> None:
        self.tried |= other.tried
        self.pairs |= other.pairs
        self.verdicts += other.verdicts
        self.failures += other.failures


def draw(number: int, count: int) -> list[Spec]:
    """`count` examples of Hypothesis, without those that are drawn twice."""
    drawn: dict[str, Spec] = {}

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(spec=specs())
    def collect(spec: Spec) -> None:
        drawn.setdefault(key(spec), spec)

    collect()
    return list(drawn.values())


def key(spec: Spec) -> str:
    """A spec as one line, by which it is known."""
    return json.dumps(spec.model_dump(exclude_none=True, exclude={"specc", "name", "accept", "defaults"}))


def choices(spec: Spec) -> dict[str, list[str]]:
    """The fragments that a spec is made of, by question."""
    return {
        question: [f"{question}.{name}" for name in answer.fragments()] for question, answer in spec.answers.items()
    }


def pairs(spec: Spec) -> Iterator[tuple[str, str]]:
    """The pairs of fragments of different questions."""
    for left, right in itertools.combinations(choices(spec).values(), 2):
        yield from itertools.product(left, right)


def lint(scripts: list[str]) -> str:
    """What ruff objects to in finished scripts, by the project's own rules."""
    with tempfile.TemporaryDirectory() as folder:
        for number, script in enumerate(scripts):
            (Path(folder) / f"script_{number}.py").write_text(script, encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--no-cache",
            "--config",
            str(ROOT / "pyproject.toml"),
            folder,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout + done.stderr if done.returncode else ""


def disagreements(spec: Spec, script: Script) -> Iterator[str]:
    """Where the rules of the answers and the enumeration differ."""
    derived, size = derive(spec), spec.sampling.group_size
    weight = find_weight(script, size, script.with_numbers(kl_coefficient=0.0)) if spec.online else None
    for kind in KINDS:
        first = judge(script, kind, size, weight=weight)
        later = judge(script, kind, size, reused=True, weight=weight, coupled=not first.exact)
        for judged, name in ((first, kind), (later, f"off_policy_{kind}")):
            if (rule := getattr(derived, name)) != judged.verdict:
                yield f"{name}: {rule} by rule, {judged.verdict} by enumeration"
    rule_kl, found_kl = derived.penalty, judge_penalty(script, size)
    both = [each and (each.kind, each.weighting) for each in (rule_kl, found_kl)]
    if both[0] != both[1]:
        yield f"KL: {both[0]} by rule, {both[1]} by enumeration"


def examine(spec: Spec, text: str) -> list[str]:
    """Everything that is wrong with a spec's script."""
    try:
        script = load_script(text, "drawn.py", Plan(spec))
        broken = [f"law {r.law.name}: {r.detail}" for r in check_laws(script, batches=2) if r.verdict == "broken"]
        return [*broken, *disagreements(spec, script), *broken_identities(spec, script, most=2)]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def run(number: int, count: int = AT_ONCE) -> Found:
    """Some specs from start to end."""
    import torch

    torch.set_num_threads(1)
    found, drawn = Found(), draw(number, count)
    texts = finish([render(Plan(spec), "drawn.yaml", "0" * 16) for spec in drawn])
    if said := lint(texts):
        found.failures.append((f"seed {number}", f"lint: {said}"))
    for spec, text in zip(drawn, texts, strict=True):
        found.tried.add(key(spec))
        found.pairs |= set(pairs(spec))
        found.verdicts[derive(spec).overall] += 1
        found.failures += [(key(spec), failure) for failure in examine(spec, text)]
    return found


def every_pair() -> int:
    """How many pairs of fragments of different questions there are, contradictory ones included."""
    names: dict[str, set[str]] = {question: set() for question in QUESTIONS}
    from strategies import every_spec

    for question, base in QUESTIONS.items():
        for answer in leaves(base):
            for spec in every_spec(answer):
                names[question] |= set(choices(spec)[question])
    return sum(len(left) * len(right) for left, right in itertools.combinations(names.values(), 2))


def main(arguments: Any = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    found, start = Found(), time.monotonic()
    numbers = itertools.count(given.seed)
    with ProcessPoolExecutor(given.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        pending = {pool.submit(run, next(numbers)) for _ in range(2 * given.workers)}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for each in done:
                found.add(each.result())
                if time.monotonic() - start < 60 * given.minutes:
                    pending.add(pool.submit(run, next(numbers)))
    seconds = time.monotonic() - start
    print(
        f"{len(found.tried)} different specs in {seconds / 60:.1f} minutes, {len(found.tried) / seconds:.1f} a second"
    )
    print(f"{len(found.pairs)} of {every_pair()} pairs of fragments; the rest contradict each other or were not drawn")
    print("verdicts:", ", ".join(f"{count} {name}" for name, count in found.verdicts.most_common()))
    print(f"{len(found.failures)} failures")
    for spec, failure in found.failures[:20]:
        print(f"  {failure}\n    {spec}")
    return int(bool(found.failures))


if __name__ == "__main__":
    sys.exit(main())
