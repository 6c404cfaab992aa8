"""Reward transform: bounded scores."""

from torch import Tensor


def clip_scores(rewards_BG: Tensor, *, low: float, high: float) -> Tensor:
    """The score, raised to `low` and lowered to `high`."""
    return rewards_BG.clamp(low, high)
