"""What a step of a compiled script costs, beside the bare calls that it cannot do without.

    python benchmarks/train.py [NAME] [--demo DIR] [--steps N] [--prompts B] [--group G] [--bf16]

Runs the script on a demo and prints, a step: the seconds and tokens per second of each phase; the *floor*, which is
the bare generate, forward and backward calls on the same batches and one optimizer step; and the *plain* way, in which
every response has a row of its own, with its prompt. The goal is a step within 1.1 of the floor.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from specc.compiler import compile_spec
from specc.demo import DemoFiles, prepare
from specc.paths import find_spec
from specc.plan import Plan

PHASES = ("generate", "score", "logprobs", "update")


def load(name: str) -> tuple[ModuleType, Plan]:
    """The script of a spec, as a module, and its plan."""
    compiled = compile_spec(find_spec(name))
    module = ModuleType(f"benchmarked_{name}")
    sys.modules[module.__name__] = module
    exec(compile(compiled.script, f"{name}.py", "exec"), module.__dict__)
    return module, compiled.plan


def arguments(module: ModuleType, demo: DemoFiles, options: argparse.Namespace, folder: str) -> Any:
    where = {"reward": f"{demo.verifier}:score", "reward_model": str(demo.reward_model)}
    reward = {name: value for name, value in where.items() if hasattr(module.Args, name)}
    return module.Args(
        model=str(demo.model),
        train_data=str(demo.train),
        output_dir=folder,
        steps=options.steps,
        prompts_per_step=options.prompts,
        group_size=options.group,
        prompts_per_forward=options.prompts,
        max_new_tokens=options.tokens,
        learning_rate=1e-6,
        bf16=options.bf16,
        save_every=10**6,
        report_to="",
        **reward,
    )


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def floor(module: ModuleType, plan: Plan, args: Any, model: Any, batches: list[Any], shared: bool) -> dict[str, float]:
    """Seconds of the bare calls on the batches: a phase's mean over the batches.

    Where the KL is in the reward, the update's forward pass comes before the advantages, in the phase of log-probs.
    """
    policy = module.Policy(model, args.temperature, shared)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-6, fused=True)
    device = next(model.parameters()).device.type
    totals = dict.fromkeys(PHASES, 0.0)
    config = module.generation_config([10**6], 0, args.max_new_tokens, args.temperature)
    for batch in batches:
        config.max_new_tokens = batch.tokens_BGT.shape[2]

        def forward(batch: Any = batch) -> Any:
            return policy(*batch[:4])[0]

        def backward(loss: Any) -> None:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        with torch.autocast(device, torch.bfloat16, enabled=bool(args.bf16)):
            model.eval()
            generated = timed(
                lambda b=batch: module.generate(model, b.ids_BP, b.prompt_mask_BP, args.group_size, config, shared)
            )
            totals["generate"] += generated[0]
            if plan.reference:
                with torch.no_grad():
                    totals["logprobs"] += timed(forward)[0]
            model.train()
            took, logprobs = timed(forward)
            totals["logprobs" if plan.kl_in_reward else "update"] += took
            totals["update"] += timed(lambda logprobs=logprobs: backward(logprobs.sum()))[0]
    return {phase: total / len(batches) for phase, total in totals.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="reinforcepp")
    parser.add_argument("--demo", type=Path, default=Path(".cache/demo"))
    parser.add_argument("--tiny", action="store_true", help="the demo in --demo is the tiny one")
    parser.add_argument("--steps", type=int, default=4, help="the first one warms up and is not counted")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=3)
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    module, plan = load(options.name)
    demo = prepare(options.demo, tiny=options.tiny)
    batches: list[Any] = []
    respond = module.respond

    def recording(*values: Any) -> Any:
        batches.append(respond(*values))
        return batches[-1]

    module.respond = recording
    with tempfile.TemporaryDirectory() as folder:
        args = arguments(module, demo, options, f"{folder}/run")
        module.train(args)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines if "time/update" in line][1:]
    groups = [batch for batch in batches if batch.tokens_BGT.shape[1] == options.group][1:]
    took = {phase: sum(step.get(f"time/{phase}", 0.0) for step in steps) / len(steps) for phase in PHASES}
    tokens = sum(step["num_tokens"] for step in steps) / len(steps)

    model, _ = module.load_policy(args.model)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    floor(module, plan, args, model, groups[:1], shared=True)  # warm up
    bare = floor(module, plan, args, model, groups, shared=True)
    plain = floor(module, plan, args, model, groups, shared=False)

    print(
        f"\n{options.name}: {options.prompts} prompts x {options.group} responses, {tokens:.0f} response tokens a step"
    )
    print(f"{'':12}{'script':>10}{'floor':>10}{'plain':>10}{'script / floor':>18}{'tokens/s':>12}")
    for phase in (*PHASES, "step"):
        a, b, c = (sum(x.values()) if phase == "step" else x[phase] for x in (took, bare, plain))
        ratio = f"{a / b:.2f}" if b else ""
        print(f"{phase:12}{a:9.2f}s{b:9.2f}s{c:9.2f}s{ratio:>18}{tokens / a if a else 0:12.0f}")
    print(f"peak memory {max(step['peak_memory_gb'] for step in steps):.2f} GB")


if __name__ == "__main__":
    main()
