"""Updates: the rows of one forward and backward pass."""

from collections.abc import Callable

from torch import Tensor


def row_selector(part: Tensor, counts_BG: Tensor, mask_BGT: Tensor) -> Callable[[Tensor], Tensor]:
    """What picks the prompts of a part from a [B, G, T] tensor: their responses that count, cut after the longest.

    Prompts with fewer of those than others keep some that do not count.
    """
    counts = counts_BG[part]
    order = counts.int().argsort(dim=1, descending=True, stable=True)[:, : max(int(counts.sum(1).max()), 1)]
    longest = max(int(mask_BGT[part[:, None], order].any(0).any(0).sum()), 1)
    return lambda values_BGT: values_BGT[part[:, None], order, :longest]
