"""Draws specs at random, and compiles, lints, imports and verifies each: `python tests/fuzz.py --minutes 5`.

Rules and enumeration have to agree on every one, every law has to hold, and equal mathematics has to give equal
gradients. A script may have nothing that is not used, and is that of the spec as it is written to YAML and read back;
`specc explain` and `specc diff` have something to say of each. What is found is printed, with how many specs a
second were tried and what they covered. `--answers baseline=critic` fixes answers, and `--having PATTERN` leaves out
specs in whose JSON a pattern is not found.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import math
import multiprocessing
import os
import re
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
from strategies import as_sampled, specs
from test_generated import keywords_of_calls, unused_in

from specc import diff
from specc.answers import QUESTIONS
from specc.answers.base import leaves
from specc.compiler import Compiled
from specc.derive import derive
from specc.finish import finish
from specc.load import check
from specc.plan import Plan
from specc.render import render
from specc.report import explain
from specc.source import Source, parse
from specc.spec import Spec
from specc.verify.laws import check_laws
from specc.verify.penalty import judge_penalty
from specc.verify.script import Script, load_script
from specc.verify.verdict import KINDS, find_weight, judge
from specc.weights import Weight

ROOT = Path(__file__).resolve().parent.parent
AT_ONCE = 25
"""specs that one run of ruff formats and lints together"""


@dataclass(frozen=True)
class Where:
    """What specs are drawn."""

    answers: tuple[tuple[str, str], ...] = ()
    having: tuple[str, ...] = ()


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


def draw(number: int, count: int, where: Where = Where()) -> list[Spec]:
    """`count` examples of Hypothesis, without those that are drawn twice; of those only that are asked for."""
    drawn: dict[str, Spec] = {}

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(spec=specs(dict(where.answers)))
    def collect(spec: Spec) -> None:
        if all(re.search(pattern, key(spec)) for pattern in where.having):
            drawn.setdefault(key(spec), spec)

    collect()
    return list(drawn.values())


def key(spec: Spec) -> str:
    """A spec as one line, by which it is known."""
    return json.dumps(spec.model_dump(exclude_none=True, exclude={"specc", "name", "accept", "defaults"}), default=str)


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


def as_source(spec: Spec) -> Source:
    """The spec as a person would write it, with what was drawn and no more; JSON is YAML."""
    return parse(json.dumps(spec.model_dump(exclude_unset=True), default=str), "drawn.yaml")


def not_given(module: ast.Module) -> list[str]:
    """Fields of Rollouts that the estimator looks at, and that the training loop leaves at their default."""
    (fields,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Rollouts")
    names = {ast.unparse(field.target) for field in fields.body if isinstance(field, ast.AnnAssign)}
    return sorted(names - keywords_of_calls(module, "Rollouts"))


def untold(compiled: list[Compiled]) -> Iterator[tuple[str, str]]:
    """Where `specc explain` of a spec, or `specc diff` of one and the next, fails or says nothing."""
    for each, after in itertools.pairwise([*compiled, *compiled[:1]]):
        spec = each.loaded.spec
        try:
            said = [explain(each), diff.render(diff.Difference(each, after), full=True)]
            json.dumps(diff.as_json(diff.Difference(each, after)))
            same = key(spec) == key(after.loaded.spec)
            if not all(said) or same != ("no field differs" in said[1]):
                yield key(spec), f"diff says: {said[1][:200]}"
        except Exception as error:
            yield key(spec), f"{type(error).__name__} in explain or diff: {error}"


def disagreements(spec: Spec, script: Script) -> Iterator[str]:
    """Where the rules of the answers and the enumeration differ."""
    derived, size = derive(spec), spec.sampling.group_size
    weight = find_weight(script, size, script.with_numbers(kl_coefficient=0.0)) if spec.online else None
    script = as_sampled(script)
    for kind in KINDS:
        first = judge(script, kind, size, weight=weight)
        later = judge(script, kind, size, reused=True, weight=weight, coupled=not first.exact)
        for judged, name in ((first, kind), (later, f"off_policy_{kind}")):
            if (rule := getattr(derived, name)) != judged.verdict:
                yield f"{name}: {rule} by rule, {judged.verdict} by enumeration"
    if weight is not None and (wrong := other_weight(spec, weight)):
        yield wrong
    rule_kl, found_kl = derived.penalty, judge_penalty(script, size)
    both = [each and (each.kind, each.weighting) for each in (rule_kl, found_kl)]
    if both[0] != both[1]:
        yield f"KL: {both[0]} by rule, {both[1]} by enumeration"


def other_weight(spec: Spec, found: Weight) -> str:
    """How w(p) by rule differs from that of the script, where the rules give one that holds in every batch.

    Up to a factor where one of the rules leaves it to the past steps. Where the number of responses that are kept
    varies, the rules give that of large batches, and the script that of a prompt alone.
    """
    derived = derive(spec)
    if spec.sampling.selects and spec.sampling.counts_vary:
        return ""
    if derived.weight is None or derived.binary == "biased" or any(e.binary == "asymptotic" for e in derived.effects):
        return ""
    both = [[weight.at(p) for p in (0.1, 0.3, 0.7, 0.9)] for weight in (derived.weight, found)]
    if any(effect.factor and effect.number is None for effect in derived.effects):
        both = [[value / side[0] for value in side] for side in both]
    same = all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(*both, strict=True))
    return "" if same else f"w(p): {both[0]} by rule, {both[1]} by the script"


def examine(spec: Spec, text: str) -> list[str]:
    """Everything that is wrong with a spec's script."""
    try:
        known = derive(spec).known
        script = load_script(text, "drawn.py", Plan(spec) if known else None)
        broken = [f"law {r.law.name}: {r.detail}" for r in check_laws(script, batches=2) if r.verdict == "broken"]
        dead = [f"not used: {name}" for name in unused_in(ast.parse(text))]
        dead += [f"not given: {name}" for name in (not_given(ast.parse(text)) if spec.online else [])]
        wrong = [*disagreements(spec, script), *broken_identities(spec, script, most=2)] if known else []
        return [*dead, *broken, *wrong]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def run(number: int, count: int = AT_ONCE, where: Where = Where()) -> Found:
    """Some specs from start to end."""
    import torch

    torch.set_num_threads(1)
    found, drawn = Found(), draw(number, count, where)
    if not drawn:
        return found
    read = [check(as_source(spec)) for spec in drawn]
    plans = [Plan(each.spec) for each in read]
    texts = finish([render(plan, "drawn.yaml", "0" * 16) for plan in plans])
    changed = [key(spec) for spec, each in zip(drawn, read, strict=True) if key(spec) != key(each.spec)]
    found.failures += [(spec, "written to YAML and read back it is another one") for spec in changed]
    if said := lint(texts):
        found.failures.append((f"seed {number}", f"lint: {said}"))
    found.failures += untold([Compiled(*parts) for parts in zip(read, plans, texts, strict=True)])
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
    parser.add_argument("--answers", nargs="*", default=[], metavar="QUESTION=ANSWER")
    parser.add_argument("--having", nargs="*", default=[], metavar="PATTERN")
    given = parser.parse_args(arguments)
    found, start = Found(), time.monotonic()
    numbers = itertools.count(given.seed)
    fixed = [(question, answer) for question, _, answer in (each.partition("=") for each in given.answers)]
    asked = (AT_ONCE * (1 + 3 * bool(given.having)), Where(tuple(fixed), tuple(given.having)))
    with ProcessPoolExecutor(given.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        pending = {pool.submit(run, next(numbers), *asked) for _ in range(2 * given.workers)}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for each in done:
                found.add(result := each.result())
                for spec, failure in result.failures:
                    print(f"  {failure}\n    {spec}", flush=True)
                if time.monotonic() - start < 60 * given.minutes:
                    pending.add(pool.submit(run, next(numbers), *asked))
    seconds = time.monotonic() - start
    print(
        f"{len(found.tried)} different specs in {seconds / 60:.1f} minutes, {len(found.tried) / seconds:.1f} a second"
    )
    print(f"{len(found.pairs)} of {every_pair()} pairs of fragments; the rest contradict each other or were not drawn")
    print("verdicts:", ", ".join(f"{count} {name}" for name, count in found.verdicts.most_common()))
    print(f"{len(found.failures)} failures")
    return int(bool(found.failures))


if __name__ == "__main__":
    sys.exit(main())
