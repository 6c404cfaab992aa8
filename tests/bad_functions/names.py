import math as torch
from statistics import mean as masked_mean

from torch import Tensor


def stop(x: Tensor) -> Tensor:
    return x


def sum(x: Tensor) -> Tensor:
    return x.mean()


def median(returns_BG: Tensor) -> Tensor:
    """The names of four things that it uses are the script's or Python's."""
    return stop(returns_BG) + sum(returns_BG) + torch.pi + masked_mean([1])
