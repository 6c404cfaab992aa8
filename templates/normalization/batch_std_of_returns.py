"""Normalization: the standard deviation of the batch's returns."""

import torch
from torch import Tensor

from templates.sections.statistics import masked_std


def scale(returns: Tensor, valid: Tensor, *, ddof: int, epsilon: float) -> Tensor:
    """The std of the whole batch's returns, plus epsilon; 1 where nothing varies. [B, G, ...] -> [1, 1, ...]."""
    std = masked_std(returns, valid, tuple(range(returns.ndim)), ddof)
    return torch.where(std > 0, std + epsilon, 1.0)
