import torch
from torch import Tensor

SCALE = 0.5
SCALE *= 2
WEIGHTS = [1.0, 2.0]
WEIGHTS.append(4.0)


def scaled(returns_BG: Tensor) -> Tensor:
    """The module means a scale and weights that its definitions alone do not."""
    return SCALE * sum(WEIGHTS) * torch.relu(returns_BG)
