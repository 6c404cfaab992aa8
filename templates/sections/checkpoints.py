"""Checkpoints: a step's whole state, written aside and renamed, so that there is always one that works."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from templates.sections.data import stop


def save_checkpoint(accelerator: Accelerator, folder: Path, step: int, state: dict[str, Any], keep: int) -> None:
    """Writes `checkpoint-<step>` and removes all but the last `keep`. `state` holds what accelerate does not."""
    written, final = folder / "checkpoint-unfinished", folder / f"checkpoint-{step}"
    if accelerator.is_main_process:
        shutil.rmtree(written, ignore_errors=True)
    accelerator.wait_for_everyone()
    try:
        accelerator.save_state(str(written))
        if accelerator.is_main_process:
            torch.save({"step": step, **state}, written / "trainer.pt")
    except Exception as error:  # a full disk comes as an error of the OS, of torch or of safetensors
        stop(f"the checkpoint of step {step} could not be written ({error}); --resume goes on from the one before it")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(final, ignore_errors=True)
        os.replace(written, final)
        for old in checkpoints(folder)[:-keep]:
            shutil.rmtree(old)


def checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints, oldest first."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def load_checkpoint(accelerator: Accelerator, folder: Path) -> dict[str, Any]:
    """The state of the last finished checkpoint, with model and optimizer put back; step 0 where there is none."""
    if not (found := checkpoints(folder)):
        return {"step": 0}
    accelerator.load_state(str(found[-1]))
    return torch.load(found[-1] / "trainer.pt", map_location="cpu")


def drop_lines(folder: Path, from_step: int) -> None:
    """Drops the lines of the logs that belong to steps which will be taken again."""
    for log in (folder / "metrics.jsonl", folder / "completions.jsonl"):
        if log.exists():
            lines = log.read_text(encoding="utf-8").split("\n")[:-1]  # what follows the last line break is half a line
            kept = [line + "\n" for line in lines if json.loads(line)["step"] < from_step]
            log.write_text("".join(kept), encoding="utf-8")
