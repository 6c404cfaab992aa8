"""Reward: credit for the steps that end at a token or later."""

from torch import Tensor


def rewards_before(step_rewards_BGT: Tensor, valid_BGT: Tensor) -> Tensor:
    """sum_{u < t} r_u: what steps have earned before each token, which is not to its credit. [B, G, T]."""
    rewards_BGT = step_rewards_BGT.masked_fill(~valid_BGT, 0.0)
    return rewards_BGT.cumsum(-1) - rewards_BGT


def rewards_to_come(rewards_BGT: Tensor) -> Tensor:
    """sum_{u >= t} r_u: what the steps that end at each token or later earn. [B, G, T] -> [B, G, T]."""
    return rewards_BGT.flip(-1).cumsum(-1).flip(-1)
