"""Selection: the responses whose rewards have the largest variance."""

import torch
from torch import Tensor
from torch.nn import functional


def kept(rewards_BG: Tensor, *, max_variance: int) -> tuple[Tensor, Tensor]:
    """The prompts with a scored response [B], with the m responses of largest reward variance [B, m] (PODS).

    These are the i highest and the m - i lowest for some i (arXiv:2504.13818, lemma 3.1), found from prefix sums of the
    sorted rewards; the least such i. Where fewer than m are scored, the rest is made up of unscored ones.
    """
    scored_BG, m = rewards_BG.isfinite(), min(max_variance, rewards_BG.shape[1])
    count_B1 = scored_BG.sum(1, keepdim=True)
    sorted_BG, order_BG = rewards_BG.masked_fill(~scored_BG, torch.inf).sort(dim=1, stable=True)
    # The differences to the lowest are exact where rewards are close together.
    above_BG = (sorted_BG - sorted_BG[:, :1]).masked_fill(
        ~scored_BG.gather(1, order_BG), 0.0
    )  # exact where it is small
    sums, squares = (functional.pad(values.cumsum(1), (1, 0)) for values in (above_BG, above_BG.square()))
    high = torch.arange(m + 1, device=rewards_BG.device)  # i
    first_high = (count_B1 - high).clamp(min=0)
    total, of_squares = (s[:, m - high] + s[:, -1:] - s.gather(1, first_high) for s in (sums, squares))
    spread = of_squares - total.square() / m
    best_B1 = (spread >= spread.amax(1, keepdim=True) * (1 - 1e-6)).int().argmax(1, keepdim=True)
    place = torch.arange(m, device=rewards_BG.device)
    gap_B1 = (count_B1 - m).clamp(min=0)  # between the last of the low and the first of the high
    return count_B1[:, 0] > 0, order_BG.gather(1, torch.where(place < m - best_B1, place, place + gap_B1))
