"""Statistics over the entries under a mask."""

import torch
from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Mean over `dim` (kept, of size 1) of the entries under the mask; 0 where there are none.

    It is taken of the differences to one of the entries, so that the mean of equal numbers is exactly that number.
    """
    anchor = values.masked_fill(~mask, -torch.inf).amax(dim, keepdim=True)
    anchor = anchor.masked_fill(~mask.any(dim, keepdim=True), 0.0)
    differences = (values - anchor).masked_fill(~mask, 0.0)
    return anchor + differences.sum(dim, keepdim=True) / mask.sum(dim, keepdim=True).clamp(min=1)


def masked_std(values: Tensor, mask: Tensor, dim: int | tuple[int, ...], ddof: int) -> Tensor:
    """Standard deviation over `dim` (kept, of size 1) of the entries under the mask, in two passes; 0 without any."""
    deviations = (values - masked_mean(values, mask, dim)).masked_fill(~mask, 0.0)
    return (deviations.square().sum(dim, keepdim=True) / (mask.sum(dim, keepdim=True) - ddof).clamp(min=1)).sqrt()


def last_token(mask: Tensor) -> Tensor:
    """True on the last token under each row's mask. bool [..., T] -> bool [..., T]."""
    return mask & (mask.flip(-1).cumsum(-1).flip(-1) == 1)
