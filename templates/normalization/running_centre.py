"""Normalization: minus the mean of the past steps."""

import torch
from torch import Tensor

from templates.sections.running import update_normalization as update_normalization


def centre(advantages: Tensor, state: dict[str, Tensor]) -> Tensor:
    """The mean advantage of the past steps, 0 before there is one. [B, G, ...] -> [B, G, ...]."""
    return torch.zeros_like(advantages) + state.get("mean", 0.0)
