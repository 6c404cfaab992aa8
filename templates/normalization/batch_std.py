"""Normalization: the standard deviation of the batch."""

import torch
from torch import Tensor

from templates.sections.statistics import masked_std


def scale(advantages: Tensor, valid: Tensor, *, ddof: int, epsilon: float) -> Tensor:
    """The std of the whole batch's advantages, plus epsilon; 1 where nothing varies. [B, G, ...] -> [1, 1, ...]."""
    std = masked_std(advantages, valid, tuple(range(advantages.ndim)), ddof)
    return torch.where(std > 0, std + epsilon, 1.0)
