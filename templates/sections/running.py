"""Statistics of the past steps, merged a step at a time (Chan et al. 1979)."""

from torch import Tensor

from templates.sections.statistics import masked_mean


def update_normalization(advantages: Tensor, valid: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Adds this step's count, mean and sum of squared deviations to those of the past steps."""
    dims = tuple(range(advantages.ndim))
    count, mean = valid.sum(), masked_mean(advantages, valid, dims)
    squares = (advantages - mean).masked_fill(~valid, 0.0).square().sum()
    past, shift = state.get("count", 0.0 * squares), mean.squeeze() - state.get("mean", 0.0 * squares)
    total = (past + count).clamp(min=1)
    return {
        "count": past + count,
        "mean": state.get("mean", 0.0 * squares) + shift * count / total,
        "squares": state.get("squares", 0.0 * squares) + squares + shift.square() * past * count / total,
    }
