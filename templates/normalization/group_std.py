"""Normalization: the standard deviation of the prompt's group."""

from torch import Tensor

from templates.sections.statistics import masked_std


def scale(advantages: Tensor, valid: Tensor, *, ddof: int, epsilon: float) -> Tensor:
    """The standard deviation of each group's advantages, plus epsilon. [B, G, ...] -> [B, 1, ...]."""
    return masked_std(advantages, valid, tuple(range(1, advantages.ndim)), ddof) + epsilon
