"""Baseline: a critic's values of the states before each token, and the returns that it learns from."""

import torch
from torch import Tensor
from torch.nn import functional


def lambda_advantages(
    rewards_BGT: Tensor, values_BGT: Tensor, mask_BGT: Tensor, trace: float | Tensor, gamma: float
) -> Tensor:
    """A_t = sum_l (gamma trace)^l delta_{t + l}, with delta_t = r_t + gamma V_{t + 1} - V_t (arXiv:1506.02438).

    V is 0 after the last token, and pads do not bootstrap. `trace` is lambda, or one for each response [B, G].
    """
    values_BGT = values_BGT.masked_fill(~mask_BGT, 0.0)
    following_BGT = functional.pad(values_BGT[..., 1:], (0, 1))
    deltas_BGT = (rewards_BGT + gamma * following_BGT - values_BGT).masked_fill(~mask_BGT, 0.0)
    advantage_BG, advantages = torch.zeros_like(deltas_BGT[..., 0]), []
    for delta_BG in reversed(deltas_BGT.unbind(-1)):
        advantage_BG = delta_BG + gamma * trace * advantage_BG
        advantages.append(advantage_BG)
    return torch.stack(advantages[::-1], dim=-1)


def value_targets(
    rewards_BGT: Tensor, values_BGT: Tensor, mask_BGT: Tensor, *, critic_lambda: float, gamma: float
) -> Tensor:
    """The lambda-returns that the critic learns, A_t + V_t with its own lambda; at 1 the reward to go. [B, G, T]."""
    return values_BGT + lambda_advantages(rewards_BGT, values_BGT, mask_BGT, critic_lambda, gamma)
