"""Baseline: the critic's squared error, which stops falling where a value has moved too far."""

import torch
from torch import Tensor


def value_error(
    values: Tensor, old_values: Tensor, targets: Tensor, *, value_clip: float, coefficient: float
) -> Tensor:
    """0.5 max((V - R)^2, (clip(V, V_old - value_clip, V_old + value_clip) - R)^2), times the coefficient. [rows, T]."""
    bounded = old_values + (values - old_values).clamp(-value_clip, value_clip)
    return coefficient * 0.5 * torch.maximum((values - targets).square(), (bounded - targets).square())
