"""Reward transform: a fixed score for responses that never end."""

import torch
from torch import Tensor


def score_missing_eos(rewards_BG: Tensor, ended_BG: Tensor, *, missing_eos: float) -> Tensor:
    """`missing_eos` in place of the score where the response was cut off (Stiennon et al. 2020 use -1)."""
    return torch.where(ended_BG, rewards_BG, missing_eos)
