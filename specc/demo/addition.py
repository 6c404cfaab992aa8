"""The task of the real demo: two-digit sums as text to complete, from reasoning-gym's `basic_arithmetic`.

A prompt is two solved lines and an open one. A small instruction-tuned model continues such a page far better than
it answers a chat message, which is what gives reinforcement learning something to reinforce from the first step.

    38 + 41 = 79
    56 + 32 = 88
    26 + 47 =

The open line ends in a space, so that a completion starts with a digit. The spaces matter to SmolLM2: without them it
is right less than 10% of the time, with them 15-33%, depending on the solved lines. Sums have two digits, too: that
the units carry into the tens is what there is to learn, and a run of a few minutes learns it.
"""

from __future__ import annotations

from dataclasses import dataclass

from specc.demo.problems import DemoError
from specc.demo.records import Record

SOLVED = ((38, 41), (56, 32))
"""The solved examples, the same in every prompt; none of them is ever asked."""

TRAIN_SIZE = 1_000
HELDOUT_SIZE = 200
DRAWS = 8_000
"""Problems drawn from reasoning-gym; of the 1,640 unordered pairs with a two-digit sum, about 1,300 are there."""


@dataclass(frozen=True)
class Problem:
    a: int
    b: int

    @property
    def key(self) -> frozenset[int]:
        """Equal for 26+47 and 47+26, which count as one problem when train and held-out are kept apart."""
        return frozenset((self.a, self.b))

    def record(self) -> Record:
        solved = "".join(f"{a} + {b} = {a + b}\n" for a, b in SOLVED)
        return {"prompt": f"{solved}{self.a} + {self.b} = ", "answer": str(self.a + self.b)}


def draw_problems(count: int, seed: int) -> list[Problem]:
    """Draw `count` additions from reasoning-gym and return those with two-digit numbers and sums, repeats included.

    Its "two digits" are the numbers 0 to 100, so two thirds of the problems are dropped here.
    """
    import reasoning_gym

    dataset = reasoning_gym.create_dataset(
        "basic_arithmetic",
        size=count,
        seed=seed,
        min_terms=2,
        max_terms=2,
        min_digits=2,
        max_digits=2,
        operators=["+"],
        allow_parentheses=False,
        allow_negation=False,
    )
    problems = []
    for entry in dataset:
        a, b = (int(term) for term in entry["metadata"]["expression"].split("+"))
        if entry["answer"] != str(a + b):
            raise DemoError(f"reasoning-gym says that {a}+{b} is {entry['answer']}: another version of it may help")
        if min(a, b) >= 10 and a + b <= 99:
            problems.append(Problem(a, b))
    return problems


def split_problems(problems: list[Problem]) -> tuple[list[Problem], list[Problem]]:
    """Return (train, held-out): distinct as unordered pairs, within each and between them, and none of the solved."""
    distinct: dict[frozenset[int], Problem] = {}
    for problem in problems:
        distinct.setdefault(problem.key, problem)
    for a, b in SOLVED:
        distinct.pop(Problem(a, b).key, None)
    usable = list(distinct.values())
    return usable[HELDOUT_SIZE : HELDOUT_SIZE + TRAIN_SIZE], usable[:HELDOUT_SIZE]


def addition_records(seed: int) -> tuple[list[Record], list[Record]]:
    """Return the records of (train, held-out)."""
    train, heldout = split_problems(draw_problems(DRAWS, seed))
    return [problem.record() for problem in train], [problem.record() for problem in heldout]
