"""The numbers in the warnings: each is read from its message and found another way, mostly from the compiled script.

What a warning says of an estimator is enumerated, as in `test_oracles.py`; a formula is worked out again here.
"""

from __future__ import annotations

import json
import math
import re
from functools import partial
from typing import Any

import pytest
import torch
from test_oracles import (
    answers_of,
    close,
    differ,
    estimator,
    expected,
    gradients,
    kl_in,
    kl_part,
    mean_of,
    reverse_kl,
    uphill,
)

from specc.answers.base import Finding
from specc.answers.kl import DRIFT, ESTIMATES, SLOPES
from specc.load import findings_of
from specc.spec import Spec
from specc.verify.environment import LEVEL, coin, fixed, world
from specc.verify.verdict import find_weight

NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"


def told(slug: str, defaults: dict[str, Any] | None = None, claim: str | None = None, **answers: Any) -> Finding:
    """The one warning of this slug about a spec."""
    text = json.loads(answers_of(**answers)) | {"defaults": defaults or {}, "claim": claim}
    found = findings_of(Spec.model_validate_json(json.dumps(text)))
    assert all(finding.warning for finding in found), found
    [finding] = [finding for finding in found if finding.slug == slug]
    return finding


def slugs(**answers: Any) -> set[str]:
    return {finding.slug for finding in findings_of(Spec.model_validate_json(answers_of(**answers)))}


def after(words: str, finding: Finding) -> list[float]:
    """The numbers right after these words, which may be several with commas between them."""
    found = re.search(rf"{words}((?:{NUMBER}(?:, | and )?)+)", f"{finding.what}; {finding.why}; {finding.help}")
    assert found, finding
    return [float(number) for number in re.findall(NUMBER, found.group(1))]


def same(numbers: list[float], wanted: list[float], digits: int = 3) -> None:
    """Equal as far as so many digits say."""
    assert len(numbers) == len(wanted)
    for number, exact in zip(numbers, wanted, strict=True):
        last = 10 ** (math.floor(math.log10(abs(exact))) - digits + 1) if exact else 0
        assert abs(number - exact) <= 0.5001 * last, (number, exact)  # what ends in a 5 may be rounded either way


# --- KL ---


@pytest.mark.parametrize("baseline", ["group_mean", "none", "leave_one_out"])
@pytest.mark.parametrize(("k", "ddof", "counts"), [(4, 1, (1, 2, 3)), (16, 0, (2, 8, 14)), (2, 1, (1,))])
def test_kl_rescaled(baseline: str, k: int, ddof: int, counts: tuple[int, ...]) -> None:
    """The coefficient over the std of the script's own advantages before the division."""
    answers: dict[str, Any] = {
        "baseline": baseline,
        "normalization": {"scope": "group", "ddof": ddof, "epsilon": 1e-3},
        "kl": kl_in("reward", "k1", coefficient=0.05),
        "sampling": {"group_size": k},
    }
    finding = told("kl-rescaled", **answers)
    plain = estimator(**answers | {"normalization": "none"}).module
    stds = []
    for correct in counts:
        rewards = torch.tensor([[1.0] * correct + [0.0] * (k - correct)], dtype=torch.float64)
        zeros = torch.zeros(1, k, 1, dtype=torch.float64)
        mask = torch.ones(1, k, 1, dtype=torch.bool)
        rollouts = plain.Rollouts(rewards_BG=rewards, mask_BGT=mask, old_logprobs_BGT=zeros, ref_logprobs_BGT=zeros)
        stds.append(float(plain.compute_advantages(rollouts, plain.Args()).std(correction=ddof)))
    same(after("0.05 acts as ", finding), [0.05 / (std + 1e-3) for std in stds])
    assert f"where {', '.join(map(str, counts))} of the {k} responses" in finding.why


def test_kl_rescaled_by_the_mean() -> None:
    answers: dict[str, Any] = {"kl": kl_in("reward", "k1", coefficient=0.3), "sampling": {"group_size": 8}}
    finding = told(
        "kl-rescaled", baseline="group_mean", normalization={"scope": "group", "divide_by": "mean"}, **answers
    )
    same(after("0.3 acts as ", finding), [0.3 / (K / 8 + 1e-6) for K in (1, 4, 7)])
    by_tokens = {"scope": "group", "unit": "token"}  # not a matter of counts, so no number is given
    assert not re.search("acts as", told("kl-rescaled", baseline="none", normalization=by_tokens, **answers).why)


@pytest.mark.parametrize("more", [{}, {"aggregation": "token_mean"}, {"sampling": {"keep": "positive"}}])
@pytest.mark.parametrize("unit", ["token", "sequence"])
def test_k1_in_the_loss_is_as_if_the_coefficient_was_taken_from_every_advantage(
    unit: str, more: dict[str, Any]
) -> None:
    """On every batch, not only in the mean."""
    environment = world(LEVEL, (((1, 2), (1, 1), (1, 3)), (0, 1, 3, -1), ((2, 1), (1, 1), (1, 1)), ((1, 1),) * 3))
    finding = told("kl-zero-gradient", kl=kl_in("loss", "k1", unit, coefficient=0.05), **more)
    (beta,) = after("as if ", finding)
    found, _ = gradients(estimator(kl=kl_in("loss", "k1", unit), **more), environment, 2, kl_coefficient=beta)
    constant = estimator({"source": "constant", "value": 0.0}, **more)
    wanted, _ = gradients(constant, environment, 2, baseline_value=beta)
    plain, _ = gradients(estimator(**more), environment, 2)
    close(found, wanted)
    differ(found, plain)
    mean = kl_part(estimator(kl=kl_in("loss", "k1", unit), **more), environment)
    zero = float(mean.abs().max()) < 1e-12
    assert zero is ("E[grad log pi] = 0" in finding.why) or "keep" in more.get("sampling", {})


def test_k1_in_the_loss_is_not_said_to_be_zero_where_it_is_not() -> None:
    kl = kl_in("loss", "k1", coefficient=0.05)
    kept = told("kl-zero-gradient", kl=kl, sampling={"keep": "positive"})
    assert kept.what == "k1 in the loss holds nothing back" and "E[grad log pi]" not in kept.why
    by_length = told("kl-zero-gradient", kl=kl, aggregation="seq_mean_token_mean")
    assert "E[grad log pi] = 0, but for weights that depend on lengths" in by_length.why
    mean = kl_part(estimator(kl=kl_in("loss", "k1"), aggregation="seq_mean_token_mean"), fixed("real")[0])
    assert float(mean.abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["k2", "k3"])
def test_k2_and_k3_in_the_reward_act_as_another_coefficient(name: str) -> None:
    finding = told("kl-estimator-in-reward", kl=kl_in("reward", name, coefficient=0.05))
    shares = []
    for right, wrong in ((6, 4), (9, 1)):  # the reference of a coin is even
        environment = coin((right, wrong))
        part = kl_part(estimator(kl=kl_in("reward", name)), environment)
        full = -uphill(environment, partial(reverse_kl, environment))
        shares.append(float(part[0, 1] / full[0, 1]))
    same(after("with a coefficient of ", finding), [0.05 * share for share in shares])
    assert max(shares) < 0


@pytest.mark.parametrize("unit", ["token", "sequence"])
def test_k3_in_the_loss_weighs_the_score_otherwise(unit: str) -> None:
    finding = told("kl-partial-gradient", kl=kl_in("loss", "k3", unit, coefficient=0.05))
    estimate = estimator(kl=kl_in("loss", "k3", unit)).module.kl_estimate
    x = torch.tensor([1.0, -1.0], dtype=torch.float64, requires_grad=True)
    (slopes,) = torch.autograd.grad(estimate(x).sum(), x)
    at_one, at_minus_one = (-0.05 * slopes).tolist()
    same(after(r"at log pi/ref = 1 has a weight of ", finding), [at_one])
    same(after(r"and at -1 of ", finding), [at_minus_one])
    same([float(n) for n in re.findall(rf"in place of ({NUMBER})", finding.why)], [-0.05, 0.05])


def test_k2_of_tokens_spares_a_token_the_kl_of_those_after_it() -> None:
    """After the first token a the second one drifts, and after b it does not: the gradient that is missing is that of
    the choice between them, with the KL that the message names."""
    finding = told("kl-partial-gradient", {"max_new_tokens": 2}, kl=kl_in("loss", "k2", coefficient=0.05))
    (spared,) = after(r"= ", finding)
    even = (1 + math.sqrt(1 - math.exp(-2 * DRIFT))) / 2  # KL((1/2, 1/2) || (even, 1 - even)) = DRIFT
    reference = ((1, 1), (even, 1 - even), (1, 1))
    environment = world(LEVEL, (((1, 1), (1, 1), (1, 1)), (0, 0, 0, 0), reference, ((1, 1),) * 3))  # type: ignore[arg-type]
    part = kl_part(estimator(kl=kl_in("loss", "k2")), environment)
    missing = -0.05 * uphill(environment, partial(reverse_kl, environment)) - 0.05 * part
    close(missing[0, 0].abs(), spared / 4, 1e-2)  # pi_a pi_b = 1/4
    assert after(r"tokens drift by ", finding) == [DRIFT]
    long = told("kl-partial-gradient", kl=kl_in("loss", "k2", coefficient=0.05))
    same(after(r"0.05 x ", long), [DRIFT * 999])


def test_the_formulas_of_the_messages_are_those_of_the_fragments() -> None:
    for name, estimate in ESTIMATES.items():
        of_script = estimator(kl=kl_in("loss", name)).module.kl_estimate
        for number in (-2.0, -0.3, 0.0, 0.7, 3.0):
            x = torch.tensor(number, dtype=torch.float64, requires_grad=True)
            found = of_script(x)
            (slope,) = torch.autograd.grad(found, x)
            close(found.detach(), estimate(number))
            close(slope, SLOPES[name](number))


# --- the clip ---


@pytest.mark.parametrize("ratio", ["sequence_mean", "sequence_mean_token"])
def test_a_clip_of_token_scale_acts_where_the_message_says(ratio: str) -> None:
    """A response of 20 tokens has a gradient until it is as many times as likely as the message says."""
    clip = {"low": 0.3, "high": 0.28}
    objective: dict[str, Any] = {"ratio": ratio, "clip": clip, "sampling": {"minibatches": 4}}
    finding = told("clip-of-token-scale", {"max_new_tokens": 20}, **objective)
    (times,) = after(r"once a response is ", finding)
    same(after("0.28 is like ", finding), [0.28 * math.sqrt(20)])
    module = estimator(**objective).module
    for factor, clipped in ((0.99, False), (1.01, True)):
        new = torch.full((1, 20), math.log(times * factor) / 20, dtype=torch.float64, requires_grad=True)
        ones = torch.ones(1, 20, dtype=torch.float64)
        loss = module.policy_loss(new, 0 * ones, None, ones, ones, ones.bool(), module.Args())
        (gradient,) = torch.autograd.grad(loss, new)
        assert bool((gradient == 0).all()) is clipped


def test_a_clip_of_the_scale_of_the_mean_is_no_news() -> None:
    reuse = {"sampling": {"minibatches": 4}}
    assert slugs(ratio="sequence_mean", clip={"low": 3e-4, "high": 4e-4}, **reuse) == set()
    assert slugs(ratio="sequence_mean", clip={"low": 1.0, "high": 4e-4}, **reuse) == set()  # 1: no lower bound
    assert slugs(ratio="token", clip={"low": 0.2, "high": 0.2}, **reuse) == set()
    low = told("clip-of-token-scale", ratio="sequence_mean", clip={"low": 0.2, "high": 4e-4}, **reuse)
    assert low.loc == ("objective", "clip", "low") and "10^-97 times" in low.why  # 0.8^1000


def test_reuse_without_ratio_counts_the_updates() -> None:
    assert "in 7 of 8 updates" in told("reuse-without-ratio", sampling={"epochs": 2, "minibatches": 4}).why


# --- critics ---


@pytest.mark.parametrize("length", [8, 30])
def test_what_reaches_the_first_token_past_a_critic(length: int) -> None:
    critic = {"source": "critic", "gae_lambda": 0.9, "gamma": 0.99}
    answers: dict[str, Any] = {"baseline": critic, "quantity": "token_advantage"}
    finding = told("claim-refuted", {"max_new_tokens": length}, claim="unbiased", **answers)
    first = by_itself(answers, length)
    same(after("of the reward itself ", finding), [first])
    same(after(r"counts less at its first tokens \(", finding), [0.99 ** (length - 1)])


@pytest.mark.parametrize(("length", "alpha"), [(16, 0.05), (30, 0.05), (39, 0.05), (8, 0.2)])
def test_a_lambda_for_longer_responses(length: int, alpha: float) -> None:
    answers: dict[str, Any] = {"quantity": "token_advantage"}
    critic = {"source": "critic", "length_adaptive": {"alpha": alpha}}
    finding = told("adaptive-lambda-zero", {"max_new_tokens": length}, baseline=critic, **answers)
    first = by_itself(answers | {"baseline": critic}, length)
    same(after("at most ", finding), [by_itself(answers | {"baseline": critic}, length, place=-2)])
    if first == 0:
        assert "of the reward itself nothing reaches" in finding.why
        assert by_itself(answers | {"baseline": critic}, int(1 / alpha)) == 0
    else:
        assert re.search(rf"of the reward itself (10\^-\d+|{NUMBER}) reaches the first of {length} tokens", finding.why)
    (better,) = after("alpha: ", finding)
    fixed = {"source": "critic", "length_adaptive": {"alpha": better}}
    close(by_itself(answers | {"baseline": fixed}, length, place=-2), 0.95, 1e-3)


def by_itself(answers: dict[str, Any], length: int, place: int = 0) -> float:
    """What a token's advantage has of a reward of 1 at the end, under a critic that says 0."""
    module = estimator(**answers).module
    rollouts = module.Rollouts(
        rewards_BG=torch.ones(1, 1, dtype=torch.float64),
        mask_BGT=torch.ones(1, 1, length, dtype=torch.bool),
        values_BGT=torch.zeros(1, 1, length, dtype=torch.float64),
    )
    return float(module.compute_advantages(rollouts, module.Args())[0, 0, place])


def test_a_lambda_that_is_long_enough_is_no_news() -> None:
    critic = {"source": "critic", "length_adaptive": {"alpha": 0.05}}
    text = json.loads(answers_of(baseline=critic, quantity="token_advantage")) | {"defaults": {"max_new_tokens": 41}}
    assert findings_of(Spec.model_validate_json(json.dumps(text))) == []


# --- claims and weights ---


def weights_in(finding: Finding) -> dict[float, float]:
    return {float(p): float(w) for p, w in re.findall(rf"w\(({NUMBER})\) = ({NUMBER})", finding.why)}


@pytest.mark.parametrize(
    "answers",
    [
        {"baseline": "group_mean", "normalization": "group", "sampling": {"group_size": 8}},
        {"baseline": "group_mean", "normalization": {"scope": "group", "divide_by": "mean"}},
        {"quantity": "likelihood", "sampling": {"group_size": 4, "keep": "best"}},
        {"baseline": "group_mean", "normalization": "group", "sampling": {"keep": {"max_variance": 2}}},
    ],
)
def test_a_refuted_claim_gives_the_weights(answers: dict[str, Any]) -> None:
    found = weights_in(told("claim-refuted", claim="unbiased", **answers))
    script = estimator(**answers)
    size = script.hp.group_size
    assert list(found) == [0.1, 0.5, 0.9]
    if "keep" not in answers.get("sampling", {}):
        weight = find_weight(script, size, script.hp)
        same(list(found.values()), [weight.at(p) for p in found])
    else:
        for p, w in found.items():
            environment = coin((round(10 * p), 10 - round(10 * p)))
            gradient = expected(environment, environment.tables.rewards)
            factor = float((mean_of(script, environment, size) / gradient)[0, 1])
            same([w], [factor])


@pytest.mark.parametrize(
    ("answers", "defaults"),
    [
        ({"baseline": "group_mean", "sampling": {"group_size": 8}}, {}),
        ({"baseline": "group_mean", "aggregation": "seq_mean_token_sum_norm"}, {}),
        ({"baseline": "batch_mean", "sampling": {"group_size": 2}}, {"prompts_per_step": 2}),
    ],
)
def test_a_refuted_claim_gives_the_factor(answers: dict[str, Any], defaults: dict[str, int]) -> None:
    finding = told("claim-refuted", defaults, claim="unbiased", **answers)
    environment = coin(*[(3, 1), (1, 2)][: defaults.get("prompts_per_step", 1)])
    script = estimator(**answers)
    found = mean_of(script, environment, script.hp.group_size)
    wanted = expected(environment, environment.tables.rewards)
    ratios = (found / wanted)[:, 1].tolist()
    same(after(r"In all, E\[g\] is ", finding) * len(ratios), ratios, digits=4)


def test_a_refuted_claim_says_how_lengths_count() -> None:
    for aggregation in ("seq_mean_token_mean", "prompt_mean"):
        finding = told("claim-refuted", {"max_new_tokens": 35}, claim="unbiased", aggregation=aggregation)
        (times,) = after(r"10 tokens counts ", finding)
        module = estimator(aggregation=aggregation).module
        mask = torch.arange(35) < torch.tensor([10, 35])[:, None, None]  # two prompts of one response each
        weights = module.aggregation_weights(mask, module.Args())
        close(weights[0, 0, 0] / weights[1, 0, 0], times, 1e-6)


@pytest.mark.parametrize(
    "answers",
    [
        {"baseline": {"source": "constant", "value": -1.0}, "normalization": "group", "sampling": {"group_size": 8}},
        {"baseline": {"source": "constant", "value": 3.0}, "normalization": "group"},
        {"baseline": {"source": "constant", "value": 2.0}, "sampling": {"keep": "best"}},
    ],
)
def test_weights_below_0(answers: dict[str, Any]) -> None:
    finding = told("weight-negative", **answers)
    found = weights_in(finding)
    assert min(found.values()) < 0
    script = estimator(**answers)
    for p, w in found.items():
        hundred = round(100 * p)
        environment = coin((hundred, 100 - hundred))
        gradient = expected(environment, environment.tables.rewards)
        factor = float((mean_of(script, environment, script.hp.group_size) / gradient)[0, 1])
        same([w], [factor])


def test_nothing_is_learned_where_the_warning_says_so() -> None:
    for baseline in ("group_mean", "leave_one_out", {"source": "constant", "value": 1.0}):
        answers: dict[str, Any] = {"baseline": baseline, "sampling": {"keep": "positive"}}
        told("learns-nothing", **answers)
        script = estimator(**answers)
        for environment in (coin((1, 3)), coin((2, 1))):
            assert float(mean_of(script, environment, 4).abs().max()) < 1e-12


def test_weights_that_are_as_they_should_be_are_no_news() -> None:
    """Nor are rewards of other sizes, of which the counts say nothing."""
    odd = {"learns-nothing", "weight-negative"}
    for answers in (
        {},
        {"baseline": "group_mean", "normalization": "group"},
        {"sampling": {"keep": "positive"}},
        {"baseline": "group_mean", "sampling": {"keep": "mixed"}},
        {"baseline": "group_mean", "sampling": {"keep": "positive"}, "reward": "reward_model"},
        {
            "baseline": "group_mean",
            "sampling": {"keep": "positive"},
            "reward": {"source": "verifier", "missing_eos": 2.0},
        },
    ):
        assert not odd & slugs(**answers), answers
