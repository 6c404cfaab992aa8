"""Baseline: the mean step reward of the group's other responses."""

import torch
from torch import Tensor

from templates.sections.statistics import masked_mean


def baseline(rewards_BGT: Tensor, steps_BGT: Tensor) -> Tensor:
    """The mean over the steps of the group's other responses, to be taken from each step. [B, G, T] -> [B, G, T].

    With the mean m over all steps, and S the sum of r - m over a response's own, the mean of the n other steps is
    m - S / n. The steps of a response without others get their own rewards, and so no advantage.
    """
    mean_B11 = masked_mean(rewards_BGT, steps_BGT, dim=(1, 2))
    own_BG1 = (rewards_BGT - mean_B11).masked_fill(~steps_BGT, 0.0).sum(-1, keepdim=True)
    others_BG1 = steps_BGT.sum((1, 2), keepdim=True) - steps_BGT.sum(-1, keepdim=True)
    return torch.where(others_BG1 > 0, mean_B11 - own_BG1 / others_BG1.clamp(min=1), rewards_BGT)
