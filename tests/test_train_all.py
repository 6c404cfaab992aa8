"""`make train-all`: the settings of its runs, a short run of every algorithm with them, its pairs, and its page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from conftest import ALGORITHMS, ROOT, generated
from PIL import Image
from safetensors.torch import load_file
from test_training import EVERY_STEP, rows_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import train_all
from benchmarks.train_all import Pairs, Plan
from specc.demo import DemoFiles
from specc.demo.measure import quiet
from specc.demo.records import read_records, write_records
from specc.load import load_spec

PLANS = train_all.shipped()

DAPO_LENGTHS = """
name: lengths
reward: {source: verifier, overlong: {limit: 20480, buffer: 4096}}
kl: none
baseline: leave_one_out
normalization: none
objective: {quantity: sequence_advantage, aggregation: token_mean}
sampling: {group_size: 16}
"""


def plan_of(text: str, folder: Path) -> Plan:
    (folder / "spec.yaml").write_text(text, encoding="utf-8")
    return Plan(load_spec(folder / "spec.yaml").spec)


# -------- families and settings --------


def test_the_families_of_some_algorithms() -> None:
    expected = {
        "reinforce": "REINFORCE",
        "rloo": "RLOO and ReMax",
        "remax": "RLOO and ReMax",
        "grpo": "GRPO and relatives",
        "drgrpo": "GRPO and relatives",
        "reinforcepp": "REINFORCE++",
        "reinforcepp_baseline": "REINFORCE++",
    }
    assert {name: train_all.family(PLANS[name].spec).title for name in expected} == expected
    assert set(PLANS) == set(ALGORITHMS)
    assert sorted(map(id, train_all.RULES)) == sorted(map(id, train_all.FAMILIES))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_whole_number_of_a_spec_is_in_a_unit_that_is_known(name: str) -> None:
    """A count that is not scaled to the demo would be found out only by a run that does not learn."""
    scaled = train_all.IN_TOKENS | train_all.IN_RESPONSES | train_all.IN_STEPS | {"group_size"}
    whole = {parameter.field for parameter in PLANS[name].parameters if type(parameter.value) is int}
    assert whole <= scaled | train_all.AS_THEY_ARE


def test_numbers_are_scaled_to_the_demo(tmp_path: Path) -> None:
    sizes = {parameter.argument: value for parameter, value in train_all.sized(plan_of(DAPO_LENGTHS, tmp_path))}
    assert sizes == {"overlong_limit": 8, "overlong_buffer": 2, "group_size": 8}  # 4096 / 20480 = 1.6 / 8
    assert {p.argument: value for p, value in train_all.sized(PLANS["drgrpo"])} == {"max_length": 8, "group_size": 8}
    assert {p.argument: value for p, value in train_all.sized(PLANS["reinforce"])} == {"group_size": 1}


def settings(name: str, demo: DemoFiles, pairs: Pairs, **changed: Any) -> dict[str, Any]:
    known = train_all.arguments_of(ROOT / "generated" / f"{name}.py")
    return train_all.settings(PLANS[name], demo, pairs, known, seed=0) | changed


def test_each_kind_of_verifier_is_found(tiny_demo: DemoFiles) -> None:
    for name, file in (("score", tiny_demo.verifier), ("score_steps", tiny_demo.step_verifier)):
        found, _, function = train_all.function_of(tiny_demo, name).partition(":")
        assert (ROOT / found).samefile(file) and function == name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_run_has_the_same_budget(name: str, tiny_demo: DemoFiles) -> None:
    told = settings(name, tiny_demo, Pairs(Path("train"), Path("heldout")))
    given = generated(name).Args(**told, output_dir="")
    responses = getattr(given, "group_size", 2)
    assert given.prompts_per_step * responses == 256 and given.max_new_tokens == 8
    updates = getattr(given, "epochs", 1) * getattr(given, "minibatches", 1)
    assert given.learning_rate * updates == pytest.approx(3e-4) or train_all.overrides(PLANS[name])


# -------- a short run of each --------


@pytest.fixture(scope="module")
def pairs(tiny_demo: DemoFiles, tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Pairs for a few prompts."""
    folder = tmp_path_factory.mktemp("pairs")
    found = Pairs(folder / "pairs_train.jsonl", folder / "pairs_eval.jsonl")
    policy = AutoModelForCausalLM.from_pretrained(tiny_demo.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_demo.model)
    torch.manual_seed(0)
    for records, path in ((tiny_demo.train, found.train), (tiny_demo.heldout, found.heldout)):
        write_records(path, train_all.pairs_of(read_records(records)[:60], policy, tokenizer))
    return found


def test_pairs_are_a_right_and_a_wrong_response_to_a_prompt(pairs: Pairs, tiny_demo: DemoFiles) -> None:
    for path, asked in ((pairs.train, tiny_demo.train), (pairs.heldout, tiny_demo.heldout)):
        found, prompts = read_records(path), [record["prompt"] for record in read_records(asked)]
        assert len(found) > 30 and len({pair["prompt"] for pair in found}) == len(found)
        for pair in found:
            right = "".join(sorted(pair["prompt"].removesuffix("=")))
            assert pair["prompt"] in prompts and pair["chosen"] == right != pair["rejected"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_short_run_moves_the_weights(
    name: str, tiny_demo: DemoFiles, pairs: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the settings of `make train-all`, but for its length; at least two steps in which the policy moves."""
    monkeypatch.chdir(ROOT)
    told, folder = settings(name, tiny_demo, pairs), tmp_path / name
    told |= {argument: 1 for argument in told if argument.endswith("pretrain_steps")}
    told |= {"steps": 3, "eval_every": 3, "save_every": 3, "prompts_per_step": 16, "prompts_per_forward": 16}
    AcceleratorState._reset_state(reset_partial_state=True)
    torch.set_num_threads(1)
    script = generated(name)
    script.train(script.Args(**told, output_dir=str(folder)))

    rows = rows_of(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    names = EVERY_STEP if train_all.online(PLANS[name].spec) else {"loss", "grad_norm", "rewards/accuracies"}
    held_out = "eval_reward" if train_all.online(PLANS[name].spec) else "eval_rewards/accuracies"
    assert rows[2].keys() >= names and held_out in rows[0] and held_out in rows[3]
    before, after = load_file(tiny_demo.model / "model.safetensors"), load_file(folder / "model" / "model.safetensors")
    assert all(weight.isfinite().all() and not torch.equal(weight, before[key]) for key, weight in after.items())
    with quiet():
        (_, start), (step, _) = train_all.accuracies(folder, tiny_demo)
    measured = json.loads((tiny_demo.directory / "demo.json").read_text())["measured"]["greedy_accuracy"]
    assert step == 3 and start == pytest.approx(measured)


def test_the_line_on_memory_is_read() -> None:
    line = "0.1 M parameters; memory before activations 0.0032 GB (policy 0.000533, Adam's moments 0.00107, x 5.3e-05)"
    read = train_all.memory_of(f"loading\n{line}\nsteps")
    assert read == pytest.approx({"all": 3.2, "policy": 0.533, "Adam's moments": 1.07, "x": 0.053})


# -------- the page --------


def result(name: str, seed: int, after: float) -> dict[str, Any]:
    curve = [[0, 0.26], [10, (0.26 + after) / 2], [20, after]]
    kept = {"name": name, "seed": seed, "seconds": 12.0, "peak_memory_mb": 450, "memory_mb": {"all": 2.1}}
    return kept | {"accuracy": curve, "pairs": []}


def test_the_table_has_means_and_ranges_and_names_what_does_not_learn() -> None:
    results = {"grpo": [result("grpo", 0, 0.8), result("grpo", 1, 0.9)], "rloo": [result("rloo", 0, 0.3)]}
    assert train_all.missed(PLANS, results) == ["rloo"]
    table = train_all.table(PLANS, results)
    assert "| grpo | 26.0% | 85.0% (80.0% to 90.0%) | 85.0% at 20 | +59 |" in table
    assert "| rloo | 26.0% | 30.0% | 30.0% at 20 | +4 |" in table
    assert "2: policy, reference" in table and "Less than 15 points gained" in table


def test_results_of_other_runs_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_all, "RESULTS", tmp_path / "results.json")
    train_all.write_results(PLANS, [result("rloo", 0, 0.5), result("rloo", 1, 0.6), result("grpo", 0, 0.7)])
    read = train_all.write_results(PLANS, [result("rloo", 1, 0.8)])
    after = {name: [run["accuracy"][-1][1] for run in runs] for name, runs in read.items()}
    assert after == {"rloo": [0.5, 0.8], "grpo": [0.7]}


def test_the_figure_is_small_and_has_256_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_all, "FIGURE", tmp_path / "figure.png")
    train_all.draw(PLANS, {name: [result(name, seed, 0.7 + seed / 10) for seed in range(3)] for name in PLANS})
    picture = Image.open(tmp_path / "figure.png")
    assert picture.mode == "P" and picture.width > 1000
    assert (tmp_path / "figure.png").stat().st_size < 200_000


def test_the_page_is_what_the_specs_and_the_results_say() -> None:
    text = train_all.PAGE.read_text(encoding="utf-8")
    page = train_all.page(text, PLANS, train_all.read_results(PLANS))
    assert page == text, "run python benchmarks/train_all.py --page"


def test_every_algorithm_that_was_trained_learned_or_the_page_says_why_not() -> None:
    assert set(train_all.missed(PLANS, train_all.read_results(PLANS))) <= set(train_all.WHY)
