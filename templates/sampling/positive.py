"""Selection: the responses with a positive reward."""

from torch import Tensor


def kept(rewards_BG: Tensor) -> tuple[Tensor, Tensor]:
    """The prompts with a reward above 0 [B], with the responses that have one first [B, G], and -1 for the others."""
    positive_BG = rewards_BG > 0
    order_BG = positive_BG.int().argsort(dim=1, descending=True, stable=True)
    return positive_BG.any(1), order_BG.masked_fill(~positive_BG.gather(1, order_BG), -1)
