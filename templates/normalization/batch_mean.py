"""Normalization: the mean return of the batch."""

from torch import Tensor

from templates.sections.statistics import masked_mean


def scale(returns: Tensor, valid: Tensor, *, epsilon: float) -> Tensor:
    """The mean of the whole batch's returns, plus epsilon; 1 where that is 0. [B, G, ...] -> [1, 1, ...]."""
    divisor = masked_mean(returns, valid, tuple(range(returns.ndim))) + epsilon
    return divisor.masked_fill(divisor == 0, 1.0)
