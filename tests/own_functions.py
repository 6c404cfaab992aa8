"""Functions as an author would write them, one or more for each place that takes one.

Some do what an answer of ours does, so that the two can be compared.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

TINY = 1e-6


class Bounds:
    """Where a squashed score ends."""

    ABOVE: float = 2.0


# The mean over a dimension of what counts.
def mean_of(x: Tensor, valid: Tensor, dim: int) -> Tensor:
    return x.masked_fill(~valid, 0.0).sum(dim, keepdim=True) / valid.sum(dim, keepdim=True).clamp(min=1)


# -------- baselines --------


def group_mean(returns_BG: Tensor, scored_BG: Tensor) -> Tensor:
    """The mean return of the group, own included."""
    return mean_of(returns_BG, scored_BG, 1)


def leave_one_out(returns_BG, scored_BG):
    mean = mean_of(returns_BG, scored_BG, 1)
    return mean - (returns_BG - mean) / (scored_BG.sum(1, keepdim=True) - 1).clamp(min=1)


def shrunk(returns_BG: Tensor, scored_BG: Tensor, *, share: float = 0.5, power: int = 1) -> Tensor:
    """A share of the group's mean."""
    return share**power * mean_of(returns_BG, scored_BG, 1)


def greedy(greedy_rewards_B: Tensor) -> Tensor:
    """The reward of the greedy response."""
    return greedy_rewards_B[:, None]


def median(returns_BG: Tensor, scored_BG: Tensor) -> Tensor:
    """The lower median return of the group, own included."""
    return returns_BG.masked_fill(~scored_BG, math.nan).nanmedian(1, keepdim=True).values.nan_to_num()


# -------- normalizations --------


def group_std(advantages: Tensor, valid: Tensor) -> Tensor:
    """Divided by the std of the group."""
    dims = tuple(range(1, advantages.ndim))
    count = valid.sum(dims, keepdim=True)
    mean = advantages.masked_fill(~valid, 0.0).sum(dims, keepdim=True) / count.clamp(min=1)
    squares = (advantages - mean).masked_fill(~valid, 0.0).square().sum(dims, keepdim=True)
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    return advantages / torch.where(std > 0, std + TINY, 1.0)


def asymmetric(advantages: Tensor, *, negative: float = 0.5) -> Tensor:
    """Negative advantages count less."""
    return torch.where(advantages > 0, advantages, negative * advantages)


# -------- transforms of the score --------


def squashed(rewards_BG: Tensor) -> Tensor:
    """The score, bounded smoothly."""
    return Bounds.ABOVE * torch.tanh(rewards_BG / Bounds.ABOVE)


def clipped(rewards_BG: Tensor, *, low: float = -10.0, high: float = 10.0) -> Tensor:
    """The score, bounded."""
    return rewards_BG.clamp(low, high)


def longer_is_worse(rewards_BG: Tensor, ended_BG: Tensor, lengths_BG: Tensor, *, price: float = 0.01) -> Tensor:
    """A price for every token, and another for not ending."""
    return rewards_BG - price * (lengths_BG + (~ended_BG).long()).to(rewards_BG.dtype)


# -------- weights of tokens --------


def ones(mask: Tensor) -> Tensor:
    """1 on every token."""
    return mask.double()


def uncertain(entropies: Tensor, *, sharpness: float = 1.0) -> Tensor:
    """Tokens with a large entropy count more."""
    return 1 + sharpness * entropies


def near_policy(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Tokens whose log-prob has moved count less."""
    return (-(logprobs - old_logprobs).abs()).exp()


# -------- losses of tokens --------


def ppo(ratio: Tensor, advantages: Tensor, *, low: float = 0.2, high: float = 0.2) -> Tensor:
    """PPO's clipped loss."""
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def reinforce(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """-A log pi."""
    return -advantages * logprobs


def smooth(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
    """A bounded surrogate."""
    return -advantages * 2 * logsigmoid(logprobs - old_logprobs)
