"""The k3 estimator of the KL."""

import torch
from torch import Tensor


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """k3 = ref/pi - 1 + log pi/ref: unbiased for KL(pi || ref) and never negative (Schulman 2020)."""
    return torch.expm1(-log_ratio) + log_ratio
