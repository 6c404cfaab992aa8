"""Selection: the groups whose rewards differ."""

import torch
from torch import Tensor


def kept(rewards_BG: Tensor) -> tuple[Tensor, Tensor]:
    """The prompts whose scored responses differ in their rewards [B], with all responses [B, G] (DAPO, equation 11)."""
    scored_BG = rewards_BG.isfinite()
    highest_B = rewards_BG.masked_fill(~scored_BG, -torch.inf).amax(1)
    lowest_B = rewards_BG.masked_fill(~scored_BG, torch.inf).amin(1)
    return highest_B > lowest_B, torch.arange(rewards_BG.shape[1], device=rewards_BG.device).expand(rewards_BG.shape)
