"""Baseline: first steps in which only the critic is trained."""


def pretrains(step: int, *, pretrain_steps: int) -> bool:
    """Whether a step trains the critic alone, on responses of the initial policy (VC-PPO, arXiv:2503.01491)."""
    return step < pretrain_steps
