"""Aggregation: every prompt counts once, with the mean of its tokens."""

from torch import Tensor


def prompt_mean(mask_BGT: Tensor) -> Tensor:
    """1 / (tokens of the prompt x all prompts with a token) on every token. bool [B, G, T] -> float64 [B, G, T]."""
    tokens_B11 = mask_BGT.sum((1, 2), keepdim=True)
    return mask_BGT.double() / tokens_B11.clamp(min=1) / (tokens_B11 > 0).sum().clamp(min=1)
