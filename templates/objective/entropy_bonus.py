"""Objective: the policy's entropy, added to what is maximized."""

from torch import Tensor


def entropy_term(entropies: Tensor, *, entropy_bonus: float) -> Tensor:
    """The entropy of the policy at each token, in nats, times its coefficient. [..., T]."""
    return entropy_bonus * entropies
