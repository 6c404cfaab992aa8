"""Objective: the logistic loss of pairs (Bradley and Terry; DPO, arXiv:2305.18290; SimPO, arXiv:2405.14734)."""

from torch import Tensor
from torch.nn import functional


def rewards_of_scores(scores: Tensor, *, beta: float) -> Tensor:
    """The reward that the policy implies for each response. [pairs, 2] -> [pairs, 2]."""
    return beta * scores


def log_chance(ahead: Tensor, *, margin: float) -> Tensor:
    """The log of the chance of the choice that was made, the chosen response being `ahead` in reward. [pairs]."""
    return functional.logsigmoid(ahead - margin)
