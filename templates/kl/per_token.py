"""KL of every token."""

from torch import Tensor

from templates.kl.k1 import kl_estimate


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, *, coefficient: float | Tensor) -> Tensor:
    """The KL estimate of each token, times the coefficient. [..., T] -> [..., T], 0 outside the mask."""
    log_ratio = (logprobs - ref_logprobs).masked_fill(~mask, 0.0)
    return coefficient * kl_estimate(log_ratio)
