"""Score completions of two-digit additions: 1.0 when the first integer of a completion is the right sum.

Any function like `score` below can be the reward of a training script:

    python generated/rloo.py --reward verifier.py:score ...

The script calls it with keyword arguments, one list entry per completion: `prompts`, `completions`, and every other
column of the data under its own name (here `answer`). It returns one number per completion, or None for a completion
that cannot be scored (a crashed sandbox, a broken reference answer), which then takes no part in training.
"""

import re

INTEGER = re.compile(r"-?[0-9]+")


def score(prompts: list[str], completions: list[str], answer: list[str], **columns: object) -> list[float]:
    """Return 1.0 or 0.0 for each completion. `**columns` takes the columns of the data that are of no use here."""
    return [reward(completion, right) for completion, right in zip(completions, answer, strict=True)]


def reward(completion: str, right: str) -> float:
    # Only the first integer counts: after a right answer a small model goes on to invent further problems.
    # The comparison is of text, so nothing that a model can write (10,000 digits, say) raises an error.
    found = INTEGER.search(completion)
    return 1.0 if found and found.group() == right else 0.0
