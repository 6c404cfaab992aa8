"""Baseline: the mean of the group's other responses."""

from torch import Tensor

from templates.sections.statistics import masked_mean


def baseline(returns_BG: Tensor, scored_BG: Tensor) -> Tensor:
    """The mean return of the group's other responses, so independent of the response's own (Kool et al. 2019). [B, G].

    With the group's mean m over n responses, the mean of the others is m - (r - m) / (n - 1). A response that is alone
    in its group gets its own return, and so no advantage.
    """
    mean_B1 = masked_mean(returns_BG, scored_BG, dim=1)
    others_B1 = (scored_BG.sum(dim=1, keepdim=True) - 1).clamp(min=1)
    return mean_B1 - (returns_BG - mean_B1) / others_B1
