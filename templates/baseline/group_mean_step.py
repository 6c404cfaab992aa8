"""Baseline: the mean step reward of the prompt's group."""

from torch import Tensor

from templates.sections.statistics import masked_mean


def baseline(rewards_BGT: Tensor, steps_BGT: Tensor) -> Tensor:
    """The mean over all steps of all responses of the group, to be taken from each (arXiv:2402.03300). -> [B, 1, 1]."""
    return masked_mean(rewards_BGT, steps_BGT, dim=(1, 2))
