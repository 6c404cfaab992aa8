"""Importance ratio of the whole response."""

from torch import Tensor


def importance_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """pi / pi_old of the response, the product over its tokens. [..., T] -> [..., 1]."""
    return (logprobs - old_logprobs).sum(-1, keepdim=True).exp()
