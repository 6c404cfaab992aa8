"""Normalization: the standard deviation of the prompt's group."""

import torch
from torch import Tensor

from templates.sections.statistics import masked_std


def scale(advantages: Tensor, valid: Tensor, *, ddof: int, epsilon: float) -> Tensor:
    """The std of each group's advantages, plus epsilon; 1 where nothing varies. [B, G, ...] -> [B, 1, ...]."""
    std = masked_std(advantages, valid, tuple(range(1, advantages.ndim)), ddof)
    return torch.where(std > 0, std + epsilon, 1.0)
