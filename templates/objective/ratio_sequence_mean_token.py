"""Importance ratio of the response, per token, with the gradient of each token."""

from torch import Tensor


def importance_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """sg[(pi / pi_old)^(1 / length)] pi_t / sg[pi_t]: the mean ratio, each token's gradient (GSPO-token). [..., T]."""
    lengths = mask.sum(-1, keepdim=True).clamp(min=1)
    ratio = ((logprobs - old_logprobs).sum(-1, keepdim=True) / lengths).exp()
    return ratio.detach() * (logprobs - logprobs.detach()).exp()
