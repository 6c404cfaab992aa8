"""No normalization: the advantage stays in the units of the reward."""
