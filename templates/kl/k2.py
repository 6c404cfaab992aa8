"""The k2 estimator of the KL."""

from torch import Tensor


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """k2 = (log pi/ref)^2 / 2: its gradient is that of KL(pi || ref), its value is not the KL (Schulman 2020)."""
    return log_ratio.square() / 2
