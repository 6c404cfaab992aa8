"""Aggregation: every response counts once, with the sum of its tokens."""

from torch import Tensor


def seq_mean_token_sum(mask_BGT: Tensor) -> Tensor:
    """1 / (all responses with a token) on every token. bool [B, G, T] -> float64 [B, G, T]."""
    return mask_BGT.double() / mask_BGT.any(-1).sum().clamp(min=1)
