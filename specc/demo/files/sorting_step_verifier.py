"""Score the steps of digit sorting (`4021=` -> `0124`), each token being one: its share of 1 where it is in its place.

Any function like `score_steps` below can be the reward of a script that scores steps:

    python generated/SCRIPT.py --reward step_verifier.py:score_steps --reward_separator= ...

The script calls it with keyword arguments, one list entry per completion: `prompts`, `completions`, `steps` (the texts
of each completion's steps), and every other column of the data under its own name (here `answer`). It returns a list of
numbers per completion, one for each step, or None for a completion that cannot be scored.
"""


def score_steps(
    prompts: list[str], completions: list[str], steps: list[list[str]], answer: list[str], **columns: object
) -> list[list[float]]:
    """Return 1/(digits + 1) for each digit in its place and for ending right after the last; 0 for every other token.

    So a completion that is exactly the sorted digits has 1 in all. The token that ends a response has no text.
    """
    found = []
    for tokens, right in zip(steps, answer, strict=True):
        wanted = [*right, ""]
        placed = [token == due for token, due in zip(tokens, wanted, strict=False)]
        found.append([float(ok) / len(wanted) for ok in placed] + [0.0] * (len(tokens) - len(placed)))
    return found
