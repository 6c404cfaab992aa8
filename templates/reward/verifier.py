"""Reward: a function that scores the responses."""

import importlib.util
import inspect
import math
import sys
from pathlib import Path

from templates.sections.data import stop


class Scorer:
    """The verifier named by `file.py:function`.

    It is called as `function(prompts=[...], completions=[...], **columns)`, a list for each column that every row has,
    and returns one number a completion, or None (or NaN) where it cannot tell.
    """

    def __init__(self, reward: str, columns: set[str]) -> None:
        file, _, name = reward.rpartition(":")
        if not file.endswith(".py"):
            stop(f"--reward: {reward} is not of the form file.py:function")
        if not Path(file).is_file():
            stop(f"--reward: there is no file {file}")
        spec = importlib.util.spec_from_file_location(f"reward_{Path(file).stem}", file)
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)  # where dataclasses look for it
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            stop(f"--reward: {file} does not import ({type(error).__name__}: {error})")
        self.name, self.verifier = reward, getattr(module, name, None)
        if not callable(self.verifier):
            stop(f"--reward: {file} has no function {name}")
        parameters = inspect.signature(self.verifier).parameters.values()
        named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        known, has = columns - {"prompt"} | {"prompts", "completions"}, ", ".join(sorted(columns))
        if missing := sorted(name for name, p in named.items() if p.default is p.empty and name not in known):
            stop(f"--reward: {reward} needs {', '.join(missing)}, and the data has the columns {has}")
        self.passed = known if any(p.kind is p.VAR_KEYWORD for p in parameters) else known & named.keys()

    def __call__(self, rows: list[dict], completions: list[str], ended: list[bool]) -> list[float]:
        """One score a completion, NaN where the verifier cannot tell; `ended` is not its business."""
        given = {"prompts": [row["prompt"] for row in rows], "completions": completions}
        given = {name: given.get(name) or [row.get(name) for row in rows] for name in self.passed}
        try:
            scores = list(self.verifier(**given))
        except Exception as error:
            stop(f"the reward function {self.name} raised {type(error).__name__}: {error}")
        if len(scores) != len(completions):
            stop(f"the reward function {self.name} returned {len(scores)} scores for {len(completions)} completions")
        try:
            return [math.nan if value is None else float(value) for value in scores]
        except (TypeError, ValueError):
            stop(f"the reward function {self.name} returned something else than numbers: {scores[:3]}")
