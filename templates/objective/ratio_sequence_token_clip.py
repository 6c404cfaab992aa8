"""Importance ratio of the whole response, from bounded ratios of its tokens."""

from torch import Tensor

from templates.objective.token_clip import bounded


def importance_ratio(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """The product over the response of pi / pi_old of its tokens, each bounded. [..., T] -> [..., 1]."""
    return bounded(logprobs - old_logprobs, advantages, low=low, high=high).sum(-1, keepdim=True).exp()
