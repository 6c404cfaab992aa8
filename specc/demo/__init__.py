"""The embedded default: a policy, prompts and a verifier, prepared once from installed packages and cached.

Two demos, of the same form. The real one is SmolLM2-135M-Instruct with two-digit addition. The tiny one is a
0.13 M-parameter policy that sorts digits, with a reward model and preference pairs; it is prepared, and learns, in
seconds. Nothing is downloaded: models and data come from packages, or are trained on the spot.

`prepare` is all that the rest of specc uses. This module imports neither torch nor transformers.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.demo.problems import DemoError, require

__all__ = ["FORMAT", "DemoError", "DemoFiles", "prepare"]

FORMAT = 2
"""Version of what a demo directory holds; raised whenever a preparation would make other files or other bytes."""

SEED = 2026
MANIFEST = "demo.json"
REAL, TINY = "smollm2-addition", "tiny-sorting"

ABANDONED_AFTER = 6 * 3600
"""Seconds after which an unfinished preparation beside the directory counts as killed, and is removed."""


@dataclass(frozen=True)
class DemoFiles:
    """Where the parts of a prepared demo are. The optional ones belong to the tiny demo only."""

    directory: Path
    model: Path
    """The policy: a folder for `AutoModelForCausalLM` and `AutoTokenizer`."""
    train: Path
    """JSON Lines, columns `prompt` and `answer`."""
    heldout: Path
    """As `train`, 200 problems of which none is in `train`."""
    verifier: Path
    """A Python file with `score(prompts, completions, answer, **columns)`."""
    training: Path
    """Arguments of a compiled script, as YAML: where these parts are, and settings that learn here on two CPU cores."""
    step_verifier: Path | None = None
    """A Python file with `score_steps(prompts, completions, steps, answer, **columns)`, for steps of one token."""
    reward_model: Path | None = None
    """A folder for `AutoModelForSequenceClassification` (one label) and `AutoTokenizer`."""
    pairs: Path | None = None
    """JSON Lines, columns `prompt`, `chosen` and `rejected`: what the reward model was trained on."""
    heldout_pairs: Path | None = None
    """As `pairs`, over other prompts: what the reward model was measured on."""
    sft: Path | None = None
    """JSON Lines, columns `prompt` and `completion`: the supervised warm start of the policy."""

    def missing(self) -> list[Path]:
        """Return the parts that are not on disk."""
        return [part for part in vars(self).values() if part is not None and not part.exists()]


def prepare(directory: Path, *, tiny: bool = False, report: Callable[[str], None] = print) -> DemoFiles:
    """Prepare the demo in `directory`, or find it there, and return its files.

    The directory appears complete or not at all: everything is made in a sibling that is renamed at the end.

    Args:
        directory: A directory that does not exist yet, is empty, or holds this demo already.
        tiny: The test-sized demo in place of the real one.
        report: Called with one line of text a phase, and with the measured accuracies.

    Raises:
        DemoError: A package is missing, the directory holds something else, or it cannot be written.
    """
    directory = Path(directory).expanduser().resolve()
    kind = TINY if tiny else REAL
    files = _files(directory, kind)
    if _is_prepared(files, kind):
        return files
    if directory == Path.cwd():  # the rename would replace the directory under the user's shell
        raise DemoError("the demo cannot be made in the current directory itself: name a directory inside it")
    if tiny:
        from specc.demo import tiny as builder
    else:
        from specc.demo import smollm as builder  # type: ignore[no-redef]
    packages = require(builder.PACKAGES)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(directory)
        unfinished = directory.parent / f"{_unfinished_prefix(directory)}{os.getpid()}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        try:
            measured = builder.build(_files(unfinished, kind), seed=SEED, report=report)
            write_training(unfinished / files.training.name, files, builder.TRAINING)
            manifest = {"kind": kind, "format": FORMAT, "seed": SEED, "packages": packages, "measured": measured}
            (unfinished / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
            _publish(unfinished, files, kind)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise DemoError(f"the demo could not be written to {directory}: {error.strerror or error}") from error
    return files


def write_training(path: Path, files: DemoFiles, settings: dict[str, Any]) -> None:
    """Write the arguments that train on the demo; the reward is not among them, since scripts differ in it."""
    where = {"model": files.model, "train_data": files.train, "eval_data": files.heldout}
    lines = [f"{name}: {json.dumps(str(value))}" for name, value in where.items()]
    lines += [f"{name}: {json.dumps(value)}" for name, value in settings.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _files(directory: Path, kind: str) -> DemoFiles:
    common = {
        "directory": directory,
        "model": directory / "model",
        "train": directory / "train.jsonl",
        "heldout": directory / "heldout.jsonl",
        "verifier": directory / "verifier.py",
        "training": directory / "train.yaml",
    }
    if kind == REAL:
        return DemoFiles(**common)
    return DemoFiles(
        **common,
        step_verifier=directory / "step_verifier.py",
        reward_model=directory / "reward_model",
        pairs=directory / "pairs.jsonl",
        heldout_pairs=directory / "heldout_pairs.jsonl",
        sft=directory / "sft.jsonl",
    )


def _is_prepared(files: DemoFiles, kind: str) -> bool:
    """Return whether `files` are all there; False means that the directory is free. Anything else raises."""
    directory = files.directory
    if not directory.exists():
        return False
    if not directory.is_dir():
        raise DemoError(f"{directory} is a file: name a new directory for the demo")
    if not any(directory.iterdir()):
        return False
    manifest = _read_manifest(directory)
    if manifest is None:
        raise DemoError(f"{directory} is not empty and is not a demo: name a new directory for it")
    if manifest.get("kind") != kind:
        raise DemoError(f"{directory} holds another demo ({manifest.get('kind')}): name a new directory for this one")
    if (manifest.get("format"), manifest.get("seed")) != (FORMAT, SEED):
        raise DemoError(f"{directory} holds a demo made by another version of specc: delete it, or name another one")
    if missing := files.missing():
        names = ", ".join(path.name for path in missing)
        raise DemoError(f"{directory} holds a demo without {names}: delete it, and it will be made again")
    return True


def _read_manifest(directory: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def _publish(unfinished: Path, files: DemoFiles, kind: str) -> None:
    """Rename the finished demo to where it belongs, unless another process has put the same demo there meanwhile."""
    try:
        os.rename(unfinished, files.directory)  # replaces an empty directory, fails on any other
    except OSError:
        if not _is_prepared(files, kind):
            raise


def _unfinished_prefix(directory: Path) -> str:
    return f".{directory.name}.unfinished-"


def _remove_abandoned(directory: Path) -> None:
    for path in directory.parent.iterdir():
        abandoned = path.name.startswith(_unfinished_prefix(directory)) and path.is_dir()
        if abandoned and time.time() - path.stat().st_mtime > ABANDONED_AFTER:
            shutil.rmtree(path, ignore_errors=True)
