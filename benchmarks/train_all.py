"""Trains every shipped algorithm on the tiny demo from the same warm start, and writes docs/algorithms.md about it.

    python benchmarks/train_all.py                        what is not there yet of all algorithms, and the page
    python benchmarks/train_all.py --only grpo --seeds 0  some of it; the other results stay
    python benchmarks/train_all.py --page                 the page alone, from docs/train_all.json

A run is its script's own process with one thread. It is kept in runs/train-all/<name>-<seed>/ and not made again unless
its script's code or its settings have changed. Held-out accuracy is measured here, by the verifier and from the run's
checkpoints, and so is the same thing for every algorithm, whatever reward it was trained on.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any

from specc.answers import QUESTIONS
from specc.answers.base import Parameter
from specc.demo import DemoFiles, prepare
from specc.demo.records import Record, read_records, write_records
from specc.load import load_spec
from specc.plan import Plan
from specc.spec import Spec

ROOT = Path(__file__).resolve().parent.parent
DEMO, PAIRS, RUNS = ROOT / ".cache" / "demo-tiny", ROOT / ".cache" / "demo-tiny-pairs", ROOT / "runs" / "train-all"
PAGE, RESULTS, FIGURE = (ROOT / "docs" / name for name in ("algorithms.md", "train_all.json", "train_all.png"))

SEEDS = (0, 1, 2)
GAIN = 0.15
"""What an online algorithm has to add to the held-out accuracy, or the page says why it does not."""

WHY = {
    "raft": "it learns in the first steps and then exploits the reward model, whose scores rise while accuracy falls: "
    "it has neither a KL nor a clip to hold it near the start; whether one would prevent this was not tried"
}
"""Why an algorithm does not, by its name."""


# -------- families --------


@dataclass(frozen=True)
class Family:
    """Algorithms that answer alike. `holds` decides by the answers; a spec belongs to the first family that holds."""

    title: str
    line: str
    holds: Callable[[Spec], bool]


def answers(question: str, *names: str) -> Callable[[Spec], bool]:
    return lambda spec: spec.answers[question].name in names


def selects(spec: Spec) -> bool:
    """Whether some responses are left out, or drawn again, by their rewards."""
    return getattr(spec.sampling, "keep", "all") not in (None, "all")


RULES = (
    Family(
        "Preferences",
        "No rollouts: the loss is over pairs of a better and a worse response that are there before training.",
        answers("objective", "preference"),
    ),
    Family(
        "PPO", "The baseline is a critic, a model that is trained along with the policy.", answers("baseline", "critic")
    ),
    Family("Selection", "Which responses enter the loss depends on their rewards.", selects),
    Family(
        "REINFORCE++",
        "The advantage is normalized over the whole batch.",
        answers("normalization", "batch", "running"),
    ),
    Family(
        "GRPO and relatives",
        "The responses to a prompt are compared with their own mean, and mostly divided by a statistic of theirs.",
        lambda spec: answers("normalization", "group")(spec) or answers("baseline", "group_mean")(spec),
    ),
    Family(
        "RLOO and ReMax",
        "The baseline comes from other responses to the same prompt, so the estimator stays that of E[R].",
        answers("baseline", "leave_one_out", "length_weighted", "greedy"),
    ),
    Family("REINFORCE", "The return times grad log pi, with a baseline of the batch or none.", lambda spec: True),
)
"""In the order in which they are asked."""

FAMILIES = (RULES[6], RULES[5], RULES[4], RULES[3], RULES[1], RULES[2], RULES[0])
"""In the order of the page."""


def family(spec: Spec) -> Family:
    return next(rule for rule in RULES if rule.holds(spec))


def online(spec: Spec) -> bool:
    """Whether the policy's own responses are sampled in training."""
    return not RULES[0].holds(spec)


def shipped() -> dict[str, Plan]:
    """The algorithms, by family and name."""
    plans = [Plan(load_spec(path).spec) for path in sorted((ROOT / "algorithms").glob("*.yaml"))]
    plans.sort(key=lambda plan: (FAMILIES.index(family(plan.spec)), plan.spec.name))
    return {plan.spec.name: plan for plan in plans}


# -------- settings --------

BUDGET = 256
"""Responses a step: 256 prompts with one response each, or 32 prompts with 8."""
GROUP = 8
NEW_TOKENS = 8
"""Four digits and EOS, and room to run on."""

COMMON: dict[str, Any] = {
    "steps": 100,
    "max_prompt_length": 16,
    "max_new_tokens": NEW_TOKENS,
    "learning_rate": 3e-4,
    "critic_learning_rate": 1e-3,
    "lr_scheduler": "constant",
    "warmup_steps": 0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "prompts_per_generate": BUDGET,
    "bf16": False,
    "eval_every": 10,
    "save_every": 10,
    "keep_checkpoints": 1000,
    "report_to": "",
    "reward_separator": "",  # every digit is a step
}
"""The same for all that have it, in place of what was published for models ten thousand times the size."""

OVERRIDES: dict[str, dict[str, Any]] = {}
"""What differs from `COMMON`, by family or by algorithm."""

IN_TOKENS = {"max_length", "limit", "buffer"}
"""Fields in response tokens: scaled by NEW_TOKENS over the longest response that the spec speaks of."""
PER_TOKEN = {"alpha"}
"""Fields that multiply a length: scaled the other way."""
IN_RESPONSES = {"max_variance"}
"""Fields in responses to a prompt: scaled as the group is."""
IN_STEPS = {"pretrain_steps", "refresh_every"}
"""Fields in steps: a tenth of the run at most. Steps before the policy moves come on top of it."""
AS_THEY_ARE = {"ddof", "epochs", "minibatches"}
"""The other whole numbers."""


def sized(plan: Plan) -> Iterator[tuple[Parameter, float]]:
    """The numbers of a spec that depend on the size of the task, and what each is on the demo."""
    lengths = [parameter.value for parameter in plan.parameters if parameter.field in IN_TOKENS]
    longest = max([*lengths, plan.spec.defaults.max_new_tokens or 0]) or NEW_TOKENS
    for parameter in plan.parameters:
        value = parameter.value
        if parameter.field == "group_size":
            value = group_of(plan)
        elif parameter.field in IN_TOKENS:
            value = max(1, round(value * NEW_TOKENS / longest))
        elif parameter.field in PER_TOKEN:
            value = value * longest / NEW_TOKENS
        elif parameter.field in IN_RESPONSES:
            value = max(2, round(value * GROUP / plan.spec.sampling.group_size))
        elif parameter.field in IN_STEPS:
            value = min(value, COMMON["steps"] // 10)
        else:
            continue
        yield parameter, value


def group_of(plan: Plan) -> int:
    """Responses a prompt: 8 for several, 1 for one, 2 for a pair."""
    if not online(plan.spec):
        return 2
    return GROUP if plan.spec.sampling.group_size > 1 else 1


def function_of(demo: DemoFiles, name: str) -> str:
    """The demo's verifier whose function has this name, as a script is told it."""
    verifiers = [path for path in (demo.verifier, demo.step_verifier) if path is not None]
    (file,) = (path for path in verifiers if f"def {name}(" in path.read_text(encoding="utf-8"))
    return f"{os.path.relpath(file, ROOT)}:{name}"


def updates_of(plan: Plan) -> int:
    """Optimizer steps on each batch, among which the learning rate is shared out: all move as far in a step."""
    return plan.spec.sampling.updates_per_batch if online(plan.spec) else 1


def overrides(plan: Plan) -> dict[str, Any]:
    return OVERRIDES.get(family(plan.spec).title, {}) | OVERRIDES.get(plan.spec.name, {})


def settings(plan: Plan, demo: DemoFiles, pairs: Pairs, known: Iterable[str], seed: int) -> dict[str, Any]:
    """The arguments of a run; `known` are those that the script has."""
    prompts = BUDGET // group_of(plan)
    given = COMMON | {name: COMMON[name] / updates_of(plan) for name in ("learning_rate", "critic_learning_rate")}
    given |= {"prompts_per_step": prompts, "prompts_per_forward": prompts, "seed": seed}
    given |= {parameter.argument: value for parameter, value in sized(plan)}
    given["steps"] += sum(value for parameter, value in sized(plan) if parameter.field == "pretrain_steps")
    train, heldout = (demo.train, demo.heldout) if online(plan.spec) else (pairs.train, pairs.heldout)
    files = {"model": demo.model, "train_data": train, "eval_data": heldout, "reward_model": demo.reward_model}
    given |= {name: os.path.relpath(path, ROOT) for name, path in files.items() if path is not None}
    for name, (_, example) in plan.reward_arguments.items():
        if ":" in example:  # a file of Python and a function in it
            given[name] = function_of(demo, example.rpartition(":")[2])
    given |= overrides(plan)
    return {name: value for name, value in given.items() if name in set(known)}


# -------- preference pairs --------

PAIR_SAMPLES = 16


@dataclass(frozen=True)
class Pairs:
    """Pairs of a right and a wrong response of the demo's policy: columns `prompt`, `chosen` and `rejected`."""

    train: Path
    heldout: Path


def make_pairs(demo: DemoFiles, folder: Path) -> Pairs:
    """Samples of the warm start, judged by the verifier; one pair for each prompt that has a right and a wrong one.

    They are made once and kept in `folder`, as long as the demo is the same.
    """
    pairs, stamp = Pairs(folder / "pairs_train.jsonl", folder / "pairs_eval.jsonl"), folder / "demo.json"
    if stamp.exists() and stamp.read_bytes() == (demo.directory / "demo.json").read_bytes():
        return pairs
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from specc.demo.tiny import reproducible

    folder.mkdir(parents=True, exist_ok=True)
    policy, tokenizer = (
        AutoModelForCausalLM.from_pretrained(demo.model).eval(),
        AutoTokenizer.from_pretrained(demo.model),
    )
    with reproducible(seed=0), torch.no_grad():
        for records, path in ((read_records(demo.train), pairs.train), (read_records(demo.heldout), pairs.heldout)):
            found = pairs_of(records, policy, tokenizer)
            write_records(path, found)
            print(f"{len(found)} pairs for {len(records)} prompts: {os.path.relpath(path)}", flush=True)
    shutil.copyfile(demo.directory / "demo.json", stamp)
    return pairs


def pairs_of(records: list[Record], policy: Any, tokenizer: Any) -> list[Record]:
    from specc.demo.files.sorting_verifier import score
    from specc.demo.measure import complete, texts

    asked = [record for record in records for _ in range(PAIR_SAMPLES)]
    prompts = [record["prompt"] for record in asked]
    responses = complete(policy, tokenizer, prompts, max_new_tokens=NEW_TOKENS, sample=True, batch_size=2048)
    written = texts(tokenizer, responses)
    rewards = score(prompts=prompts, completions=written, answer=[record["answer"] for record in asked])
    ended = [tokenizer.eos_token_id == response[-1] for response in responses]
    pairs = []
    for prompt, samples in groupby(zip(prompts, written, rewards, ended, strict=True), key=lambda sample: sample[0]):
        sorts = {reward: text for _, text, reward, done in samples if done and text}  # the last of each kind
        if len(sorts) == 2:
            pairs.append({"prompt": prompt, "chosen": sorts[1.0], "rejected": sorts[0.0]})
    return pairs


# -------- runs --------

MEASURING = threading.Lock()
"""Models are loaded and measured by one thread at a time."""


def code_of(script: Path) -> str:
    """A digest of what a script does: its code without its docstring, its comments and its layout."""
    return hashlib.sha256(ast.unparse(ast.parse(script.read_text(encoding="utf-8")).body[1:]).encode()).hexdigest()[:16]


def arguments_of(script: Path) -> list[str]:
    """The names of a script's arguments, read off its class Args."""
    classes = [node for node in ast.parse(script.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    (args,) = (node for node in classes if node.name == "Args")
    return [
        field.target.id
        for field in args.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    ]


class Failed(Exception):
    """A run that did not end well; the message says where its log is and how it ends."""


def run(plan: Plan, demo: DemoFiles, pairs: Pairs, seed: int) -> tuple[dict[str, Any], bool]:
    """The result of a run, and whether it was there already."""
    name, script = plan.spec.name, ROOT / "generated" / f"{plan.spec.name}.py"
    folder = RUNS / f"{name}-{seed}"
    told = settings(plan, demo, pairs, arguments_of(script), seed)
    key = {"name": name, "seed": seed, "code": code_of(script), "settings": told}
    if (kept := folder / "result.json").exists():
        result = json.loads(kept.read_text(encoding="utf-8"))
        if all(result[part] == value for part, value in key.items()):
            return result, True
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    log = folder / "log.txt"
    command = [sys.executable, str(script), str(folder / "settings.json"), "--output_dir", str(folder / "run")]
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    start = time.perf_counter()
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=os.environ | quiet)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    said = log.read_text(encoding="utf-8")
    if process.returncode:
        raise Failed(f"{name} seed {seed}: {log} ends in\n" + "\n".join(said.splitlines()[-8:]))
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    result = key | {
        "seconds": round(seconds, 1),
        "peak_memory_mb": round(usage.ru_maxrss / 1e3),
        "memory_mb": memory_of(said),
        "accuracy": accuracies(folder / "run", demo),
        "pairs": [(row["step"], row["eval_rewards/accuracies"]) for row in rows if "eval_rewards/accuracies" in row],
    }
    kept.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for checkpoint in (folder / "run").glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    return json.loads(kept.read_text(encoding="utf-8")), False


def memory_of(said: str) -> dict[str, float]:
    """What the script's line on memory says: part -> MB."""
    found = re.search(r"memory before activations ([0-9.e+-]+) GB \((.*)\)", said)
    assert found, "the script does not say what memory it needs"
    parts = [part.rsplit(" ", 1) for part in found[2].split(", ")]
    return {"all": 1e3 * float(found[1])} | {name: 1e3 * float(size) for name, size in parts}


def accuracies(folder: Path, demo: DemoFiles) -> list[tuple[int, float]]:
    """Held-out accuracy of greedy responses by the verifier, at the start and at each checkpoint: (step, share)."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from specc.demo.files.sorting_verifier import score
    from specc.demo.measure import accuracy

    with MEASURING:
        torch.set_num_threads(1)
        model, tokenizer = (
            AutoModelForCausalLM.from_pretrained(demo.model).eval(),
            AutoTokenizer.from_pretrained(demo.model),
        )
        records, found = read_records(demo.heldout), []
        checkpoints = {int(path.name.rpartition("-")[2]): path for path in folder.glob("checkpoint-*")}
        for step in [0, *sorted(checkpoints)]:
            if step:
                weights = load_file(checkpoints[step] / "model.safetensors")
                model.load_state_dict({key: weights[f"model.{key}"] for key in model.state_dict()})
            found.append((step, accuracy(model, tokenizer, records, score, max_new_tokens=NEW_TOKENS)))
    return found


def train(plans: list[Plan], seeds: list[int], processes: int) -> tuple[list[dict[str, Any]], list[str]]:
    """The results of all runs, and what went wrong; a line is printed for each run that ends."""
    from specc.demo.measure import quiet

    demo = prepare(DEMO, tiny=True)
    with quiet():
        pairs = make_pairs(demo, PAIRS)
        asked = [(plan, seed) for plan in plans for seed in seeds]
        results: list[dict[str, Any]] = []
        failures: list[str] = []
        with ThreadPoolExecutor(processes) as pool:
            runs = [pool.submit(run, plan, demo, pairs, seed) for plan, seed in asked]
            for done, future in enumerate(as_completed(runs), 1):
                try:
                    result, kept = future.result()
                except Failed as failure:
                    failures.append(str(failure))
                    line = str(failure)
                else:
                    results.append(result)
                    line = f"{told(result)}{'  (kept)' * kept}"
                print(f"[{done}/{len(runs)}] {line}", flush=True)
    return results, failures


def told(result: dict[str, Any]) -> str:
    before, after = ends(result["accuracy"])
    text = f"{result['name']:22} seed {result['seed']}  accuracy {before:.1%} -> {after:.1%}"
    if result["pairs"]:
        text += "  pairs {:.1%} -> {:.1%}".format(*ends(result["pairs"]))
    return f"{text}  {result['seconds']:.0f} s"


def ends(curve: list[Any]) -> tuple[float, float]:
    """Its first and its last value."""
    return curve[0][1], curve[-1][1]


# -------- the page --------

Results = dict[str, list[dict[str, Any]]]
"""The runs of each algorithm, in the order of their seeds."""


def write_page(plans: dict[str, Plan], results: Results) -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), plans, results), encoding="utf-8")
    draw(plans, results)


def page(text: str, plans: dict[str, Plan], results: Results) -> str:
    """The page with what stands between its markers made anew."""
    blocks = {
        "families": families(plans),
        "results": table(plans, results),
        "how": how(results),
        "settings": settings_table(plans),
    }
    for name, block in blocks.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        assert rest and after, f"{PAGE.name} has no block {name}"
        text = f"{before}{begin}\n{block}\n\n{end}{after}"
    return text


def families(plans: dict[str, Plan]) -> str:
    """A table of the algorithms of each family: what each is, and what it optimizes."""
    parts = []
    for kind in FAMILIES:
        members = [plan for plan in plans.values() if family(plan.spec) is kind]
        rows = [("algorithm", *QUESTIONS, "k", "0/1 rewards", "real rewards", "claim")]
        for plan in members:
            spec, derived = plan.spec, plan.derived
            link = f"[{spec.title or spec.name}](../algorithms/{spec.name}.yaml)" + f" ({spec.cite})" * bool(spec.cite)
            claim = (spec.claim or "-") + f", for {spec.target}" * bool(spec.target)
            said = [answer.short() for answer in spec.answers.values()]
            rows.append((link, *said, str(spec.sampling.group_size), derived.binary, derived.real, claim))
        if members:
            parts.append(f"### {kind.title}\n\n{kind.line}\n\n{markdown(rows)}")
    return "\n\n".join(parts)


def table(plans: dict[str, Plan], results: Results) -> str:
    """What the runs came to."""
    head = (
        "algorithm",
        "held-out accuracy",
        "after",
        "best",
        "gain",
        "held-out pairs",
        "seconds",
        "models in memory",
        "MB",
        "peak MB",
    )
    rows = [head]
    for name, plan in plans.items():
        if runs := results.get(name):
            before, after = (
                mean(ends(each["accuracy"])[0] for each in runs),
                [ends(each["accuracy"])[1] for each in runs],
            )
            models = ", ".join(model.removesuffix(" (trained)") for model in plan.models)
            rows.append(
                (
                    name,
                    f"{before:.1%}",
                    spread(after),
                    best(runs),
                    f"{100 * (mean(after) - before):+.0f}",
                    ordered(runs),
                    f"{mean(each['seconds'] for each in runs):.0f}",
                    f"{len(plan.models)}: {models}",
                    f"{mean(each['memory_mb']['all'] for each in runs):.1f}",
                    f"{max(each['peak_memory_mb'] for each in runs)}",
                )
            )
    text = markdown(rows)
    if low := {name: WHY.get(name, "") for name in missed(plans, results)}:
        text += f"\n\nLess than {100 * GAIN:.0f} points gained:\n\n" + "\n".join(
            f"- {n}: {why}" for n, why in low.items()
        )
    return text


def best(runs: list[dict[str, Any]]) -> str:
    """The highest of the checkpoints' mean accuracies, and its step."""
    steps, _, middle, _ = band([each["accuracy"] for each in runs])
    return f"{max(middle):.1%} at {steps[middle.index(max(middle))]}"


def ordered(runs: list[dict[str, Any]]) -> str:
    """The share of held-out pairs whose better response has the larger reward, before and after."""
    pairs = [ends(each["pairs"]) for each in runs if each["pairs"]]
    return f"{mean(before for before, _ in pairs):.1%} to {spread([after for _, after in pairs])}" if pairs else "-"


def missed(plans: dict[str, Plan], results: Results) -> list[str]:
    """The algorithms that gained less than they have to: an online one accuracy, an offline one pairs."""
    low = []
    for name, plan in plans.items():
        if runs := results.get(name):
            curves = [each["accuracy" if online(plan.spec) else "pairs"] for each in runs]
            gain = mean(after - before for before, after in map(ends, curves))
            low += [name] * (gain < (GAIN if online(plan.spec) else 1e-9))
    return low


def spread(values: list[float]) -> str:
    """Mean, and lowest to highest where there are several."""
    span = f" ({min(values):.1%} to {max(values):.1%})" if len(values) > 1 else ""
    return f"{mean(values):.1%}{span}"


def how(results: Results) -> str:
    made = [each for runs in results.values() for each in runs]
    seeds = ", ".join(map(str, sorted({each["seed"] for each in made})))
    minutes = sum(each["seconds"] for each in made) / 60
    return f"{len(made)} runs of {len(results)} algorithms, seeds {seeds}: {minutes:.0f} minutes, all added up."


def settings_table(plans: dict[str, Plan]) -> str:
    """The settings that all runs share, then everything in which a run differs from them or from its spec."""
    shared = [(f"`{name}`", f"{value}") for name, value in COMMON.items() if value not in ("", False)]
    shared += [
        ("`prompts_per_step` x `group_size`", f"{BUDGET // GROUP} x {GROUP}, {BUDGET} x 1, or {BUDGET // 2} pairs")
    ]
    text = markdown([("all runs", "value"), *shared])
    rows = [("algorithm", "argument", "published or shared", "here")]
    for name, plan in plans.items():
        rows += [
            (name, f"`{parameter.argument}`", f"{parameter.value}", f"{value}")
            for parameter, value in sized(plan)
            if parameter.value != value
        ]
        if updates_of(plan) > 1:
            rate = COMMON["learning_rate"]
            rows.append((name, "`learning_rate`", f"{rate:g}", f"{rate / updates_of(plan):g}"))
        rows += [
            (name, f"`{argument}`", f"{COMMON.get(argument, '')}", f"{v}") for argument, v in overrides(plan).items()
        ]
    return f"{text}\n\n{markdown(rows)}"


def markdown(rows: Iterable[tuple[str, ...]]) -> str:
    head, *body = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([head, "|---" * (head.count(" | ") + 1) + "|", *body])


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe and Ito's, without the yellow, which is hard to see on white."""
STYLES, MARKS = ("-", "--", ":"), ("o", "s", "^")


def draw(plans: dict[str, Plan], results: Results) -> None:
    """Held-out accuracy by step: a panel a family, a line an algorithm (mean over seeds), its seeds' range shaded."""
    from matplotlib.figure import Figure
    from PIL import Image

    kinds = [kind for kind in FAMILIES if any(family(plans[name].spec) is kind for name in results)]
    columns = min(4, len(kinds))
    figure = Figure(figsize=(3.6 * columns, 3.4 * -(-len(kinds) // columns)), layout="constrained")
    panels = list(figure.subplots(-(-len(kinds) // columns), columns, sharex=True, sharey=True, squeeze=False).flat)
    for axes, kind in zip(panels, kinds, strict=False):
        members = [name for name in results if family(plans[name].spec) is kind]
        for number, name in enumerate(members):
            colour, turn = COLOURS[number % len(COLOURS)], number // len(COLOURS)
            look = {
                "color": colour,
                "linestyle": STYLES[turn],
                "marker": MARKS[turn],
                "markersize": 3,
                "linewidth": 1.4,
            }
            steps, low, middle, high = band([each["accuracy"] for each in results[name]])
            axes.plot(steps, middle, label=name, **look)
            axes.fill_between(steps, low, high, color=colour, alpha=0.12, linewidth=0)
            if any(each["pairs"] for each in results[name]):
                steps, _, middle, _ = band([each["pairs"] for each in results[name]])
                axes.plot(steps, middle, label=f"{name}, pairs", **look | {"linestyle": "-.", "marker": ""})
        axes.set_title(kind.title, fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="best", framealpha=0.7)
        axes.tick_params(labelbottom=True)  # there may be no panel below
        axes.set_ylim(0, 1)
    for axes in panels[len(kinds) :]:
        axes.set_axis_off()
    figure.supxlabel("step", fontsize=10)
    figure.supylabel("held-out accuracy", fontsize=10)
    figure.savefig(FIGURE, dpi=110)
    Image.open(FIGURE).convert("RGB").quantize(256).save(FIGURE, optimize=True)


def band(curves: list[list[Any]]) -> tuple[list[int], list[float], list[float], list[float]]:
    """Steps, and the lowest, mean and highest value of several curves at each."""
    steps = [step for step, _ in curves[0]]
    at = [[curve[number][1] for curve in curves] for number in range(len(steps))]
    return steps, [min(v) for v in at], [mean(v) for v in at], [max(v) for v in at]


# -------- the command --------


def read_results(plans: dict[str, Plan]) -> Results:
    """The results on disk of the algorithms that are still shipped, in the page's order."""
    if not RESULTS.exists():
        return {}
    runs = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {name: found for name in plans if (found := [each for each in runs if each["name"] == name])}


def write_results(plans: dict[str, Plan], new: list[dict[str, Any]]) -> Results:
    """The results on disk with new ones in place of theirs."""
    made = {(each["name"], each["seed"]): each for runs in read_results(plans).values() for each in runs}
    made |= {(each["name"], each["seed"]): each for each in new}
    order = list(plans)
    runs = sorted(made.values(), key=lambda each: (order.index(each["name"]), each["seed"]))
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(each) for each in runs) + "\n]\n", encoding="utf-8")
    return read_results(plans)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these algorithms; by default all")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--processes", type=int, default=2, help="runs at a time, each with one thread")
    parser.add_argument(
        "--page", action="store_true", help="write the page from the results on disk, and train nothing"
    )
    options = parser.parse_args()
    plans = shipped()
    if unknown := sorted(set(options.only or ()) - set(plans)):
        parser.error(f"there is no algorithm {', '.join(unknown)}; there are {', '.join(plans)}")
    if options.page:
        return write_page(plans, read_results(plans))
    start = time.perf_counter()
    chosen = [plan for name, plan in plans.items() if name in (options.only or plans)]
    new, failures = train(chosen, options.seeds, options.processes)
    results = write_results(plans, new)
    write_page(plans, results)
    print(f"{len(new)} runs in {(time.perf_counter() - start) / 60:.1f} minutes; {os.path.relpath(PAGE)} is written")
    unsaid = [name for name in missed(plans, results) if name not in WHY]
    if unsaid:
        print(f"less than {100 * GAIN:.0f} points gained, and no word why: {', '.join(unsaid)}")
    if failures:
        print(f"{len(failures)} runs failed:\n" + "\n".join(failures))
    sys.exit(1 if failures or unsaid else 0)


if __name__ == "__main__":
    main()
