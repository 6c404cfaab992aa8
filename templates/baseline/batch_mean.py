"""Baseline: the mean of the batch."""

from torch import Tensor

from templates.sections.statistics import masked_mean


def baseline(returns_BG: Tensor, scored_BG: Tensor) -> Tensor:
    """The mean return of all N responses, own included, which shrinks the gradient by (N - 1) / N. [B, G] -> [1, 1]."""
    return masked_mean(returns_BG, scored_BG, dim=(0, 1))
