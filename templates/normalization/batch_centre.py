"""Normalization: minus the mean of the batch."""

from torch import Tensor

from templates.sections.statistics import masked_mean


def centre(advantages: Tensor, valid: Tensor) -> Tensor:
    """The mean of the whole batch's advantages. [B, G, ...] -> [1, 1, ...]."""
    return masked_mean(advantages, valid, tuple(range(advantages.ndim)))
