"""Aggregation: every response counts once, with the mean of its tokens."""

from torch import Tensor


def seq_mean_token_mean(mask_BGT: Tensor) -> Tensor:
    """1 / (length of the response x all responses with a token) on every token. bool [B, G, T] -> float64 [B, G, T]."""
    lengths_BG1 = mask_BGT.sum(-1, keepdim=True).clamp(min=1)
    return mask_BGT.double() / lengths_BG1 / mask_BGT.any(-1).sum().clamp(min=1)
