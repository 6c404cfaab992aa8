"""Two processes over gloo: they train together, and take the step that one process takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from specc.demo import DemoFiles

LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0", "--standalone"]


def run(name: str, demo: DemoFiles, folder: Path, launch: list[str], *options: str) -> list[dict[str, Any]]:
    """The metrics of a short run."""
    rewards = {"rloo": ["--reward_model", str(demo.reward_model)]}
    reward = rewards.get(name, ["--reward", f"{demo.verifier}:score"])
    command = [*launch, str(ROOT / "generated" / f"{name}.py"), str(demo.training), *reward]
    command += ["--output_dir", str(folder), "--save_every", "0", "--report_to", "", *options]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_two_processes_train(name: str, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """Their responses differ in length, so every gathered tensor is padded on one of them."""
    rows = run(name, tiny_demo, tmp_path / "two", LAUNCH, "--steps", "6", "--eval_every", "6")
    assert [row["step"] for row in rows] == list(range(7))
    assert rows[0]["kl"] == 0.0
    assert rows[6]["eval_reward"] != rows[0]["eval_reward"]


def test_two_processes_see_what_one_sees(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """Greedy evaluation is the same to the last problem; at a temperature near 0, so nearly are the step's samples."""
    options = ["--steps", "1", "--eval_every", "1", "--temperature", "0.02", "--learning_rate", "1e-9"]
    (one, _), (two, _) = (
        run("reinforce", tiny_demo, tmp_path / name, launch, *options)
        for name, launch in (("one", [sys.executable]), ("two", LAUNCH))
    )
    assert one["eval_reward"] == two["eval_reward"]
    for metric in ("reward", "num_tokens", "frac_reward_zero_std"):
        assert one[metric] == pytest.approx(two[metric], rel=0.03)
