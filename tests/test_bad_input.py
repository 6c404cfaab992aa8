"""Mistakes of whoever runs a script: one sentence that names the culprit, before the policy is loaded if it can."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from accelerate.state import AcceleratorState
from conftest import ALGORITHMS, ROOT, generated
from test_training import arguments, rows_of, run
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from specc.demo import DemoFiles

RL = generated("reinforcepp")
"""The script that stands for all: whatever reads arguments, data and models is the same text in each."""

Refusal = Callable[..., str]


@pytest.fixture
def refusal(tiny_demo: DemoFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """The sentence with which a run refuses the changed arguments; by default one that has not loaded the policy."""

    def refuse(script: Any = RL, *, loads_policy: bool = False, **changed: Any) -> str:
        given = arguments(script, tiny_demo, changed.pop("output_dir", tmp_path / "run"), **changed)
        AcceleratorState._reset_state(reset_partial_state=True)
        loaded: list[str] = []
        load = script.load_policy

        def loading(name: str) -> Any:
            loaded.append(name)
            return load(name)

        monkeypatch.setattr(script, "load_policy", loading)
        with pytest.raises(SystemExit) as stopped:
            script.train(script.Args(**given))
        assert bool(loaded) == loads_policy
        message = stopped.value.code  # a text: printed to stderr, with exit code 1
        assert isinstance(message, str) and message.startswith("error: ") and "\n" not in message
        return message.removeprefix("error: ")

    return refuse


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def verifier(folder: Path, body: str, parameters: str = "completions") -> str:
    """The --reward of a verifier with the body."""
    file = write(folder / "mine.py", f"def score({parameters}):\n    {body}\n")
    return f"{file}:score"


# -------- arguments --------


@pytest.mark.parametrize("name", ["model", "train_data", "reward", "output_dir"])
def test_a_missing_argument(name: str, refusal: Refusal) -> None:
    assert refusal(**{name: ""}) == f"--{name} is missing; --help says what it is"


def test_a_missing_reward_model(refusal: Refusal) -> None:
    assert refusal(generated("rloo"), reward_model="") == "--reward_model is missing; --help says what it is"


def bounds(script: Any) -> list[tuple[str, str, float]]:
    """Every argument with a bound, the bound, and the nearest number beyond it."""
    found = []
    for name, hint in get_type_hints(script.Args, include_extras=True).items():
        for bound in getattr(hint, "__metadata__", ()):
            sign, limit = bound.split()
            beyond = {">=": -1, "<=": 1, ">": 0, "<": 0}[sign] * (1 if hint.__origin__ is int else 1e-6)
            found.append((name, bound, hint.__origin__(float(limit) + beyond)))
    return found


BOUNDS = {(name, bound): value for algorithm in ALGORITHMS for name, bound, value in bounds(generated(algorithm))}


@pytest.mark.parametrize(("name", "bound"), BOUNDS)
def test_a_number_out_of_range(name: str, bound: str, refusal: Refusal) -> None:
    script = next(generated(algorithm) for algorithm in ALGORITHMS if hasattr(generated(algorithm).Args, name))
    value = BOUNDS[name, bound]
    assert refusal(script, **{name: value}) == f"--{name} is {value}, and must be {bound}"


def test_every_number_of_a_script_has_a_bound() -> None:
    assert len(BOUNDS) > 25
    for algorithm in ALGORITHMS:
        hints = get_type_hints(generated(algorithm).Args, include_extras=True)
        unbounded = {name for name, hint in hints.items() if hint in (int, float)}
        assert unbounded <= {"reward_clip_low", "reward_clip_high"}, algorithm  # any score may be the least


@pytest.mark.parametrize("name", ["learning_rate", "temperature", "kl_coefficient"])
def test_a_number_that_is_none(name: str, refusal: Refusal) -> None:
    assert refusal(**{name: float("nan")}) == f"--{name} is nan, and must be > 0"


def test_a_learning_rate_schedule_that_there_is_not(refusal: Refusal) -> None:
    assert refusal(lr_scheduler="cosin") == "--lr_scheduler is cosin, and must be constant, linear or cosine"


def test_prompts_that_do_not_divide_into_minibatches(refusal: Refusal) -> None:
    assert refusal(minibatches=3) == "--prompts_per_step 8 does not divide into --minibatches 3 x 1 processes"


def test_a_tracker_that_there_is_not(refusal: Refusal) -> None:
    assert "tensorbord" in refusal(report_to="tensorbord")


def test_processes_that_would_train_alone(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert refusal() == "2 processes were launched and accelerate sees 1, so each would train alone"


# -------- folders --------


def test_a_model_folder_that_there_is_not(refusal: Refusal, tmp_path: Path) -> None:
    assert refusal(model=tmp_path / "no") == f"--model: there is no folder {tmp_path / 'no'}"
    assert refusal(model="./no") == "--model: there is no folder ./no"


def test_a_model_folder_without_a_config(refusal: Refusal, tmp_path: Path) -> None:
    assert refusal(model=tmp_path) == f"--model: {tmp_path} is no checkpoint, it has no config.json"


def copy_of_model(demo: DemoFiles, folder: Path, *, without: str = "", **replaced: bytes) -> Path:
    """The demo's policy without a file, or with other contents in one."""
    folder.mkdir()
    for file in demo.model.iterdir():
        if file.name != without:
            (folder / file.name).write_bytes(replaced.get(file.stem, file.read_bytes()))
    return folder


def test_a_model_folder_with_a_broken_config(refusal: Refusal, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    broken = copy_of_model(tiny_demo, tmp_path / "broken", config=b"{")
    assert refusal(model=broken).startswith("--model: cannot load ")


@pytest.mark.parametrize("weights", [None, b"", b"half a file"])
def test_a_model_folder_without_weights_that_can_be_read(
    weights: bytes | None, refusal: Refusal, tiny_demo: DemoFiles, tmp_path: Path
) -> None:
    changed: dict[str, Any] = {"without": "model.safetensors"} if weights is None else {"model": weights}
    broken = copy_of_model(tiny_demo, tmp_path / "broken", **changed)
    assert refusal(model=broken, loads_policy=True).startswith(f"--model: cannot load {broken} (")


def test_an_output_folder_that_cannot_be_one(refusal: Refusal, tmp_path: Path) -> None:
    file = write(tmp_path / "file", "")
    assert refusal(output_dir=file) == f"--output_dir: cannot make {file} (File exists)"
    assert refusal(output_dir=file / "run").startswith(f"--output_dir: cannot make {file / 'run'} (")


# -------- data --------


@pytest.mark.parametrize("argument", ["train_data", "eval_data"])
def test_a_data_file_that_there_is_not(argument: str, refusal: Refusal, tmp_path: Path) -> None:
    missing = tmp_path / "no.jsonl"
    assert refusal(**{argument: missing}) == f"--{argument}: there is no file {missing}"


@pytest.mark.parametrize("argument", ["train_data", "eval_data"])
def test_a_line_that_is_not_json(argument: str, refusal: Refusal, tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", '{"prompt": "1=", "answer": "1"}\n\n{"prompt": "2="\n')
    assert refusal(**{argument: data}) == f"--{argument}: {data}:3 is not a line of JSON (Expecting ',' delimiter)"


def test_a_file_that_is_not_utf_8(refusal: Refusal, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_bytes('{"prompt": "für"}\n'.encode("latin-1"))
    assert refusal(train_data=data).startswith(f"--train_data: {data} is not UTF-8 (")


@pytest.mark.parametrize("row", ['{"text": "2="}', '{"prompt": 2}', '{"prompt": null}', '"2="', "[1]"])
def test_a_row_without_a_prompt(row: str, refusal: Refusal, tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", '{"prompt": "1=", "answer": "1"}\n' + row + "\n")
    expected = f"--train_data: row 2 of {data} has no column `prompt` with text or chat messages"
    assert refusal(train_data=data) == expected


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file(text: str, refusal: Refusal, tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", text)
    assert refusal(train_data=data) == f"--train_data: {data} has no rows"


def test_prompts_that_are_all_too_long(refusal: Refusal) -> None:
    assert refusal(max_prompt_length=2) == "no prompt has at most --max_prompt_length = 2 tokens"


@pytest.mark.parametrize("messages", [[{"role": "user", "content": "2="}], [{"content": "2="}], ["2="], []])
def test_chat_messages_that_the_tokenizer_cannot_write(messages: list[Any], refusal: Refusal, tmp_path: Path) -> None:
    """The demo's tokenizer has no chat template."""
    data = write(tmp_path / "data.jsonl", json.dumps({"prompt": messages, "answer": "2"}) + "\n")
    assert "chat" in refusal(train_data=data)


# -------- the reward function --------


def test_a_reward_file_that_there_is_not(refusal: Refusal, tmp_path: Path) -> None:
    missing = tmp_path / "no.py"
    assert refusal(reward=f"{missing}:score") == f"--reward: there is no file {missing}"


def test_a_reward_without_a_function(refusal: Refusal, tiny_demo: DemoFiles) -> None:
    message = refusal(reward=tiny_demo.verifier)
    assert str(tiny_demo.verifier) in message and "file.py:function" in message and "no file" not in message


def test_a_reward_file_that_is_not_python(refusal: Refusal, tmp_path: Path) -> None:
    other = f"{write(tmp_path / 'mine.txt', 'def score(completions): return 1')}:score"
    assert other in refusal(reward=other)


def test_a_reward_function_that_there_is_not(refusal: Refusal, tiny_demo: DemoFiles) -> None:
    for name in ("scores", "__doc__"):
        expected = f"--reward: {tiny_demo.verifier} has no function {name}"
        assert refusal(reward=f"{tiny_demo.verifier}:{name}") == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def score(:\n", "SyntaxError: "),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_reward_file_that_does_not_import(text: str, error: str, refusal: Refusal, tmp_path: Path) -> None:
    file = write(tmp_path / "mine.py", text)
    assert refusal(reward=f"{file}:score").startswith(f"--reward: {file} does not import ({error}")


def test_a_reward_file_may_hold_dataclasses(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """They look up their module by its name, which has to be there."""
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n\n@dataclass\nclass Score:\n"
        "    value: float\n\n\ndef score(completions):\n    return [Score(len(c)).value for c in completions]\n"
    )
    rows = run(RL, tiny_demo, tmp_path / "run", steps=1, reward=f"{write(tmp_path / 'json.py', text)}:score")
    assert rows[0]["reward"] > 1
    assert json.loads("1") == 1 and sys.modules["json"] is json  # nothing else has its name taken


def test_a_column_that_the_data_lacks(refusal: Refusal, tmp_path: Path) -> None:
    reward = verifier(tmp_path, "return [0.0] * len(completions)", "completions, solution, answer, level=1")
    assert refusal(reward=reward) == f"--reward: {reward} needs solution, and the data has the columns answer, prompt"


@pytest.mark.parametrize("argument", ["train_data", "eval_data"])
def test_a_column_that_some_row_lacks(argument: str, refusal: Refusal, tmp_path: Path) -> None:
    """Its responses would be scored against nothing."""
    data = write(tmp_path / "data.jsonl", '{"prompt": "1=", "answer": "1"}\n{"prompt": "2="}\n')
    message = refusal(**{argument: data})
    assert "needs answer" in message


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise KeyError('solution')", "raised KeyError: 'solution'"),
        ("return None", "raised TypeError: 'NoneType' object is not iterable"),
        ("return [1.0] * (len(completions) - 1)", "returned 31 scores for 32 completions"),
        ("return ['good'] * len(completions)", "returned something else than numbers: ['good', 'good', 'good']"),
        ("return [[1.0]] * len(completions)", "returned something else than numbers: [[1.0], [1.0], [1.0]]"),
    ],
)
def test_a_reward_function_that_goes_wrong(body: str, expected: str, refusal: Refusal, tmp_path: Path) -> None:
    reward = verifier(tmp_path, body)
    assert refusal(reward=reward, loads_policy=True) == f"the reward function {reward} {expected}"


@pytest.mark.parametrize("value", ["float('nan')", "None", "float('inf')"])
def test_a_reward_function_that_can_never_tell(value: str, refusal: Refusal, tmp_path: Path) -> None:
    message = refusal(reward=verifier(tmp_path, f"return [{value}] * len(completions)"), loads_policy=True)
    assert message.startswith("no response of this step could be scored")


@pytest.mark.parametrize("value", ["float('nan')", "None"])
def test_a_reward_function_that_sometimes_cannot_tell(value: str, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """A warning, and the run goes on without those responses."""
    reward = verifier(tmp_path, f"return [{value}] + [i % 3 for i in range(1, len(completions))]")
    with pytest.warns(UserWarning, match="some responses could not be scored"):
        rows = run(RL, tiny_demo, tmp_path / "run", reward=reward, steps=2)
    for row in rows[:-1]:
        assert row["reward"] == pytest.approx(31 / 31) and row["grad_norm"] > 0
        assert all(abs(value) < float("inf") for value in row.values())


def test_evaluation_leaves_out_what_cannot_be_scored(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    reward = verifier(tmp_path, "return [None] + [3.0] * (len(completions) - 1)")
    rows = run(RL, tiny_demo, tmp_path / "run", reward=reward, steps=1, eval_data=tiny_demo.heldout)
    assert [row["eval_reward"] for row in rows] == [3.0, 3.0]


def test_responses_that_never_end_are_pointed_out(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no response of a step ended within --max_new_tokens"):
        rows = run(RL, tiny_demo, tmp_path / "run", steps=1, max_new_tokens=2)
    assert rows[0]["completions/clipped_ratio"] == 1 and rows[0]["completions/mean_terminated_length"] == 0


def test_a_policy_that_blows_up_stops_the_run(refusal: Refusal) -> None:
    """The weights after such a step are not finite, or what they say is not."""
    message = refusal(learning_rate=1e30, steps=4, loads_policy=True)
    assert "--learning_rate" in message


# -------- the reward model --------


def test_a_reward_model_with_two_labels(refusal: Refusal, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    folder = tmp_path / "two"
    AutoModelForSequenceClassification.from_pretrained(
        tiny_demo.reward_model, num_labels=2, ignore_mismatched_sizes=True
    ).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_demo.reward_model).save_pretrained(folder)
    expected = f"--reward_model: {folder} gives 2 numbers a response; one is needed"
    assert refusal(generated("rloo"), reward_model=folder) == expected


def test_a_reward_model_folder_that_is_none(refusal: Refusal, tmp_path: Path) -> None:
    expected = f"--reward_model: {tmp_path} is no checkpoint, it has no config.json"
    assert refusal(generated("rloo"), reward_model=tmp_path) == expected


def test_a_reward_model_folder_that_there_is_not(refusal: Refusal, tmp_path: Path) -> None:
    missing = tmp_path / "no"
    assert refusal(generated("rloo"), reward_model=missing).startswith("--reward_model: ")
    assert str(missing) in refusal(generated("rloo"), reward_model=missing)


def test_a_reward_model_reads_one_bos(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """A text gets it from the tokenizer, a chat from the template; and the EOS says that the response ended."""
    folder = Path(shutil.copytree(tiny_demo.reward_model, tmp_path / "reader"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}{{ eos_token }}"
    tokenizer.save_pretrained(folder)
    scorer = generated("rloo").Scorer(str(folder), torch.device("cpu"), torch.float32)
    seen: list[list[int]] = []
    scorer.model.register_forward_pre_hook(
        lambda module, args, given: seen.extend(given["input_ids"].tolist()), with_kwargs=True
    )
    scorer([{"prompt": "12="}] * 2, ["12", "12"], [True, False])
    scorer([{"prompt": [{"role": "user", "content": "12="}]}], ["12"], [True])
    text = tokenizer("12=12")["input_ids"]
    assert [[token for token in row if token != tokenizer.pad_token_id] for row in seen] == [
        [*text, tokenizer.eos_token_id],
        text,
        [*text, tokenizer.eos_token_id],
    ]


def test_a_reward_model_whose_weights_cannot_be_read(refusal: Refusal, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in tiny_demo.reward_model.iterdir():
        (folder / file.name).write_bytes(b"half a file" if file.name == "model.safetensors" else file.read_bytes())
    message = refusal(generated("rloo"), reward_model=folder)
    assert message.startswith(f"--reward_model: cannot load {folder} (")


def test_a_policy_in_place_of_a_reward_model(refusal: Refusal, tiny_demo: DemoFiles) -> None:
    """Its scores would come from a head with random weights."""
    assert str(tiny_demo.model) in refusal(generated("rloo"), reward_model=tiny_demo.model)


# -------- as a process --------


def process(
    script: str, *given: str, folder: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "generated" / f"{script}.py"), *given],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {}),
    )


def flags(given: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in given.items()]


def test_a_refusal_is_one_line_on_stderr_and_exit_code_1(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", "{\n")
    given = arguments(RL, tiny_demo, tmp_path / "run", train_data=data)
    done = process("reinforcepp", *flags(given), folder=tmp_path)
    expected = (
        f"error: --train_data: {data}:1 is not a line of JSON (Expecting property name enclosed in double quotes)\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)
    assert not (tmp_path / "run").exists()


def test_a_refusal_in_the_middle_of_a_run(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    reward = verifier(tmp_path, "raise RuntimeError('sandbox gone')")
    given = arguments(RL, tiny_demo, tmp_path / "run", reward=reward)
    done = process("reinforcepp", *flags(given), folder=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"error: the reward function {reward} raised RuntimeError: sandbox gone\n" in done.stderr


def test_an_unknown_argument_is_bad_usage(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the beginning of one: a longer name that is added later must not change what it means."""
    monkeypatch.setattr(sys, "argv", ["reinforcepp.py", "--model=m", "--learning_rat=1"])
    monkeypatch.setattr(RL, "train", lambda args: pytest.fail("it trains"))
    with pytest.raises(SystemExit) as stopped:
        RL.main()
    assert stopped.value.code == 2
    assert "error: unrecognized arguments: --learning_rat=1" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["fast", "1e", ""])
def test_a_word_where_a_number_belongs_is_bad_usage(
    value: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["reinforcepp.py", f"--learning_rate={value}"])
    with pytest.raises(SystemExit) as stopped:
        RL.main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "argument --learning_rate" in error and error.endswith(f"invalid float value: {value!r}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.yaml", "steps: [1\n"),
        ("run.yaml", "- steps\n"),
        ("run.yaml", ""),
        ("run.yaml", "just text\n"),
        ("run.json", '{"steps": 1'),
    ],
)
def test_a_config_file_that_says_nothing(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / name, text)
    monkeypatch.setattr(sys, "argv", ["reinforcepp.py", str(file)])
    monkeypatch.setattr(RL, "train", lambda args: pytest.fail("it trains"))
    with pytest.raises(SystemExit) as stopped:
        RL.main()
    message = stopped.value.code
    assert isinstance(message, str) and message.startswith(f"error: {file}") and "\n" not in message


def test_a_config_file_that_there_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["reinforcepp.py", str(tmp_path / "no.yaml")])
    with pytest.raises(SystemExit) as stopped:
        RL.main()
    assert stopped.value.code == f"error: there is no file {tmp_path / 'no.yaml'}"


def test_a_misspelt_key_of_a_config_file_is_bad_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "run.yaml", "learning_rat: 1e-6\n")
    monkeypatch.setattr(sys, "argv", ["reinforcepp.py", str(file)])
    monkeypatch.setattr(RL, "train", lambda args: pytest.fail("it trains"))
    with pytest.raises(SystemExit) as stopped:
        RL.main()
    assert stopped.value.code == 2 and "learning_rat" in capsys.readouterr().err


def test_nothing_is_written_by_a_refused_run(refusal: Refusal, tmp_path: Path) -> None:
    for changed in ({"steps": 0}, {"train_data": tmp_path / "no.jsonl"}, {"model": tmp_path / "no"}):
        refusal(**changed)
    assert not (tmp_path / "run").exists()


def test_a_run_after_a_refused_one_needs_no_tidying(refusal: Refusal, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """The same folder can be named again, also when the mistake was found after the folder was made."""
    refusal(reward=f"{tmp_path / 'no.py'}:score")
    rows = run(RL, tiny_demo, tmp_path / "run", steps=1)
    assert rows[0]["step"] == 0 and rows_of(tmp_path / "run" / "metrics.jsonl") == rows
    assert torch.load(tmp_path / "run" / "checkpoint-1" / "trainer.pt")["step"] == 1
