"""The weight that an estimator gives to a prompt by its success rate, and the objective that this amounts to."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

GRID = tuple(p / 100 for p in range(1, 100))
"""success rates of tables and plots"""

CLOSE = 1e-9
"""relative difference up to which two of the numbers on counts are the same"""


PASS_AT = re.compile(r"pass@([1-9]\d{0,5})")
"""the chance that one of K responses is correct, as a spec's target"""


@dataclass(frozen=True)
class Weight:
    """w(p) in E[g] = w(p) grad p: 0/1 rewards, groups of k, advantages that depend on the count K of correct responses.

    With d_j = a(j + 1, 1) - a(j, 0), of a correct and a wrong response beside j other correct ones, and j being
    Binomial(k - 1, p): w(p) = E d_j. Its integral from 0 is the objective F(p) = (1/k) sum_j d_j P(Binomial(k, p) > j):
    the integral of P(Binomial(k - 1, p) = j) is P(Binomial(k, p) > j) / k.
    There are two rows where it matters whether the prompt's greedy response is wrong (p <= 1/2) or right.
    """

    differences: tuple[tuple[float, ...], ...]

    @property
    def size(self) -> int:
        return len(self.differences[0])

    def row(self, p: float) -> tuple[float, ...]:
        return self.differences[0 if p <= 0.5 else -1]

    def at(self, p: float) -> float:
        return math.fsum(chance * d for chance, d in zip(binomial(self.size - 1, p), self.row(p), strict=True))

    def integral(self, p: float) -> float:
        """F(p)."""
        first, last = self.differences[0], self.differences[-1]
        if p <= 0.5:
            return integral(first, p)
        return integral(first, 0.5) + integral(last, p) - integral(last, 0.5)

    @cached_property
    def constant(self) -> bool:
        """Whether w is the same for every p."""
        numbers = [d for row in self.differences for d in row]
        return all(math.isclose(d, numbers[0], rel_tol=CLOSE) for d in numbers)

    def constant_over(self, slope: Callable[[float], float]) -> bool:
        """Whether w is a multiple of a target's weight."""
        first = self.at(0.5) / slope(0.5)
        return all(math.isclose(self.at(p), first * slope(p), rel_tol=CLOSE) for p in GRID)

    @cached_property
    def positive(self) -> bool:
        """Whether w > 0 on the grid and at least 0 at its ends, which are d_0 and d_(k - 1)."""
        surely = all(d > 0 for row in self.differences for d in row)
        ends = all(row[end] >= 0 for row in self.differences for end in (0, -1))
        return surely or (ends and all(self.at(p) > 0 for p in GRID))


def slope_of(target: str | None) -> Callable[[float], float] | None:
    """The weight that a target gives to a prompt: of `pass@K`, 1 - (1 - p)^K, it is K (1 - p)^(K - 1).

    None for no target, and for one that is not known here, of which a claim cannot be judged.
    """
    found = PASS_AT.fullmatch(target or "")
    if found is None:
        return None
    attempts = int(found.group(1))
    return lambda p: attempts * (1 - p) ** (attempts - 1)


def integral(differences: Sequence[float], p: float) -> float:
    """The integral from 0 to p of sum_j d_j P(Binomial(k - 1, .) = j)."""
    chances = binomial(len(differences), p)
    tails = [math.fsum(chances[j + 1 :]) for j in range(len(differences))]
    return math.fsum(d * tail for d, tail in zip(differences, tails, strict=True)) / len(differences)


def binomial(count: int, p: float) -> list[float]:
    """The probabilities of 0..count successes, for 0 < p < 1."""
    logs = [math.lgamma(count + 1) - math.lgamma(j + 1) - math.lgamma(count - j + 1) for j in range(count + 1)]
    return [math.exp(c + j * math.log(p) + (count - j) * math.log1p(-p)) for j, c in enumerate(logs)]
