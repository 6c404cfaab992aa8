"""Importance ratio of the response, per token, from bounded ratios of its tokens."""

from torch import Tensor

from templates.objective.token_clip import bounded


def importance_ratio(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *, low: float, high: float
) -> Tensor:
    """The geometric mean of pi / pi_old of the response's tokens, each bounded (GMPO). [..., T] -> [..., 1]."""
    log_ratio = bounded(logprobs - old_logprobs, advantages, low=low, high=high)
    return (log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)).exp()
