"""Importance ratio of the response, per token."""

from torch import Tensor


def importance_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """(pi / pi_old)^(1 / length), the geometric mean over the response's tokens (GSPO). [..., T] -> [..., 1]."""
    lengths = mask.sum(-1, keepdim=True).clamp(min=1)
    return ((logprobs - old_logprobs).sum(-1, keepdim=True) / lengths).exp()
