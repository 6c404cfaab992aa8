"""Baseline: the critic's squared error."""

from torch import Tensor


def value_error(values: Tensor, targets: Tensor, *, coefficient: float) -> Tensor:
    """Half the squared distance of each value from its target, times the coefficient. [rows, T]."""
    return coefficient * 0.5 * (values - targets).square()
