"""Small worlds in which everything about an estimator can be counted.

A prompt's policy is a table: for every prefix of a response, the probability of each token, proportional to a small
whole number, so that a person can check a counterexample by hand. The parameters are the logits of that table, so the
score of a token, grad log pi(token | prefix), is e_token - pi(. | prefix) in the prefix's row.

Suffixes: B prompts, M outcomes (whole responses), T tokens, S prefixes, V tokens of the vocabulary, P = S V parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import gcd, lcm, prod

import torch
from torch import Tensor

Table = tuple[tuple[int, ...], ...]
"""A whole number for each token after each prefix, [S][V]: the probabilities are proportional to it."""


Steps = tuple[tuple[float | None, ...], ...]
"""The reward of the step that each token after each prefix ends, [S][V]; None where it ends none."""


@dataclass(frozen=True)
class Tree:
    """All responses over a vocabulary: they end with one of the first `eos` tokens, or at the horizon.

    With `eos` 0 all responses are equally long, and count as ended.
    """

    vocabulary: int
    horizon: int
    eos: int = 1

    @cached_property
    def prefixes(self) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = [()]
        for prefix in found:
            if len(prefix) < self.horizon - 1:
                found += [(*prefix, token) for token in range(self.eos, self.vocabulary)]
        return found

    @cached_property
    def responses(self) -> list[tuple[int, ...]]:
        """Every outcome, in the order of the tables."""
        whole = [(*prefix, token) for prefix in self.prefixes for token in range(self.vocabulary)]
        return [y for y in whole if y[-1] < self.eos or len(y) == self.horizon]

    @cached_property
    def tokens(self) -> Tensor:
        """[M, T], 0 on pads."""
        padded = [[*y, *[0] * (self.horizon - len(y))] for y in self.responses]
        return torch.tensor(padded)

    @cached_property
    def lengths(self) -> Tensor:
        return torch.tensor([len(y) for y in self.responses])

    @cached_property
    def mask(self) -> Tensor:
        """bool [M, T]."""
        return torch.arange(self.horizon) < self.lengths[:, None]

    @cached_property
    def ended(self) -> Tensor:
        """bool [M]: whether the response ends with an EOS."""
        return torch.tensor([self.eos == 0 or y[-1] < self.eos for y in self.responses])

    @cached_property
    def places(self) -> Tensor:
        """The prefix before each token, as its row in the table. [M, T], 0 on pads."""
        row = {prefix: index for index, prefix in enumerate(self.prefixes)}
        return torch.tensor([[row[y[:t]] if t < len(y) else 0 for t in range(self.horizon)] for y in self.responses])

    def steps_of(self, rewards: Sequence[float]) -> Steps:
        """Steps that add up to the rewards of the outcomes, each paid what it secures: by how much it raises the least
        reward that can still come, from 0. So a reward of 0 or 1 is paid once, as soon as it is certain.

        Every other token on the way ends a step, and the last one does, so that responses have more or fewer of them.
        """
        paid: dict[tuple[int, ...], float] = {(): 0.0}
        found = []
        for prefix in self.prefixes:
            row: list[float | None] = []
            for token in range(self.vocabulary):
                after = (*prefix, token)
                least = min(r for y, r in zip(self.responses, rewards, strict=True) if y[: len(after)] == after)
                ends = after in self.responses or (len(prefix) + token) % 2 == 1
                row.append(least - paid[prefix] if ends else None)
                paid[after] = least if ends else paid[prefix]
            found.append(tuple(row))
        return tuple(found)

    def spell(self, response: Sequence[int]) -> str:
        """A response in letters: a, b, ... for its tokens and . for an EOS."""
        ends = "." if self.eos < 2 else ".:;"
        return "".join(ends[t] if t < self.eos else "abcdefgh"[t - self.eos] for t in response)


tree = cache(Tree)


@dataclass(frozen=True)
class Prompt:
    """One prompt's world: who answers it, and what each answer is worth."""

    policy: Table
    rewards: tuple[float, ...]  # of each outcome, [M]
    reference: Table
    behaviour: Table  # the policy that sampled a batch that is being reused
    values: tuple[float, ...]  # the critic's, of each prefix, [S]
    step_rewards: Steps | None = None  # whose sums are the rewards; where they are not given, they follow from these


@dataclass(frozen=True)
class Environment:
    """Several prompts over one vocabulary."""

    tree: Tree
    prompts: tuple[Prompt, ...]

    @cached_property
    def tables(self) -> Tables:
        return Tables(self)

    def only(self, *chosen: int) -> Environment:
        """The environment with some of its prompts."""
        return replace(self, prompts=tuple(self.prompts[index] for index in chosen))

    def with_rewards(self, rewards: Sequence[Sequence[float]]) -> Environment:
        pairs = zip(self.prompts, rewards, strict=True)
        found = (replace(prompt, rewards=tuple(row), step_rewards=None) for prompt, row in pairs)
        return replace(self, prompts=tuple(found))

    def with_values(self, values: Sequence[Sequence[float]]) -> Environment:
        pairs = zip(self.prompts, values, strict=True)
        return replace(self, prompts=tuple(replace(prompt, values=tuple(row)) for prompt, row in pairs))

    def exact_values(self) -> list[list[float]]:
        """V^pi of each prefix: the expected reward of a response that starts with it. [B][S]."""
        found = []
        for probs, rewards in zip(self.tables.probs, self.tables.rewards, strict=True):
            row = []
            for prefix in self.tree.prefixes:
                inside = torch.tensor([y[: len(prefix)] == prefix for y in self.tree.responses])
                row.append(float((probs * rewards)[inside].sum() / probs[inside].sum()))
            found.append(row)
        return found


class Tables:
    """What an environment's outcomes are worth, and how probable they are, in float64."""

    def __init__(self, environment: Environment) -> None:
        shape, prompts = environment.tree, environment.prompts
        self.tree = shape
        self.mask = shape.mask
        self.rewards = torch.tensor([p.rewards for p in prompts], dtype=torch.float64)  # [B, M]
        self.logprobs, self.scores = self.of_policy([p.policy for p in prompts])  # [B, M, T], [B, M, T, P]
        self.ref_logprobs, _ = self.of_policy([p.reference for p in prompts])
        self.old_logprobs, _ = self.of_policy([p.behaviour for p in prompts])
        self.probs = self.logprobs.sum(-1).exp()  # [B, M]
        self.old_probs = self.old_logprobs.sum(-1).exp()
        values = torch.tensor([p.values for p in prompts], dtype=torch.float64)
        self.values = values[:, shape.places].masked_fill(~self.mask, 0.0)
        steps = [p.step_rewards or shape.steps_of(p.rewards) for p in prompts]
        known = [[[math.nan if reward is None else reward for reward in row] for row in table] for table in steps]
        step_rewards = torch.tensor(known, dtype=torch.float64)[:, shape.places, shape.tokens]  # [B, M, T]
        self.step_ends = step_rewards.isfinite() & self.mask
        self.step_rewards = step_rewards.masked_fill(~self.step_ends, 0.0)

    def of_policy(self, policies: Sequence[Table]) -> tuple[Tensor, Tensor]:
        """log pi of every token of every outcome [B, M, T], and its gradient in the logits [B, M, T, P]; 0 on pads."""
        weights = torch.tensor(policies, dtype=torch.float64)  # [B, S, V]
        probs = weights / weights.sum(-1, keepdim=True)
        B, S, V = probs.shape
        here = probs[:, self.tree.places]  # [B, M, T, V]
        chosen = self.tree.tokens[None, ..., None].expand(*here.shape[:3], 1)
        logprobs = here.gather(-1, chosen).squeeze(-1).log().masked_fill(~self.mask, 0.0)
        rows = torch.zeros(*here.shape[:3], S, V, dtype=torch.float64)
        moved = torch.nn.functional.one_hot(self.tree.tokens, V) - here
        rows.scatter_(3, self.tree.places[None, ..., None, None].expand(B, -1, -1, 1, V), moved[..., None, :])
        return logprobs, rows.flatten(3) * self.mask[..., None]

    @cached_property
    def gradient(self) -> Tensor:
        """The gradient of E[R] of each prompt, exactly 0 where only rounding is left. [B, P]."""
        terms = torch.einsum("bm,bm,bmtp->bmp", self.probs, self.rewards, self.scores)
        gradient, size = terms.sum(1), terms.abs().sum((1, 2))
        return gradient.masked_fill((gradient.abs().sum(-1) <= 1e-13 * size)[:, None], 0.0)

    @cached_property
    def means(self) -> Tensor:
        """E[R] of each prompt, the success rate where rewards are 0 and 1. [B]."""
        return (self.probs * self.rewards).sum(-1)

    def greedy(self, behaviour: bool) -> Tensor:
        """The outcome that takes the most probable token each time. [B]."""
        logprobs, found = self.old_logprobs if behaviour else self.logprobs, []
        for table in logprobs:
            prefix: tuple[int, ...] = ()
            while prefix not in self.tree.responses:
                ahead = {
                    y[len(prefix)]: float(table[m, len(prefix)])
                    for m, y in enumerate(self.tree.responses)
                    if y[: len(prefix)] == prefix
                }
                prefix += (max(sorted(ahead), key=lambda token: ahead[token]),)
            found.append(self.tree.responses.index(prefix))
        return torch.tensor(found)


def world(shape: Tree, *prompts: tuple[Table, Sequence[float], Table, Table]) -> Environment:
    """An environment of prompts given as policy, rewards, reference and behaviour."""
    values = [0.5 * index for index in range(len(shape.prefixes))]
    return Environment(
        shape, tuple(Prompt(p, tuple(map(float, r)), ref, old, tuple(values)) for p, r, ref, old in prompts)
    )


SHORT = Tree(2, 2)  # ".", "a.", "aa": three responses of 1 and 2 tokens
LONG = Tree(2, 3)  # four responses of 1, 2 and 3 tokens
WIDE = Tree(3, 2)  # seven responses of 1 and 2 tokens
LEVEL = Tree(2, 2, eos=0)  # four responses of 2 tokens
COIN = Tree(2, 1, eos=2)  # two responses of 1 token

_Policies = tuple[tuple[Table, Table, Table], ...]  # policy, reference and behaviour of each prompt

_short: _Policies = (
    (((1, 1), (1, 2)), ((1, 2), (1, 1)), ((1, 2), (2, 1))),
    (((1, 3), (1, 1)), ((1, 1), (2, 1)), ((2, 1), (1, 3))),
    (((9, 1), (1, 8)), ((2, 1), (1, 1)), ((1, 24), (7, 1))),
)
_long: _Policies = (
    (((1, 2), (1, 1), (2, 1)), ((1, 1), (1, 2), (1, 1)), ((2, 1), (1, 1), (1, 3))),
    (((2, 1), (1, 3), (1, 1)), ((1, 1), (1, 1), (1, 2)), ((1, 1), (1, 2), (2, 1))),
)
_wide: _Policies = (
    (((1, 2, 1), (1, 1, 2), (2, 1, 1)), ((1, 1, 1), (1, 2, 1), (1, 1, 1)), ((2, 1, 1), (1, 1, 1), (1, 2, 3))),
    (((3, 1, 1), (1, 1, 1), (1, 3, 1)), ((1, 1, 2), (1, 1, 1), (1, 1, 3)), ((1, 1, 1), (2, 1, 1), (1, 1, 1))),
)


def fixed(kind: str) -> list[Environment]:
    """The environments that every verdict looks at first: lengths vary, and go with the reward in several ways.

    `kind` of rewards: `binary` is 0 and 1, `real` any number of either sign.
    """
    rewards: dict[str, list[tuple[tuple[float, ...], ...]]] = {
        "binary": [
            ((0, 1, 0), (1, 1, 0), (1, 0, 0)),
            ((1, 0, 0, 1), (0, 0, 1, 0)),
            ((0, 1, 0, 0, 1, 0, 0), (1, 0, 0, 1, 1, 0, 1)),
        ],
        "real": [
            ((0, 1, 3), (-2, 1, -1), (2, -1, 0.5)),
            ((1, -2, 0.5, 0), (-1, 0, 2, -3)),
            ((0, 1, -1, 0.5, 2, -2, 1), (1, 3, 0, -1, 0, 1, -2)),
        ],
    }
    found = []
    for shape, policies, scores in zip((SHORT, LONG, WIDE), (_short, _long, _wide), rewards[kind], strict=True):
        found.append(world(shape, *((p, r, ref, old) for (p, ref, old), r in zip(policies, scores, strict=True))))
    short, long, wide = found
    return [short.only(0, 1), short.only(1, 2), long, wide, short.only(0, 1, 2, 0)]


def stepped(kind: str) -> Environment:
    """Two prompts with steps that are paid before the response is over, and tokens that end none."""
    scores = {"binary": ((0, 1, 1, 1), (1, 0, 1, 1)), "real": ((-1, 2, 1, 4), (3, -2, -1, -4))}[kind]
    return world(LONG, *((p, r, ref, old) for (p, ref, old), r in zip(_long, scores, strict=True)))


def extreme(kind: str) -> Environment:
    """One prompt with responses of up to 8 tokens, log-ratios up to 20 and, of real ones, rewards up to 1000."""
    rewards = {"binary": (0, 1, 0, 1, 1, 0, 1, 0, 1), "real": (1000, -700, 3, 0, -1000, 20, 1, -7, 400)}
    policy = tuple((1 + t % 2, 2) for t in range(8))
    reference = tuple((1, 10**9) if t in (0, 5) else (2, 1) for t in range(8))
    return world(Tree(2, 8), (policy, rewards[kind], reference, tuple((1, 1 + t) for t in range(8))))


def pairs_in_proportion(kind: str) -> list[Environment]:
    """Prompts with responses of up to 6 tokens, of which pairs are in proportion: one of them, and then one that fails
    once in 64 times beside one whose long responses are better, so that the mean of tokens is above that of responses.
    """
    rewards = {"binary": (0, 1, 0, 1, 1, 0, 1), "real": (3, -2, 1, 0, -4, 2, 1)}[kind]
    beside: dict[str, tuple[tuple[float, ...], ...]] = {
        "binary": ((1, 1, 1, 1, 1, 1, 0), (0, 1, 1, 1, 1, 1, 1)),
        "real": ((1, 1, 2, 1, 1, 1, -1), (-1, 1, 0, 1, 2, 1, 1)),
    }
    even: Table = ((1, 1),) * 6
    reference: Table = ((1, 2), (2, 1)) * 3
    return [world(Tree(2, 6), *((even, r, reference, even) for r in each)) for each in ((rewards,), beside[kind])]


def in_proportion(kind: str) -> list[Environment]:
    """Environments in which a small batch can hold every group as often as its probability says."""
    rewards: dict[str, list[tuple[tuple[float, ...], ...]]] = {
        "binary": [((0, 1, 0), (1, 1, 0)), ((1, 0, 1), (0, 0, 1))],
        "real": [((0, 1, 3), (-2, 1, -1)), ((-20, -12, -9), (-15, -30, -10))],
    }
    first = (((1, 1), (1, 1)), ((1, 2), (2, 1)), ((1, 3), (1, 1)))
    second = (((3, 1), (1, 1)), ((1, 1), (1, 2)), ((1, 1), (1, 1)))
    third = (((1, 2), (1, 1)), ((2, 1), (1, 1)), ((1, 1), (1, 1)))
    pairs = ((first, second), (third, first))
    even: Table = ((1, 1), (1, 1), (1, 1))
    last = {"binary": (1.0, 0.0, 1.0, 0.0), "real": (0.0, 3.0, -1.0, 1.0)}
    return [
        *(
            world(SHORT, *((p, r, ref, old) for (p, ref, old), r in zip(pair, scores, strict=True)))
            for pair, scores in zip(pairs, rewards[kind], strict=True)
        ),
        world(LONG, (even, last[kind], ((1, 2), (1, 1), (2, 1)), even)),
    ]


def far(kind: str, rarity: int = 23) -> Environment:
    """Two prompts whose batch is from a policy so far away that ratios go up to half the rarity.

    At the least one, 12, pairs of its responses are in proportion.
    """
    scores = {"binary": ((1, 1, 0), (0, 0, 1)), "real": ((2, -1, 1), (-1, 3, 0))}
    even, rare = ((1, 1), (1, 1)), ((1, rarity), (1, 1))
    return world(SHORT, *((even, rewards, even, rare) for rewards in scores[kind]))


def level(
    rewards: Sequence[Sequence[float]] = ((0, 1, 3, -1), (-2, 1, -1, 0)), *, uniform: bool = False
) -> Environment:
    """Two prompts whose responses are all equally long; with `uniform`, from a policy that prefers none of them."""
    first = (((1, 1), (1, 1), (1, 3)), ((1, 2), (2, 1), (1, 1)), ((1, 3), (1, 1), (1, 1)))
    second = (((3, 1), (1, 1), (1, 1)), ((1, 1), (1, 2), (1, 2)), ((1, 1), (1, 1), (1, 1)))
    even: Table = ((1, 1),) * 3
    rows = zip((first, second), rewards, strict=True)
    return world(LEVEL, *((even if uniform else p, r, ref, old) for (p, ref, old), r in rows))


def coin(*chances: tuple[int, int]) -> Environment:
    """Prompts with one-token responses, right ones with `chances` (right, wrong) out of their sum."""
    even: Table = ((1, 1),)
    return world(COIN, *((((wrong, right),), (0.0, 1.0), even, even) for right, wrong in chances))


PASTS = tuple(
    world(SHORT, (((1, 1), (1, 1)), rewards, ((1, 2), (1, 1)), ((1, 1), (1, 1))))
    for rewards in ((0.25, 1, 1), (1, 0.25, 0.25))
)
"""The environments of past steps, for scripts that carry statistics over: long responses get more, or less. So the mean
of advantages of tokens, or under a baseline that weighs lengths, has been above 0 and below."""


def counts(table: Sequence[Sequence[int]], shape: Tree) -> list[int]:
    """How often each outcome occurs in the smallest sample that holds all of them in their exact proportions. [M]."""
    sums = [sum(row) for row in table]
    rows = {prefix: index for index, prefix in enumerate(shape.prefixes)}
    whole = lcm(*(prod(sums[rows[y[:t]]] for t in range(len(y))) for y in shape.responses))
    found = []
    for y in shape.responses:
        above = prod(table[rows[y[:t]]][token] for t, token in enumerate(y))
        below = prod(sums[rows[y[:t]]] for t in range(len(y)))
        found.append(whole * above // below)
    shared = gcd(*found)
    return [count // shared for count in found]
