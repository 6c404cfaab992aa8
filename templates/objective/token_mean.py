"""Aggregation: every token of the batch counts the same."""

from torch import Tensor


def token_mean(mask_BGT: Tensor) -> Tensor:
    """1 / (all tokens of the batch) on every token. bool [B, G, T] -> float64 [B, G, T]."""
    return mask_BGT.double() / mask_BGT.sum().clamp(min=1)
