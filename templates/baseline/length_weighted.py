"""Baseline: the length-weighted mean of the prompt's group."""

from torch import Tensor

from templates.sections.statistics import masked_mean


def baseline(returns_BG: Tensor, scored_BG: Tensor, mask_BGT: Tensor) -> Tensor:
    """sum_j L_j R_j / sum_j L_j over the group, own included (OPO, arXiv:2505.23585, equation 9). [B, G] -> [B, 1]."""
    lengths_BG = mask_BGT.sum(-1) * scored_BG
    anchor_B1 = masked_mean(returns_BG, scored_BG, dim=1)
    deviations_BG = (returns_BG - anchor_B1).masked_fill(~scored_BG, 0.0)
    return anchor_B1 + (lengths_BG * deviations_BG).sum(1, keepdim=True) / lengths_BG.sum(1, keepdim=True).clamp(min=1)
