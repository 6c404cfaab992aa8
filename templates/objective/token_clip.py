"""Objective: a bound on each token's ratio, before their product is taken."""

import torch
from torch import Tensor


def bounded(log_ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """log pi / pi_old of each token, at most `high` where A > 0 and at least -`low` where A < 0 (GMPO). [..., T]."""
    above = torch.where(advantages > 0, log_ratio.clamp(max=high), log_ratio)
    return torch.where(advantages < 0, log_ratio.clamp(min=-low), above)


def clipped(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Where a token's ratio is bounded, and gives no gradient: below, for negative advantages, and above."""
    log_ratio = logprobs - old_logprobs
    return (log_ratio < -low) & (advantages < 0), (log_ratio > high) & (advantages > 0)
