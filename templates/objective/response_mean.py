"""Preference: a response counts by the mean over its tokens."""

from torch import Tensor


def response_score(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over each response's tokens. [pairs, 2, T] -> [pairs, 2]."""
    return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)
