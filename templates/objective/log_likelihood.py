"""Objective: A log pi, without an importance ratio."""

from torch import Tensor


def surrogate(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """A log pi, whose gradient is A grad log pi (Williams 1992). [..., T]."""
    return advantages * logprobs
