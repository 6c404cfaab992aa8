"""Normalization: the standard deviation of the batch."""

from torch import Tensor

from templates.sections.statistics import masked_std


def scale(advantages: Tensor, valid: Tensor, *, ddof: int, epsilon: float) -> Tensor:
    """The standard deviation of the whole batch's advantages, plus epsilon. [B, G, ...] -> [1, 1, ...]."""
    return masked_std(advantages, valid, tuple(range(advantages.ndim)), ddof) + epsilon
