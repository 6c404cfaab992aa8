"""Baseline: generalized advantages with a lambda by the response's length."""

from torch import Tensor

from templates.baseline.critic import lambda_advantages


def generalized_advantages(
    rewards_BGT: Tensor, values_BGT: Tensor, mask_BGT: Tensor, *, alpha: float, gamma: float
) -> Tensor:
    """With lambda = 1 - 1/(alpha l) for a response of l tokens, 0 up to 1/alpha of them (VAPO, arXiv:2504.05118)."""
    lengths_BG = mask_BGT.to(values_BGT.dtype).sum(-1)
    lambdas_BG = 1 - 1 / (alpha * lengths_BG).clamp(min=1)
    return lambda_advantages(rewards_BGT, values_BGT, mask_BGT, lambdas_BG, gamma)
