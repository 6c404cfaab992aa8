"""Reward transform: the soft overlong punishment."""

from torch import Tensor


def punish_overlong(rewards_BG: Tensor, lengths_BG: Tensor, *, limit: int, buffer: int, penalty: float) -> Tensor:
    """Takes up to `penalty` from responses that enter the last `buffer` tokens before `limit` (DAPO, equation 13)."""
    return rewards_BG - penalty * ((lengths_BG.to(rewards_BG.dtype) - (limit - buffer)) / buffer).clamp(0.0, 1.0)
