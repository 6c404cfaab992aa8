"""Objective: the clipped ratio as a detached weight of A log pi."""

from torch import Tensor


def surrogate(ratio: Tensor, logprobs: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """sg[clip(ratio, 1 - low, 1 + high)] A log pi, so that no token loses its gradient (CISPO). [..., T]."""
    return ratio.detach().clamp(1 - low, 1 + high) * advantages * logprobs


def clipped(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Where the weight is at its lower and at its upper bound, and the advantage is not 0."""
    return (ratio < 1 - low) & (advantages != 0), (ratio > 1 + high) & (advantages != 0)
