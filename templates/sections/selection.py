"""Selection: the responses that are kept, in place of all."""

import torch
from torch import Tensor
from torch.nn import functional

from templates.sections.rollouts import Responses


def taken(values_BG: Tensor, chosen_BM: Tensor) -> Tensor:
    """The chosen responses of each prompt: [B, G, ...] -> [B, M, ...]; any of them where the choice is -1."""
    spots = chosen_BM.clamp(min=0).view(*chosen_BM.shape, *[1] * (values_BG.ndim - 2))
    return values_BG.gather(1, spots.expand(*chosen_BM.shape, *values_BG.shape[2:]))


def keep_responses(
    responses: Responses, rewards_BG: Tensor, prompts_B: Tensor, chosen_BM: Tensor
) -> tuple[Responses, Tensor]:
    """The responses that are kept and their rewards. What fills the gaps has no token and no reward."""
    kept_BM = prompts_B[:, None] & (chosen_BM >= 0)
    tokens, mask, ended = (taken(values, chosen_BM) for values in responses[2:])
    rewards_BM = taken(rewards_BG, chosen_BM).masked_fill(~kept_BM, torch.nan)
    return Responses(*responses[:2], tokens, mask & kept_BM[..., None], ended & kept_BM), rewards_BM


def is_kept(prompts_B: Tensor, chosen_BM: Tensor, group_size: int) -> Tensor:
    """Whether each response is kept: [B], [B, M] -> bool [B, G]."""
    return (chosen_BM[..., None] == torch.arange(group_size)).any(1) & prompts_B[:, None]


def join_responses(parts: list[Responses], pad: int) -> Responses:
    """The prompts of several batches as one, padded to the longest of them."""
    longest = [max(values.shape[-1] for values in column) for column in zip(*parts, strict=True)]

    def joined(column: int, left: bool, fill: int | bool) -> Tensor:
        gaps = [longest[column] - part[column].shape[-1] for part in parts]
        return torch.cat(
            [
                functional.pad(part[column], (gap, 0) if left else (0, gap), value=fill)
                for part, gap in zip(parts, gaps, strict=True)
            ]
        )

    prompts, answers = (joined(0, True, pad), joined(1, True, False)), (joined(2, False, pad), joined(3, False, False))
    return Responses(*prompts, *answers, torch.cat([part.ended_BG for part in parts]))
