"""An estimator that branches on the value of a tensor."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Args:
    group_size: int = 2


@dataclass
class Rollouts:
    rewards_BG: Tensor
    mask_BGT: Tensor


def compute_advantages(rollouts: Rollouts, hp: Args) -> Tensor:
    """Mend it with torch.where, which chooses without a branch."""
    if rollouts.rewards_BG.sum() > 0:
        return rollouts.rewards_BG[..., None] * rollouts.mask_BGT
    return torch.zeros_like(rollouts.mask_BGT, dtype=rollouts.rewards_BG.dtype)


def aggregation_weights(mask_BGT: Tensor, hp: Args) -> Tensor:
    return mask_BGT / mask_BGT.sum()


def policy_loss(logprobs, old_logprobs, ref_logprobs, advantages, weights, mask, hp: Args) -> Tensor:
    return -(weights * advantages * logprobs).sum()
