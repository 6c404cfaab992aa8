"""Objective: a sigmoid gate on the ratio."""

import torch
from torch import Tensor


def surrogate(ratio: Tensor, advantages: Tensor, *, positive: float, negative: float) -> Tensor:
    """sigmoid(tau (ratio - 1)) 4 / tau A, with tau by the advantage's sign; its slope at 1 is 1 (SAPO). [..., T]."""
    tau = torch.full_like(advantages, negative).masked_fill(advantages > 0, positive)
    return torch.sigmoid(tau * (ratio - 1)) * 4 / tau * advantages
