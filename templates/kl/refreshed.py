"""A reference policy that is refreshed."""


def reference_step(step: int, *, refresh_every: int) -> int:
    """The step whose policy is the reference in this one (iterative GRPO): the last multiple of `refresh_every`."""
    return step - step % refresh_every
