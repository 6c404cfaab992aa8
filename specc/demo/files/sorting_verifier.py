"""Score completions of digit sorting (`4021=` -> `0124`): 1.0 when a completion is exactly the sorted digits.

Any function like `score` below can be the reward of a training script:

    python generated/rloo.py --reward verifier.py:score ...

The script calls it with keyword arguments, one list entry per completion: `prompts`, `completions`, and every other
column of the data under its own name (here `answer`). It returns one number per completion, or None for a completion
that cannot be scored, which then takes no part in training.
"""


def score(prompts: list[str], completions: list[str], answer: list[str], **columns: object) -> list[float]:
    """Return 1.0 or 0.0 for each completion. `**columns` takes the columns of the data that are of no use here."""
    # Exact match, spaces around it aside: there is no partial credit, so a policy that learns has learnt to sort.
    return [1.0 if completion.strip() == right else 0.0 for completion, right in zip(completions, answer, strict=True)]
