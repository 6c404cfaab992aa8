"""Baseline: the other response of the pair."""

from torch import Tensor


def contrast(rewards: Tensor) -> Tensor:
    """By how much the chosen response's reward is ahead of the rejected one's. [pairs, 2] -> [pairs]."""
    return rewards[:, 0] - rewards[:, 1]
