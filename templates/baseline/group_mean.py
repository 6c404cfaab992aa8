"""Baseline: the mean of the prompt's group."""

from torch import Tensor

from templates.sections.statistics import masked_mean


def baseline(returns_BG: Tensor, scored_BG: Tensor) -> Tensor:
    """The mean return of the group, own included, which shrinks the gradient by (G - 1) / G. [B, G] -> [B, 1]."""
    return masked_mean(returns_BG, scored_BG, dim=1)
