"""Hypothesis strategies for environments; what refutes a statement is shrunk to the smallest one that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from random import Random

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from specc.verify.environment import COIN, LONG, SHORT, Environment, Prompt, Table, Tree, coin, world

TREES = (COIN, SHORT, LONG)
"""From the simplest, towards which a counterexample shrinks."""

REWARDS: dict[str, st.SearchStrategy[float]] = {
    "binary": st.integers(0, 1).map(float),
    "signed": st.sampled_from([-1.0, 1.0]),
    "real": st.integers(-6, 6).map(lambda halves: halves / 2),
}


def tables(tree: Tree, most: int) -> st.SearchStrategy[Table]:
    """A whole number up to `most` for each token after each prefix; all 1 is the simplest."""
    row = st.tuples(*[st.integers(1, most)] * tree.vocabulary)
    return st.tuples(*[row] * len(tree.prefixes))


@st.composite
def environments(
    draw: st.DrawFn, kind: str, *, prompts: int = 2, most: int = 9, trees: tuple[Tree, ...] = TREES
) -> Environment:
    """One to `prompts` prompts with rewards of a kind, and probabilities that are ratios of numbers up to `most`."""
    tree = draw(st.sampled_from(trees))
    found = []
    for _ in range(draw(st.integers(1, prompts))):
        policy, reference, behaviour = (draw(tables(tree, most)) for _ in range(3))
        rewards = draw(st.tuples(*[REWARDS[kind]] * len(tree.responses)))
        values = draw(st.tuples(*[REWARDS["real"]] * len(tree.prefixes)))
        found.append(Prompt(policy, rewards, reference, behaviour, values))
    return Environment(tree, tuple(found))


def simplest(kind: str) -> Iterator[Environment]:
    """The environments that are easiest to check by hand, in order: simple policies, then two prompts of one token."""
    scores = {"binary": (0.0, 1.0), "signed": (-1.0, 1.0), "real": (0.0, 1.0, 3.0)}[kind]
    for tree, row in ((COIN, (1, 1)), (SHORT, (1, 1)), (SHORT, (1, 2))):
        policy: Table = (row,) * len(tree.prefixes)
        for rewards in product(scores, repeat=len(tree.responses)):
            yield world(tree, (policy, rewards, policy, policy))
    for chances in ((1, 2), (1, 3), (1, 9)):
        yield coin((1, 1), chances)


def search(
    holds: Callable[[Environment], bool], kind: str, *, seed: int, tries: int, most: int = 9
) -> Environment | None:
    """The smallest environment that Hypothesis finds where something does not hold; None if it always does."""
    how = settings(
        max_examples=tries,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    strategy = environments(kind, most=most)
    try:
        return find(strategy, lambda world: not holds(world), settings=how, random=Random(seed))
    except NoSuchExample:
        return None
