"""Baseline: the length-weighted mean of the group's other responses."""

from torch import Tensor

from templates.sections.statistics import masked_mean


def baseline(returns_BG: Tensor, scored_BG: Tensor, mask_BGT: Tensor) -> Tensor:
    """sum_j L_j R_j / sum_j L_j over the group's other responses, so independent of the response's own. [B, G]."""
    lengths_BG = mask_BGT.sum(-1) * scored_BG
    anchor_B1 = masked_mean(returns_BG, scored_BG, dim=1)
    weighted_BG = lengths_BG * (returns_BG - anchor_B1).masked_fill(~scored_BG, 0.0)
    others_BG = (lengths_BG.sum(1, keepdim=True) - lengths_BG).clamp(min=1)
    return anchor_B1 + (weighted_BG.sum(1, keepdim=True) - weighted_BG) / others_BG
