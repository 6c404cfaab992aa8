"""Reward: a function that scores the steps of the responses."""

import math
from typing import Any

from templates.reward.verifier import Scorer
from templates.sections.data import stop


class StepScorer(Scorer):
    """The step verifier named by `file.py:function`.

    It is called like a verifier, with `steps=[[...], ...]` besides, the texts of each completion's steps, and returns a
    list of numbers for each completion, one a step; None (or NaN) among them or in place of the list where it cannot
    tell.
    """

    def __init__(self, reward: str, columns: set[str], *, separator: str) -> None:
        super().__init__(reward, columns | {"steps"})
        self.separator = separator

    def __call__(
        self, rows: list[dict], completions: list[str], steps: list[list[str]], ended: list[bool]
    ) -> list[list[float]]:
        """The scores of each completion's steps; `ended` is not its business."""
        given = {"prompts": [row["prompt"] for row in rows], "completions": completions, "steps": steps}
        given = {name: given.get(name) or [row.get(name) for row in rows] for name in self.passed}
        try:
            scores = list(self.verifier(**given))
        except Exception as error:
            stop(f"the reward function {self.name} raised {type(error).__name__}: {error}")
        if len(scores) != len(completions):
            stop(f"the reward function {self.name} returned {len(scores)} lists for {len(completions)} completions")
        return [self.numbers(of, len(parts)) for of, parts in zip(scores, steps, strict=True)]

    def numbers(self, scores: Any, count: int) -> list[float]:
        """What was returned for one completion, as one number a step."""
        if scores is None:
            return [math.nan] * count
        try:
            numbers = [math.nan if value is None else float(value) for value in scores]
        except (TypeError, ValueError):
            stop(f"the reward function {self.name} returned something else than a list of numbers: {scores!r:.80}")
        if len(numbers) != count:
            stop(f"the reward function {self.name} returned {len(numbers)} scores for a completion of {count} steps")
        return numbers
