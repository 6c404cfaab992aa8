"""Objective: PPO's clipped surrogate."""

import torch
from torch import Tensor


def surrogate(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """min(ratio A, clip(ratio, 1 - low, 1 + high) A) (Schulman et al. 2017, equation 7). [..., T]."""
    return torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def clipped(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Where the clip takes the gradient away: below, for negative advantages, and above, for positive ones."""
    return (ratio < 1 - low) & (advantages < 0), (ratio > 1 + high) & (advantages > 0)
