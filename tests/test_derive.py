"""The verdict that follows from a spec alone, against numbers that are worked out by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from conftest import ALGORITHMS, ROOT
from hypothesis import HealthCheck, given, settings
from strategies import specs

from specc.answers.base import VERDICTS, leaves
from specc.answers.baseline import Baseline
from specc.answers.kl import KL
from specc.answers.normalization import Normalization
from specc.answers.objective import Objective, PolicyGradient
from specc.compiler import compile_spec
from specc.derive import Derived, derive, refuted_claim
from specc.load import load_spec
from specc.plan import Plan
from specc.render import render
from specc.report import optimized
from specc.spec import Spec

SUM, NORM, TOKENS, MEAN, PROMPT = (
    "seq_mean_token_sum",
    "seq_mean_token_sum_norm",
    "token_mean",
    "seq_mean_token_mean",
    "prompt_mean",
)
GROUP_STD = {"scope": "group", "divide_by": "std", "ddof": 0, "epsilon": 0.0}
GROUP_MEAN = {"scope": "group", "divide_by": "mean", "epsilon": 0.0}
CENTRED = {"scope": "batch", "divide_by": "none", "subtract_mean": True}
LENGTHS = {"source": "length_weighted"}
OTHERS = {"source": "length_weighted", "leave_one_out": True}


def spec_of(
    baseline: Any = "none",
    normalization: Any = "none",
    aggregation: str = SUM,
    kl: Any = "none",
    k: int = 4,
    reward: str = "verifier",
    sampling: dict[str, Any] | None = None,
    **objective: Any,
) -> Spec:
    return Spec.model_validate(
        {
            "name": "drawn",
            "reward": reward,
            "kl": kl,
            "baseline": baseline,
            "normalization": normalization,
            "objective": {"quantity": "sequence_advantage", "aggregation": aggregation, **objective},
            "sampling": {"group_size": k, **(sampling or {})},
        }
    )


def derived(*answers: Any, **others: Any) -> Derived:
    return derive(spec_of(*answers, **others))


def verdicts(*answers: Any, **others: Any) -> tuple[str, str]:
    found = derived(*answers, **others)
    return found.binary, found.real


# --- the linear part ---


@pytest.mark.parametrize(
    ("baseline", "normalization", "factor", "value"),
    [  # value at k = 4, B = 2: 1 - own - (1 - column)/8
        ("none", "none", "1", 1),
        ({"source": "constant", "value": 3.0}, "none", "1", 1),
        ("moving_average", "none", "1", 1),
        ("greedy", "none", "1", 1),
        ("leave_one_out", "none", "1", 1),
        (OTHERS, "none", "1", 1),
        ("group_mean", "none", "(k - 1)/k", Fraction(3, 4)),
        ("batch_mean", "none", "(kB - 1)/(kB)", Fraction(7, 8)),
        ("none", CENTRED, "(kB - 1)/(kB)", Fraction(7, 8)),
        ("greedy", CENTRED, "(kB - 1)/(kB)", Fraction(7, 8)),
        ("leave_one_out", CENTRED, "1", 1),
        ("group_mean", CENTRED, "(k - 1)/k", Fraction(3, 4)),
    ],
)
def test_what_a_baseline_takes_away(baseline: Any, normalization: Any, factor: str, value: Fraction) -> None:
    found = derived(baseline, normalization)
    verdict = "unbiased" if value == 1 else "proportional"
    assert (found.binary, found.real, found.overall) == (verdict,) * 3
    assert (found.factor, found.value(2)) == (factor, value)
    assert found.value() == (None if "B" in factor else value)


def test_weights_by_length_in_a_baseline() -> None:
    assert verdicts(LENGTHS) == ("biased", "biased")
    assert verdicts(OTHERS, CENTRED) == ("asymptotic", "asymptotic")
    assert verdicts(OTHERS, CENTRED, k=2) == ("unbiased", "unbiased")  # each of two is the other's whole baseline
    assert derived(OTHERS, GROUP_STD, k=2).factor == derived("leave_one_out", GROUP_STD, k=2).factor


def test_statistics_of_the_batch_and_of_the_past() -> None:
    assert verdicts("none", {"scope": "batch"}) == ("asymptotic", "asymptotic")
    assert verdicts("none", {"scope": "batch", "divide_by": "mean"}) == ("asymptotic", "biased")
    assert verdicts("group_mean", {**CENTRED, "unit": "token"}) == ("asymptotic", "asymptotic")
    assert derived("group_mean", {**CENTRED, "unit": "token"}).factor == "(k - 1)/k"
    assert verdicts("none", {"scope": "running", "divide_by": "none", "subtract_mean": True}) == ("unbiased",) * 2
    past = derived("group_mean", {"scope": "running", "subtract_mean": True})
    assert (past.real, past.factor) == ("proportional", "(k - 1)/k x 1/(std of the past steps)")
    assert past.value() is None


def test_aggregations() -> None:
    assert {name: verdicts(aggregation=name) for name in (SUM, TOKENS, MEAN, PROMPT)} == {
        SUM: ("unbiased", "unbiased"),
        TOKENS: ("asymptotic", "asymptotic"),
        MEAN: ("biased", "biased"),
        PROMPT: ("biased", "biased"),
    }
    found = derived("group_mean", aggregation=NORM, k=8, max_length=3000)
    assert (found.factor, found.value()) == ("(k - 1)/k x 1/3000", Fraction(7, 24000))
    assert derived(aggregation=NORM, max_length=1).overall == "unbiased"  # divided by 1
    assert verdicts(sampling={"mask_truncated": True}) == ("biased", "biased")


# --- on counts ---


def test_group_std_weighs_prompts_by_their_success_rates() -> None:
    # w = E sqrt(m(1 - m)) / (pq). k = 4, p = 1/2: K = 1 and K = 3 have sqrt(3)/4 and chance 8/16 together, K = 2 has
    # 1/2 and chance 6/16: (sqrt(3)/8 + 3/16) / (1/4)
    found = derived("group_mean", GROUP_STD)
    assert (found.binary, found.real, found.overall, found.factor) == ("reweighted", "biased", "reweighted", "")
    assert found.weight is not None and found.weight.at(0.5) == pytest.approx(math.sqrt(3) / 2 + 3 / 4, rel=1e-12)
    # ddof 1 multiplies each std that is not 0 by sqrt(4/3)
    other = derived("group_mean", {**GROUP_STD, "ddof": 1}).weight
    assert other is not None
    assert other.at(0.5) == pytest.approx((math.sqrt(3) / 2 + 3 / 4) * math.sqrt(3 / 4), rel=1e-12)


def test_a_reward_model_is_not_judged_by_success_rates() -> None:
    assert derived("group_mean", GROUP_STD, reward="reward_model").overall == "biased"


@pytest.mark.parametrize("k", [2, 3, 5, 16])
@pytest.mark.parametrize("p", [0.01, 0.3, 0.9])
def test_dividing_by_the_mean(k: int, p: float) -> None:
    # (r - m)/m: a correct one of K has k/K - 1, a wrong one -1, and 0 where K = 0. So d_j = k/(j + 1) for j > 0, and
    # d_0 = k - 1: w = (k/(kp)) P(Bin(k, p) > 0) - q^(k-1) = (1 - q^k)/p - q^(k-1) = (1 - q^(k-1))/p
    maxrl = derived("group_mean", GROUP_MEAN, k=k).weight
    assert maxrl is not None and maxrl.at(p) == pytest.approx((1 - (1 - p) ** (k - 1)) / p, rel=1e-12)
    # r/m: a correct one has k/K, a wrong one 0: (1 - q^k)/p
    positives = derived("none", GROUP_MEAN, k=k).weight
    assert positives is not None and positives.at(p) == pytest.approx((1 - (1 - p) ** k) / p, rel=1e-12)


@pytest.mark.parametrize(
    ("k", "normalization", "baseline", "c"),
    [
        (2, GROUP_STD, "group_mean", 1),  # rewards 0 and 1: +-1/2 by a std of 1/2
        (2, {**GROUP_STD, "ddof": 1}, "group_mean", 1 / math.sqrt(2)),  # by 1/sqrt(2)
        (2, {**GROUP_STD, "ddof": 1, "epsilon": 0.25}, "group_mean", 0.5 / (math.sqrt(0.5) + 0.25)),
        (2, GROUP_STD, "leave_one_out", 1),  # +-1 by their own std of 1
        (2, GROUP_MEAN, "group_mean", 1),  # K = 1: +-1/2 by 1/2; K = 2: 0
        (2, GROUP_MEAN, "leave_one_out", 2),  # +-1 by 1/2
        (3, GROUP_STD, "group_mean", math.sqrt(2)),  # 2/3 by sqrt(2)/3, for one correct and for two
        (3, {**GROUP_STD, "ddof": 1}, "group_mean", 2 / math.sqrt(3)),  # 2/3 by 1/sqrt(3)
        (3, GROUP_STD, "leave_one_out", math.sqrt(2)),  # 3/2 times both
        # b = 1/2, k = 2: d_0 = (1/2)/(1/2) + 1/2 = 3/2 and d_1 = 1/2 + (1/2)/(1/2); all-equal groups are divided by 1
        (2, GROUP_STD, {"source": "constant", "value": 0.5}, 1.5),
    ],
)
def test_small_groups_have_one_weight(k: int, normalization: Any, baseline: Any, c: float) -> None:
    found = derived(baseline, normalization, k=k)
    assert (found.binary, found.real) == ("unbiased" if c == 1 else "proportional", "biased")
    assert found.value() == pytest.approx(c, rel=1e-12)
    assert found.weight is not None and found.weight.constant
    assert found.weight.at(0.3) == pytest.approx(c, rel=1e-12)


def test_a_constant_baseline_under_a_group_std() -> None:
    # k = 2, std 1/2, all-equal groups divided by 1: d_0 = 2(1 - b) + b, d_1 = (1 - b) + 2b
    quarter = derived({"source": "constant", "value": 0.25}, GROUP_STD, k=2)
    assert quarter.binary == "reweighted" and quarter.weight is not None
    assert quarter.weight.differences == ((pytest.approx(1.75), pytest.approx(1.25)),)
    # b = 10: -8 q + 11 p, below 0 for p < 8/19
    assert derived({"source": "constant", "value": 10.0}, GROUP_STD, k=2).binary == "biased"


def test_what_counts_do_not_decide() -> None:
    for baseline in ("moving_average", "greedy", "batch_mean"):
        for normalization in (GROUP_STD, GROUP_MEAN):
            found = derived(baseline, normalization, k=2)
            assert (found.binary, found.real, found.weight) == ("reweighted", "biased", None)
    assert verdicts("group_mean", {**GROUP_STD, "unit": "token"}) == ("biased", "biased")
    assert verdicts(LENGTHS, GROUP_STD) == verdicts(LENGTHS, GROUP_MEAN) == ("biased", "biased")
    # the std holds the response's length, by way of the others' baselines; the mean holds its reward only
    assert verdicts(OTHERS, GROUP_STD) == ("biased", "biased")
    assert verdicts(OTHERS, GROUP_MEAN) == ("reweighted", "biased")


def test_the_weight_of_a_linear_estimator_is_its_factor() -> None:
    found = derived("group_mean", aggregation=NORM, max_length=10).weight
    assert found is not None and found.at(0.7) == pytest.approx(3 / 40)
    assert derived("batch_mean").weight is None  # which depends on B
    tokens = derived("group_mean", GROUP_STD, TOKENS)
    assert (tokens.binary, tokens.weight) == ("reweighted", derived("group_mean", GROUP_STD).weight)
    assert "as the batch grows" in tokens.said("binary")


@pytest.mark.parametrize("normalization", [GROUP_STD, GROUP_MEAN, "none"])
@pytest.mark.parametrize("k", [2, 5, 8])
def test_the_objective_is_the_integral_of_the_weight(normalization: Any, k: int) -> None:
    weight = derived("group_mean", normalization, k=k).weight
    assert weight is not None
    for p in (0.2, 0.5, 0.9):
        steps = 2000
        numeric = sum(weight.at((i + 0.5) * p / steps) for i in range(steps)) * p / steps  # midpoints
        assert weight.integral(p) == pytest.approx(numeric, rel=1e-5)


# --- the later updates of a batch, and the KL ---


def test_later_updates_of_a_batch() -> None:
    reuse = {"sampling": {"minibatches": 2}}
    found = derived("group_mean", **reuse, ratio="sequence")
    assert (found.off_policy_binary, found.off_policy_real, found.reused) == ("proportional", "proportional", True)
    found = derived("group_mean", GROUP_STD, **reuse, ratio="sequence")
    assert (found.off_policy_binary, found.off_policy_real) == ("reweighted", "biased")
    for others in ({"ratio": "token"}, {"ratio": "sequence", "clip": {}}, {"ratio": "sequence_mean"}, {}):
        found = derived("none", **reuse, **others)
        assert (found.off_policy_binary, found.off_policy_real) == ("biased", "biased")
    assert not derived("none").reused


def penalty(*answers: Any, kl: dict[str, Any], **others: Any) -> tuple[str, str]:
    found = derived(*answers, kl={"coefficient": 0.1, **kl}, **others).penalty
    assert found is not None
    return found.kind, found.weighting


@pytest.mark.parametrize(
    ("estimator", "unit", "kind"),
    [
        ("k1", "token", "zero"),
        ("k1", "sequence", "zero"),
        ("k2", "token", "partial"),
        ("k2", "sequence", "full"),
        ("k3", "token", "forward"),
        ("k3", "sequence", "forward"),
    ],
)
def test_kl_in_the_loss(estimator: str, unit: str, kind: str) -> None:
    kl = {"placement": "loss", "estimator": estimator, "unit": unit}
    assert penalty(kl=kl) == (kind, "exact")
    assert penalty(LENGTHS, GROUP_STD, kl=kl) == (kind, "exact")  # which touch the advantage only
    assert penalty(kl=kl, aggregation=NORM, max_length=9) == (kind, "exact")
    assert penalty(kl=kl, aggregation=TOKENS) == (kind, "asymptotic")
    assert penalty(kl=kl, aggregation=MEAN) == penalty(kl=kl, aggregation=PROMPT) == (kind, "biased")
    assert penalty(kl=kl, sampling={"mask_truncated": True}) == (kind, "biased")


def test_kl_in_the_reward() -> None:
    kl: dict[str, Any] = {"placement": "reward", "estimator": "k1"}
    after = {**kl, "after_baseline": True}
    assert penalty(kl=kl) == penalty("group_mean", CENTRED, kl=kl) == ("full", "exact")
    assert penalty(kl={**kl, "estimator": "k2"}) == penalty(kl={**kl, "estimator": "k3"}) == ("other", "")
    assert penalty("none", GROUP_STD, kl={**kl, "estimator": "k2"}) == penalty("none", GROUP_MEAN, kl=kl)
    assert penalty("none", GROUP_MEAN, kl=kl) == ("rescaled", "")
    assert penalty(kl=kl, aggregation=TOKENS) == ("full", "asymptotic")
    assert penalty(kl=kl, aggregation=MEAN) == ("full", "biased")
    assert penalty(kl=kl, sampling={"mask_truncated": True}) == ("full", "biased")
    assert (penalty(LENGTHS, kl=kl), penalty(LENGTHS, kl=after)) == (("full", "biased"), ("full", "exact"))
    assert penalty("none", {"scope": "batch"}, kl=kl) == ("full", "asymptotic")
    assert penalty("none", {"scope": "batch", "divide_by": "mean"}, kl=kl) == ("full", "asymptotic")
    assert penalty("none", {**CENTRED, "unit": "token"}, kl=kl) == ("full", "asymptotic")
    # by length in the baselines of others; afterwards what is centred is A - beta KL, where the KL's share is 1/(kB)
    assert penalty(OTHERS, CENTRED, kl=kl) == ("full", "asymptotic")
    assert penalty(OTHERS, CENTRED, kl=after) == ("full", "exact")
    assert penalty("none", {"scope": "running"}, kl=kl) == ("full", "exact")
    assert derived("none").penalty is None


def test_variance_has_a_closed_form_only_where_nothing_else_acts() -> None:
    assert derived("none").variance == "V_0/k"
    assert derived({"source": "constant", "value": 2.0}).variance == "V_b/k"
    pairs = "A2/k - (k - 2)|G|^2/(k(k - 1)) + sigma^2 T/(k(k - 1))"
    assert derived("leave_one_out").variance == pairs
    assert derived("group_mean").variance == f"((k - 1)/k)^2 ({pairs})"
    assert derived("leave_one_out", aggregation=NORM, max_length=9).variance == f"(1/9)^2 ({pairs})"
    running = {"scope": "running", "divide_by": "none", "subtract_mean": True}
    assert derived("greedy").variance == derived("none", aggregation=TOKENS).variance == ""
    assert derived("none", running).variance == derived(sampling={"mask_truncated": True}).variance == ""
    assert derived(kl={"placement": "loss", "coefficient": 1.0}).variance == derived(entropy_bonus=0.1).variance == ""


def test_an_answer_without_rules_is_not_flattered() -> None:
    assert (Baseline().own(4), Baseline().column(4), Baseline().same_in_group) == ("unknown", "unknown", False)
    assert Normalization().weighting_of_kl(spec_of(), after_baseline=False) == "biased"
    assert (Objective().weighting, Objective().corrects_reuse) == ("biased", False)
    for base in (Normalization, Objective):
        assert "effects" not in vars(base)  # so that the rule of every answer, which says biased, is theirs
    assert set(PolicyGradient.AGGREGATIONS) == {SUM, NORM, TOKENS, MEAN, PROMPT}
    assert leaves(KL) and all(issubclass(answer, KL) for answer in leaves(KL))


# --- claims, and where the verdict is shown ---

SHIPPED = {
    "gmpo": "biased",
    "gspo_token": "biased",
    "lite_ppo": "asymptotic",
    "maxrl": "reweighted",
    "opo": "biased",
    "opo_loo": "unbiased",
    "reinforce_batch_mean": "proportional",
    "reinforce_ema": "unbiased",
    "sapo": "biased",
    "cispo": "reweighted",
    "dpo": "proportional",
    "drgrpo": "proportional",
    "grpo": "biased",
    "grpo_process": "biased",
    "gspo": "biased",
    "ppo": "biased",
    "reinforce": "unbiased",
    "reinforcepp": "asymptotic",
    "reinforcepp_baseline": "asymptotic",
    "remax": "asymptotic",
    "rloo": "unbiased",
    "simpo": "biased",
    "vapo": "biased",
    "vcppo": "biased",
    "dapo": "reweighted",
    "pods": "biased",
    "raft": "biased",
    "raftpp": "asymptotic",
    "reinforce_rej": "reweighted",
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_shipped_specs_claim_what_they_are(name: str) -> None:
    loaded = load_spec(ROOT / "algorithms" / f"{name}.yaml")
    assert (loaded.spec.claim, derive(loaded.spec).overall) == (SHIPPED[name], SHIPPED[name])
    assert loaded.warnings == []
    for claim in set(VERDICTS) - {SHIPPED[name]}:
        [finding] = refuted_claim(loaded.spec.model_copy(update={"claim": claim}))
        assert (finding.slug, finding.loc, finding.warning) == ("claim-refuted", ("claim",), True)
        assert finding.help == f"claim: {SHIPPED[name]}"
        assert finding.why


def test_a_claim_about_another_target_is_not_judged() -> None:
    spec = spec_of("group_mean").model_copy(update={"claim": "unbiased"})
    assert [finding.what for finding in refuted_claim(spec)] == ["this estimator is proportional, not unbiased"]
    assert list(refuted_claim(spec.model_copy(update={"target": "pass@k"}))) == []


def test_the_verdict_is_in_the_docstring_and_in_explain() -> None:
    script = (ROOT / "generated" / "drgrpo.py").read_text(encoding="utf-8")
    assert "\nverdict       proportional to grad E[R] with c = (k - 1)/k x 1/3000\n" in script
    assert "\nkl part       full: the gradient of KL(pi || ref) of whole responses\n" in (
        ROOT / "generated" / "rloo.py"
    ).read_text(encoding="utf-8")
    shown = "\n".join(optimized(compile_spec(ROOT / "algorithms" / "cispo.yaml").plan.derived))
    assert "w(p) at equal lengths" in shown and "in later updates of a batch" in shown and "reweighted" in shown


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(spec=specs())
def test_every_spec_has_a_verdict_and_its_text_is_stable(spec: Spec) -> None:
    found, again = derive(spec), derive(Spec.model_validate(spec.model_dump(exclude_none=True)))
    assert found == again and optimized(found) == optimized(again)
    for verdict in (found.binary, found.real, found.overall, found.off_policy_binary, found.off_policy_real):
        assert verdict in VERDICTS
    assert VERDICTS.index(found.overall) >= VERDICTS.index(found.binary)
    assert (found.factor == "1") or (found.overall != "unbiased") or found.value() == pytest.approx(1)
    script = render(Plan(spec), "drawn.yaml", "0" * 16)
    assert all(line == line.rstrip() and len(line) <= 120 for line in script.split('"""')[1].splitlines())
    assert found.binary == "unbiased" or found.reasons


# --- selections and the mean of advantages ---


@pytest.mark.parametrize(
    ("keep", "baseline", "normalization", "over", "verdict"),
    [
        # best of k: d_0 = k(1 - c) + c, d_j = k(1 - c)/(j + 1), c being the baseline and the mean. A mean of rewards is
        # below 1; with a greedy reward of 1 and a mean above 0, c is above it.
        ("best", "none", CENTRED, "kept", "reweighted"),
        ("best", "greedy", "none", "kept", "reweighted"),
        ("best", "greedy", CENTRED, "kept", "biased"),
        # under the group's own mean the mean of the responses is 0, and that of their tokens is not: d_(k-1) = -mean
        ("best", "group_mean", CENTRED, "all", "reweighted"),
        ("best", "group_mean", {**CENTRED, "unit": "token"}, "all", "biased"),
        # mixed, k = 4: d_0 = 3/4 - mean, d_3 = 3/4 + mean, and the mean of such advantages is within 3/4
        ("mixed", "group_mean", {**CENTRED, "unit": "token"}, "kept", "reweighted"),
    ],
)
def test_a_selection_under_a_mean_of_the_batch(
    keep: str, baseline: str, normalization: Any, over: str, verdict: str
) -> None:
    found = derived(baseline, normalization, sampling={"keep": keep, "advantages_over": over})
    assert (found.binary, found.real) == (verdict, "biased")
    if "unit" in normalization or baseline == "greedy":
        assert found.weight is None  # which depends on more than p


def test_the_kl_of_what_is_kept_is_none_of_the_policy() -> None:
    """Also where each prompt's own statistic divides it."""
    kl = {"placement": "reward", "estimator": "k1"}
    for normalization in ("none", GROUP_STD, {"scope": "batch"}):
        assert penalty("none", normalization, kl=kl, sampling={"keep": "positive"}) == ("other", "")
