import numpy as np
import torch

from .statistics import trimmed

calls = 0


def of_numpy(returns_BG):
    return torch.tensor(np.median(returns_BG, axis=1))[:, None]


def of_a_neighbour(returns_BG):
    return trimmed(returns_BG)


def of_nothing(returns_BG, scored_BG):
    return masked_mean(returns_BG, scored_BG) + helper(returns_BG)


def helper(x):
    return torhc.sum(x)


def counting(returns_BG):
    global calls
    calls += 1
    return returns_BG * (calls > 9)
