"""Checkpoints: a run that is killed and resumed ends where the uninterrupted one does, bit for bit."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from conftest import generated, load_module
from safetensors.torch import load_file
from test_training import arguments, rows_of, run, same, untimed, weights_of

from specc.compiler import compile_specs
from specc.demo import DemoFiles

STATEFUL = """\
name: stateful
reward: verifier
kl: {placement: reward, estimator: k1, coefficient: 0.05}
baseline: {source: moving_average, decay: 0.8}
normalization: {scope: running, divide_by: std}
objective:
  quantity: sequence_advantage
  ratio: token
  clip: {low: 0.2, high: 0.2}
  aggregation: token_mean
sampling: {group_size: 4}
"""
MOVING = """\
name: moving
reward: verifier
kl:
  placement: loss
  estimator: k2
  coefficient: {adaptive: {initial: 0.2, target: 0.05, horizon: 200}}
  reference: {refresh_every: 2}
baseline: group_mean
normalization: {scope: batch, std_of: returns}
objective:
  quantity: sequence_advantage
  ratio: sequence_mean
  token_clip: {low: 0.2, high: 0.2}
  positive_nll: {coefficient: 0.1}
  aggregation: token_mean
sampling: {group_size: 4}
"""
SPECS = {"stateful": STATEFUL, "moving": MOVING}
# Eight steps with a warm-up and a decay of the learning rate, a checkpoint after every three, and two updates a step.
LONG = {"steps": 8, "save_every": 3, "eval_every": 4, "warmup_steps": 2, "lr_scheduler": "linear", "epochs": 2}
KILLED_AT = 5  # after checkpoint-3 and before checkpoint-6


@pytest.fixture(scope="module", params=["stateful", "moving", "reinforcepp"])
def script(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Scripts that carry statistics, or a coefficient and a reference, from step to step, and one that carries none."""
    if request.param == "reinforcepp":
        return generated("reinforcepp")
    folder, name = tmp_path_factory.mktemp(request.param), request.param
    (folder / f"{name}.yaml").write_text(SPECS[name], encoding="utf-8")
    (result,) = compile_specs([folder / f"{name}.yaml"])
    (folder / f"{name}.py").write_text(result.script, encoding="utf-8")
    return load_module(folder / f"{name}.py")


@pytest.fixture(scope="module")
def whole(script: ModuleType, tiny_demo: DemoFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(script, tiny_demo, folder, eval_data=tiny_demo.heldout, **LONG)
    return folder


@pytest.fixture
def told(tiny_demo: DemoFiles) -> dict[str, Any]:
    return LONG | {"eval_data": tiny_demo.heldout}


def start(script: ModuleType, given: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, str(script.__file__)] + [f"--{name}={value}" for name, value in given.items()]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def assert_ended_the_same(folder: Path, whole: Path) -> None:
    """The same weights, the same metrics but for timings, the same completions, the same checkpoint."""
    assert same(weights_of(folder), weights_of(whole))
    assert untimed(rows_of(folder / "metrics.jsonl")) == untimed(rows_of(whole / "metrics.jsonl"))
    assert rows_of(folder / "completions.jsonl") == rows_of(whole / "completions.jsonl")
    got, right = (torch.load(path / "checkpoint-8" / "trainer.pt") for path in (folder, whole))
    assert got.keys() == right.keys()
    for key in got:  # of a state, tensors by name
        assert same(got[key], right[key]) if key in ("state", "reference") else got[key] == right[key]
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-6", "checkpoint-8"]


class Killed(BaseException):
    """What stands in for SIGKILL in this process: nothing catches it."""


def run_until(step: int, script: ModuleType, demo: DemoFiles, folder: Path, **told: Any) -> None:
    """A run that ends in the middle of a step, after its responses are sampled."""
    score, steps = script.score_responses, []

    def dying(scorer: Any, tokenizer: Any, batch: list[Any], responses: Any) -> Any:
        steps.append(responses.tokens_BGT.shape[1] > 1)  # not the greedy responses of an evaluation
        if sum(steps) > step:
            raise Killed
        return score(scorer, tokenizer, batch, responses)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(script, "score_responses", dying)
        run(script, demo, folder, **told)


@pytest.fixture(scope="module")
def interrupted(script: ModuleType, tiny_demo: DemoFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that died in step 5, with checkpoint-3 in it; for copies."""
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    run_until(KILLED_AT, script, tiny_demo, folder, eval_data=tiny_demo.heldout, **LONG)
    assert [row["step"] for row in rows_of(folder / "metrics.jsonl")] == [0, 1, 2, 3, 4]
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-3"]
    return folder


@pytest.fixture
def folder(interrupted: Path, tmp_path: Path) -> Path:
    """A copy of the interrupted run under the same name."""
    return Path(shutil.copytree(interrupted, tmp_path / "run"))


# -------- killed --------

PAUSING = """
import time
from pathlib import Path

here = Path(__file__).parent


def score(completions, answer):
    metrics = here / "run" / "metrics.jsonl"
    if not (here / "paused").exists() and metrics.exists() and metrics.read_text().count("\\n") == KILLED_AT:
        (here / "paused").touch()
        time.sleep(600)
    return [float(completion == right) for completion, right in zip(completions, answer)]
"""


def test_a_killed_process_is_resumed_exactly(
    script: ModuleType, whole: Path, tiny_demo: DemoFiles, tmp_path: Path, told: dict[str, Any]
) -> None:
    """SIGKILL between two checkpoints, in a step; then the same command with --resume, in a new process."""
    output, verifier = tmp_path / "run", tmp_path / "verifier.py"
    verifier.write_text(PAUSING.replace("KILLED_AT", str(KILLED_AT)))
    given = arguments(script, tiny_demo, output, **told) | {"reward": f"{verifier}:score"}
    process = start(script, given)
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "paused").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        process.kill()
    printed, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, printed
    assert [path.name for path in output.glob("checkpoint-*")] == ["checkpoint-3"] and not (output / "model").exists()

    done = start(script, given | {"resume": True})
    printed, _ = done.communicate(timeout=120)
    assert done.returncode == 0, printed
    assert_ended_the_same(output, whole)


def test_a_run_that_died_in_a_step_is_resumed_exactly(
    script: ModuleType, folder: Path, whole: Path, tiny_demo: DemoFiles, told: dict[str, Any]
) -> None:
    run(script, tiny_demo, folder, resume=True, **told)
    assert_ended_the_same(folder, whole)


def test_the_state_of_past_steps_is_in_the_checkpoint_and_used(
    script: ModuleType, folder: Path, whole: Path, tiny_demo: DemoFiles, told: dict[str, Any]
) -> None:
    """Without its statistics the stateful script ends elsewhere, so that the tests above can tell."""
    saved = torch.load(folder / "checkpoint-3" / "trainer.pt")
    if not hasattr(script, "update_state"):
        assert saved.keys() == {"step"}
        return
    assert saved["state"] and all(isinstance(value, torch.Tensor) for value in saved["state"].values())
    saved["state"] = {}
    torch.save(saved, folder / "checkpoint-3" / "trainer.pt")
    run(script, tiny_demo, folder, resume=True, **told)
    assert not same(weights_of(folder), weights_of(whole))


def test_a_reference_that_is_refreshed_is_in_the_checkpoint_and_used(
    script: ModuleType, folder: Path, whole: Path, tiny_demo: DemoFiles, told: dict[str, Any]
) -> None:
    """It is the policy of step 2 in checkpoint-3 and of step 6 at the end; from that of step 0 a run ends elsewhere."""
    saved = torch.load(folder / "checkpoint-3" / "trainer.pt")
    assert ("reference" in saved) == hasattr(script, "reference_step")
    if "reference" not in saved:
        return
    rows = [row for row in rows_of(whole / "metrics.jsonl") if "reference_step" in row]
    assert [row["reference_step"] for row in rows] == [0, 0, 2, 2, 4, 4, 6, 6]
    kl = [row["kl"] for row in rows]
    assert all(kl[step] < kl[step + 1] for step in (0, 2, 4))  # at the refreshed reference, but for one update
    coefficients = [row["kl_coefficient"] for row in rows]
    assert coefficients[0] == 0.2 and len(set(coefficients)) > 1
    assert all(abs(b / a - 1) <= 0.2 * 32 / 200 + 1e-6 for a, b in itertools.pairwise(coefficients))
    initial = script.load_policy(tiny_demo.model)[0].state_dict()
    assert not same({name.removeprefix("model."): value for name, value in saved["reference"].items()}, initial)
    saved["reference"] = {f"model.{name}": value for name, value in initial.items()}
    torch.save(saved, folder / "checkpoint-3" / "trainer.pt")
    run(script, tiny_demo, folder, resume=True, **told)
    assert not same(weights_of(folder), weights_of(whole))


def test_half_a_line_in_a_log_is_dropped(
    script: ModuleType, folder: Path, whole: Path, tiny_demo: DemoFiles, told: dict[str, Any]
) -> None:
    """A process that dies while writing leaves one; a model may write any line break there is."""
    row = {"step": 0, "kind": "training", "prompt": "a\u2028b\x85c", "completion": "", "reward": 0.0}
    log = folder / "completions.jsonl"
    before = log.read_text(encoding="utf-8")
    log.write_text(json.dumps(row, ensure_ascii=False) + "\n" + before + '{"step": 2, "ki', encoding="utf-8")
    with (folder / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 5, "rewa')
    run(script, tiny_demo, folder, resume=True, **told)
    first, *rest = rows_of(log)
    assert first == row and rest == rows_of(whole / "completions.jsonl")
    assert untimed(rows_of(folder / "metrics.jsonl")) == untimed(rows_of(whole / "metrics.jsonl"))


def test_resuming_twice_and_after_the_end(
    script: ModuleType, folder: Path, whole: Path, tiny_demo: DemoFiles, told: dict[str, Any]
) -> None:
    """Killed again after the resumption; and a run that is over only writes its model again."""
    run_until(2, script, tiny_demo, folder, resume=True, **told)  # steps 3 and 4 are taken again, 5 is not
    assert [row["step"] for row in rows_of(folder / "metrics.jsonl")] == [0, 1, 2, 3, 4]
    run(script, tiny_demo, folder, resume=True, **told)
    assert_ended_the_same(folder, whole)
    run(script, tiny_demo, folder, resume=True, **told)
    assert same(weights_of(folder), weights_of(whole))
    assert [row["step"] for row in rows_of(folder / "metrics.jsonl")] == list(range(9))


def test_more_steps_can_follow(script: ModuleType, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """A run of 4 steps, resumed with --steps 6, is one of 6 where the learning rate does not depend on their number."""
    told = {"save_every": 2}
    run(script, tiny_demo, tmp_path / "six" / "run", steps=6, **told)
    run(script, tiny_demo, tmp_path / "four" / "run", steps=4, **told)
    run(script, tiny_demo, tmp_path / "four" / "run", steps=6, resume=True, **told)
    assert same(weights_of(tmp_path / "four" / "run"), weights_of(tmp_path / "six" / "run"))


# -------- killed while a checkpoint is written --------


def test_an_unfinished_checkpoint_is_not_taken_for_one(
    script: ModuleType, folder: Path, whole: Path, tiny_demo: DemoFiles, told: dict[str, Any]
) -> None:
    """It is named apart, and gone when the next one is written; so is a folder of another name left alone."""
    unfinished = folder / "checkpoint-unfinished"
    unfinished.mkdir()
    (unfinished / "model.safetensors").write_bytes(b"half")
    (folder / "checkpoint-notes").mkdir()
    run(script, tiny_demo, folder, resume=True, **told)
    assert not unfinished.exists()
    (folder / "checkpoint-notes").rmdir()
    assert_ended_the_same(folder, whole)


@pytest.mark.parametrize("where", ["torch.save", "os.replace"])
def test_killed_while_writing_a_checkpoint_the_older_one_is_used(
    where: str, script: ModuleType, folder: Path, whole: Path, tiny_demo: DemoFiles, told: dict[str, Any]
) -> None:
    module, name = where.split(".")

    def dies(*args: Any, **rest: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(getattr(script, module), name, dies)
        run(script, tiny_demo, folder, resume=True, **told)
    assert (folder / "checkpoint-unfinished").is_dir()
    assert [row["step"] for row in rows_of(folder / "metrics.jsonl")] == [0, 1, 2, 3, 4, 5]
    run(script, tiny_demo, folder, resume=True, **told)
    assert_ended_the_same(folder, whole)


def test_killed_before_old_checkpoints_are_removed(
    script: ModuleType, folder: Path, whole: Path, tiny_demo: DemoFiles, told: dict[str, Any]
) -> None:
    """Between the renaming and the removal there is one more than is kept: the newest is used, the rest goes later."""
    shutil.copytree(folder / "checkpoint-3", folder / "checkpoint-1")
    shutil.copytree(folder / "checkpoint-3", folder / "checkpoint-2")
    run(script, tiny_demo, folder, resume=True, **told)
    assert_ended_the_same(folder, whole)


# -------- a full disk --------


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    def full(*args: Any, **rest: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        yield patch


def test_a_full_disk_stops_the_run_and_spares_the_older_checkpoint(
    script: ModuleType, folder: Path, whole: Path, tiny_demo: DemoFiles, told: dict[str, Any], full_disk: Any
) -> None:
    before = {path: path.read_bytes() for path in (folder / "checkpoint-3").iterdir()}
    with pytest.raises(SystemExit) as stopped:
        run(script, tiny_demo, folder, resume=True, **told)
    message = str(stopped.value)
    assert message.startswith("error: the checkpoint of step 6 could not be written (") and "\n" not in message
    assert "No space left on device" in message and "--resume" in message
    assert {path: path.read_bytes() for path in (folder / "checkpoint-3").iterdir()} == before
    assert not (folder / "checkpoint-6").exists()

    full_disk.undo()
    run(script, tiny_demo, folder, resume=True, **told)
    assert_ended_the_same(folder, whole)


# -------- folders --------


def test_resuming_where_there_is_no_checkpoint_starts_over(
    script: ModuleType, whole: Path, tiny_demo: DemoFiles, tmp_path: Path, told: dict[str, Any]
) -> None:
    """A run that died before its first checkpoint left two rows of metrics, which are written again; or nothing."""
    folder = tmp_path / "run"
    run_until(2, script, tiny_demo, folder, **told)
    assert [row["step"] for row in rows_of(folder / "metrics.jsonl")] == [0, 1]
    run(script, tiny_demo, folder, resume=True, **told)
    assert_ended_the_same(folder, whole)

    run(script, tiny_demo, tmp_path / "nothing" / "run", resume=True, **told)
    assert_ended_the_same(tmp_path / "nothing" / "run", whole)


@pytest.mark.parametrize("name", ["rloo", "reinforcepp"])
def test_a_folder_with_something_in_it_is_refused_and_left_as_it_is(
    name: str, tiny_demo: DemoFiles, tmp_path: Path
) -> None:
    (tmp_path / "run" / "checkpoint-9").mkdir(parents=True)
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 0}\n')
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    with pytest.raises(SystemExit) as stopped:
        run(generated(name), tiny_demo, tmp_path / "run")
    assert str(stopped.value) == (
        f"error: --output_dir: {tmp_path / 'run'} is not empty; go on there with --resume, or name another folder"
    )
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_an_empty_folder_is_taken(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run(generated("reinforce"), tiny_demo, tmp_path / "run", steps=1)
    assert (tmp_path / "run" / "checkpoint-1").is_dir()


def test_only_the_last_checkpoints_are_kept(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """In the order of their steps, 10 after 9; what they hold is the weights after those steps."""
    run(generated("reinforce"), tiny_demo, tmp_path, steps=11, save_every=1, keep_checkpoints=3)
    kept = {path.name for path in tmp_path.glob("checkpoint-*")}
    assert kept == {"checkpoint-9", "checkpoint-10", "checkpoint-11"}
    last = load_file(tmp_path / "checkpoint-11" / "model.safetensors")
    assert same({name.removeprefix("model."): weight for name, weight in last.items()}, weights_of(tmp_path))


def test_a_run_can_do_without_checkpoints(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    run(generated("reinforce"), tiny_demo, tmp_path, steps=2, save_every=0)
    assert not list(tmp_path.glob("checkpoint-*")) and (tmp_path / "model" / "model.safetensors").exists()
