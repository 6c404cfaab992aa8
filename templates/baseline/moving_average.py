"""Baseline: a moving average of past steps."""

import torch
from torch import Tensor

from templates.sections.statistics import masked_mean


def baseline(returns_BG: Tensor, state: dict[str, Tensor]) -> Tensor:
    """The moving average of the past steps' mean returns, 0 before there is one. [B, G] -> [B, G]."""
    return torch.zeros_like(returns_BG) + state.get("moving_average", 0.0)


def update_baseline(returns_BG: Tensor, scored_BG: Tensor, state: dict[str, Tensor], *, decay: float) -> dict:
    """Moves the average by 1 - decay towards this step's mean return; a step without a score leaves it."""
    mean = masked_mean(returns_BG, scored_BG, dim=(0, 1)).squeeze()
    average = state.get("moving_average", mean)
    return {"moving_average": torch.where(scored_BG.any(), decay * average + (1 - decay) * mean, average)}
