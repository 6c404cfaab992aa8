"""KL: implicit, as the log-ratio to the reference in the place of the log-prob."""

from torch import Tensor


def log_ratio(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """log pi/ref of each token. [pairs, 2, T] -> [pairs, 2, T]."""
    return logprobs - ref_logprobs
