"""Objective: the return that is still to come at each token."""

from torch import Tensor


def reward_to_go(rewards_BG: Tensor, penalties_BGT: Tensor) -> Tensor:
    """G_t = r - sum_{u >= t} penalty_u: the outcome, and what the tokens from t on are charged. -> [B, G, T]."""
    return rewards_BG[..., None] - penalties_BGT.flip(-1).cumsum(-1).flip(-1)
