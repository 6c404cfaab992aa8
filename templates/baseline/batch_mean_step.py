"""Baseline: the mean step reward of the batch."""

from torch import Tensor

from templates.sections.statistics import masked_mean


def baseline(rewards_BGT: Tensor, steps_BGT: Tensor) -> Tensor:
    """The mean over all steps of the batch, to be taken from each of them. [B, G, T] -> [1, 1, 1]."""
    return masked_mean(rewards_BGT, steps_BGT, dim=(0, 1, 2))
