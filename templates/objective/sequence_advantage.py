"""Objective: one return for the whole response."""

from torch import Tensor


def response_return(rewards_BG: Tensor, penalties_BGT: Tensor) -> Tensor:
    """R = r - sum_t penalty_t: the outcome, and what all tokens of the response are charged. -> [B, G]."""
    return rewards_BG - penalties_BGT.sum(-1)
