"""Selection: the best response to each prompt."""

import torch
from torch import Tensor


def kept(rewards_BG: Tensor) -> tuple[Tensor, Tensor]:
    """The prompts with a scored response [B], with their best one [B, 1]: the first of those with the highest reward.

    The responses are independent samples, so that one is as good as a random one.
    """
    scored_BG = rewards_BG.isfinite()
    return scored_BG.any(1), rewards_BG.masked_fill(~scored_BG, -torch.inf).argmax(1, keepdim=True)
