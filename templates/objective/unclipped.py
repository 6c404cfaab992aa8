"""Objective: the importance ratio, unclipped."""

from torch import Tensor


def surrogate(ratio: Tensor, advantages: Tensor) -> Tensor:
    """A pi / pi_old. [..., T]."""
    return ratio * advantages
