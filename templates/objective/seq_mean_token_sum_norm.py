"""Aggregation: every response counts once, with the sum of its tokens over a constant length."""

from torch import Tensor


def seq_mean_token_sum_norm(mask_BGT: Tensor, *, max_length: int) -> Tensor:
    """1 / (max_length x all responses with a token) on every token. bool [B, G, T] -> float64 [B, G, T]."""
    return mask_BGT.double() / max_length / mask_BGT.any(-1).sum().clamp(min=1)
