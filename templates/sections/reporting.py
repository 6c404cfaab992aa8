"""Reporting: metrics, sample completions and the learning curve."""

import json
import resource
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from templates.sections.data import stop
from templates.sections.statistics import masked_std


@contextmanager
def timed(metrics: dict[str, float], phase: str) -> Iterator[None]:
    """Adds the seconds that a phase takes to the step's metrics."""
    start = time.perf_counter()
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    metrics[f"time/{phase}"] = metrics.get(f"time/{phase}", 0.0) + time.perf_counter() - start


def gather(accelerator: Accelerator, values: Tensor) -> Tensor:
    """The rows [b, ...] of all processes, padded to the longest responses, on the CPU [B, ...]."""
    if values.ndim > 2:
        values = accelerator.pad_across_processes(values, dim=2).to(values.dtype)  # a padded bool comes back as an int
    return accelerator.gather(values).cpu()


def describe_batch(rewards_BG: Tensor, mask_BGT: Tensor, ended_BG: Tensor) -> dict[str, float]:
    """The step's metrics of rewards and responses, over all processes."""
    scored, lengths = rewards_BG[rewards_BG.isfinite()], mask_BGT.sum(-1).float()
    spread_B, ended = masked_std(rewards_BG, rewards_BG.isfinite(), dim=1, ddof=0), lengths[ended_BG]
    return {
        "reward": scored.mean().item(),
        "reward_std": scored.std(correction=0).item(),
        "frac_reward_zero_std": (spread_B == 0).float().mean().item(),
        "completions/mean_length": lengths.mean().item(),
        "completions/min_length": lengths.min().item(),
        "completions/max_length": lengths.max().item(),
        "completions/mean_terminated_length": ended.mean().item() if len(ended) else 0.0,
        "completions/clipped_ratio": 1 - ended_BG.float().mean().item(),
    }


def peak_memory() -> float:
    """The most memory that this process has held, in GB: of the GPU where there is one."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def append_line(path: Path, row: dict[str, Any]) -> None:
    """Adds one line of JSON to a log."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def log_completions(folder: Path, step: int, kind: str, rows: list[dict], texts: list[str], scores_BG: Tensor) -> None:
    """Writes the first five completions of a batch to completions.jsonl."""
    for i, score in enumerate(scores_BG.flatten().tolist()[:5]):
        sample = {"prompt": rows[i // scores_BG.shape[1]]["prompt"], "completion": texts[i], "reward": score}
        append_line(folder / "completions.jsonl", {"step": step, "kind": kind, **sample})


def warn_if_nothing_is_learned(scores_BG: Tensor, ended_BG: Tensor, advantages_BGT: Tensor) -> None:
    """Says once what a step's batch cannot teach, and what to change; stops where no response could be scored."""
    unscored = int((~scores_BG.isfinite()).sum())
    if unscored == scores_BG.numel():
        stop("no response of this step could be scored: the reward function returned None or NaN for all of them")
    if unscored:
        warnings.warn("some responses could not be scored; they are left out of the estimator", stacklevel=2)
    if not ended_BG.any():
        warnings.warn("no response of a step ended within --max_new_tokens; raise it or change the task", stacklevel=2)
    if not advantages_BGT.any():
        warnings.warn("a step's advantages are all 0: no reward differed; try other prompts", stacklevel=2)


def summarize(folder: Path) -> None:
    """Prints the held-out reward and completions before and after, and draws the learning curve."""
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    log = (folder / "completions.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    evaluated = [row for row in metrics if "eval_reward" in row]
    for title, row in zip(("before", "after"), evaluated[:1] + evaluated[-1:], strict=False):
        print(f"\n{title} (step {row['step']}): held-out reward {row['eval_reward']:.3f} with greedy responses")
        for sample in map(json.loads, log):
            if (sample["step"], sample["kind"]) == (row["step"], "held-out"):
                prompt = sample["prompt"] if isinstance(sample["prompt"], str) else sample["prompt"][-1]["content"]
                print(f"  {prompt[-28:]!r:>32} -> {sample['completion'][:40]!r:<32} reward {sample['reward']:g}")
    draw_learning_curve(folder, metrics, ("reward", "eval_reward"))
    print(f"\nthe trained model is in {folder / 'model'}")


def summarize_pairs(folder: Path) -> None:
    """Prints how many held-out pairs are in the right order before and after, and draws the learning curve."""
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    if evaluated := [row for row in metrics if "eval_loss" in row]:
        for title, row in (("before", evaluated[0]), ("after", evaluated[-1])):
            ordered, margin = row["eval_rewards/accuracies"], row["eval_rewards/margins"]
            said = f"{100 * ordered:.1f} % of the held-out pairs in order, mean margin {margin:.3f}"
            print(f"{title} (step {row['step']}): {said}")
    draw_learning_curve(folder, metrics, ("rewards/accuracies", "eval_rewards/accuracies"))
    print(f"\nthe trained model is in {folder / 'model'}")


def draw_learning_curve(folder: Path, metrics: list[dict], names: tuple[str, str]) -> None:
    """Draws a metric and its held-out one by step into learning_curve.png, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no learning_curve.png: matplotlib is not installed")
        return
    axes = Figure(figsize=(7, 4), layout="constrained").subplots()
    for name, style in zip(names, ("-", "o-"), strict=True):
        if points := [(row["step"], row[name]) for row in metrics if name in row]:
            axes.plot(*zip(*points, strict=True), style, label=name)
    axes.set(xlabel="step", title=folder.name)
    axes.legend()
    axes.figure.savefig(folder / "learning_curve.png", dpi=120)
    print(f"\nthe learning curve is {folder / 'learning_curve.png'}")
