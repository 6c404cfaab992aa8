"""Pairs: the two answers of each row as tensors, their log-probs, and what is reported of them."""

import torch
from torch import Tensor, nn

from templates.sections.data import pad_left

PAIR_METRICS = (
    "rewards/chosen",
    "rewards/rejected",
    "rewards/margins",
    "rewards/accuracies",
    "logps/chosen",
    "logps/rejected",
)


def pad_pairs(rows: list[dict], pad: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prompts [B, P] with their mask, and their answers [B, 2, T] with theirs: 0 is the chosen one, 1 the rejected."""
    longest = max(len(ids) for row in rows for ids in row["answers"])
    tokens = [[ids + [pad] * (longest - len(ids)) for ids in row["answers"]] for row in rows]
    lengths = torch.tensor([[len(ids) for ids in row["answers"]] for row in rows], device=device)
    mask = torch.arange(longest, device=device) < lengths[..., None]
    return *pad_left(rows, pad, device), torch.tensor(tokens, device=device), mask


@torch.no_grad()
def pair_logprobs(policy: nn.Module, rows: list[dict], at_once: int, pad: int, device: torch.device) -> list[Tensor]:
    """The log-probs of each row's answers, [2, T] on the CPU, `at_once` rows at a time."""
    found = []
    for first in range(0, len(rows), at_once):
        part = rows[first : first + at_once]
        logprobs, _ = policy(*pad_pairs(part, pad, device))
        longest = [max(map(len, row["answers"])) for row in part]
        found += [values[:, :end].cpu() for values, end in zip(logprobs, longest, strict=True)]
    return found


def reference_logprobs(rows: list[dict], device: torch.device) -> Tensor:
    """What was found for these rows by the reference, as one batch. [B, 2, T], 0 on pads."""
    sides = [row["ref_logprobs"][side] for row in rows for side in (0, 1)]
    padded = nn.utils.rnn.pad_sequence(sides, batch_first=True)
    return padded.view(len(rows), 2, -1).to(device)


@torch.no_grad()
def sum_pairs(rewards_B2: Tensor, logprobs: Tensor, mask: Tensor) -> Tensor:
    """The sums over pairs of PAIR_METRICS. `logprobs` and `mask` are [B, 2, T]."""
    chosen, rejected = rewards_B2.unbind(1)
    of_responses = logprobs.masked_fill(~mask, 0.0).sum(-1)
    values = [chosen, rejected, chosen - rejected, (chosen > rejected).float(), *of_responses.unbind(1)]
    return torch.stack([value.double().sum() for value in values])
