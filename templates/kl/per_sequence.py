"""KL of the whole response."""

from torch import Tensor

from templates.kl.k1 import kl_estimate
from templates.sections.statistics import last_token


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, *, coefficient: float | Tensor) -> Tensor:
    """The KL estimate of the response, times the coefficient, on its last token. [..., T] -> [..., T]."""
    log_ratio = (logprobs - ref_logprobs).masked_fill(~mask, 0.0).sum(-1, keepdim=True)
    return coefficient * kl_estimate(log_ratio) * last_token(mask)
