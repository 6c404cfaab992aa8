"""Objective: the likelihood of the correct responses, added to what is maximized."""

from torch import Tensor


def likelihood_weights(rewards_BG: Tensor, mask_BGT: Tensor) -> Tensor:
    """1 / N on each of the N tokens of correct responses, over everything that one optimizer step averages. [B, G, T].

    A response is correct where its reward is above 0.
    """
    correct_BGT = (rewards_BG > 0)[..., None] & mask_BGT
    return correct_BGT.double() / correct_BGT.sum().clamp(min=1)


def likelihood_term(logprobs: Tensor, likelihood_weights: Tensor, *, coefficient: float) -> Tensor:
    """Minus the NLL of each token of a correct response, times its weight and the coefficient (VAPO). [..., T]."""
    return coefficient * likelihood_weights * logprobs
