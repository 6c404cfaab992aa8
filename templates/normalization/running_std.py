"""Normalization: the standard deviation of the past steps."""

import torch
from torch import Tensor

from templates.sections.running import update_normalization as update_normalization


def scale(advantages: Tensor, state: dict[str, Tensor], *, ddof: int, epsilon: float) -> Tensor:
    """The std of the past steps' advantages, plus epsilon; 1 before they vary. [B, G, ...] -> [B, G, ...]."""
    count, squares = (torch.zeros_like(advantages) + state.get(name, 0.0) for name in ("count", "squares"))
    std = (squares / (count - ddof).clamp(min=1)).sqrt()
    return torch.where((count > 1) & (std > 0), std + epsilon, 1.0)
