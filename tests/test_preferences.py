"""Learning from pairs: the fragments by hand, what is enumerated, and whole runs of the scripts on the tiny demo."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from click.testing import CliRunner
from conftest import ROOT, generated
from safetensors.torch import load_file
from strategies import script_of
from test_training import TIMINGS, rows_of, same, untimed, weights_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from specc.cli import main
from specc.compiler import compile_spec
from specc.demo import DemoFiles
from specc.demo.files.sorting_verifier import score
from specc.demo.measure import accuracy
from specc.demo.records import read_records
from specc.derive import derive
from specc.load import findings_of
from specc.plan import Plan
from specc.render import render
from specc.report import explain
from specc.spec import Spec
from specc.verify.environment import Environment, coin, fixed
from specc.verify.pair_laws import CHECKS, check_pair_laws
from specc.verify.preferences import pair_moments, win_rate_gradient
from specc.verify.run import verify
from specc.verify.script import load_script
from templates.baseline.pair import contrast
from templates.kl.implicit import log_ratio
from templates.objective import response_mean, response_sum
from templates.objective.preference import log_chance, rewards_of_scores


def spec_of(kl: str = "implicit", **objective: Any) -> Spec:
    return Spec.model_validate(
        {
            "name": "pairs",
            "reward": "preferences",
            "kl": kl,
            "baseline": "pair",
            "normalization": "none",
            "objective": {"quantity": "preference", **objective},
        }
    )


# -------- the fragments and the loss, by hand --------


def test_fragments() -> None:
    values = torch.tensor([[[1.0, 2.0, 9.0], [4.0, 9.0, 9.0]]])
    mask = torch.tensor([[[True, True, False], [True, False, False]]])
    assert response_sum.response_score(values, mask).tolist() == [[3.0, 4.0]]
    assert response_mean.response_score(values, mask).tolist() == [[1.5, 4.0]]
    assert response_mean.response_score(values, torch.zeros_like(mask)).tolist() == [[0.0, 0.0]]
    assert log_ratio(values, values / 2).tolist() == (values / 2).tolist()
    assert contrast(torch.tensor([[3.0, 1.0], [1.0, 5.0]])).tolist() == [2.0, -4.0]
    assert rewards_of_scores(torch.tensor([[2.0, 4.0]]), beta=0.5).tolist() == [[1.0, 2.0]]
    # sigmoid(log 3) = 3/4
    chance = log_chance(torch.tensor([math.log(3) + 2, 2.0]), margin=2.0).exp()
    assert chance.tolist() == pytest.approx([0.75, 0.5])


LOGPROBS = torch.tensor([[[-1.0, -2.0], [-3.0, math.nan]], [[-1.0, math.nan], [-1.0, -1.0]]], dtype=torch.float64)
REFERENCE = torch.tensor([[[-2.0, -2.0], [-1.0, math.nan]], [[-1.0, math.nan], [-3.0, -1.0]]], dtype=torch.float64)
MASK = torch.tensor([[[True, True], [True, False]], [[True, False], [True, True]]])
WEIGHTS = torch.tensor([0.25, 0.75], dtype=torch.float64)


@pytest.mark.parametrize(
    ("spec", "ahead"),
    [  # of the two pairs
        (spec_of(beta=0.5), (0.5 * (1 - -2), 0.5 * (0 - 2))),
        (spec_of(beta=0.5, margin=0.25), (1.5 - 0.25, -1 - 0.25)),
        (spec_of(beta=0.5, length_normalized=True), (0.5 * (0.5 - -2), 0.5 * (0 - 1))),
        (spec_of("none", beta=0.5), (0.5 * (-3 - -3), 0.5 * (-1 - -2))),
        (spec_of("none", beta=2.0, length_normalized=True, margin=1.0), (2 * (-1.5 - -3) - 1, 2 * (-1 - -1) - 1)),
    ],
    ids=["dpo", "margin", "mean", "reference-free", "simpo"],
)
def test_the_loss(spec: Spec, ahead: tuple[float, float]) -> None:
    script = script_of(spec)
    found = script.module.preference_loss(LOGPROBS, REFERENCE, WEIGHTS, MASK, script.hp)
    by_hand = sum(w * math.log(1 + math.exp(-a)) for w, a in zip((0.25, 0.75), ahead, strict=True))
    assert float(found) == pytest.approx(by_hand, rel=1e-12)


def test_a_script_without_a_reference_reads_none() -> None:
    script = script_of(spec_of("none"))
    loss = script.module.preference_loss(LOGPROBS, None, WEIGHTS, MASK, script.hp)
    assert loss.isfinite()
    text = (ROOT / "generated" / "simpo.py").read_text(encoding="utf-8")
    assert "ref_logprobs: Tensor | None" in text and "log_ratio" not in text and "rollouts" not in text.lower()
    assert "reference_logprobs" not in text


# -------- what goes together --------

ONLINE = {
    "reward": "verifier",
    "kl": "none",
    "baseline": "none",
    "normalization": "none",
    "objective": {"quantity": "sequence_advantage", "aggregation": "token_mean"},
}
PAIRED = {
    "reward": "preferences",
    "kl": "implicit",
    "baseline": "pair",
    "normalization": "none",
    "objective": {"quantity": "preference"},
}


@pytest.mark.parametrize("question", ["reward", "kl", "baseline"])
def test_answers_of_one_kind_go_together(question: str) -> None:
    for whole, other in ((ONLINE, PAIRED), (PAIRED, ONLINE)):
        if (question, whole) == ("kl", PAIRED):
            continue  # no KL goes with both
        spec = Spec.model_validate({"name": "mixed", **whole, question: other[question]})
        (finding,) = findings_of(spec)
        assert (finding.slug, finding.loc[0], finding.warning) == ("pairs-and-rollouts", question, False)
    for whole in (ONLINE, PAIRED):
        assert findings_of(Spec.model_validate({"name": "whole", **whole})) == []


@pytest.mark.parametrize("kl", ["reward", "loss"])
def test_no_kl_penalty_goes_with_pairs(kl: str) -> None:
    spec = Spec.model_validate({"name": "mixed", **PAIRED, "kl": {"placement": kl, "coefficient": 0.1}})
    assert [finding.loc for finding in findings_of(spec)] == [("kl", "placement")]
    for normalization in ("group", "batch", "running"):
        spec = Spec.model_validate({"name": "mixed", **PAIRED, "normalization": normalization})
        assert [finding.loc for finding in findings_of(spec)] == [("normalization", "scope")]


def test_the_plan_and_what_is_said() -> None:
    dpo, simpo = (compile_spec(ROOT / "algorithms" / f"{name}.yaml") for name in ("dpo", "simpo"))
    assert dpo.plan.models == simpo.plan.models == ["policy (trained)"]
    assert [len(each.plan.passes) for each in (dpo, simpo)] == [2, 1] and "once" in dpo.plan.passes[0]
    assert not dpo.plan.online and not dpo.plan.skips_rows and not dpo.plan.old_pass
    assert [p.argument for p in dpo.plan.parameters] == ["beta", "margin"]
    assert "proportional to the gradient of the win rate with c = 2 x 0.1" in explain(dpo)
    assert "biased: not along the gradient of the win rate, since each response's" in " ".join(
        simpo.script.split('"""')[1].split()
    )


# -------- what is enumerated --------


@pytest.mark.parametrize(
    ("spec", "verdict", "c"),
    [
        (spec_of(), "proportional", 0.2),
        (spec_of(beta=0.5), "unbiased", 1.0),
        (spec_of(beta=0.3, margin=2.0), "proportional", 1.2 / (1 + math.exp(-2))),
        (spec_of(length_normalized=True), "biased", None),
        (spec_of("none"), "biased", None),
        (spec_of("none", beta=2.5, length_normalized=True, margin=1.375), "biased", None),
    ],
)
def test_verdicts_by_rule_and_by_enumeration(spec: Spec, verdict: str, c: float | None) -> None:
    found = verify(script_of(spec), 1)
    assert found.overall == derive(spec).overall == verdict
    assert found.disagreements == [] and not found.broken and not found.fails
    assert found.off_policy == {"binary": "biased", "real": "biased"}
    if c is not None:
        assert derive(spec).value() == pytest.approx(c, rel=1e-12)
        assert all(judged.factor and judged.factor.value == pytest.approx(c) for judged in found.judged.values())
    else:
        assert found.counterexample is not None and found.counterexample.statement == "reweighted"


def test_the_win_rate_of_a_coin() -> None:
    """Right with chance p, chosen over a wrong one with s = sigmoid(1): win rate (1 - q) + ... has the slope
    (s - 1/2) p (1 - p) in the logit of right, for a policy against itself held fixed."""
    environment, s = coin((1, 3)), 1 / (1 + math.exp(-1))
    slope = (s - 0.5) * 0.25 * 0.75
    assert win_rate_gradient(environment)[0].tolist() == pytest.approx([-slope, slope])
    gradient = pair_moments(script_of(spec_of(beta=0.1)), environment).mean[0]
    assert gradient.tolist() == pytest.approx([-0.2 * slope, 0.2 * slope])


def test_the_optimum_of_the_loss_is_that_of_the_penalized_reward() -> None:
    """At pi proportional to ref exp(r/beta) the expected gradient on pairs from ref is 0 (DPO, equation 4)."""
    # weights of 1, 2 and 4 against 1, 1 and 1 of the reference, with beta = 1/2: r = (log w)/2, up to a constant
    even = ((1, 1, 1),)
    start = coin((1, 1))
    tree = replace(start.tree, vocabulary=3, eos=3)
    prompt = replace(start.prompts[0], reference=even, behaviour=even, policy=((1, 2, 4),))
    rewards = tuple(0.5 * math.log(w) for w in (1, 2, 4))
    at_optimum = Environment(tree, (replace(prompt, rewards=rewards),))
    script = script_of(spec_of(beta=0.5))
    assert float(pair_moments(script, at_optimum, later=True).mean.abs().max()) < 1e-15
    elsewhere = at_optimum.with_rewards([(0.0, 1.0, 0.0)])
    assert float(pair_moments(script, elsewhere, later=True).mean.abs().max()) > 1e-3


def test_the_laws_hold_and_can_fail() -> None:
    text = render(Plan(spec_of(margin=0.5)), "pairs.yaml", "0" * 16)
    script = load_script(text, "pairs.py", Plan(spec_of(margin=0.5)))
    results = check_pair_laws(script, 0, 6)
    assert {r.law.name for r in results if r.verdict == "holds"} == set(CHECKS)
    assert all(r.detail for r in results if r.verdict == "skipped")
    faults = {
        "masked_positions_do_not_exist": ("(x.masked_fill(~mask, 0.0) for x in", "(x for x in"),
        "padding_does_not_exist": ("return (values * mask).sum(-1)", "return values.mean(-1)"),
        "splits_do_not_exist": (")).sum()", ")).mean()"),
        "every_number_acts": ("ahead - margin", "ahead - 0 * margin"),
        "float64_stays_float64": ("return beta * scores", "return beta * scores.float()"),
        "order_does_not_exist": ("weights * log_chance", "torch.arange(len(weights)) * weights * log_chance"),
        "degenerate_groups_are_defined": (
            "functional.logsigmoid(ahead - margin)",
            "(ahead - margin).sigmoid().log()",
        ),
    }
    for law, (right, wrong) in faults.items():
        assert right in text
        edited = load_script(text.replace(right, wrong), "pairs.py", Plan(spec_of(margin=0.5)))
        assert law in {r.law.name for r in check_pair_laws(edited, 0, 6) if r.verdict == "broken"}, law


def test_faults_change_the_verdict() -> None:
    spec = spec_of()
    text = render(Plan(spec), "pairs.yaml", "0" * 16)
    for right, wrong in (
        ("rewards[:, 0] - rewards[:, 1]", "rewards[:, 1] - rewards[:, 0]"),
        ("return logprobs - ref_logprobs", "return logprobs"),
        ("return (values * mask).sum(-1)", "return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)"),
        ("return beta * scores", "return 2 * beta * scores"),
    ):
        assert right in text
        assert verify(load_script(text.replace(right, wrong), "pairs.py", Plan(spec)), 1).disagreements, wrong


def test_the_command(tmp_path: Path) -> None:
    dpo = ROOT / "algorithms" / "dpo.yaml"
    result = CliRunner().invoke(main, ["verify", str(dpo), "--json"])
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["claim_refuted"] is False and found["target"] == "win rate"
    assert (found["verdict"], found["variance"], found["kl"], found["weight"]) == ("proportional", None, None, None)
    assert found["rewards"]["real"]["factor"] == {"value": pytest.approx(0.2), "formula": "1/5"}
    script = CliRunner().invoke(main, ["verify", str(ROOT / "generated" / "dpo.py")])
    assert script.exit_code == 0 and "The claim `proportional` holds." in script.output
    refuted = tmp_path / "dpo.yaml"
    refuted.write_text(dpo.read_text(encoding="utf-8").replace("claim: proportional", "claim: unbiased"))
    result = CliRunner().invoke(main, ["verify", str(refuted)])
    assert result.exit_code == 1 and "E[g] along the gradient: 0.2 of it" in result.output
    refuted.write_text(refuted.read_text(encoding="utf-8").replace("target: win rate", "target: pass@2"))
    result = CliRunner().invoke(main, ["verify", str(refuted)])
    assert result.exit_code == 0 and "is about pass@2, and is not judged" in result.output
    for option in (["--group-size", "4"], ["--plot", str(tmp_path / "w.png")]):
        result = CliRunner().invoke(main, ["verify", str(dpo), *option])
        assert result.exit_code in (1, 2) and "pairs" in result.output


def test_fixed_environments_are_enumerated_whole() -> None:
    """The chances of all pairs add up to 1: the loss of a constant is that constant."""
    script = script_of(spec_of())
    for environment in fixed("real"):
        constant = pair_moments(script, environment.with_rewards([[1.0] * len(p.rewards) for p in environment.prompts]))
        assert float(constant.mean.abs().max()) < 1e-15  # equal rewards: every choice is a coin's


# -------- runs --------

SMALL = {"steps": 6, "prompts_per_step": 8, "learning_rate": 1e-3, "prompts_per_forward": 8, "report_to": ""}


def train(script: ModuleType, demo: DemoFiles, folder: Path, **changed: Any) -> list[dict[str, Any]]:
    """Trains on pairs of the demo in this process and returns the rows of metrics.jsonl."""
    AcceleratorState._reset_state(reset_partial_state=True)
    torch.set_num_threads(1)
    given = {"model": demo.model, "train_data": demo.pairs, "output_dir": folder, **SMALL, **changed}
    script.train(script.Args(**{k: str(v) if isinstance(v, Path) else v for k, v in given.items()}))
    return rows_of(folder / "metrics.jsonl")


@pytest.fixture(scope="module")
def held_out(tiny_demo: DemoFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred of the held-out pairs."""
    return head(tiny_demo.heldout_pairs, 100, tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def few(tiny_demo: DemoFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs for small runs, fewer than they use, so that some come twice."""
    return head(tiny_demo.pairs, 40, tmp_path_factory.mktemp("pairs"))


def head(path: Path | None, count: int, folder: Path) -> Path:
    """A copy of the first lines of a file."""
    assert path is not None
    (folder / path.name).write_text("".join(path.read_text().splitlines(keepends=True)[:count]))
    return folder / path.name


METRICS = {
    "loss", "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen",
    "logps/rejected",
}  # fmt: skip


@pytest.mark.parametrize("name", ["dpo", "simpo"])
def test_a_small_run(name: str, tiny_demo: DemoFiles, few: Path, held_out: Path, tmp_path: Path) -> None:
    rows = train(generated(name), tiny_demo, tmp_path / "run", train_data=few, eval_data=held_out, eval_every=3)
    *steps, last = rows
    others = TIMINGS | {"step", "grad_norm", "learning_rate", "num_tokens", "time/update"}
    for row in steps:
        evaluated = {f"eval_{metric}" for metric in METRICS} if row["step"] % 3 == 0 else set()
        assert row.keys() == METRICS | others | evaluated
        assert all(math.isfinite(value) for value in row.values())
        assert row["rewards/margins"] == pytest.approx(row["rewards/chosen"] - row["rewards/rejected"], abs=1e-6)
    assert last.keys() == {"step", *(f"eval_{metric}" for metric in METRICS)}
    if name == "dpo":  # at the reference every reward is 0 and the loss log 2
        assert steps[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
        assert steps[0]["rewards/chosen"] == pytest.approx(0, abs=1e-6)
        assert steps[0]["eval_loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert (tmp_path / "run" / "learning_curve.png").exists() and (tmp_path / "run" / "model").is_dir()


@pytest.mark.parametrize("name", ["dpo", "simpo"])
def test_it_learns_to_prefer(name: str, tiny_demo: DemoFiles, held_out: Path, tmp_path: Path) -> None:
    """Held-out pairs come into order; and of DPO's responses more are right."""
    script = generated(name)
    told = {"steps": 40, "prompts_per_step": 32, "prompts_per_forward": 32, "eval_data": held_out, "warmup_steps": 5}
    first, *_, last = train(script, tiny_demo, tmp_path / "run", eval_every=40, save_every=0, **told)
    assert last["eval_rewards/accuracies"] > max(0.85, first["eval_rewards/accuracies"])
    assert last["eval_loss"] < first["eval_loss"] - 0.1
    if name == "dpo":
        problems = read_records(tiny_demo.heldout)[:100]
        before, after = (
            accuracy(
                AutoModelForCausalLM.from_pretrained(folder).eval(),
                AutoTokenizer.from_pretrained(folder),
                problems,
                score,
                max_new_tokens=8,
            )
            for folder in (tiny_demo.model, tmp_path / "run" / "model")
        )
        assert after > before + 0.2


@pytest.mark.parametrize("name", ["dpo", "simpo"])
def test_pairs_per_forward_do_not_change_the_gradient(
    name: str, tiny_demo: DemoFiles, few: Path, tmp_path: Path
) -> None:
    norms, told = [], {"train_data": few, "steps": 1, "save_every": 0}
    for at_once in (1, 3, 8):
        rows = train(generated(name), tiny_demo, tmp_path / str(at_once), prompts_per_forward=at_once, **told)
        norms.append(rows[0]["grad_norm"])
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-4)


class Killed(BaseException):
    """What stands in for SIGKILL in this process: nothing catches it."""


def test_a_run_that_died_is_resumed_exactly(
    tiny_demo: DemoFiles, few: Path, held_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference is the policy before training, not the one of the checkpoint."""
    script = generated("dpo")
    told: dict[str, Any] = {"train_data": few, "eval_data": held_out, "eval_every": 3, "save_every": 2}
    told |= {"warmup_steps": 2, "lr_scheduler": "linear"}
    train(script, tiny_demo, tmp_path / "whole" / "run", **told)
    choose = script.rows_of_step

    def dying(rows: Any, step: int, count: int, seed: int) -> Any:
        if step == 3:
            raise Killed
        return choose(rows, step, count, seed)

    folder = tmp_path / "killed" / "run"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(script, "rows_of_step", dying)
        train(script, tiny_demo, folder, **told)
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-2"] and not (folder / "model").exists()
    resumed = train(script, tiny_demo, folder, resume=True, **told)
    assert same(weights_of(folder), weights_of(tmp_path / "whole" / "run"))
    assert untimed(resumed) == untimed(rows_of(tmp_path / "whole" / "run" / "metrics.jsonl"))
    assert not same(weights_of(folder), load_file(tiny_demo.model / "model.safetensors"))


# -------- data --------

Refusal = Callable[..., str]


@pytest.fixture
def refusal(tiny_demo: DemoFiles, tmp_path: Path) -> Refusal:
    """The sentence with which a run on these rows is refused."""

    def refuse(*rows: Any, **changed: Any) -> str:
        data = tmp_path / "pairs.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.raises(SystemExit) as stopped:
            train(generated("dpo"), tiny_demo, tmp_path / "run", **({"train_data": data} | changed))
        assert isinstance(stopped.value.code, str)
        return stopped.value.code.removeprefix("error: ").replace(str(data), "DATA")

    return refuse


GOOD = {"prompt": "21=", "chosen": "12", "rejected": "21"}


def test_pairs_that_are_none(refusal: Refusal) -> None:
    no_column = "row 2 of DATA has no column `{}` with text or one assistant message"
    for side in ("chosen", "rejected"):
        bad = {**GOOD}
        del bad[side]
        assert refusal(GOOD, bad) == f"--train_data: {no_column.format(side)}"
    for answer in (3, None, [], ["12"], [{"role": "user", "content": "12"}], [{"role": "assistant"}]):
        assert refusal(GOOD, {**GOOD, "chosen": answer}) == f"--train_data: {no_column.format('chosen')}"
    assert "has no column `prompt`" in refusal({"chosen": "1", "rejected": "2"})
    nothing = "no pair has two different answers within --max_new_tokens = 1024 tokens"
    assert refusal({**GOOD, "chosen": ""}) == refusal({**GOOD, "chosen": "21"}) == nothing
    assert "no prompt has at most" in refusal(GOOD, max_prompt_length=1)
    assert refusal(GOOD, train_data="") == "--train_data is missing; --help says what it is"
    assert refusal(GOOD, beta=0.0) == "--beta is 0.0, and must be > 0"
    assert refusal(GOOD, margin=-1.0) == "--margin is -1.0, and must be >= 0"


def test_answers_end_with_eos_unless_they_are_cut(tiny_demo: DemoFiles, capsys: pytest.CaptureFixture[str]) -> None:
    script = generated("dpo")
    tokenizer = AutoTokenizer.from_pretrained(tiny_demo.model)
    eos, one, two = tokenizer.eos_token_id, *(tokenizer(digit)["input_ids"][0] for digit in "12")
    pairs = [GOOD, {**GOOD, "chosen": "1222"}, {**GOOD, "chosen": ""}, {**GOOD, "rejected": "12"}]
    found = script.tokenize_pairs(pairs, tokenizer, 10, 3)
    assert [row["answers"] for row in found] == [
        [[one, two, eos], [two, one, eos]],
        [[one, two, two], [two, one, eos]],
    ]
    assert capsys.readouterr().out == "2 of 4 pairs have an empty answer or two equal ones and are left out\n"
    ids, prompt_mask, tokens, mask = script.pad_pairs(found, tokenizer.pad_token_id, torch.device("cpu"))
    assert ids.shape == prompt_mask.shape == (2, 3) and tokens.shape == mask.shape == (2, 2, 3)
    assert mask.all() and tokens[0].tolist() == found[0]["answers"]


def test_chat_messages(tiny_demo: DemoFiles, tmp_path: Path) -> None:
    """A prompt of messages goes through the template; an answer is the text of the assistant's message."""
    model = tmp_path / "chat"
    shutil.copytree(tiny_demo.model, model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
    )
    tokenizer.save_pretrained(model)
    texts, chats = tmp_path / "text.jsonl", tmp_path / "chat.jsonl"
    assert tiny_demo.pairs is not None
    rows = read_records(tiny_demo.pairs)[:64]
    texts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with chats.open("w") as file:
        for row in rows:
            answers = {s: [{"role": "assistant", "content": row[s]}] for s in ("chosen", "rejected")}
            prompt = [{"role": "user", "content": row["prompt"].removesuffix("=")}]
            file.write(json.dumps({"prompt": prompt, **answers}) + "\n")
    text, chat = (
        train(generated("dpo"), tiny_demo, tmp_path / "runs" / data.stem, model=model, train_data=data, steps=2)
        for data in (texts, chats)
    )
    assert untimed(text) == untimed(chat)
