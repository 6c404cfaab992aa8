"""Normalization: the mean return of the prompt's group."""

from torch import Tensor

from templates.sections.statistics import masked_mean


def scale(returns: Tensor, valid: Tensor, *, epsilon: float) -> Tensor:
    """The mean of each group's returns, plus epsilon (MaxRL, arXiv:2602.02710); 1 where that is 0. -> [B, 1, ...]."""
    divisor = masked_mean(returns, valid, tuple(range(1, returns.ndim))) + epsilon
    return divisor.masked_fill(divisor == 0, 1.0)
