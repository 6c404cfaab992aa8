"""Selection: the responses whose rewards have the largest variance."""

import torch
from torch import Tensor
from torch.nn import functional

from templates.sections.statistics import masked_mean


def kept(rewards_BG: Tensor, *, max_variance: int) -> tuple[Tensor, Tensor]:
    """The prompts with a scored response [B], with the m responses of largest reward variance [B, m] (PODS).

    These are the i highest and the m - i lowest for some i (arXiv:2504.13818, lemma 3.1), found from prefix sums of the
    sorted rewards; the least such i. An unscored response counts as one at the mean, which is taken last.
    """
    G, m = rewards_BG.shape[1], min(max_variance, rewards_BG.shape[1])
    scored_BG = rewards_BG.isfinite()
    mean_B1 = masked_mean(rewards_BG, scored_BG, dim=1)
    sorted_BG, order_BG = torch.where(scored_BG, rewards_BG, mean_B1).sort(dim=1, stable=True)
    shifted_BG = sorted_BG - sorted_BG[:, :1]  # exact for rewards that are close together
    sums, squares = (functional.pad(values.cumsum(1), (1, 0)) for values in (shifted_BG, shifted_BG.square()))
    high = torch.arange(m + 1, device=rewards_BG.device)  # i
    total, total_of_squares = (s[:, m - high] + s[:, -1:] - s[:, G - high] for s in (sums, squares))
    spread = total_of_squares - total.square() / m
    best_B1 = (spread > spread.amax(1, keepdim=True) * (1 - 1e-6) - 1e-30).int().argmax(1, keepdim=True)
    place = torch.arange(m, device=rewards_BG.device)
    return scored_BG.any(1), order_BG.gather(1, torch.where(place < m - best_B1, place, place + G - m))
