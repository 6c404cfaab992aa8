"""The k1 estimator of the KL."""

from torch import Tensor


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """k1 = log pi/ref: unbiased for KL(pi || ref), and negative on some samples (Schulman 2020)."""
    return log_ratio
