"""The laws of `specc.verify.laws`: the shipped scripts and those of specs drawn at random obey them, and broken ones do
not.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from functools import cache

import pytest
import torch
from conftest import ALGORITHMS, ONLINE, ROOT
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from strategies import BESIDE, GROUP_SIZES, batches, every_spec, make_batch, script_of, specs

from specc.answers import QUESTIONS
from specc.answers.base import leaves
from specc.load import load_spec
from specc.plan import Plan
from specc.render import render
from specc.spec import Spec
from specc.verify.laws import (
    LAWS,
    Batch,
    Broken,
    Law,
    LawResult,
    NotApplicable,
    check_laws,
    family,
    group_sizes,
    partitions,
)
from specc.verify.script import Script, load_script, read_script

NUMBERS = {1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 14, 15, 17}


@cache
def shipped(name: str) -> Script:
    plan = Plan(load_spec(ROOT / "algorithms" / f"{name}.yaml").spec)
    return dataclasses.replace(read_script(ROOT / "generated" / f"{name}.py"), plan=plan)


def holds(law: Law, script: Script, batch: Batch) -> bool:
    """Whether the law says anything about the script, and if so it must hold."""
    try:
        law.check(script, batch)
    except NotApplicable:
        return False
    except Broken as broken:
        pytest.fail(f"{law.name}: {broken}")
    return True


# -------- every shipped script, and specs drawn at random --------


@pytest.mark.parametrize("name", ONLINE)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_shipped_scripts(law: Law, name: str, data: st.DataObject) -> None:
    script = shipped(name)
    assert script.plan is not None
    smallest = script.plan.min_group_size
    holds(law, script, data.draw(batches(tuple(size for size in GROUP_SIZES if size >= smallest))))


# Without shrinking, which would take minutes: a spec that fails is short enough to read.
@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(spec=specs(), data=st.data())
def test_drawn_specs(spec: Spec, data: st.DataObject) -> None:
    script = script_of(spec)
    if script.on_pairs:
        assert not broken(check_laws(script, batches=2))
        return
    batch = data.draw(batches((spec.sampling.group_size,)))
    for law in LAWS:
        holds(law, script, batch)


def cover() -> dict[str, Spec]:
    """Few specs in which every fragment occurs, by the first one that each brings in."""
    chosen: dict[str, Spec] = {}
    seen: set[tuple[str, str]] = set()
    for base in QUESTIONS.values():
        for answer in leaves(base):
            for spec in every_spec(answer):
                new = {(question, name) for question, each in spec.answers.items() for name in each.fragments()} - seen
                if new:
                    chosen["-".join(min(new))] = spec
                    seen |= new
    return chosen


COVER = cover()


@pytest.mark.parametrize("spec", COVER.values(), ids=COVER.keys())
def test_every_fragment(spec: Spec) -> None:
    """Whatever Hypothesis happens to draw, no fragment is left out; nor is one of them a law's exception by hand."""
    script = script_of(spec)
    for seed, kind in enumerate(("real", "ties", "nan") if spec.online else ()):
        for law in LAWS:
            holds(law, script, make_batch(seed, 3, 4, 4, spread=1.0, kind=kind))
    assert not broken(check_laws(dataclasses.replace(script, plan=None), batches=2))


@pytest.mark.parametrize("name", ONLINE)
def test_every_partition_of_four_rows(name: str) -> None:
    """Law 3, exhaustively: the 15 partitions of four rows."""
    assert len(partitions(4)) == 15
    assert holds(law_called("splits_do_not_exist"), shipped(name), make_batch(3, 1, 4, 3, spread=1.0))


# -------- what `specc verify` runs --------


def law_called(name: str) -> Law:
    (found,) = [law for law in LAWS if law.name == name]
    return found


def broken(results: list[LawResult]) -> dict[str, str]:
    return {result.law.name: result.detail for result in results if result.verdict == "broken"}


@pytest.mark.parametrize("name", ONLINE)
def test_check_laws(name: str) -> None:
    """Every law has a verdict, one that is skipped a reason; without a spec only what needs one is skipped besides."""
    script = shipped(name)
    skipped = []
    for each in (script, dataclasses.replace(script, plan=None)):
        results = check_laws(each)
        assert {result.law.name for result in results} == {law.name for law in LAWS}
        assert [result.law.number for result in results] == sorted(result.law.number for result in results)
        assert not broken(results)
        assert all(bool(result.detail) == (result.verdict == "skipped") for result in results)
        skipped.append({result.law.name for result in results if result.verdict == "skipped"})
    assert {law.number for law in LAWS} == NUMBERS
    assert skipped[1] == skipped[0] | {law.name for law in LAWS if law.number == 7}


def test_the_batches_of_a_seed() -> None:
    """The same again for the same seed; of every size and kind that the spec allows."""
    script = shipped("reinforce")
    made, again, other = (list(family(script, seed, 6)) for seed in (0, 0, 1))
    assert all(torch.equal(a.logprobs_BGT, b.logprobs_BGT) for a, b in zip(made, again, strict=True))
    assert not any(torch.equal(a.logprobs_BGT, b.logprobs_BGT) for a, b in zip(made, other, strict=True))
    sizes = [set(axis) for axis in zip(*(batch.mask_BGT.shape for batch in made), strict=True)]
    assert sizes == [{1, 2, 3}, {1, 2, 3, 4}, {1, 2, 3, 4}]
    assert {bool(batch.rewards_BG.isnan().any()) for batch in made} == {False, True}
    assert set(group_sizes(shipped("grpo"))) == {2, 3, 4}
    assert set(group_sizes(dataclasses.replace(script, plan=None))) == {1, 2, 3, 4}
    torch_std = edited(
        "drgrpo",
        "returns_BG - baseline(returns_BG, scored_BG)",
        "returns_BG / returns_BG.std(1, keepdim=True)",
        plan=False,
    )
    assert set(group_sizes(torch_std)) == {2, 3, 4}


IMPORTS = """
import json, sys, torch
before = set(sys.modules)
from pathlib import Path
from specc.verify.laws import check_laws
from specc.verify.script import read_script
verdicts = [result.verdict for path in sys.argv[1:] for result in check_laws(read_script(Path(path)), batches=2)]
heavy = ("torch._dynamo", "torch._inductor", "torch.testing._internal", "sympy", "transformers", "accelerate")
print(json.dumps([sorted(set(verdicts)), [name for name in heavy if name in set(sys.modules) - before]]))
"""


def test_nothing_heavy_is_imported() -> None:
    """Besides torch; and the laws are no bare asserts, which -O takes away."""
    files = [ROOT / "generated" / f"{name}.py" for name in ALGORITHMS]
    done = subprocess.run([sys.executable, "-O", "-c", IMPORTS, *files], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [["holds", "skipped"], []]
    text = (ROOT / "generated" / "grpo.py").read_text(encoding="utf-8")
    script = load_script(text.replace("(weights * objective).sum()", "(weights * objective).mean()"), "grpo.py")
    assert "splits_do_not_exist" in broken(check_laws(script))


# -------- every law can fail --------

GRPO = {
    "masked_positions_do_not_exist": (
        "x.masked_fill(~mask, 0.0) for x in (logprobs, old_logprobs, advantages, weights)",
        "x for x in (logprobs, old_logprobs, advantages, weights)",
    ),
    "padding_does_not_exist": ("mask_BGT.sum(-1, keepdim=True).clamp(min=1)", "mask_BGT.shape[-1]"),
    "splits_do_not_exist": ("-(weights * objective).sum()", "-(weights * objective).mean()"),
    "order_does_not_exist": (
        "returns_BG - baseline(returns_BG, scored_BG)",
        "(returns_BG - baseline(returns_BG, scored_BG)) * (scored_BG.cumsum(1) + 1)",
    ),
    "on_policy_means_ratio_one": (
        "(logprobs - old_logprobs).exp()",
        "((logprobs - old_logprobs) / 0.6).exp()",
    ),
    "on_policy_in_bfloat16": (
        "(logprobs - old_logprobs).exp()",
        "((logprobs - 100) - (old_logprobs.double() - 100)).exp()",
    ),
    "estimates_repeat": (
        "returns_BG - baseline(returns_BG, scored_BG)",
        "returns_BG - baseline(returns_BG, scored_BG) * torch.rand(())",
    ),
    "rewards_plus_a_constant": ("returns_BG - baseline(returns_BG, scored_BG)", "returns_BG"),
    "rewards_times_a_constant": ("std + epsilon", "std.square() + epsilon"),
    "degenerate_groups_are_defined": ("torch.where(std > 0, std + epsilon, 1.0)", "std + epsilon"),
    "every_number_acts": ("coefficient=hp.kl_coefficient", "coefficient=0.04"),
    "masked_out_responses_do_not_count": (
        "mask_BGT.any(-1).sum().clamp(min=1)",
        "(mask_BGT.shape[0] * mask_BGT.shape[1])",
    ),
    "statistics_are_two_pass": (
        "deviations = (values - masked_mean(values, mask, dim)).masked_fill(~mask, 0.0)",
        "mean = masked_mean(values + 10000, mask, dim)\n"
        "    square = masked_mean((values + 10000).square(), mask, dim)\n"
        "    return (square - mean.square()).clamp(min=0).sqrt()",
    ),
    "float64_stays_float64": ("mask_BGT.double()", "mask_BGT.float()"),
    "vmap_and_grad_go_through": (
        "    ratio = importance_ratio(logprobs, old_logprobs)\n    objective",
        "    ratio = importance_ratio(logprobs, old_logprobs)\n"
        "    advantages = advantages if advantages.sum() > -9 else 2 * advantages\n    objective",
    ),
    "ratio_is_bounded_on_one_side": (
        "torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)",
        "ratio.clamp(1 - low, 1 + high) * advantages",
    ),
    "clipped_tokens_have_no_gradient": (
        "ratio.clamp(1 - low, 1 + high) * advantages",
        "(ratio.clamp(1 - low, 1 + high) + 0.01 * (ratio - 1)) * advantages",
    ),
}


OTHERS = {  # what GRPO has no part in
    "selection_does_not_see_the_order": (
        "pods",
        "order_BG.gather(1, torch.where(place < m - best_B1, place, place + gap_B1))",
        "place.expand(len(order_BG), m)",
    ),
    "rewards_are_their_own": (
        "dapo",
        "rewards_BG - penalty * (",
        "rewards_BG - rewards_BG.mean() - penalty * (",
    ),
    "the_critic_sees_states": ("ppo", "values_BGT.masked_fill(~mask_BGT, 0.0)", "values_BGT.nan_to_num()"),
}


def edited(name: str, old: str, new: str, plan: bool = True) -> Script:
    """A shipped script in which a part of the text is replaced."""
    text = (ROOT / "generated" / f"{name}.py").read_text(encoding="utf-8")
    assert old in text
    return load_script(text.replace(old, new), f"edited/{name}.py", shipped(name).plan if plan else None)


def test_every_law_is_tried() -> None:
    assert GRPO.keys() | OTHERS.keys() == {law.name for law in LAWS}


@pytest.mark.parametrize("name", [*GRPO, *OTHERS])
def test_a_broken_script_breaks_the_law(name: str) -> None:
    """By its name, whether or not it breaks others besides."""
    found = broken(check_laws(edited(*OTHERS[name]) if name in OTHERS else edited("grpo", *GRPO[name])))
    assert name in found, found
    assert found[name].endswith("tokens)")


def test_only_bfloat16_shows_some_faults() -> None:
    assert broken(check_laws(edited("grpo", *GRPO["on_policy_in_bfloat16"]))).keys() == {"on_policy_in_bfloat16"}


WEIGHTINGS = {
    "dual clip for both signs": (
        {"clip": {"low": 0.2, "high": 3.0, "dual": 2.0}},
        ("torch.where(advantages < 0, torch.maximum(", "torch.where(advantages > 0, torch.minimum("),
        "ratio_is_bounded_on_one_side",
    ),
    "dual clip that is not there": (
        {"clip": {"low": 0.2, "high": 0.2, "dual": 3.0}},
        ("torch.maximum(clipped_once, dual * advantages)", "clipped_once"),
        "ratio_is_bounded_on_one_side",
    ),
    "what is counted as clipped": (
        {"clip": {"low": 0.2, "high": 0.2}},
        ("(ratio > 1 + high) & (advantages > 0)", "ratio > 1 + high"),
        "clipped_tokens_have_no_gradient",
    ),
    "a clip with a gradient of its own": (
        {"detached_clip": {"high": 4.0}},
        (
            "ratio.detach().clamp(1 - low, 1 + high) * advantages * logprobs",
            "ratio.clamp(1 - low, 1 + high) * advantages",
        ),
        "clipped_tokens_have_no_gradient",
    ),
    "a detached clip at another bound": (
        {"detached_clip": {"high": 4.0}},
        ("1 + high) * adv", "high) * adv"),
        "ratio_is_bounded_on_one_side",
    ),
    "a gate with the other sign's tau": (
        {"soft_gate": {}},
        ("advantages > 0, positive", "advantages < 0, positive"),
        "ratio_is_bounded_on_one_side",
    ),
}


@pytest.mark.parametrize("ratio", ["token", "sequence", "sequence_mean", "sequence_mean_token"])
@pytest.mark.parametrize("case", WEIGHTINGS)
def test_what_bounds_the_ratio(case: str, ratio: str) -> None:
    """Law 15 for every weighting: it holds, and does not where the weighting is another than the arguments say."""
    block, (old, new), law = WEIGHTINGS[case]
    objective = {"quantity": "sequence_advantage", "ratio": ratio, "aggregation": "token_mean", **block}
    plan = Plan(
        Spec.model_validate({"name": "weighted", **BESIDE, "objective": objective, "sampling": {"group_size": 4}})
    )
    text = render(plan, "weighted.yaml", "0" * 16)
    assert old in text
    assert not broken(check_laws(load_script(text, "weighted.py", plan), batches=3))
    assert law in broken(check_laws(load_script(text.replace(old, new), "weighted.py", plan), batches=3))


def test_a_number_beyond_everything_acts() -> None:
    """Limits of thousands of tokens, and bounds that no score of the batch reaches."""
    reward = {"source": "verifier", "clip": [-1e4, 1e4], "overlong": {"limit": 16384, "buffer": 4096}}
    objective = {**BESIDE["objective"], "ratio": "token", "clip": {"low": 0.9, "high": 1e3, "dual": 1e4}}
    kl = {"placement": "loss", "estimator": "k2", "coefficient": 1e-9}
    answers = {**BESIDE, "reward": reward, "kl": kl, "objective": objective}
    spec = Spec.model_validate({"name": "far", **answers, "sampling": {"group_size": 4}})
    assert not broken(check_laws(script_of(spec)))
    for old, new in (("penalty * (", "1.0 * ("), ("limit - buffer)) / buffer", "limit - 4096)) / 4096")):
        text = render(Plan(spec), "far.yaml", "0" * 16)
        assert old in text
        found = broken(check_laws(load_script(text.replace(old, new), "far.py", Plan(spec))))
        assert found.keys() == {"every_number_acts"} and "overlong_" in found["every_number_acts"]


def test_a_file_without_a_spec() -> None:
    """What is wrong with it is told from the file alone: also a number that acts no more."""
    found = broken(check_laws(edited("grpo", *GRPO["statistics_are_two_pass"], plan=False)))
    assert "statistics_are_two_pass" in found
    same = ("coefficient=hp.kl_coefficient", "coefficient=0.04 + 0 * hp.kl_coefficient")
    found = broken(check_laws(edited("grpo", *same, plan=False)))
    assert found.keys() == {"every_number_acts"} and "kl_coefficient changes nothing" in found["every_number_acts"]


MOVING = Spec.model_validate({"name": "moving", **BESIDE, "baseline": "moving_average", "sampling": {"group_size": 4}})

RAISING = {
    "shapes": (
        "differences = (values - anchor)",
        "differences = (values + torch.ones(17))",
        "RuntimeError: The size of",
    ),
    "state": (
        "state = dict(rollouts.state)",
        "state = dict(rollouts.state)['gone']",
        "KeyError: 'gone', in update_state at",
    ),
    "not a number": ("-(weights * objective).sum()", "-(weights * objective)", "RuntimeError: grad can be implicitly"),
    "other fields": ("    rewards_BG: Tensor ", "    scores_BG: Tensor ", "TypeError: Rollouts.__init__() missing 1"),
}


@pytest.mark.parametrize("case", RAISING)
def test_what_a_script_raises_breaks_its_laws(case: str) -> None:
    """With the exception and the script's line, and never a traceback."""
    old, new, says = RAISING[case]
    text = render(Plan(MOVING), "moving.yaml", "0" * 16)
    assert text.count(old) == 1
    results = check_laws(load_script(text.replace(old, new), "moving.py", Plan(MOVING)))
    assert {result.law.name for result in results} == {law.name for law in LAWS}
    found = broken(results)["padding_does_not_exist"]
    assert found.startswith(says) and "\n" not in found
    line = text[: text.index(old)].count("\n") + 1
    assert f"at line {line}" in found or case in ("not a number", "other fields")  # which nothing in the script raises
