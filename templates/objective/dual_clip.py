"""Objective: PPO's clipped surrogate with a second bound for negative advantages."""

import torch
from torch import Tensor


def surrogate(ratio: Tensor, advantages: Tensor, *, low: float, high: float, dual: float) -> Tensor:
    """PPO's clip, and at least dual A where A < 0 (Ye et al. 2020, equation 5). [..., T]."""
    clipped_once = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    return torch.where(advantages < 0, torch.maximum(clipped_once, dual * advantages), clipped_once)


def clipped(ratio: Tensor, advantages: Tensor, *, low: float, high: float, dual: float) -> tuple[Tensor, Tensor]:
    """Where the clips take the gradient away: below 1 - low or above dual for A < 0, and above 1 + high for A > 0."""
    return ((ratio < 1 - low) | (ratio > dual)) & (advantages < 0), (ratio > 1 + high) & (advantages > 0)
