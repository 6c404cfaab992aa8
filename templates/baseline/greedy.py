"""Baseline: the reward of the greedy response."""

from torch import Tensor


def baseline(greedy_rewards_B: Tensor) -> Tensor:
    """The reward of the prompt's greedy response, so independent of the sampled ones (ReMax). [B] -> [B, 1]."""
    return greedy_rewards_B[:, None]
