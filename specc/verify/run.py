"""The verification of one script: verdicts, KL, variance, laws, and what refutes what is not so."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from specc.answers.base import VERDICTS, weakest
from specc.derive import Derived, derive
from specc.verify.convergence import Error, convergence
from specc.verify.environment import Environment
from specc.verify.laws import LawResult, check_laws
from specc.verify.penalty import Penalty, judge_penalty
from specc.verify.preferences import RESPONSES
from specc.verify.script import Script
from specc.verify.strategies import search, simplest
from specc.verify.variance import Variance, measure
from specc.verify.verdict import KINDS, Judged, allowed, explains, find_weight, judge, sizes_of
from specc.weights import Weight

DRAWN = 12
"""environments that Hypothesis draws for each class of rewards, beside the fixed ones"""

ORDER = 4
"""the law whose breach makes the order of the responses count"""

TRIES = 200
"""environments that it tries in search of a counterexample"""


@dataclass(frozen=True)
class Counterexample:
    """The smallest environment found where a statement is false, and the group size there."""

    statement: str
    rewards: str
    size: int
    environment: Environment


@dataclass(frozen=True)
class Verified:
    """Everything that was found out about a script."""

    script: Script
    size: int
    seed: int
    judged: dict[str, Judged]
    """the verdict for each class of rewards"""
    overall: str
    """the verdict that a claim has to equal"""
    off_policy: dict[str, str] | None
    """the verdict of the later updates of a batch, where the script makes any"""
    weight: Weight | None
    """w(p), where a prompt's weight is its own"""
    penalty: Penalty | None
    variance: Variance | None
    """None for a script on pairs"""
    errors: list[Error]
    """how far a batch is from proportional, where it is so in the limit only"""
    laws: list[LawResult]
    derived: Derived | None
    counterexample: Counterexample | None

    @property
    def verdict(self) -> str:
        """`unbiased`, `proportional`, `asymptotic`, `reweighted` or `biased`."""
        return self.overall

    @property
    def holds(self) -> bool:
        """Whether nothing was found against it: no claim is refuted, no law broken, and the rules say the same."""
        return not self.fails

    def to_json(self) -> dict[str, Any]:
        """What `specc verify --json` prints."""
        from specc.verify.report import as_json

        return as_json(self)

    @property
    def claim_refuted(self) -> bool:
        return self.judges_claim and self.script.claim != self.overall

    @property
    def judges_claim(self) -> bool:
        """Whether there is a claim, about E[R] or a target that is known here."""
        return self.script.claim is not None and self.script.knows_target

    @property
    def broken(self) -> list[LawResult]:
        return [result for result in self.laws if result.verdict == "broken"]

    @property
    def disagreements(self) -> list[str]:
        """In what the rules of the answers and the enumeration differ: an error in one of them."""
        if self.derived is None:
            return []
        pairs = [("0/1 rewards", self.derived.binary, self.judged["binary"].verdict)]
        pairs += [("real rewards", self.derived.real, self.judged["real"].verdict)]
        if self.off_policy is not None:
            pairs += [("reused batches, 0/1", self.derived.off_policy_binary, self.off_policy["binary"])]
            pairs += [("reused batches, real", self.derived.off_policy_real, self.off_policy["real"])]
        if self.script.on_pairs and (found := self.judged["real"].factor) is not None:
            c = self.derived.value()
            pairs += [("c", "none" if c is None else f"{float(c):.9g}", f"{found.value:.9g}")]
        if self.penalty is not None and self.derived.penalty is not None:
            rule = self.derived.penalty
            pairs += [("KL", f"{rule.kind} {rule.weighting}", f"{self.penalty.kind} {self.penalty.weighting}")]
        return [f"{what}: {rule} by rule, {found} by enumeration" for what, rule, found in pairs if rule != found]

    @property
    def fails(self) -> bool:
        return bool(self.claim_refuted or self.broken or self.disagreements)


def verify(script: Script, size: int, seed: int = 0) -> Verified:
    """The verification of a script with `size` responses a prompt. `seed` draws environments and batches."""
    with warnings.catch_warnings():
        # Of a function of the author's own, which may use what vmap has no rule for: it is right, and slower.
        warnings.filterwarnings("ignore", message="There is a performance drop")
        return verify_script(script, size, seed)


def verify_script(script: Script, size: int, seed: int) -> Verified:
    laws = check_laws(script, seed=seed)
    if script.on_pairs:
        return verify_pairs(script, seed, laws)
    if any(result.verdict == "broken" and result.law.number == ORDER for result in laws):
        script = replace(script, exchangeable=False)
    hp = script.with_numbers(kl_coefficient=0.0)
    weight = find_weight(script, size, hp) if script.exchangeable else None
    if script.breaks_ties:  # which does not matter where equal rewards are equal responses, as for w(p)
        script = replace(script, exchangeable=False)
    judged, found = {}, None
    for kind in KINDS:
        about = script if kind == "binary" else replace(script, target=None)  # other targets are of success rates
        judged[kind], drawn = judge_drawn(about, kind, size, weight, seed)
        found = found or drawn
    binary, real = (judged[kind].verdict for kind in KINDS)
    overall = binary if script.scores_are_binary or script.slope is not None else weakest((binary, real))
    reused = None
    if script.reuses_batches:
        reused = {
            kind: judge(script, kind, size, reused=True, weight=weight, coupled=not judged[kind].exact).verdict
            for kind in KINDS
        }
    limit_only = any(not each.exact for each in judged.values())
    return Verified(
        script=script,
        size=size,
        seed=seed,
        judged=judged,
        overall=overall,
        off_policy=reused,
        weight=weight if weight is not None and has_weight(script, judged["binary"], size) else None,
        penalty=judge_penalty(script, size),
        variance=measure(script, size),
        errors=convergence(script, size, seed) if limit_only else [],
        laws=laws,
        derived=derive(script.plan.spec) if script.plan else None,
        counterexample=found or counterexample(script, judged, overall, size, seed),
    )


def verify_pairs(script: Script, seed: int, laws: list[LawResult]) -> Verified:
    """The verification of a script on pairs: of its first step, and of later ones."""
    drawn = {kind: judge_drawn(script, kind, RESPONSES, None, seed) for kind in KINDS}
    judged = {kind: first for kind, (first, _) in drawn.items()}
    overall = weakest(each.verdict for each in judged.values())
    refuted = next((found for _, found in drawn.values() if found is not None), None)
    return Verified(
        script=script,
        size=RESPONSES,
        seed=seed,
        judged=judged,
        overall=overall,
        off_policy={kind: judge(script, kind, RESPONSES, reused=True).verdict for kind in KINDS},
        weight=None,
        penalty=None,
        variance=None,
        errors=[],
        laws=laws,
        derived=derive(script.plan.spec) if script.plan else None,
        counterexample=refuted or counterexample(script, judged, overall, RESPONSES, seed),
    )


def has_weight(script: Script, judged: Judged, size: int) -> bool:
    """Whether a prompt's factor is a function of its success rate and of nothing else; a limit is taken at its word."""
    k, _ = sizes_of(script, size)
    if judged.verdict == "asymptotic" or size < 2 or "likelihood_weights" in script.loss_inputs:
        return False
    if judged.verdict == "biased" or not judged.exact:
        return True
    return explains(find_weight(script, k, script.with_numbers(kl_coefficient=0.0)), judged.evidence)


def judge_drawn(
    script: Script, kind: str, size: int, weight: Weight | None, seed: int
) -> tuple[Judged, Counterexample | None]:
    """The verdict on the fixed environments, held against environments that Hypothesis draws besides."""
    judged = judge(script, kind, size, weight=weight)
    hp = script.with_numbers(kl_coefficient=0.0)
    k, _ = sizes_of(script, size)
    refuted = None
    while judged.verdict != "biased":
        statement = judged.verdict
        most = 3 if statement in ("asymptotic", "reweighted") else 9
        holds = partial(allowed, statement, script, size=k, hp=hp)
        world = search(holds, kind, seed=seed, tries=DRAWN, most=most)
        if world is None:
            break
        refuted = Counterexample(statement, kind, k, world)
        weaker = VERDICTS[VERDICTS.index(statement) + 1 :]
        kept = next((v for v in weaker if v == "biased" or allowed(v, script, world, k, hp)), "biased")
        judged = replace(judged, verdict=kept, exact=kept in ("proportional", "biased"))
    drawn = 0 if judged.verdict == "biased" and refuted is None else DRAWN
    return replace(judged, environments=judged.environments + drawn), refuted


def counterexample(
    script: Script, judged: dict[str, Judged], overall: str, size: int, seed: int
) -> Counterexample | None:
    """What refutes the next stronger statement than the verdict, and so every claim that is too strong."""
    hp = script.with_numbers(kl_coefficient=0.0)
    _, smallest = sizes_of(script, size)
    sizes = range(max(smallest, min(size, 2)), min(size, 4) + 1)
    for statement, kind in statements(judged, overall):
        for k in sizes:
            holds = partial(allowed, statement, script, size=k, hp=hp)
            if (easy := next((world for world in simplest(kind) if not holds(world)), None)) is not None:
                return Counterexample(statement, kind, k, easy)
        most = 3 if statement in ("asymptotic", "reweighted") else 9
        for k in reversed(sizes):
            holds = partial(allowed, statement, script, size=k, hp=hp)
            if (world := search(holds, kind, seed=seed, tries=TRIES, most=most)) is not None:
                return Counterexample(statement, kind, k, world)
    return None


def statements(judged: dict[str, Judged], overall: str) -> Iterator[tuple[str, str]]:
    """What to refute, and with which rewards: those of the class to which the verdict is due come first."""
    if overall == "unbiased":
        return
    statement = VERDICTS[VERDICTS.index(overall) - 1]
    for kind in KINDS:
        if VERDICTS.index(judged[kind].verdict) > VERDICTS.index(statement):
            yield statement, kind
