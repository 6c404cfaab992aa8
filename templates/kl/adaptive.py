"""An adaptive coefficient of the KL."""

import torch
from torch import Tensor

from templates.sections.statistics import masked_mean


def kl_coefficient_of(state: dict[str, Tensor], *, initial: float) -> Tensor:
    """The coefficient that the past steps leave, `initial` before there is one. A scalar."""
    return state.get("kl_coefficient", torch.tensor(initial, dtype=torch.float64))


def update_coefficient(
    old_logprobs_BGT: Tensor,
    ref_logprobs_BGT: Tensor,
    mask_BGT: Tensor,
    scored_BG: Tensor,
    state: dict[str, Tensor],
    *,
    initial: float,
    target: float,
    horizon: float,
) -> dict[str, Tensor]:
    """The next step's coefficient, by the controller of Ziegler et al. 2019 (section 2.2).

    Times 1 + clip(KL / target - 1, -.2, .2) n / horizon, of the mean KL in nats of the step's n responses that count;
    never less than halved, which only a horizon as short as the batch could ask for.
    """
    valid_BG = scored_BG & mask_BGT.any(-1)
    log_ratio_BG = (old_logprobs_BGT - ref_logprobs_BGT).masked_fill(~mask_BGT, 0.0).sum(-1)
    error = (masked_mean(log_ratio_BG, valid_BG, dim=(0, 1)).squeeze() / target - 1).clamp(-0.2, 0.2)
    factor = (1 + error * valid_BG.sum() / horizon).clamp(min=0.5)
    return {"kl_coefficient": kl_coefficient_of(state, initial=initial) * factor}
