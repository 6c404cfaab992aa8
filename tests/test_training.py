"""Whole runs of the generated scripts on the tiny demo: what they write, that they learn, what changes no gradient.

A run takes a second or two in this process. `run` is what the other files of runs use as well.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from conftest import ONLINE, ROOT, generated, load_module
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    GPT2Config,
)
from transformers.models.llama.modeling_llama import LlamaMLP

from specc.demo import DemoFiles
from specc.demo.characters import character_tokenizer
from specc.demo.files.sorting_verifier import score
from specc.demo.measure import accuracy
from specc.demo.records import read_records

SMALL = {
    "steps": 3,
    "prompts_per_step": 8,
    "group_size": 4,
    "max_new_tokens": 8,
    "learning_rate": 1e-3,
    "warmup_steps": 0,
}

TIMINGS = {"tokens_per_second", "peak_memory_gb"}
EVERY_STEP = TIMINGS | {
    "step", "loss", "grad_norm", "learning_rate", "entropy", "num_tokens", "time/generate", "time/score", "time/update",
    "reward", "reward_std", "frac_reward_zero_std", "completions/mean_length", "completions/mean_terminated_length",
    "completions/min_length", "completions/max_length", "completions/clipped_ratio",
}  # fmt: skip
CLIPS = {"clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"}


def arguments(script: ModuleType, demo: DemoFiles, output_dir: Path, **changed: Any) -> dict[str, Any]:
    """What a small run on the tiny demo is told."""
    given = {"model": demo.model, "train_data": demo.train, "output_dir": output_dir} | SMALL | {"report_to": ""}
    if hasattr(script.Args, "reward_separator"):
        given["reward_separator"] = ""  # the demo's texts have one line, and every token is a step
    if hasattr(script.Args, "reward_model"):
        given["reward_model"] = demo.reward_model
    else:
        steps = hasattr(script.Args, "reward_separator")
        given["reward"] = f"{demo.step_verifier}:score_steps" if steps else f"{demo.verifier}:score"
    if getattr(script.Args, "minibatches", 1) > SMALL["prompts_per_step"]:
        given["minibatches"] = SMALL["prompts_per_step"]
    if hasattr(script.Args, "baseline_pretrain_steps"):
        given["baseline_pretrain_steps"] = 0  # more than a small run has; the tests of critics train some
    given = {name: value for name, value in given.items() if name in script.Args.__dataclass_fields__} | changed
    return {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}


def run(script: ModuleType, demo: DemoFiles, output_dir: Path, **changed: Any) -> list[dict[str, Any]]:
    """Trains in this process, as a process of its own would, and returns the rows of metrics.jsonl."""
    AcceleratorState._reset_state(reset_partial_state=True)
    torch.set_num_threads(1)
    script.train(script.Args(**arguments(script, demo, output_dir, **changed)))
    return rows_of(output_dir / "metrics.jsonl")


def rows_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").split("\n")[:-1]]


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without what no two runs share."""
    return [{k: v for k, v in row.items() if k not in TIMINGS and not k.startswith("time/")} for row in rows]


def weights_of(output_dir: Path) -> dict[str, Tensor]:
    """The trained model's."""
    return load_file(output_dir / "model" / "model.safetensors")


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether all weights are equal, bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[list[Tensor]]:
    """The gradient of every optimizer step of the runs that follow, before it is clipped."""
    seen: list[list[Tensor]] = []
    accelerator = generated(ONLINE[0]).Accelerator
    clip = accelerator.clip_grad_norm_

    def recording(self: Any, parameters: Any, *rest: Any) -> Tensor:
        parameters = list(parameters)
        seen.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters])
        return clip(self, parameters, *rest)

    monkeypatch.setattr(accelerator, "clip_grad_norm_", recording)
    return seen


def assert_equal_gradients(first: list[Tensor], second: list[Tensor], tolerance: float = 1e-5) -> None:
    """Relative to the norm of the whole gradient, which is not 0."""
    norm = torch.stack([gradient.norm() for gradient in first]).norm()
    error = torch.stack([(a - b).norm() for a, b in zip(first, second, strict=True)]).norm()
    assert norm > 1e-3 and error < tolerance * norm, f"{error} of {norm}"


# -------- one small run of every script --------


@pytest.fixture(scope="module", params=ONLINE)
def small(
    request: pytest.FixtureRequest, tiny_demo: DemoFiles, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ModuleType, Path]:
    """Every script in turn, and the folder of a run of three steps with everything that a run writes."""
    script, folder = generated(request.param), tmp_path_factory.mktemp("small") / request.param
    run(script, tiny_demo, folder, eval_data=tiny_demo.heldout, eval_every=2, report_to="tensorboard", save_every=2)
    return script, folder


def test_every_step_has_all_metrics_and_they_are_finite(small: tuple[ModuleType, Path]) -> None:
    script, folder = small
    args, source = script.Args(), Path(script.__file__).read_text(encoding="utf-8")
    names = set(EVERY_STEP)
    names |= CLIPS if hasattr(script, "count_clipped") else set()
    names |= {"kl"} if hasattr(args, "kl_coefficient") else set()
    names |= {"completions/mean_steps"} if hasattr(args, "reward_separator") else set()
    names |= {"time/logprobs"} if 'timed(metrics, "logprobs")' in source else set()
    names |= {"frac_kept"} if hasattr(script, "select") else set()
    names |= {"value_loss", "values", "explained_variance"} if hasattr(script, "value_loss") else set()
    *steps, last = rows_of(folder / "metrics.jsonl")
    assert [row["step"] for row in steps] == [0, 1, 2]
    for row in steps:
        assert row.keys() == names | ({"eval_reward"} if row["step"] % 2 == 0 else set())
        assert all(math.isfinite(value) for value in row.values()), row
    assert last.keys() == {"step", "eval_reward"} and last["step"] == 3 and math.isfinite(last["eval_reward"])


def test_metrics_agree_with_each_other(small: tuple[ModuleType, Path]) -> None:
    for row in rows_of(small[1] / "metrics.jsonl")[:-1]:
        if "frac_kept" not in row:  # of all that were sampled
            assert row["num_tokens"] == pytest.approx(32 * row["completions/mean_length"])
        assert (
            1 <= row["completions/min_length"] <= row["completions/mean_length"] <= row["completions/max_length"] <= 8
        )
        assert 0 <= row["completions/clipped_ratio"] <= 1 and 0 <= row["frac_reward_zero_std"] <= 1
        assert 0 < row["entropy"] < math.log(15) and row["grad_norm"] > 0 and row["learning_rate"] == 1e-3
        phases = sum(value for name, value in row.items() if name.startswith("time/"))
        assert row["tokens_per_second"] == pytest.approx(row["num_tokens"] / phases)
        if "clip_ratio/region_mean" in row:
            assert row["clip_ratio/region_mean"] == row["clip_ratio/low_mean"] + row["clip_ratio/high_mean"]


def test_the_first_step_is_on_policy_and_at_the_reference(small: tuple[ModuleType, Path]) -> None:
    script, folder = small
    first, *later, _ = rows_of(folder / "metrics.jsonl")
    source = Path(script.__file__).read_text(encoding="utf-8")
    once = script.Args.epochs * script.Args.minibatches == 1
    if "kl" in first and (once or "rows_of(ref_logprobs)" not in source):
        # In the loss it is of the update's own log-probs, whose passes are of other shapes and round apart.
        assert first["kl"] < 1e-12 if "rows_of(ref_logprobs)" in source else first["kl"] == 0
        assert all(row["kl"] > 0 for row in later)
    if "clip_ratio/region_mean" in first and once:
        assert all(row["clip_ratio/region_mean"] == 0 for row in (first, *later))


def test_completions_are_written_with_their_rewards(small: tuple[ModuleType, Path], tiny_demo: DemoFiles) -> None:
    script, folder = small
    samples = rows_of(folder / "completions.jsonl")
    assert all(sample.keys() == {"step", "kind", "prompt", "completion", "reward"} for sample in samples)
    kinds = [(sample["step"], sample["kind"]) for sample in samples[::5]]
    assert kinds == [(0, "held-out"), (0, "training"), (2, "held-out"), (2, "training"), (3, "held-out")]
    assert len(samples) == 25
    rows = read_records(tiny_demo.train) + read_records(tiny_demo.heldout)
    answers = {row["prompt"]: row["answer"] for row in rows}
    heldout = [row["prompt"] for row in read_records(tiny_demo.heldout)[:5]]
    assert [sample["prompt"] for sample in samples if sample["kind"] == "held-out"] == heldout * 3
    for sample in samples:
        assert len(sample["completion"]) <= 8
        if hasattr(script.Args, "reward"):
            assert sample["reward"] == (sample["completion"] == answers[sample["prompt"]])


def test_a_picture_checkpoints_and_tensorboard_are_written(small: tuple[ModuleType, Path]) -> None:
    _, folder = small
    picture = (folder / "learning_curve.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 5_000
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]
    assert torch.load(folder / "checkpoint-3" / "trainer.pt")["step"] == 3

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(next(folder.glob(f"{folder.name}/events.out.tfevents.*")).parent)).Reload()
    written = [(event.step, event.value) for event in events.Scalars("reward")]
    assert written == [(row["step"], pytest.approx(row["reward"])) for row in rows_of(folder / "metrics.jsonl")[:-1]]


def test_the_trained_model_is_a_checkpoint_like_the_one_before(
    small: tuple[ModuleType, Path], tiny_demo: DemoFiles
) -> None:
    _, folder = small
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    before = AutoModelForCausalLM.from_pretrained(tiny_demo.model)
    assert model.config.architectures == before.config.architectures
    moved = [not torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True)]
    assert all(moved) and all(parameter.isfinite().all() for parameter in model.parameters())
    tokenizer, right = (AutoTokenizer.from_pretrained(path) for path in (folder / "model", tiny_demo.model))
    assert tokenizer("9837=")["input_ids"] == right("9837=")["input_ids"]
    eos = GenerationConfig.from_pretrained(folder / "model").eos_token_id
    assert eos == [right.eos_token_id]  # without it, what the model writes would never end
    prompt = tokenizer("9837=", return_tensors="pt")
    assert model.generate(**prompt, max_new_tokens=30, do_sample=False).shape[1] < 5 + 30


def test_a_run_says_what_came_of_it(tiny_demo: DemoFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "told"
    first, last = run(generated("reinforce"), tiny_demo, folder, steps=1, eval_data=tiny_demo.heldout, eval_every=5)
    printed = capsys.readouterr().out
    assert "0.1 M parameters" in printed
    assert f"before (step 0): held-out reward {first['eval_reward']:.3f} with greedy responses" in printed
    assert f"after (step 1): held-out reward {last['eval_reward']:.3f}" in printed
    assert printed.count(" -> ") == 10
    assert f"the learning curve is {folder / 'learning_curve.png'}" in printed
    assert f"the trained model is in {folder / 'model'}" in printed


def test_a_run_without_held_out_data_is_a_run(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    rows = run(generated("reinforce"), tiny_demo, tmp_path / "run", steps=1)
    assert [row["step"] for row in rows] == [0, 1] and not any("eval_reward" in row for row in rows)
    assert (tmp_path / "run" / "learning_curve.png").exists()


# -------- they learn --------


@pytest.mark.parametrize("name", ["reinforcepp", "rloo"])
def test_it_learns_to_sort(name: str, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """From the rewards of the verifier or of the reward model; judged by the verifier on held-out problems."""
    rows = run(
        generated(name),
        tiny_demo,
        tmp_path,
        steps=50,
        prompts_per_step=16,
        group_size=8,
        learning_rate=3e-4,
        prompts_per_forward=16,
    )
    before, after = (  # greedy
        accuracy(
            AutoModelForCausalLM.from_pretrained(folder).eval(),
            AutoTokenizer.from_pretrained(folder),
            read_records(tiny_demo.heldout),
            score,
            max_new_tokens=8,
        )
        for folder in (tiny_demo.model, tmp_path / "model")
    )
    assert before < 0.5
    assert after >= before + 0.15
    rewards = [row["reward"] for row in rows[:-1]]
    assert sum(rewards[-10:]) / 10 > sum(rewards[:10]) / 10


# -------- a batch that is used more than once --------


@pytest.mark.parametrize("name", ["reinforcepp", "gspo"])
def test_with_epochs_and_minibatches_the_clip_acts(name: str, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    rows = run(
        generated(name), tiny_demo, tmp_path, epochs=2, minibatches=2, learning_rate=3e-3, lr_scheduler="linear"
    )[:-1]
    clipped = [row["clip_ratio/region_mean"] for row in rows]
    assert max(clipped) > 0 and all(0 <= share < 1 for share in clipped)
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert [row["learning_rate"] for row in rows] == pytest.approx([2e-3, 1e-3, 0.0])  # 3 steps of 4 updates


def test_minibatches_share_out_the_prompts(
    tiny_demo: DemoFiles, tmp_path: Path, gradients: list[list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With weights that hardly move, the gradients of the minibatches average to that of the whole batch."""
    script = generated("drgrpo")
    told = {"steps": 1, "learning_rate": 1e-12, "group_size": 4}
    run(script, tiny_demo, tmp_path / "whole", epochs=1, minibatches=1, **told)
    run(script, tiny_demo, tmp_path / "parts", epochs=2, minibatches=4, **told)
    whole, *parts = gradients
    assert len(parts) == 8
    for epoch in (parts[:4], parts[4:]):
        assert_equal_gradients(whole, [torch.stack(each).mean(0) for each in zip(*epoch, strict=True)])
    assert not torch.allclose(parts[0][0], parts[1][0])


# -------- what may not change a gradient --------


@pytest.mark.parametrize("name", ONLINE)
def test_prompts_per_forward_does_not_change_the_gradient(
    name: str, tiny_demo: DemoFiles, tmp_path: Path, gradients: list[list[Tensor]]
) -> None:
    """One prompt at a time, all at once, and three with a shorter last part."""
    for at_once in (1, 8, 3):
        told = {"steps": 1, "minibatches": 1, "prompts_per_forward": at_once}
        run(generated(name), tiny_demo, tmp_path / str(at_once), **told)
    updates = len(gradients) // 3  # of the policy, and of a critic
    one, all_of_them, three = (gradients[start : start + updates] for start in range(0, 3 * updates, updates))
    for first, *others in zip(one, all_of_them, three, strict=True):
        for other in others:
            assert_equal_gradients(first, other)


SKIPS = "counts_BG = (advantages_BGT != 0).any(-1)"
SKIPPING = [name for name in ONLINE if SKIPS in (ROOT / "generated" / f"{name}.py").read_text(encoding="utf-8")]


def test_scripts_skip_rows_unless_a_term_of_the_loss_needs_them() -> None:
    of_kl = {"grpo", "grpo_process", "pods", "raftpp", "reinforce_rej", "reinforcepp_baseline"}
    assert set(ONLINE) - set(SKIPPING) == of_kl | {"vapo"}  # which skips by the likelihood of correct responses as well


@pytest.mark.parametrize("name", SKIPPING)
def test_rows_that_are_skipped_had_no_gradient(
    name: str, tiny_demo: DemoFiles, tmp_path: Path, gradients: list[list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    skipping, text = generated(name), (ROOT / "generated" / f"{name}.py").read_text(encoding="utf-8")
    assert text.count(SKIPS) == 1
    (tmp_path / f"{name}.py").write_text(text.replace(SKIPS, "counts_BG = mask_BGT.any(-1)"), encoding="utf-8")
    keeping = load_module(tmp_path / f"{name}.py")
    tokens = {"skipping": 0, "keeping": 0}
    for kind, script in (("skipping", skipping), ("keeping", keeping)):
        forward = script.Policy.forward

        def counting(self: Any, ids: Tensor, prompts: Tensor, responses: Tensor, mask: Tensor) -> Any:
            tokens[kind] += int(mask.sum()) if torch.is_grad_enabled() else 0  # noqa: B023
            return forward(self, ids, prompts, responses, mask)  # noqa: B023

        monkeypatch.setattr(script.Policy, "forward", counting)
        run(script, tiny_demo, tmp_path / kind, steps=1, minibatches=1)
    half = len(gradients) // 2
    for first, second in zip(gradients[:half], gradients[half:], strict=True):
        assert_equal_gradients(first, second)
    assert tokens["skipping"] <= tokens["keeping"]
    # A reward model's scores differ, and so do a critic's values; and what is taken off is the batch's mean.
    reward_models = ("rloo", "reinforce_ema", "reinforcepp", "reinforce_batch_mean")
    if name not in (*reward_models, "ppo", "vcppo", "dapo", "raft"):  # and those that are kept have a gradient
        assert tokens["skipping"] < tokens["keeping"]


CORRECT = """\
name: correct
reward: verifier
kl: none
baseline: group_mean
normalization: none
objective: {quantity: sequence_advantage, aggregation: token_mean, positive_nll: {coefficient: 0.1}}
sampling: {group_size: 4}
"""


def test_correct_responses_are_kept_for_their_likelihood(
    compiled: Any, tiny_demo: DemoFiles, tmp_path: Path, gradients: list[list[Tensor]]
) -> None:
    """All responses are correct, so every advantage is 0; they teach all the same, in minibatches as well."""
    (tmp_path / "verifier.py").write_text("def score(completions):\n    return [1.0] * len(completions)\n")
    script = compiled(CORRECT)
    text = Path(str(script.__file__)).read_text(encoding="utf-8")
    skips = "counts_BG = ((advantages_BGT != 0) | (nll_BGT > 0)).any(-1)"
    assert text.count(skips) == 1
    (tmp_path / "keeping.py").write_text(text.replace(skips, "counts_BG = mask_BGT.any(-1)"), encoding="utf-8")
    for place, each in enumerate((script, load_module(tmp_path / "keeping.py"))):
        told = {"reward": f"{tmp_path / 'verifier.py'}:score", "steps": 1, "minibatches": 2}
        run(each, tiny_demo, tmp_path / str(place), **told)
    assert len(gradients) == 4 and max(float(part.abs().max()) for part in gradients[0]) > 1e-4
    assert_equal_gradients(gradients[0], gradients[2])


@pytest.mark.parametrize("name", sorted(set(ONLINE) - {"dapo", "raft"}))  # they stop; and learn from any response
def test_a_batch_that_teaches_nothing_is_a_step_all_the_same(
    name: str, tiny_demo: DemoFiles, tmp_path: Path, gradients: list[list[Tensor]]
) -> None:
    """All rewards are 0: no gradient, a warning, and the run goes on."""
    script, changed = generated(name), {}
    if hasattr(script.Args, "reward"):
        (tmp_path / "verifier.py").write_text("def score(completions):\n    return [0.0] * len(completions)\n")
        changed = {"reward": f"{tmp_path / 'verifier.py'}:score"}
    else:
        flat = AutoConfig.from_pretrained(tiny_demo.reward_model)
        model = AutoModelForSequenceClassification.from_pretrained(tiny_demo.reward_model, config=flat)
        model.score.weight.data.zero_()
        model.save_pretrained(tmp_path / "flat")
        AutoTokenizer.from_pretrained(tiny_demo.reward_model).save_pretrained(tmp_path / "flat")
        changed = {"reward_model": tmp_path / "flat"}
    with pytest.warns(UserWarning, match="advantages are all 0"):
        rows = run(script, tiny_demo, tmp_path / "run", steps=1, **changed)
    assert gradients and rows[0]["frac_reward_zero_std"] == 1
    if name in SKIPPING:
        assert not any(gradient.any() for step in gradients for gradient in step)
        assert (rows[0]["loss"], rows[0]["grad_norm"]) == (0, 0)
        assert same(weights_of(tmp_path / "run"), load_file(tiny_demo.model / "model.safetensors"))
    else:  # the KL's, which is 0 but for rounding
        assert all(gradient.abs().max() < 1e-6 for step in gradients for gradient in step)


def test_gradient_checkpointing_changes_nothing_but_the_work(
    tiny_demo: DemoFiles, tmp_path: Path, gradients: list[list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, forward = [0, 0], LlamaMLP.forward
    for number in (0, 1):

        def counting(self: LlamaMLP, x: Tensor) -> Tensor:
            calls[number] += 1  # noqa: B023
            return forward(self, x)

        monkeypatch.setattr(LlamaMLP, "forward", counting)
        run(generated("grpo"), tiny_demo, tmp_path / str(number), steps=1, gradient_checkpointing=bool(number))
    assert_equal_gradients(*gradients, tolerance=1e-6)
    assert calls[1] > calls[0]


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_a_model_that_cannot_share_prompts_gives_the_same_gradient(
    name: str, tiny_demo: DemoFiles, tmp_path: Path, gradients: list[list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its samples are drawn from the same numbers, too."""
    script, packed = generated(name), []
    pack = script.pack

    def recording(ids: Tensor, mask: Tensor, tokens: Tensor, shared: bool) -> Any:
        packed.append(shared)
        return pack(ids, mask, tokens, shared)

    monkeypatch.setattr(script, "sharing_pays", lambda *sizes: True)
    monkeypatch.setattr(script, "pack", recording)
    shared = run(script, tiny_demo, tmp_path / "shared", steps=1)
    assert all(packed[-8:])
    monkeypatch.setattr(script, "probe_sharing", lambda model: False)
    alone = run(script, tiny_demo, tmp_path / "alone", steps=1)
    assert not any(packed[-8:])
    assert_equal_gradients(*gradients)
    assert alone[0]["reward"] == shared[0]["reward"]


def test_a_run_with_eager_attention(tiny_demo: DemoFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = generated("reinforcepp")
    load = script.load_policy

    def load_eager(name: str) -> Any:
        model, eos_ids = load(name)
        model.set_attn_implementation("eager")
        return model, eos_ids

    monkeypatch.setattr(script, "load_policy", load_eager)
    rows = run(script, tiny_demo, tmp_path)
    assert rows[0]["kl"] == 0 and rows[0]["clip_ratio/region_mean"] == 0
    assert all(math.isfinite(value) for row in rows for value in row.values())


# -------- other models, data and numbers --------


def test_a_gpt2_with_dropout_is_on_policy(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """Learned positions, dropout in the config, prompts of several lengths, a temperature."""
    tokenizer = character_tokenizer("0123456789=", 64)
    tokenizer.save_pretrained(tmp_path / "gpt2")
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=32, n_layer=2, n_head=2, eos_token_id=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "gpt2")
    script, told = generated("reinforcepp"), {"model": tmp_path / "gpt2", "temperature": 0.6, "epochs": 2}
    (tmp_path / "verifier.py").write_text("def score(completions):\n    return [c.count('7') for c in completions]\n")
    told["reward"] = f"{tmp_path / 'verifier.py'}:score"
    rows = run(script, tiny_demo, tmp_path / "run", **told, steps=2, learning_rate=1e-12)
    for row in rows[:-1]:
        assert row["kl"] < 1e-12 and row["clip_ratio/region_mean"] == 0 and row["grad_norm"] > 0


@pytest.mark.parametrize("name", ["reinforcepp", "gspo", "rloo", "grpo"])
def test_bf16_is_on_policy_too(name: str, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    rows = run(generated(name), tiny_demo, tmp_path, bf16=True, minibatches=1)[:-1]
    assert all(row.get("clip_ratio/region_mean", 0.0) == 0 for row in rows)
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert (
        rows[0].get("kl", 0.0) < 1e-3
    )  # the reference's weights are bf16, the policy's are cast: no more than rounding
    assert {weight.dtype for weight in weights_of(tmp_path).values()} == {torch.float32}


def test_a_seed_repeats_a_run_and_another_does_not(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    script = generated("reinforcepp")
    first, again, other = (
        untimed(run(script, tiny_demo, tmp_path / name, steps=2, seed=seed))
        for name, seed in (("first", 7), ("again", 7), ("other", 8))
    )
    assert first == again and same(weights_of(tmp_path / "first"), weights_of(tmp_path / "again"))
    assert first[0] != other[0]
    asked = [[row["prompt"] for row in rows_of(tmp_path / name / "completions.jsonl")] for name in ("first", "other")]
    assert asked[0] != asked[1]


def test_chat_messages_go_through_the_template_and_to_the_verifier(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """The chat's tokens are those of the text prompts, so that the run is the same."""
    chats = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in read_records(tiny_demo.train)]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
    AutoModelForCausalLM.from_pretrained(tiny_demo.model).save_pretrained(tmp_path / "chat_model")
    tokenizer = AutoTokenizer.from_pretrained(tiny_demo.model)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "chat_model")
    (tmp_path / "verifier.py").write_text(
        "def score(prompts, completions, answer):\n"
        "    assert all(p[0]['role'] == 'user' and p[0]['content'].endswith('=') for p in prompts)\n"
        "    return [float(c == a) for c, a in zip(completions, answer, strict=True)]\n"
    )
    script = generated("reinforcepp")
    text = run(script, tiny_demo, tmp_path / "text", steps=2)
    told = {"model": tmp_path / "chat_model", "reward": f"{tmp_path / 'verifier.py'}:score", "steps": 2}
    chat = run(script, tiny_demo, tmp_path / "chat", train_data=tmp_path / "chats.jsonl", **told)
    assert untimed(chat) == untimed(text)
    assert rows_of(tmp_path / "chat" / "completions.jsonl")[0]["prompt"][0]["role"] == "user"


# -------- the command line --------


def test_a_yaml_file_and_the_command_line(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """Numbers, booleans and null mean what they mean in YAML; what follows on the command line wins."""
    script = ROOT / "generated" / "reinforcepp.py"
    given = arguments(generated("reinforcepp"), tiny_demo, tmp_path / "from_file", learning_rate="2e-3", steps=5)
    lines = [f"{name}: {value if value != '' else repr(value)}\n" for name, value in given.items()]
    config = tmp_path / "run.yaml"
    config.write_text("".join(lines) + "eval_data: null\nbf16: null\ngradient_checkpointing: true\nseed: 3\n")
    output = tmp_path / "given"
    done = subprocess.run(
        [sys.executable, str(script), str(config), "--steps", "1", "--output_dir", str(output)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "from_file").exists()
    told = {"steps": 1, "learning_rate": 2e-3, "gradient_checkpointing": True, "seed": 3}
    expected = run(generated("reinforcepp"), tiny_demo, tmp_path / "in_process", **told)
    assert untimed(rows_of(output / "metrics.jsonl")) == untimed(expected)


def test_a_json_file_is_read_too(tiny_demo: DemoFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = generated("rloo")
    given = arguments(script, tiny_demo, tmp_path / "run") | {"learning_rate": 1e-6, "resume": False, "eval_data": None}
    (tmp_path / "run.json").write_text(json.dumps(given))
    seen: list[Any] = []
    monkeypatch.setattr(script, "train", seen.append)
    monkeypatch.setattr(sys, "argv", ["rloo.py", str(tmp_path / "run.json"), "--temperature", "0.5"])
    script.main()
    assert seen == [script.Args(**given, temperature=0.5)]


def test_importing_a_script_runs_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert callable(load_module(ROOT / "generated" / "rloo.py").main)
