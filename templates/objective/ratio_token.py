"""Importance ratio of each token."""

from torch import Tensor


def importance_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """pi / pi_old of each token. [..., T] -> [..., T]."""
    return (logprobs - old_logprobs).exp()
