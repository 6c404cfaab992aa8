"""`specc verify` as a user runs it: what it prints, its exit code, its JSON, and what it says of mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from conftest import ALGORITHMS, ROOT

from specc.answers.base import VERDICTS
from specc.cli import main

PLAIN = """
name: plain
reward: verifier
kl: none
baseline: {baseline}
normalization: none
objective: {{quantity: sequence_advantage, aggregation: {aggregation}}}
sampling: {{group_size: 2}}
"""


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(main, ["verify", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert [line for line in result.stdout.splitlines() if line != line.rstrip()] == []
    return result


def verified(*arguments: str | Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(run(*arguments, "--json").stdout)
    return found


@pytest.fixture
def spec(tmp_path: Path):
    def write(text: str = "", baseline: str = "leave_one_out", aggregation: str = "seq_mean_token_sum") -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(PLAIN.format(baseline=baseline, aggregation=aggregation) + text, encoding="utf-8")
        return path

    return write


def test_every_shipped_claim_holds() -> None:
    result = run(*(ROOT / "algorithms" / f"{name}.yaml" for name in ALGORITHMS))
    assert result.exit_code == 0, result.output
    assert result.output.count("holds") == len(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_wrong_claims_are_refuted(name: str, tmp_path: Path) -> None:
    """Every other claim than the true one: exit code 1, and where the claim is too strong a counterexample."""
    text = (ROOT / "algorithms" / f"{name}.yaml").read_text(encoding="utf-8")
    (true,) = (line.split()[1] for line in text.splitlines() if line.startswith("claim:"))
    copy = tmp_path / f"{name}.yaml"
    for claim in VERDICTS:
        copy.write_text(text.replace(f"claim: {true}", f"claim: {claim}"), encoding="utf-8")
        if claim == true or claim not in (VERDICTS[0], VERDICTS[-1], VERDICTS[VERDICTS.index(true) - 1]):
            continue
        result = run(copy, "--json")
        found = json.loads(result.stdout)
        assert result.exit_code == 1 and found["claim_refuted"] and found["verdict"] == true
        if VERDICTS.index(claim) < VERDICTS.index(true):
            assert found["counterexample"]["prompts"]


def test_a_refutation_can_be_checked_by_hand(spec) -> None:
    """Two responses a prompt, own sample in the baseline: E[g] is half the gradient, here p(1 - p) / 2 = 1/8."""
    result = run(spec("claim: unbiased", baseline="group_mean"))
    assert result.exit_code == 1
    assert "The claim `unbiased` is refuted: the estimator is proportional." in result.output
    assert "c = (k - 1)/k" in result.output and "[-0.125, 0.125]" in result.output and "[-0.25, 0.25]" in result.output


def test_json_is_stable(spec) -> None:
    found = verified(spec())
    assert list(found) == [
        "version", "name", "group_size", "seed", "verdict", "claim", "target", "claim_refuted", "rewards", "off_policy",
        "weight", "batch_error", "kl", "variance", "laws", "counterexample", "derived", "disagreements",
    ]  # fmt: skip
    assert found["version"] == 1 and found["verdict"] == "unbiased" and found["claim_refuted"] is None
    assert set(found["rewards"]) == {"binary", "real"}
    assert found["rewards"]["real"]["factor"] == {"value": pytest.approx(1.0), "formula": "1"}
    assert len(found["weight"]["p"]) == len(found["weight"]["w"]) == len(found["weight"]["F"]) == 99
    assert found["counterexample"] is None and found["disagreements"] == []
    assert {law["verdict"] for law in found["laws"]} <= {"holds", "skipped"}


def test_the_same_seed_says_the_same(spec) -> None:
    path = spec(aggregation="token_mean")
    assert run(path, "--json", "--seed", "3").stdout == run(path, "--json", "--seed", "3").stdout


def test_large_batches_are_labelled(spec) -> None:
    """Enumerated for two prompts; sampled, with an interval, where that would be too many outcomes."""
    errors = verified(spec(aggregation="token_mean"))["batch_error"]
    assert errors[0]["prompts"] == 2 and errors[0]["within_95"] is None
    assert all(each["within_95"] > 0 for each in errors[1:])
    assert errors[-1]["error"] < errors[0]["error"] / 4


def test_another_target(spec) -> None:
    """w(p) of E[R] is 1 and that of pass@2 is 2 (1 - p); a target that is not known is not judged."""
    assert verified(spec("claim: reweighted\ntarget: pass@2"))["claim_refuted"] is False
    assert run(spec("claim: unbiased\ntarget: pass@2")).exit_code == 1
    assert run(spec("claim: unbiased\ntarget: pass@1")).exit_code == 0
    assert verified(spec("claim: unbiased\ntarget: the median"))["claim_refuted"] is None


def test_an_estimator_of_pass_at_2(tmp_path: Path) -> None:
    """With c of k correct, 2 for a correct response and 2 c / (k - 1) for a wrong one: w = 2 - 2 E[j] / (k - 1)."""
    text = (ROOT / "generated" / "rloo.py").read_text(encoding="utf-8")
    advantage = "2 * torch.where(returns_BG == 1, 1.0, returns_BG.sum(1, keepdim=True) / (returns_BG.shape[1] - 1))"
    edited = text.replace(
        "advantages_BG = returns_BG - baseline(returns_BG, scored_BG)", f"advantages_BG = {advantage}"
    )
    edited = edited.replace("unbiased, as the spec", "unbiased, for pass@2, as the spec")
    assert edited.count("pass@2") == 1 and advantage in edited
    script = tmp_path / "pass_at_2.py"
    script.write_text(edited, encoding="utf-8")
    found = verified(script)
    assert (found["target"], found["rewards"]["binary"]["verdict"], found["claim_refuted"]) == (
        "pass@2",
        "unbiased",
        False,
    )
    script.write_text(edited.replace("pass@2", "pass@3"), encoding="utf-8")
    assert verified(script)["claim_refuted"] is True


def test_group_size(spec) -> None:
    assert verified(spec(baseline="group_mean"), "--group-size", "5")["rewards"]["real"]["factor"]["value"] == (
        pytest.approx(4 / 5)
    )
    result = run(spec(), "--group-size", "1")
    assert result.exit_code == 2 and "at least 2 responses" in result.output


def test_plot(spec, tmp_path: Path) -> None:
    picture = tmp_path / "w.png"
    assert run(spec(), "--plot", picture).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run(spec(), spec(), "--plot", picture).exit_code == 2


def test_a_script_edited_by_hand(tmp_path: Path) -> None:
    """Its claim is read off its docstring; what was broken in it is named."""
    text = (ROOT / "generated" / "rloo.py").read_text(encoding="utf-8")
    script = tmp_path / "edited.py"
    script.write_text(text, encoding="utf-8")
    assert verified(script)["claim"] == "unbiased" and run(script).exit_code == 0
    edited = text.replace("advantages_BG = returns_BG - baseline(", "advantages_BG = returns_BG - 0.5 * baseline(")
    assert edited != text
    script.write_text(edited, encoding="utf-8")
    assert verified(script)["verdict"] == "unbiased"  # half of an independent baseline is one, too
    edited = text.replace("advantages_BG = returns_BG - baseline(", "advantages_BG = returns_BG.abs() - baseline(")
    script.write_text(edited, encoding="utf-8")
    result = run(script)
    assert result.exit_code == 1 and "refuted" in result.output
    edited = text.replace("advantages_BG = returns_BG - baseline(", "advantages_BG = returns_BG[:, :1] - baseline(")
    script.write_text(edited, encoding="utf-8")
    laws = {law["name"]: law["verdict"] for law in verified(script)["laws"]}
    assert laws["order_does_not_exist"] == "broken"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "there is no Args"),
        ("def f(:\n", "not valid Python"),
        ("print(1)\n", "line 1 is a statement that is run when the file is imported"),
        ("import os\nfrom torch import *\n", "line 2 is a statement"),
    ],
)
def test_what_is_no_script(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "other.py"
    path.write_text(text, encoding="utf-8")
    result = run(path)
    assert result.exit_code == 1 and "not-a-script" in result.output and said in result.output


def test_a_script_that_raises_says_where(tmp_path: Path) -> None:
    text = (ROOT / "generated" / "rloo.py").read_text(encoding="utf-8")
    script = tmp_path / "raises.py"
    script.write_text(
        text.replace("advantages_BG = returns_BG - ", "advantages_BG = returns_BG[99] - "), encoding="utf-8"
    )
    result = run(script)
    line = next(i for i, each in enumerate(script.read_text().splitlines(), 1) if "returns_BG[99]" in each)
    assert result.exit_code == 1 and "script-raises" in result.output and f"line {line}" in result.output


def edited(tmp_path: Path, line: str, name: str = "rloo", size: int | None = None) -> Path:
    """A shipped script with another line for the advantage, or with another number of responses a prompt."""
    text = (ROOT / "generated" / f"{name}.py").read_text(encoding="utf-8")
    old = "advantages_BG = returns_BG - baseline(returns_BG, scored_BG)"
    assert text.count(old) == 1
    text = text.replace(old, line.replace("\n", "\n    "))
    script = tmp_path / "edited.py"
    script.write_text(text if size is None else text.replace("= arg(4, ", f"= arg({size}, "), encoding="utf-8")
    return script


def test_a_gradient_that_is_not_a_number_is_biased(tmp_path: Path) -> None:
    """GRPO's z-score without an epsilon: a group of equal rewards is 0 / 0."""
    std = "returns_BG.std(1, keepdim=True)"
    line = f"advantages_BG = (returns_BG - returns_BG.mean(1, keepdim=True)) / {std}"
    found = verified(edited(tmp_path, line))
    assert found["claim_refuted"] and {each["verdict"] for each in found["rewards"].values()} == {"biased"}


def test_large_batches_are_judged_at_the_group_size_that_is_asked_for(tmp_path: Path) -> None:
    """Groups with one correct response of six are dropped: nothing at k = 4, another objective at k = 6."""
    line = (
        "mean_B1 = masked_mean(returns_BG, scored_BG, dim=1)\n"
        "advantages_BG = torch.where((mean_B1 > 0.2) | (returns_BG.shape[1] < 5), returns_BG - mean_B1, 0.0)\n"
        "std = advantages_BG.square().mean().sqrt()\n"
        "advantages_BG = advantages_BG / torch.where(std > 0, std, 1.0)"
    )
    script = edited(tmp_path, line)
    assert verified(script)["rewards"]["binary"]["verdict"] == "asymptotic"
    assert verified(script, "--group-size", "6")["rewards"]["binary"]["verdict"] == "reweighted"


@pytest.mark.parametrize("line", ["advantages_BG = (returns_BG - baseline(returns_BG, scored_BG)).clamp(-10, 10)"])
def test_what_acts_on_large_rewards_only_is_seen(line: str, tmp_path: Path) -> None:
    found = verified(edited(tmp_path, line))["rewards"]
    assert (found["binary"]["verdict"], found["real"]["verdict"]) == ("unbiased", "biased")


def test_what_a_script_prints_is_not_in_the_json(tmp_path: Path) -> None:
    line = "print('here')\nadvantages_BG = returns_BG - baseline(returns_BG, scored_BG)"
    assert verified(edited(tmp_path, line))["verdict"] == "unbiased"


def test_a_picture_has_a_known_format(spec, tmp_path: Path) -> None:
    result = run(spec(), "--plot", tmp_path / "w.foo")
    assert result.exit_code == 2 and ".png, .pdf or .svg" in result.output


def test_missing_files(tmp_path: Path) -> None:
    assert run(tmp_path / "none.py").exit_code == 1
    assert "there is no such spec" in run(tmp_path / "none.yaml").output
