"""Normalization: the standard deviation of the past steps' returns."""

import torch
from torch import Tensor

from templates.sections.running import update_normalization


def scale(returns: Tensor, state: dict[str, Tensor], *, ddof: int, epsilon: float) -> Tensor:
    """The std of the past steps' returns, plus epsilon; 1 before they vary. [B, G, ...] -> [B, G, ...]."""
    count, squares = (torch.zeros_like(returns) + state.get(f"returns_{name}", 0.0) for name in ("count", "squares"))
    std = (squares / (count - ddof).clamp(min=1)).sqrt()
    return torch.where((count > 1) & (std > 0), std + epsilon, 1.0)


def update_returns(returns: Tensor, valid: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Adds this step's returns to the statistics of the past steps' returns."""
    past = {name.removeprefix("returns_"): value for name, value in state.items() if name.startswith("returns_")}
    return {f"returns_{name}": value for name, value in update_normalization(returns, valid, past).items()}
