"""Rewards of steps: where these end, who scores them, what tokens are credited with, and what centring them does.

The numbers expected here are worked out by hand in the comments.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from conftest import generated, load_module
from pydantic import ValidationError
from strategies import TEXTS, script_of
from test_resume import KILLED_AT, LONG
from test_training import rows_of, run, same, untimed, weights_of
from torch import Tensor
from transformers import LlamaConfig, LlamaForTokenClassification

from specc.compiler import compile_specs
from specc.demo import DemoFiles
from specc.demo.characters import character_tokenizer
from specc.derive import derive
from specc.load import findings_of
from specc.spec import Spec
from specc.verify.environment import LONG as TREE
from specc.verify.environment import extreme, fixed, in_proportion, stepped
from specc.verify.script import rollouts_of
from specc.verify.verdict import KINDS, judge
from templates.reward.process_reward_model import StepScorer as StepModel
from templates.reward.process_verifier import StepScorer
from templates.sections.rollouts import Responses
from templates.sections.steps import score_steps, split_steps

NAN = math.nan
STEP_MEAN = {"source": "group_mean", "unit": "step"}


def spec_of(baseline: Any = "none", normalization: Any = "none", kl: Any = "none", **reward: Any) -> Spec:
    return Spec.model_validate(
        {
            "name": "process",
            "reward": {"source": "process_reward", **reward},
            "kl": kl,
            "baseline": baseline,
            "normalization": normalization,
            "objective": {"quantity": "token_advantage", "aggregation": "seq_mean_token_sum"},
            "sampling": {"group_size": 2},
        }
    )


# -------- advantages, by hand --------

# One prompt, two responses of 4 and 3 tokens. The first has three steps of 1, 0 and 2, that end at its tokens 0, 1 and
# 3; the second has two, of -1 and 4, that end at its tokens 1 and 2.
MASK = torch.tensor([[[True] * 4, [True] * 3 + [False]]])
STEPS = torch.tensor([[[1.0, 0.0, 0.0, 2.0], [0.0, -1.0, 4.0, NAN]]], dtype=torch.float64)
ENDS = torch.tensor([[[True, True, False, True], [False, True, True, True]]])
REF = torch.tensor([[[0.0, -1.0, 0.0, -2.0], [-3.0, 0.0, 0.0, NAN]]], dtype=torch.float64)  # log pi is 0


def advantages(spec: Spec, rewards: Tensor | None = None) -> Tensor:
    script = script_of(spec)
    sums = STEPS.masked_fill(~MASK, 0.0).sum(-1) if rewards is None else rewards
    logprobs = {"old_logprobs_BGT": torch.zeros_like(STEPS), "ref_logprobs_BGT": REF}
    steps = {"step_rewards_BGT": STEPS, "step_ends_BGT": ENDS}
    rollouts = rollouts_of(script.module, rewards_BG=sums, mask_BGT=MASK, **logprobs, **steps)
    found: Tensor = script.module.compute_advantages(rollouts, script.hp)
    return found


def close(found: Tensor, wanted: Any) -> None:
    assert torch.allclose(found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=1e-12), found


def test_a_token_is_credited_with_the_steps_from_it_on() -> None:
    close(advantages(spec_of()), [[[3, 2, 2, 2], [3, 3, 4, 0]]])
    # the whole returns are 3 and 3
    close(advantages(spec_of("group_mean")), [[[0, -1, -1, -1], [0, 0, 1, 0]]])
    # half of each token's log pi/ref, from the token on: 1.5, 1.5, 1, 1 and 1.5, 0, 0
    kl = {"placement": "reward", "coefficient": 0.5}
    close(advantages(spec_of(kl=kl)), [[[1.5, 0.5, 1, 1], [1.5, 3, 4, 0]]])
    after = advantages(spec_of("group_mean", kl={**kl, "after_baseline": True}))
    close(after, [[[-1.5, -2.5, -2, -2], [-1.5, 0, 1, 0]]])


def test_statistics_over_steps() -> None:
    """Five steps, 1, 0, 2, -1 and 4, with a mean of 6/5."""
    close(advantages(spec_of(STEP_MEAN)), [[[-0.6, -0.4, 0.8, 0.8], [0.6, 0.6, 2.8, 0]]])
    # squared deviations: .04 + 1.44 + .64 + 4.84 + 7.84 = 14.8
    z = {"scope": "group", "unit": "step", "ddof": 1, "epsilon": 0.0}
    std = math.sqrt(14.8 / 4)
    wanted = [[[x / std for x in (-0.6, -0.4, 0.8, 0.8)], [x / std for x in (0.6, 0.6, 2.8, 0)]]]
    close(advantages(spec_of(STEP_MEAN, z)), wanted)
    centred = {"scope": "batch", "unit": "step", "subtract_mean": True, "epsilon": 0.0}
    close(advantages(spec_of("none", centred)), wanted)
    # the other response's mean: 3/2 for the first, 1 for the second
    loo = advantages(spec_of({"source": "leave_one_out", "unit": "step"}))
    close(loo, [[[-1.5, -1, 0.5, 0.5], [1, 1, 3, 0]]])
    # the KL is no step: it is neither centred nor divided
    kl = {"placement": "reward", "coefficient": 0.5}
    less = torch.tensor([[[1.5, 1.5, 1, 1], [1.5, 0, 0, 0]]], dtype=torch.float64)
    close(advantages(spec_of(STEP_MEAN, z, kl)), (torch.tensor(wanted, dtype=torch.float64) - less).tolist())


def test_a_response_without_a_score_is_left_out() -> None:
    rewards = torch.tensor([[3.0, NAN]], dtype=torch.float64)
    close(advantages(spec_of("group_mean"), rewards), [[[0, -1, -1, -1], [0, 0, 0, 0]]])
    # the first one's own three steps have a mean of 1; the other one has nobody to compare with
    close(advantages(spec_of(STEP_MEAN), rewards), [[[0, 0, 1, 1], [0, 0, 0, 0]]])
    close(advantages(spec_of({"source": "leave_one_out", "unit": "step"}), rewards), [[[0] * 4, [0] * 4]])


def test_credit_for_the_outcome_is_a_verifier_of_the_sum() -> None:
    spec = spec_of("group_mean", credit="outcome")
    script = script_of(spec)
    assert not {"step_rewards_BGT", "step_ends_BGT"} & script.reads
    verifier = Spec.model_validate(spec.model_dump(exclude_none=True) | {"reward": "verifier"})
    wanted = derive(verifier)
    assert (derive(spec).binary, derive(spec).real) == (wanted.binary, wanted.real)


# -------- the worlds in which verdicts are found --------


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_are_the_sums_of_steps(kind: str) -> None:
    early = 0
    for world in [*fixed(kind), extreme(kind), *in_proportion(kind), stepped(kind)]:
        tables = world.tables
        assert torch.allclose(tables.step_rewards.sum(-1), tables.rewards, atol=1e-9)
        assert not tables.step_rewards[~tables.step_ends].any()
        counts = tables.step_ends.sum(-1)[:, tables.mask.any(-1)]
        assert counts.min() >= 1 and counts.max() > counts.min()
        assert tables.step_ends[:, torch.arange(len(tables.mask)), tables.mask.sum(-1) - 1].all()
        early += int((tables.step_rewards[..., :-1] * tables.mask[:, 1:] != 0).sum())
        if kind == "binary":
            assert ((tables.step_rewards == 0) | (tables.step_rewards == 1)).all()
    assert early > 0


def test_steps_are_paid_what_they_secure() -> None:
    """Responses `.`, `a.`, `aa.` and `aaa`: the second `a` ends no step."""
    assert TREE.steps_of((5, 2, 4, 3)) == ((5, 2), (0, None), (2, 1))
    assert TREE.steps_of((0, 1, 1, 1)) == ((0, 1), (0, None), (0, 0))


@pytest.mark.parametrize(
    ("baseline", "normalization", "binary", "real"),
    [
        ("none", "none", "unbiased", "unbiased"),
        ("group_mean", "none", "proportional", "proportional"),
        ("leave_one_out", "none", "unbiased", "unbiased"),
        ("greedy", "none", "unbiased", "unbiased"),
        ("none", {"scope": "batch"}, "asymptotic", "asymptotic"),
        (STEP_MEAN, "none", "biased", "biased"),
        ({"source": "leave_one_out", "unit": "step"}, "none", "biased", "biased"),
        ({"source": "batch_mean", "unit": "step"}, "none", "biased", "biased"),
        ("none", {"scope": "batch", "unit": "step"}, "asymptotic", "asymptotic"),
        ("none", {"scope": "batch", "unit": "step", "divide_by": "mean"}, "asymptotic", "biased"),
        ("none", {"scope": "batch", "unit": "step", "subtract_mean": True}, "biased", "biased"),
        ("none", {"scope": "running", "unit": "step"}, "proportional", "proportional"),
        ("none", {"scope": "running", "unit": "step", "subtract_mean": True}, "biased", "biased"),
        ("none", {"scope": "group", "unit": "step"}, "biased", "biased"),
        (STEP_MEAN, {"scope": "group", "unit": "step"}, "biased", "biased"),
    ],
)
def test_verdicts(baseline: Any, normalization: Any, binary: str, real: str) -> None:
    spec = spec_of(baseline, normalization)
    assert (derive(spec).binary, derive(spec).real) == (binary, real)
    script = script_of(spec)
    assert (judge(script, "binary", 2).verdict, judge(script, "real", 2).verdict) == (binary, real)


# -------- where steps end --------


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One token a character."""
    return character_tokenizer("abc\n ;", 64)


@pytest.mark.parametrize(
    ("text", "separator", "steps", "ends"),
    [
        ("a\nbc\nc", "\n", ["a", "bc", "c"], [1, 4, 6]),  # the last one ends with EOS, which comes after the text
        ("a\nbc\n", "\n", ["a", "bc"], [1, 5]),  # the last line is over, and EOS is its last token
        ("\n\na\n\n \nb", "\n", ["a", "b"], [3, 8]),  # blank lines are no steps
        ("a;;b", ";;", ["a", "b"], [2, 4]),  # the token that completes the separator
        ("abc", "\n", ["abc"], [3]),
        ("", "\n", [""], [0]),
        ("\n \n", "\n", ["\n \n"], [3]),
        ("ab", "", ["a", "b", ""], [0, 1, 2]),
    ],
)
def test_where_steps_end(tokenizer: Any, text: str, separator: str, steps: list[str], ends: list[int]) -> None:
    tokens = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
    assert split_steps(tokenizer, tokens, separator) == (steps, ends)


def test_a_response_that_was_cut_off(tokenizer: Any) -> None:
    assert split_steps(tokenizer, tokenizer("a\nb")["input_ids"], "\n") == (["a", "b"], [1, 2])
    assert split_steps(tokenizer, tokenizer("a\nb\n")["input_ids"], "\n") == (["a", "b"], [1, 3])


class Chunks:
    """A tokenizer of bytes in chunks: a token may end two steps, and a character may be in two tokens."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks

    def decode(self, tokens: list[int], **how: Any) -> str:
        return b"".join(self.chunks[token] for token in tokens).decode(errors="replace")


def test_tokens_of_several_characters_and_of_parts_of_one() -> None:
    chunks = Chunks([b"a\nb", b"\nc\nd\n", b"\xe2\x82", b"\xac\n", b"e"])
    # the second token ends two steps and the third line as well, which count as one step
    assert split_steps(chunks, [0, 1, 2, 3, 4], "\n") == (["a", "b\nc\nd", "€", "e"], [0, 1, 3, 4])  # type: ignore[arg-type]
    assert split_steps(chunks, [0, 1], "\n") == (["a", "b\nc\nd"], [0, 1])  # type: ignore[arg-type]


# -------- who scores them --------


def responses_of(tokenizer: Any, texts: list[str], longest: int) -> Responses:
    """One prompt's responses, each with its EOS."""
    ids = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
    tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in ids])[None]
    mask = torch.arange(longest) < torch.tensor([len(row) for row in ids])[None, :, None]
    return Responses(torch.zeros(1, 1), torch.ones(1, 1).bool(), tokens, mask, torch.ones(1, len(ids)).bool())


VERIFIER = """
def score_steps(prompts, completions, steps, goal):
    assert completions == ["a\\nbb", "", "c\\nc\\nc"] and prompts == ["?"] * 3 and goal == [7] * 3
    assert steps == [["a", "bb"], [""], ["c", "c", "c"]]
    return [[len(step) for step in steps[0]], None, [1, None, 2]]

def short(completions): return [[1.0]] * len(completions)
def flat(completions): return [1.0] * len(completions)
def few(completions): return []
"""


@pytest.fixture
def verifier(tmp_path: Path) -> Callable[[str], StepScorer]:
    path = tmp_path / "mine.py"
    path.write_text(VERIFIER)
    return lambda name: StepScorer(f"{path}:{name}", {"prompt", "goal"}, separator="\n")


def test_a_step_verifier(tokenizer: Any, verifier: Callable[[str], StepScorer]) -> None:
    responses = responses_of(tokenizer, ["a\nbb", "", "c\nc\nc"], 6)
    rows = [{"prompt": "?", "goal": 7}]
    sums, texts, rewards, ends = score_steps(verifier("score_steps"), tokenizer, rows, responses)
    assert texts == ["a\nbb", "", "c\nc\nc"]
    assert sums[0, 0] == 3 and sums[0, 1:].isnan().all()
    assert rewards[0, 0].tolist() == [0, 1, 0, 0, 2, 0]
    assert ends[0].int().tolist() == [[0, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 1]]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("short", "returned 1 scores for a completion of 2 steps"),
        ("flat", "returned something else than a list of numbers: 1.0"),
        ("few", "returned 0 lists for 3 completions"),
    ],
)
def test_what_a_step_verifier_may_not_return(
    tokenizer: Any, verifier: Callable[[str], StepScorer], name: str, said: str
) -> None:
    responses = responses_of(tokenizer, ["a\nbb", "", "c\nc\nc"], 6)
    with pytest.raises(SystemExit, match=f"mine.py:{name} {said}"):
        score_steps(verifier(name), tokenizer, [{"prompt": "?", "goal": 7}], responses)


@pytest.mark.parametrize("prompt", ["ab", [{"role": "user", "content": "ab"}]])
def test_a_process_reward_model_is_read_at_the_ends_of_steps(tokenizer: Any, tmp_path: Path, prompt: Any) -> None:
    """Beside the model's own numbers for one text alone, which is not padded."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForTokenClassification(LlamaConfig(vocab_size=len(tokenizer), num_labels=1, **sizes)).eval()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }};{% endfor %}"
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    scorer = StepModel(str(tmp_path), torch.device("cpu"), torch.float32, separator="\n")
    found = scorer([{"prompt": prompt}] * 2, ["a\nbb", "c"], [["a", "bb"], ["c"]], [True, False])
    start = "ab" if isinstance(prompt, str) else "ab;"
    for text, ended, places, got in (("a\nbb", True, (1, 4), found[0]), ("c", False, (0,), found[1])):
        ids = tokenizer(start + text)["input_ids"] + [tokenizer.eos_token_id] * ended
        with torch.no_grad():
            values = model(torch.tensor([ids])).logits[0, :, 0]
        assert got == pytest.approx([float(values[len(start) + place]) for place in places], abs=1e-5)


def test_a_reward_model_of_sequences_is_read_at_single_tokens(tiny_demo: DemoFiles) -> None:
    """At the last token it says what it says of the sequence."""
    scorer = StepModel(str(tiny_demo.reward_model), torch.device("cpu"), torch.float32, separator="")
    (found,) = scorer([{"prompt": "4021="}], ["0124"], [["0", "1", "2", "4", ""]], [True])
    tokens = scorer.tokenizer("4021=0124<eos>", return_tensors="pt")
    assert len(found) == 5 and len(set(found)) == 5
    with torch.no_grad():
        assert found[-1] == pytest.approx(scorer.model(**tokens).logits.item(), abs=1e-5)


# -------- the separator is text --------


@pytest.mark.parametrize("separator", [*TEXTS, "#", "';x()", '")\nos.x(', "\\", "\t", "}}{{", "{%x%}"])
def test_a_separator_is_text_and_nothing_else(separator: str, tmp_path: Path) -> None:
    data = spec_of(separator=separator).model_dump(exclude_none=True)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    (compiled,) = compile_specs([tmp_path / "spec.yaml"])
    trees = [ast.parse(compiled.script), ast.parse(generated_with("\n", tmp_path))]
    for tree in trees:
        (args,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Args")
        (line,) = (n for n in args.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "reward_separator")
        assert isinstance(line.value, ast.Call) and isinstance(line.value.args[0], ast.Constant)
        if tree is trees[0]:
            assert line.value.args[0].value == separator
        line.value.args[0].value = ""
    assert ast.dump(ast.Module(trees[0].body[1:], [])) == ast.dump(ast.Module(trees[1].body[1:], []))
    assert compiled.script.isascii()


def generated_with(separator: str, folder: Path) -> str:
    data = spec_of(separator=separator).model_dump(exclude_none=True)
    (folder / "other.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    return compile_specs([folder / "other.yaml"])[0].script


def test_a_separator_is_short_text() -> None:
    for wrong in ("x" * 11, 3, None, ["\n"]):
        with pytest.raises(ValidationError):
            spec_of(separator=wrong)
    assert not [finding for finding in findings_of(spec_of(separator="")) if not finding.warning]


# -------- runs --------


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The shipped spec with a verifier for a scorer."""
    from conftest import ROOT

    folder = tmp_path_factory.mktemp("process")
    text = (ROOT / "algorithms" / "grpo_process.yaml").read_text(encoding="utf-8")
    (folder / "steps.yaml").write_text(text.replace("scorer: reward_model", "scorer: verifier"), encoding="utf-8")
    (compiled,) = compile_specs([folder / "steps.yaml"])
    (folder / "steps.py").write_text(compiled.script, encoding="utf-8")
    return load_module(folder / "steps.py")


def test_it_learns_to_place_digits(script: ModuleType, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    told = {"steps": 40, "prompts_per_step": 16, "group_size": 8, "learning_rate": 3e-4, "prompts_per_forward": 16}
    rows = run(script, tiny_demo, tmp_path, eval_data=tiny_demo.heldout, eval_every=100, **told)
    assert rows[-1]["eval_reward"] > rows[0]["eval_reward"] + 0.1
    rewards = [row["reward"] for row in rows[:-1]]
    assert sum(rewards[-10:]) / 10 > sum(rewards[:10]) / 10 + 0.1
    for row in rows[:-1]:  # every token is a step
        assert row["completions/mean_steps"] == pytest.approx(row["completions/mean_length"])
    samples = rows_of(tmp_path / "completions.jsonl")
    assert all(0 <= sample["reward"] <= 1 for sample in samples)


@pytest.mark.parametrize("credit", ["outcome", "process"])
def test_other_specs_of_steps_run(credit: str, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """With greedy responses, a running std, transforms of the outcome, and the KL in the reward."""
    steps = {"baseline": "none", "normalization": {"scope": "running", "unit": "step"}}
    whole = {"baseline": "greedy", "normalization": "none"}
    data = {
        "name": "other",
        "reward": {"source": "process_reward", "credit": credit, **({"missing_eos": 0} if credit == "outcome" else {})},
        "kl": {"placement": "reward", "coefficient": 0.05},
        **(steps if credit == "process" else whole),
        "objective": {"quantity": "token_advantage", "aggregation": "token_mean"},
        "sampling": {"group_size": 4},
    }
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    (compiled,) = compile_specs([tmp_path / "other.yaml"])
    (tmp_path / "other.py").write_text(compiled.script, encoding="utf-8")
    rows = run(load_module(tmp_path / "other.py"), tiny_demo, tmp_path / "run", eval_data=tiny_demo.heldout)
    assert len(rows) == 4 and all(math.isfinite(value) for row in rows for value in row.values())


class Killed(BaseException):
    """What stands in for SIGKILL in this process: nothing catches it."""


def test_killed_and_resumed_it_ends_the_same(script: ModuleType, tiny_demo: DemoFiles, tmp_path: Path) -> None:
    whole, folder, told = (
        tmp_path / "whole" / "run",
        tmp_path / "killed" / "run",
        LONG | {"eval_data": tiny_demo.heldout},
    )
    run(script, tiny_demo, whole, **told)
    score, steps = script.score_steps, []

    def dying(scorer: Any, tokenizer: Any, batch: list[Any], responses: Any) -> Any:
        steps.append(responses.tokens_BGT.shape[1] > 1)  # not the greedy responses of an evaluation
        if sum(steps) > KILLED_AT:
            raise Killed
        return score(scorer, tokenizer, batch, responses)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(script, "score_steps", dying)
        run(script, tiny_demo, folder, **told)
    run(script, tiny_demo, folder, resume=True, **told)
    assert same(weights_of(folder), weights_of(whole))
    assert untimed(rows_of(folder / "metrics.jsonl")) == untimed(rows_of(whole / "metrics.jsonl"))
    assert rows_of(folder / "completions.jsonl") == rows_of(whole / "completions.jsonl")


def test_no_trace_in_scripts_without_steps() -> None:
    source = Path(generated("grpo").__file__ or "").read_text(encoding="utf-8")
    for word in ("StepScorer", "split_steps", "step_ends", "separator", "bisect", "mean_steps"):
        assert word not in source
