"""Baseline: generalized advantages with one lambda."""

from torch import Tensor

from templates.baseline.critic import lambda_advantages


def generalized_advantages(
    rewards_BGT: Tensor, values_BGT: Tensor, mask_BGT: Tensor, *, gae_lambda: float, gamma: float
) -> Tensor:
    """Generalized advantage estimation (arXiv:1506.02438). [B, G, T]."""
    return lambda_advantages(rewards_BGT, values_BGT, mask_BGT, gae_lambda, gamma)
