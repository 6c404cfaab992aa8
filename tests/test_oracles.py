"""Facts about the estimators that were worked out on paper, and the compiled scripts that have to agree with them.

No expected number comes from a run of the code under test. Gradients that a fact speaks of are taken by autograd
through the softmax of a world's logits, `uphill`; moments and weights are formulas, in plain Python. What the scripts
do is enumerated. Estimators that no spec can ask for yet are scripts whose functions are replaced by hand.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from numpy.polynomial.legendre import leggauss
from torch import Tensor

from specc.plan import Plan
from specc.render import render
from specc.spec import Spec
from specc.verify.enumerate import Context, batches, groups, moments, population
from specc.verify.environment import LONG, SHORT, Environment, Steps, Table, Tree, coin, far, fixed, level, world
from specc.verify.penalty import judge_penalty, references
from specc.verify.script import Script, load_script
from specc.verify.variance import measure
from specc.verify.verdict import Compared, compare, compare_limit, find_factor, find_weight, judge
from specc.weights import GRID

SUM = "seq_mean_token_sum"
AGGREGATIONS = ("token_mean", SUM, "seq_mean_token_mean", "seq_mean_token_sum_norm", "prompt_mean")
ESTIMATORS = ("k1", "k2", "k3")

SOMETIMES = ("old_logprobs_BGT", "ref_logprobs_BGT", "values_BGT", "greedy_rewards_B", "step_rewards_BGT", "state")
"""the fields of `Rollouts` that a script has where it looks at them"""

Make = Callable[[], Script]


# -------- Scripts --------


def answers_of(
    baseline: Any = "none",
    normalization: Any = "none",
    aggregation: str = SUM,
    kl: Any = "none",
    reward: Any = "verifier",
    quantity: str = "sequence_advantage",
    sampling: dict[str, Any] | None = None,
    **objective: Any,
) -> str:
    """The answers of a spec, as text: those of no baseline where nothing else is said."""
    more = {"max_length": 8} if aggregation == "seq_mean_token_sum_norm" else {}
    return json.dumps(
        {
            "name": "oracle",
            "reward": reward,
            "kl": kl,
            "baseline": baseline,
            "normalization": normalization,
            "objective": {"quantity": quantity, "aggregation": aggregation, **more, **objective},
            "sampling": {"group_size": 4, **(sampling or {})},
        }
    )


@cache
def compiled(answers: str) -> tuple[str, Plan]:
    """The script of a spec, and its plan."""
    plan = Plan(Spec.model_validate_json(answers))
    return render(plan, "oracle.yaml", "0" * 16), plan


@cache
def loaded(answers: str, code: str = "") -> Script:
    """A script as it was compiled, or after an edit by hand: functions in `code` replace its own, or are added."""
    text, plan = compiled(answers)
    if not code:
        return load_script(text, "oracle.py", plan)
    names = {node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            del lines[node.lineno - 1 : node.end_lineno]
        elif isinstance(node, ast.ClassDef) and node.name == "Rollouts":  # what the edit looks at, it has to have
            kept = {ast.unparse(field.target) for field in node.body if isinstance(field, ast.AnnAssign)}
            read = {inner.attr for inner in ast.walk(ast.parse(code)) if isinstance(inner, ast.Attribute)}
            added = [name for name in SOMETIMES if name in read - kept]
            lines[node.end_lineno : node.end_lineno] = [f"    {name}: Any = None\n" for name in added]
    return load_script("".join(lines) + "\n\n" + code, "edited.py")


def estimator(baseline: Any = "none", normalization: Any = "none", **answers: Any) -> Script:
    return loaded(answers_of(baseline, normalization, **answers))


def edited(code: str, **answers: Any) -> Script:
    return loaded(answers_of(**answers), dedent(code))


def by_count(score: str) -> Script:
    """A script whose advantage is an expression in the reward r, the correct responses K of the group and its size k,
    for rewards of 0 and 1."""
    return edited(
        f"""
        def compute_advantages(rollouts, hp):
            r, k = rollouts.rewards_BG, rollouts.rewards_BG.shape[1]
            K = r.sum(1, keepdim=True).expand(r.shape)
            return (({score}) * torch.ones_like(r))[..., None] * rollouts.mask_BGT
        """
    )


def group_std(ddof: int = 0) -> dict[str, Any]:
    return {"scope": "group", "ddof": ddof, "epsilon": 0.0}


def batch_std(ddof: int = 0) -> dict[str, Any]:
    return {"scope": "batch", "ddof": ddof, "epsilon": 0.0}


def kl_in(placement: str, estimator: str, unit: str = "token", **more: Any) -> dict[str, Any]:
    return {"placement": placement, "estimator": estimator, "unit": unit, "coefficient": 1.0, **more}


# -------- Worlds, and what is true of them --------

ALONE = [fixed("real")[0].only(0), fixed("real")[1].only(1), fixed("real")[2].only(1), fixed("real")[3].only(0)]
"""worlds of one prompt, with responses of 1 to 3 tokens and rewards of either sign"""
NAMES = ["short", "skewed", "long", "wide"]


def one_token(rewards: Sequence[float], weights: Sequence[int] | None = None) -> Environment:
    """One prompt whose responses are single tokens, equally probable unless told otherwise."""
    even: Table = ((1,) * len(rewards),)
    shape = Tree(len(rewards), 1, eos=len(rewards))
    return world(shape, ((tuple(weights),) if weights else even, rewards, even, even))


def log_table(environment: Environment, which: str) -> Tensor:
    """log of the probability of each token after each prefix, under one of the world's policies. [B, S, V]."""
    weights = torch.tensor([getattr(prompt, which) for prompt in environment.prompts], dtype=torch.float64)
    return (weights / weights.sum(-1, keepdim=True)).log()


def tokens_of(environment: Environment, table: Tensor) -> Tensor:
    """The entries of a table [B, S, V] that belong to the tokens of each response, 0 on pads. [B, M, T]."""
    shape = environment.tree
    return table[:, shape.places, shape.tokens] * shape.mask


def chances(environment: Environment, table: Tensor) -> Tensor:
    """The probability of each response. [B, M]."""
    return tokens_of(environment, table).sum(-1).exp()


def rewards_of(environment: Environment) -> Tensor:
    return torch.tensor([prompt.rewards for prompt in environment.prompts], dtype=torch.float64)


def uphill(environment: Environment, quantity: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradient in the policy's logits of a quantity of its log-probs [B, S, V], by autograd. [B, P]."""
    logits = log_table(environment, "policy").requires_grad_()
    (gradient,) = torch.autograd.grad(quantity(logits.log_softmax(-1)).sum(), logits)
    return gradient.flatten(1)


def expected(environment: Environment, values: Tensor) -> Tensor:
    """grad E[value], of values of the responses [B, M] that stay what they are."""
    return uphill(environment, lambda table: chances(environment, table) * values)


def reverse_kl(environment: Environment, table: Tensor) -> Tensor:
    """KL(pi || ref) of whole responses. [B]."""
    ratio = (tokens_of(environment, table) - tokens_of(environment, log_table(environment, "reference"))).sum(-1)
    return (chances(environment, table) * ratio).sum(-1)


def forward_kl(environment: Environment, table: Tensor) -> Tensor:
    """KL(ref || pi) of whole responses. [B]."""
    reference = log_table(environment, "reference")
    ratio = (tokens_of(environment, reference) - tokens_of(environment, table)).sum(-1)
    return (chances(environment, reference) * ratio).sum(-1)


def visits(environment: Environment) -> Tensor:
    """How probable each prefix is under the policy. [B, S]."""
    shape, whole = environment.tree, chances(environment, log_table(environment, "policy"))
    inside = [[y[: len(prefix)] == prefix for y in shape.responses] for prefix in shape.prefixes]
    return whole @ torch.tensor(inside, dtype=torch.float64).T


def facts(environment: Environment) -> SimpleNamespace:
    """The numbers that the variances of one prompt's estimators are made of."""
    (probs,), (rewards,) = environment.tables.probs, environment.tables.rewards
    squares = environment.tables.scores[0].sum(1).square().sum(-1)  # |grad log pi(y)|^2

    def mean(values: Tensor) -> float:
        return float((probs * values).sum())

    mu = mean(rewards)
    return SimpleNamespace(
        mu=mu,
        sigma2=mean((rewards - mu).square()),
        G2=float(expected(environment, rewards[None]).square().sum()),
        T=mean(squares),
        A2=mean((rewards - mu).square() * squares),
        R2=mean(rewards.square() * squares),
        best=mean(rewards * squares) / mean(squares),
        V=lambda b: mean((rewards - b).square() * squares),
    )


def leave_one_out_trace(f: SimpleNamespace, k: int) -> float:
    return f.A2 / k - (k - 2) * f.G2 / (k * (k - 1)) + f.sigma2 * f.T / (k * (k - 1))


def close(actual: Any, wanted: Any, within: float = 1e-10) -> None:
    """Equal up to a relative error, or both nothing but rounding."""
    actual, wanted = (torch.as_tensor(x, dtype=torch.float64) for x in (actual, wanted))
    assert actual.shape == wanted.shape
    error = float((actual - wanted).norm())
    assert error <= max(within * float(wanted.norm()), 1e-14), (actual, wanted)


def differ(actual: Tensor, other: Tensor) -> None:
    """Far from equal: no rounding makes that much."""
    assert float((actual - other).norm()) > 1e-3 * float(other.norm())


def mean_of(script: Script, environment: Environment, k: int, **numbers: float) -> Tensor:
    """E[g] of each prompt, where the objective is the sum over prompts. [B, P]."""
    return moments(script, environment, k, script.with_numbers(**numbers)).mean * len(environment.prompts)


def ordered(script: Script, environment: Environment, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Every sequence of k responses to a single prompt: probabilities [n], rewards and advantages [n, k]."""
    outcomes = len(environment.tree.responses)
    index = torch.tensor(list(itertools.product(range(outcomes), repeat=k)))
    _, advantages = Context(script, environment, script.hp, reused=False).slopes(index[:, None])
    return environment.tables.probs[0, index].prod(1), environment.tables.rewards[0, index], advantages[:, 0, :, 0]


def gradients(script: Script, environment: Environment, k: int, **numbers: float) -> tuple[Tensor, Tensor]:
    """The gradient of every batch [n, B, P], and which batch it is [n, B, k]."""
    context = Context(script, environment, script.with_numbers(**numbers), reused=False)
    index = torch.cat([chunk for chunk, _ in batches(environment.tables, k, environment.tables.probs)])
    slopes, _ = context.slopes(index)
    return context.gradients(index, slopes), index


each_world = pytest.mark.parametrize("environment", ALONE, ids=NAMES)


def test_tables_hold_the_policy_and_the_gradient_of_the_expected_reward() -> None:
    for kind in ("binary", "real"):
        for environment in (*fixed(kind), level(), far(kind)):
            tables = environment.tables
            close(tables.probs, chances(environment, log_table(environment, "policy")))
            close(tables.gradient, expected(environment, rewards_of(environment)))
            close(tables.probs.sum(-1), torch.ones(len(tables.probs)))


# -------- Moments: one prompt, any reward --------


@each_world
@pytest.mark.parametrize("k", [1, 2, 3])
def test_no_baseline(environment: Environment, k: int) -> None:
    found, f = moments(estimator(), environment, k, covariance=True), facts(environment)
    close(found.mean, expected(environment, rewards_of(environment)))
    close(found.trace, (f.R2 - f.G2) / k)


@each_world
def test_the_variance_under_a_constant_baseline_is_a_parabola_around_the_best_one(environment: Environment) -> None:
    k, f = 2, facts(environment)
    for b in (-0.5, 0.7, f.best, f.best + 0.3):
        script = estimator({"source": "constant", "value": 1.0})
        found = moments(script, environment, k, script.with_numbers(baseline_value=b), covariance=True)
        close(found.mean, expected(environment, rewards_of(environment)))
        close(found.trace, (f.V(b) - f.G2) / k)
        close(found.trace, (f.V(f.best) - f.G2 + (b - f.best) ** 2 * f.T) / k)


@each_world
def test_leave_one_out_is_the_sample_covariance_of_reward_and_score(environment: Environment) -> None:
    k, tables = 3, environment.tables
    found, index = gradients(estimator("leave_one_out"), environment, k)
    scores, rewards = tables.scores[0].sum(1)[index[:, 0]], tables.rewards[0, index[:, 0]]
    centred = rewards - rewards.mean(1, keepdim=True), scores - scores.mean(1, keepdim=True)
    close(found[:, 0], torch.einsum("nk,nkp->np", *centred) / (k - 1))


@each_world
@pytest.mark.parametrize("k", [2, 3, 4])
def test_moments_of_leave_one_out_and_of_the_group_mean(environment: Environment, k: int) -> None:
    G, f = expected(environment, rewards_of(environment)), facts(environment)
    found = moments(estimator("leave_one_out"), environment, k, covariance=True)
    close(found.mean, G)
    close(found.trace, leave_one_out_trace(f, k))
    found = moments(estimator("group_mean"), environment, k, covariance=True)
    close(found.mean, (k - 1) / k * G)
    close(found.trace, ((k - 1) / k) ** 2 * leave_one_out_trace(f, k))


def test_leave_one_out_where_the_score_says_nothing_of_the_reward() -> None:
    """For R independent of |g|, A2 = sigma^2 T and the trace is sigma^2 T/(k - 1), up to the signal, which k = 2 does
    not see."""
    environment = one_token((0, 2, -1, 1, 3))
    f = facts(environment)
    close(f.A2, f.sigma2 * f.T)
    for k in (2, 3, 4):
        found = moments(estimator("leave_one_out"), environment, k, covariance=True).trace
        close(found, f.sigma2 * f.T / (k - 1) - (k - 2) * f.G2 / (k * (k - 1)))


@each_world
@pytest.mark.parametrize("k", [2, 3])
def test_variances_of_advantages(environment: Environment, k: int) -> None:
    sigma2 = facts(environment).sigma2

    def covariance(probs: Tensor, x: Tensor, y: Tensor) -> float:
        return float((probs * x * y).sum() - (probs * x).sum() * (probs * y).sum())

    probs, rewards, advantages = ordered(estimator("leave_one_out"), environment, k)
    baselines = rewards - advantages
    close(covariance(probs, rewards[:, 0], rewards[:, 0]), sigma2)
    close(covariance(probs, advantages[:, 0], advantages[:, 0]), sigma2 * k / (k - 1))
    close(covariance(probs, rewards[:, 0], baselines[:, 0]), 0.0)
    close(covariance(probs, advantages[:, 0], advantages[:, -1]), -sigma2 * k / (k - 1) ** 2)
    probs, rewards, advantages = ordered(estimator("group_mean"), environment, k)
    close(covariance(probs, advantages[:, 0], advantages[:, 0]), sigma2 * (k - 1) / k)
    close(covariance(probs, rewards[:, 0], (rewards - advantages)[:, 0]), sigma2 / k)


@pytest.mark.parametrize("prompts", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 2])
def test_the_batch_mean_takes_the_share_of_one_response_away(prompts: int, k: int) -> None:
    environment = fixed("real")[4].only(*range(prompts))
    G, N = expected(environment, rewards_of(environment)), prompts * k
    close(mean_of(estimator("batch_mean"), environment, k), (N - 1) / N * G)
    centred = {"scope": "batch", "divide_by": "none", "subtract_mean": True}
    close(mean_of(estimator(normalization=centred), environment, k), (N - 1) / N * G)


OTHER_PROMPT = """
def compute_advantages(rollouts, hp):
    other_B1 = rollouts.rewards_BG.roll(1, dims=0).mean(1, keepdim=True)
    return (rollouts.rewards_BG - other_B1)[..., None] * rollouts.mask_BGT
"""


@pytest.mark.parametrize(
    "make",
    [
        partial(estimator, {"source": "moving_average", "decay": 0.75}),
        partial(estimator, "greedy"),
        partial(estimator, {"source": "length_weighted", "leave_one_out": True}),
        partial(edited, OTHER_PROMPT),
    ],
    ids=["moving_average", "greedy", "others_by_length", "other_prompt"],
)
def test_baselines_independent_of_the_response_are_unbiased(make: Make) -> None:
    script = make()
    for environment in (fixed("real")[0], fixed("real")[2]):
        rewards = rewards_of(environment)
        index = torch.tensor([[[0, 1]] * len(rewards)])
        _, advantages = Context(script, environment, script.hp, reused=False).slopes(index)
        assert (advantages[0, :, :, 0] != rewards[:, :2]).any()  # there is a baseline
        close(mean_of(script, environment, 2), expected(environment, rewards))


def test_leave_one_out_can_be_noisier_than_no_baseline() -> None:
    """Where |g| is the same for all responses, it is the better one iff mu^2 T > (sigma^2 T + |G|^2)/(k - 1)."""
    loo, plain = estimator("leave_one_out"), estimator()
    spread = torch.tensor([-1.5, 0.0, -0.5, 2.0], dtype=torch.float64)  # of mean 0
    better = []
    for k in (2, 3):
        f = facts(one_token(spread.tolist()))
        edge = math.sqrt((f.sigma2 * f.T + f.G2) / (f.T * (k - 1)))
        for share in (0.0, 0.5, 0.99, 1.01, 2.0, -0.99, -1.01):
            environment = one_token((spread + share * edge).tolist())
            traces = [moments(each, environment, k, covariance=True).trace for each in (loo, plain)]
            assert (traces[0] < traces[1]) == (abs(share) > 1)
            better.append(traces[0] < traces[1])
        environment = one_token((spread + edge).tolist())
        close(*(moments(each, environment, k, covariance=True).trace for each in (loo, plain)))
    assert set(better) == {True, False}  # both cases occur, so neither side of the condition is empty


@each_world
def test_a_constant_added_to_all_rewards_changes_nothing_for_leave_one_out(environment: Environment) -> None:
    moved = environment.with_rewards((rewards_of(environment) + 7.5).tolist())
    here, there = (gradients(estimator("leave_one_out"), each, 3)[0] for each in (environment, moved))
    close(there, here, within=1e-12)
    plain = [moments(estimator(), each, 3, covariance=True) for each in (environment, moved)]
    close(plain[1].mean, plain[0].mean)
    assert plain[1].trace > 2 * plain[0].trace


def test_noise_along_the_success_rates() -> None:
    """On a coin |g|^2 is 2q^2 or 2p^2: T = 2pq, A2 = 2pq(p^3 + q^3), E[R^2 |g|^2] = 2pq^2, |G|^2 = 2 p^2 q^2."""
    k = 5
    sweep = measure(estimator("group_mean"), k).sweep
    for index, p in enumerate(GRID):
        q = 1 - p
        f = SimpleNamespace(T=2 * p * q, A2=2 * p * q * (p**3 + q**3), sigma2=p * q, G2=2 * p * p * q * q)
        close(sweep["leave-one-out"][index], leave_one_out_trace(f, k) / f.G2)
        close(sweep["this"][index], leave_one_out_trace(f, k) / f.G2)  # a constant factor is neither signal nor noise
        close(sweep["no baseline"][index], (2 * p * q * q - f.G2) / k / f.G2)


# -------- Rewards of 0 and 1: E[g] = w(p) grad p --------


def binomial(n: int, p: float) -> list[float]:
    return [math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(n + 1)]


def integral(w: Callable[[float], float], p: float, degree: int) -> float:
    """The integral from 0 to p of a polynomial, exactly, by Gauss and Legendre."""
    nodes, weights = leggauss(degree // 2 + 1)
    return float(sum(p / 2 * c * w(p / 2 * (x + 1)) for x, c in zip(nodes, weights, strict=True)))


def agrees(script: Script, k: int, w: Callable[[float], float], F: Callable[[float], float] | None = None) -> None:
    """The script's weight and its objective on the whole grid."""
    found = find_weight(script, k, script.hp)
    for p in GRID:
        assert math.isclose(found.at(p), w(p), rel_tol=1e-10), (k, p)
        area = integral(w, p, k)
        assert math.isclose(found.integral(p), area, rel_tol=1e-10), (k, p)
        assert F is None or math.isclose(F(p), area, rel_tol=1e-10), (k, p)


def spread(k: int, p: float) -> float:
    """E[sqrt(m(1 - m))]/(pq), m the share of correct responses."""
    return sum(c * math.sqrt(K / k * (1 - K / k)) for K, c in enumerate(binomial(k, p))) / (p * (1 - p))


def pass_at(j: int, p: float) -> float:
    return 1 - (1 - p) ** j


SIZES = pytest.mark.parametrize("k", [2, 3, 4, 8])


@SIZES
@pytest.mark.parametrize(
    "make",
    [
        estimator,
        partial(estimator, {"source": "constant", "value": 0.3}),
        partial(estimator, "leave_one_out"),
        partial(by_count, "r"),
        partial(by_count, "r - 1"),
    ],
    ids=["no_baseline", "constant", "leave_one_out", "positives_only", "negatives_only"],
)
def test_estimators_of_the_success_rate_itself(make: Make, k: int) -> None:
    agrees(make(), k, lambda p: 1.0, lambda p: p)


@SIZES
def test_group_mean_weighs_all_success_rates_alike(k: int) -> None:
    agrees(estimator("group_mean"), k, lambda p: 1 - 1 / k, lambda p: (1 - 1 / k) * p)


@SIZES
@pytest.mark.parametrize("ddof", [0, 1])
def test_group_std_weighs_the_ends(k: int, ddof: int) -> None:
    factor = math.sqrt((k - 1) / k) if ddof else 1.0
    agrees(estimator("group_mean", group_std(ddof)), k, lambda p: factor * spread(k, p))


def test_group_std_maximizes_the_arcsine_of_the_root_as_groups_grow() -> None:
    """Inside the error falls like 1/k; that of the integral from 0 like 1/sqrt(k), from the success rates below 1/k."""
    script, inside, whole = estimator("group_mean", group_std()), [], []
    for k in (64, 256):
        weight = find_weight(script, k, script.hp)
        F = {p: 2 * math.asin(math.sqrt(p)) for p in (0.3, 0.9)}
        inside.append(weight.integral(0.9) - weight.integral(0.3) - (F[0.9] - F[0.3]))
        whole.append(weight.integral(0.3) - F[0.3])
    assert 0.2 < inside[1] / inside[0] < 0.3
    assert 0.45 < whole[1] / whole[0] < 0.55


def test_batch_std_weighs_all_prompts_alike_in_a_large_batch() -> None:
    """Each weight is (1 - 1/k)/std, where the variance of the advantages is (1 - 1/k) times the mean of pq."""
    environment = coin((1, 4), (2, 3), (4, 1))
    for k in (2, 3):
        variance = (1 - 1 / k) * (0.2 * 0.8 + 0.4 * 0.6 + 0.8 * 0.2) / 3
        found = compare_limit(estimator("group_mean", batch_std()), environment, k, None)
        close(found.factors, [(1 - 1 / k) / math.sqrt(variance)] * 3)
        assert found.common


@pytest.mark.parametrize("ddof", [0, 1])
def test_batch_std_weighs_prompts_differently_in_a_small_batch(ddof: int) -> None:
    """E[m(1 - m)/std]/(pq), of each prompt's share m of correct responses and the std of all, over all counts."""
    k, rates = 4, (0.1, 0.5, 0.9)
    wanted = [0.0, 0.0, 0.0]
    for counts in itertools.product(range(k + 1), repeat=3):
        chance = math.prod(binomial(k, p)[K] for K, p in zip(counts, rates, strict=True))
        parts = [K / k * (1 - K / k) for K in counts]
        std = math.sqrt(k * sum(parts) / (3 * k - ddof))
        for b, p in enumerate(rates):
            wanted[b] += chance * parts[b] / (std or 1.0) / (p * (1 - p))
    script = estimator("group_mean", batch_std(ddof))
    (found,) = compare(script, coin((1, 9), (1, 1), (9, 1)), k, script.hp)
    assert found.parallel and not found.common
    close(found.factors, wanted)
    assert wanted[1] > 1.1 * wanted[0]


BEST = """
def select(rewards_BG, hp):
    best_B1 = rewards_BG.argmax(1, keepdim=True)
    return torch.ones_like(best_B1[:, 0], dtype=torch.bool), best_B1

def compute_advantages(rollouts, hp):
    return rollouts.mask_BGT.double()
"""


@SIZES
@pytest.mark.parametrize(
    "make",
    [partial(edited, BEST), partial(by_count, "torch.where(K > 0, k * r / K.clamp(min=1), 1.0)")],
    ids=["selected", "as_a_score"],
)
def test_best_of_k(make: Make, k: int) -> None:
    """All of the score for one best response; without a correct one, any: in expectation 1 for each."""
    agrees(
        make(),
        k,
        lambda p: (1 - (1 - p) ** (k - 1)) / p,
        lambda p: sum(pass_at(j, p) / j for j in range(1, k)),
    )


def test_best_of_k_maximizes_the_logarithm_as_k_grows() -> None:
    """sum_(j<k) (1 - q^j)/j = H_(k-1) + log p + sum_(j>=k) q^j/j, whose last term is below q^k/(kp)."""
    script = edited(BEST)
    for k in (20, 60):
        weight, harmonic = find_weight(script, k, script.hp), sum(1 / j for j in range(1, k))
        for p in (0.1, 0.3, 0.6):
            rest = weight.integral(p) - harmonic - math.log(p)
            assert -1e-12 < rest < (1 - p) ** k / (k * p) + 1e-12
            assert p > 0.1 or rest > (1 - p) ** k / k


@SIZES
def test_mean_over_the_positives(k: int) -> None:
    agrees(
        by_count("k * r / K.clamp(min=1)"),
        k,
        lambda p: (1 - (1 - p) ** k) / p,
        lambda p: sum(pass_at(j, p) / j for j in range(1, k + 1)),
    )


@SIZES
@pytest.mark.parametrize(
    "make",
    [
        partial(estimator, "group_mean", {"scope": "group", "divide_by": "mean", "epsilon": 0.0}),
        partial(by_count, "torch.where(K > 0, k * r / K.clamp(min=1) - 1, 0.0)"),
    ],
    ids=["compiled", "by_hand"],
)
def test_division_by_the_share_of_correct_responses(make: Make, k: int) -> None:
    agrees(make(), k, lambda p: (1 - (1 - p) ** (k - 1)) / p)


DROP_EQUAL = """
def select(rewards_BG, hp):
    chosen_BM = torch.arange(rewards_BG.shape[1]).expand(rewards_BG.shape)
    return rewards_BG.amax(1) > rewards_BG.amin(1), chosen_BM

def compute_advantages(rollouts, hp):
    return rollouts.rewards_BG.nan_to_num(0.0)[..., None] * rollouts.mask_BGT
"""


@SIZES
@pytest.mark.parametrize(
    "make", [partial(edited, DROP_EQUAL), partial(by_count, "r * (K < k)")], ids=["selected", "as_a_score"]
)
def test_groups_of_equal_rewards_left_out(make: Make, k: int) -> None:
    agrees(make(), k, lambda p: 1 - p ** (k - 1), lambda p: p - p**k / k)


def test_groups_left_out_do_not_count_in_the_mean_of_a_large_batch() -> None:
    """Every weight is over the share of groups that stay, the mean of 1 - p^k - q^k."""
    environment, rates = coin((1, 4), (3, 2)), (0.2, 0.6)
    for k in (2, 3):
        stay = sum(1 - p**k - (1 - p) ** k for p in rates) / 2
        found = compare_limit(edited(DROP_EQUAL), environment, k, None)
        close(found.factors, [(1 - p ** (k - 1)) / stay for p in rates])
        assert found.parallel


MOST_SPREAD = """
def select(rewards_BG, hp):
    order_BG, M = rewards_BG.argsort(1), 4
    G = order_BG.shape[1]
    # the i lowest and the M - i highest, for every i
    all_BCM = torch.stack([torch.cat([order_BG[:, :i], order_BG[:, G - M + i :]], 1) for i in range(M + 1)], 1)
    spread_BC = rewards_BG[:, None].expand(-1, M + 1, -1).gather(2, all_BCM).var(2)
    best_B1M = spread_BC.argmax(1)[:, None, None].expand(-1, 1, M)
    return torch.ones_like(order_BG[:, 0], dtype=torch.bool), all_BCM.gather(1, best_B1M).squeeze(1)
"""


@pytest.mark.parametrize("n", [4, 6, 9])
def test_the_subset_of_largest_variance(n: int) -> None:
    """Of n responses m = 4, as evenly right and wrong as there are; c right ones of K, with z-scores
    z = sqrt((m - c)/c) and -sqrt(c/(m - c)): each of the K gets c/K z/m."""
    m = 4

    def shares(K: int) -> tuple[float, float]:
        """- d loss / d log pi of a right and of a wrong response."""
        c = min(K, max(m // 2, m - (n - K)))
        if c in (0, m):
            return 0.0, 0.0
        return math.sqrt((m - c) / c) * c / K / m, -math.sqrt(c / (m - c)) * (m - c) / (n - K) / m

    differences = [n * (shares(j + 1)[0] - shares(j)[1]) for j in range(n)]
    agrees(
        edited(MOST_SPREAD, baseline="group_mean", normalization=group_std()),
        n,
        lambda p: sum(c * d for c, d in zip(binomial(n - 1, p), differences, strict=True)),
    )


def test_the_subset_of_largest_variance_maximizes_half_the_logit_as_n_grows() -> None:
    """Two right and two wrong ones, with z = +-1: (1 - q^n)/(2p) + (1 - p^n)/(2q), up to chances like p^n."""
    script, errors = edited(MOST_SPREAD, baseline="group_mean", normalization=group_std()), []
    for n in (16, 48):
        weight = find_weight(script, n, script.hp)
        errors.append(max(abs(weight.at(p) * 2 * p * (1 - p) - 1) for p in (0.3, 0.5, 0.7)))
        area = weight.integral(0.7) - weight.integral(0.3)
        assert abs(area - (math.log(0.7 / 0.3) - math.log(0.3 / 0.7)) / 2) < 2 * errors[-1]
    assert errors[1] < 1e-4 * errors[0]  # 0.7^32 is 1e-5, times what grows like n


def test_weights_are_those_of_whole_environments() -> None:
    """w(p) is found by counts; the same factor comes out of whole batches."""
    for script in (
        edited(BEST),
        edited(DROP_EQUAL),
        edited(MOST_SPREAD, baseline="group_mean", normalization=group_std()),
    ):
        weight = find_weight(script, 5, script.hp)
        for right, wrong in ((1, 3), (1, 1), (4, 1)):
            (found,) = compare(script, coin((right, wrong)), 5, script.hp)
            close(found.factors, [weight.at(right / (right + wrong))])


# -------- Rewards of -1 and 1, and what bounds a z-score --------


def test_rewards_of_minus_one_and_one() -> None:
    rates = ((1, 3), (1, 1), (4, 1))
    signed = coin(*rates).with_rewards([(-1.0, 1.0)] * 3)
    for k in (2, 3):
        for baseline in ("none", "leave_one_out", "group_mean"):
            script = estimator(baseline)
            close(mean_of(script, signed, k), 2 * mean_of(script, coin(*rates), k))
        for ddof in (0, 1):
            script = estimator("group_mean", group_std(ddof))
            close(mean_of(script, signed, k), mean_of(script, coin(*rates), k))
            pq = [p / (p + q) * q / (p + q) for p, q in rates]
            weights = [spread(k, p / (p + q)) * (math.sqrt((k - 1) / k) if ddof else 1) for p, q in rates]
            close(mean_of(script, signed, k)[:, 1], [w * x for w, x in zip(weights, pq, strict=True)])


@pytest.mark.parametrize("normalization", [group_std(0), group_std(1), batch_std(0), batch_std(1)], ids=str)
def test_z_scores_do_not_see_the_units_of_the_reward(normalization: dict[str, Any]) -> None:
    script, environment = estimator("group_mean", normalization), fixed("real")[0]
    moved = environment.with_rewards((3.5 * rewards_of(environment) - 20).tolist())
    close(gradients(script, moved, 3)[0], gradients(script, environment, 3)[0], within=1e-11)
    turned = environment.with_rewards((-rewards_of(environment)).tolist())
    close(gradients(script, turned, 3)[0], -gradients(script, environment, 3)[0], within=1e-11)


@pytest.mark.parametrize("k", [2, 3, 4, 5])
@pytest.mark.parametrize("ddof", [0, 1])
def test_z_scores_are_bounded(k: int, ddof: int) -> None:
    """Largest where one response differs from the others: (1 - 1/k)/sqrt((1/k)(1 - 1/k)) = sqrt(k - 1), for ddof 1
    times sqrt((k - 1)/k)."""
    script = estimator("group_mean", group_std(ddof))
    bound = (k - 1) / math.sqrt(k) if ddof else math.sqrt(k - 1)
    for environment in (*ALONE, coin((1, 1))):
        index, _ = groups(len(environment.tree.responses), k)
        _, advantages = Context(script, environment, script.hp, reused=False).slopes(index[:, None])
        assert float(advantages.abs().max()) <= bound * (1 + 1e-12)
    close(float(advantages.abs().max()), bound)


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
def test_groups_of_equal_rewards_have_no_advantage(baseline: str) -> None:
    """Exactly: the mean of seven times 0.1 is 0.1."""
    environment = one_token((0.1, 0.1, 1 / 3))
    index = torch.tensor([[[0, 1, 0, 0, 1, 1, 0]], [[2] * 7]])
    for script in (estimator(baseline), estimator(baseline, group_std()), estimator(baseline, batch_std())):
        for epsilon, ddof in itertools.product((0.0, 1e-6, 1.0), (0, 1)):
            hp = script.with_numbers(normalization_epsilon=epsilon, normalization_ddof=ddof)
            _, advantages = Context(script, environment, hp, reused=False).slopes(index)
            assert (advantages == 0).all()


# -------- Length and aggregation --------


def lengths_of(environment: Environment) -> Tensor:
    return torch.tensor([float(len(y)) for y in environment.tree.responses], dtype=torch.float64)


@pytest.mark.parametrize("k", [2, 3])
def test_one_over_length_weighs_short_responses_more(k: int) -> None:
    """With the group mean, E[g] is (k - 1)/k times grad E[(R - mu)/L], where mu is a constant."""
    script = estimator("group_mean", aggregation="seq_mean_token_mean")
    for environment in (fixed("real")[0], fixed("real")[2]):
        rewards, lengths = rewards_of(environment), lengths_of(environment)
        centred = rewards - environment.tables.means[:, None]
        wanted = (k - 1) / k * expected(environment, centred / lengths)
        close(mean_of(script, environment, k), wanted)
        close(
            mean_of(estimator("leave_one_out", aggregation="seq_mean_token_mean"), environment, k), wanted * k / (k - 1)
        )
        assert min(Compared(environment, k, wanted, expected(environment, rewards)).angles) > 1
    found = mean_of(script, level(), k)  # all of two tokens
    close(found, (k - 1) / k / 2 * expected(level(), rewards_of(level())))


def test_token_mean_of_a_group_bends_less_the_larger_the_group() -> None:
    """The angle halves as k doubles, and the prompt's weight tends to 1 over the mean length of its responses."""
    script = estimator("leave_one_out", aggregation="prompt_mean")
    for environment in (ALONE[0], ALONE[1]):
        mean_length = float((environment.tables.probs[0] * lengths_of(environment)).sum())
        angles, errors = [], []
        for k in (16, 32, 64):
            (found,) = compare(script, environment, k, script.hp)
            angles.append(found.angles[0])
            errors.append(found.factors[0] * mean_length - 1)
        assert angles[0] > 0.01
        for values in (angles, errors):
            ratios = values[1] / values[0], values[2] / values[1]
            assert 0.4 < ratios[0] < 0.6 and abs(ratios[1] - 0.5) < 0.6 * abs(ratios[0] - 0.5)


def test_token_mean_of_a_group_divides_by_its_tokens() -> None:
    for environment, k in ((fixed("real")[0], 2), (fixed("real")[2], 2), (ALONE[0], 3)):
        plain, index = gradients(estimator("leave_one_out"), environment, k)
        tokens = lengths_of(environment)[index].sum(-1, keepdim=True)  # [n, B, 1]
        found, _ = gradients(estimator("leave_one_out", aggregation="prompt_mean"), environment, k)
        close(found, plain * k / tokens)


def test_token_mean_of_a_large_batch_divides_by_the_mean_length() -> None:
    """Mean lengths of 1 + 3/4 and 1 + 1/4 tokens, so 3/2 in a batch that has as many of both prompts."""
    first, second = ((1, 3), (1, 1)), ((3, 1), (1, 1))
    environment = world(SHORT, (first, (0, 1, 3), first, first), (second, (-2, 1, -1), second, second))
    for k in (2, 3):
        for baseline, own in (("leave_one_out", 0), ("group_mean", 1 / k), ("none", 0)):
            script = estimator(baseline, aggregation="token_mean")
            wanted = (1 - own) / 1.5 * expected(environment, rewards_of(environment))
            close(population(script, environment, k), wanted)
            differ(mean_of(script, environment, k), wanted)


def test_division_by_a_constant_length_is_proportional() -> None:
    script = estimator("leave_one_out", aggregation="seq_mean_token_sum_norm")  # max_length: 8
    for environment in (fixed("real")[0], fixed("real")[2]):
        close(mean_of(script, environment, 2), expected(environment, rewards_of(environment)) / 8)


def centred_steps(over: str) -> Script:
    """Each advantage is the sum of the step rewards to come, less their mean in the batch or in the prompt's group."""
    return estimator({"source": over, "unit": "step"}, reward={"source": "process_reward"}, quantity="token_advantage")


def test_process_rewards_centred_by_step_charge_for_the_number_of_steps() -> None:
    """E[g] = G - rbar grad E[number of steps], as the batch or the group that rbar is of grows."""
    steps: tuple[Steps, ...] = (
        ((0.5, -1.0), (2.0, None), (0.0, 3.0)),  # the second token ends no step where a third one follows
        ((-1.0, 0.25), (1.0, 0.5), (-2.0, 1.0)),
    )
    even: Table = ((1, 1), (1, 1), (1, 1))
    eighths: Table = ((1, 7), (3, 4), (1, 1))  # so that a batch can hold as many groups of either prompt
    environment = world(LONG, (even, (0,) * 4, even, even), (eighths, (0,) * 4, even, even))
    pairs = zip(environment.prompts, steps, strict=True)
    environment = replace(environment, prompts=tuple(replace(p, step_rewards=rows) for p, rows in pairs))
    sums = zip(environment.prompts, environment.tables.step_rewards.sum(-1).tolist(), strict=True)
    environment = replace(environment, prompts=tuple(replace(p, rewards=tuple(row)) for p, row in sums))

    def truth(environment: Environment) -> tuple[Tensor, Tensor]:
        tables = environment.tables
        rewards, count, probs = tables.step_rewards.sum(-1), tables.step_ends.sum(-1).double(), tables.probs
        rbar = float((probs * rewards).sum() / (probs * count).sum())
        return expected(environment, rewards - rbar * count), expected(environment, rewards)

    wanted, plain = truth(environment)
    for k in (1, 2):
        close(population(centred_steps("batch_mean"), environment, k), wanted)
    differ(wanted, plain)
    wanted, _ = truth(environment.only(0))
    errors = [(mean_of(centred_steps("group_mean"), environment.only(0), k) - wanted).norm() for k in (6, 12, 24)]
    assert errors[0] < 0.3 * wanted.norm()
    assert all(0.4 < after / before < 0.6 for before, after in itertools.pairwise(errors))


def test_soft_overlong_punishment() -> None:
    """(limit - buffer - L)/buffer between limit - buffer and limit."""
    script = estimator(reward={"source": "verifier", "overlong": {"limit": 20480, "buffer": 4096}})
    lengths = torch.tensor([[1, 16384, 18432, 20480, 20481]])
    zeros = torch.zeros(1, 5, dtype=torch.float64)
    found = script.module.transform_rewards(zeros, torch.ones(1, 5, dtype=torch.bool), lengths, script.hp)
    close(found, [[0.0, 0.0, -0.5, -1.0, -1.0]])


# -------- The first step, and the next --------

RATIOS = ("token", "sequence", "sequence_mean", "sequence_mean_token")
WEIGHTINGS: dict[str, dict[str, Any]] = {
    "unclipped": {},
    "clip": {"clip": {"low": 0.2, "high": 0.2}},
    "clip_higher": {"clip": {"low": 0.2, "high": 0.28}},
    "dual": {"clip": {"low": 0.2, "high": 0.28, "dual": 3.0}},
    "detached": {"detached_clip": {"low": 1.0, "high": 0.3}},
    "gate": {"soft_gate": {"positive": 1.0, "negative": 1.05}},
}

GEOMETRIC = """
def policy_loss(logprobs, old_logprobs, ref_logprobs, advantages, weights, mask, hp):
    change, sign = (logprobs - old_logprobs).masked_fill(~mask, 0.0), advantages.sign()
    bounded = sign * torch.minimum(sign * change, sign * change.clamp(-0.4, 0.4))
    ratio = (bounded.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp()
    return -(weights * ratio * advantages).masked_fill(~mask, 0.0).sum()
"""
"""GMPO: the geometric mean of a response's clipped ratios."""


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("ratio", RATIOS)
def test_the_first_step_does_not_see_the_ratio(ratio: str, weighting: str) -> None:
    """At a ratio of 1 the gradient of every loss is A grad log pi, batch by batch; the aggregations take turns."""
    turn = RATIOS.index(ratio) + list(WEIGHTINGS).index(weighting)
    answers = {"baseline": "group_mean", "normalization": group_std()}
    answers["aggregation"] = AGGREGATIONS[turn % len(AGGREGATIONS)]
    for environment in (fixed("real")[0], fixed("binary")[2].only(1)):
        plain, _ = gradients(estimator(**answers), environment, 2)
        found, _ = gradients(estimator(**answers, ratio=ratio, **WEIGHTINGS[weighting]), environment, 2)
        close(found, plain, within=1e-12)


PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "GRPO": ("seq_mean_token_mean", {"ratio": "token", **WEIGHTINGS["clip"]}),
    "GSPO": ("seq_mean_token_mean", {"ratio": "sequence_mean", **WEIGHTINGS["clip"]}),
    "GSPO-token": ("seq_mean_token_mean", {"ratio": "sequence_mean_token", **WEIGHTINGS["clip"]}),
    "SAPO": ("seq_mean_token_mean", {"ratio": "token", **WEIGHTINGS["gate"]}),
    "DAPO": ("token_mean", {"ratio": "token", **WEIGHTINGS["clip_higher"]}),
    "CISPO": ("token_mean", {"ratio": "token", **WEIGHTINGS["detached"]}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_losses_differ_in_the_first_step_by_their_aggregation_only(name: str) -> None:
    aggregation, objective = PUBLISHED[name]
    environment, answers = fixed("real")[2], {"baseline": "group_mean", "normalization": group_std()}
    plain = {each: gradients(estimator(**answers, aggregation=each), environment, 2)[0] for each in AGGREGATIONS}
    found, _ = gradients(estimator(**answers, aggregation=aggregation, **objective), environment, 2)
    close(found, plain[aggregation], within=1e-12)
    differ(plain["token_mean"], plain["seq_mean_token_mean"])


def test_the_first_step_of_a_geometric_mean_of_ratios() -> None:
    answers = {"baseline": "group_mean", "normalization": group_std(), "aggregation": "seq_mean_token_mean"}
    for environment in (fixed("real")[0], fixed("real")[2].only(0)):
        close(
            gradients(edited(GEOMETRIC, **answers), environment, 3)[0],
            gradients(estimator(**answers), environment, 3)[0],
        )


@pytest.mark.parametrize("dual", [None, 3.0])
def test_where_a_clip_takes_the_gradient_away(dual: float | None) -> None:
    """Later: A rho, but 0 exactly where A > 0 and rho > 1 + high, and where A < 0 and rho < 1 - low (or rho > dual)."""
    low, high, environment, k = 0.3, 0.5, far("real"), 2
    script = estimator(ratio="token", clip={"low": low, "high": high, **({"dual": dual} if dual else {})})
    tables = environment.tables
    index = torch.cat([chunk for chunk, _ in batches(tables, k, tables.old_probs)])
    slopes, _ = Context(script, environment, script.hp, reused=True).slopes(index)
    owner = torch.arange(2)[:, None]
    rho = (tables.logprobs - tables.old_logprobs).exp()[owner, index]
    A = tables.rewards[owner, index][..., None].expand(rho.shape)
    mask = tables.mask[index]
    above, below = mask & (A > 0) & (rho > 1 + high), mask & (A < 0) & (rho < 1 - low)
    dead = above | below | ((A < 0) & (rho > dual) if dual else False)
    assert all(where.any() for where in (above, below, mask & (A > 0) & (rho < 1 - low), mask & (A < 0) & (rho > 3)))
    close(slopes, (A * rho / (2 * k)).masked_fill(dead | ~mask, 0.0))
    assert ((slopes == 0) == (dead | ~mask | (A == 0))).all()


# -------- KL --------

KL_WORLDS = [fixed("real")[0], fixed("real")[2], level()]
ACTIONS = world(
    Tree(3, 1, eos=3),
    (((1, 2, 5),), (0, 1, -2), ((2, 1, 1),), ((1, 1, 1),)),
    (((4, 1, 1),), (3, 0, 1), ((1, 1, 3),), ((1, 1, 1),)),
)
"""responses of one token"""


def kl_part(script: Script, environment: Environment, k: int = 1, reused: bool = False) -> Tensor:
    """E[g] at a coefficient of 1, of rewards that are all 0. [B, P]."""
    silent = environment.with_rewards([[0.0] * len(environment.tree.responses)] * len(environment.prompts))
    return moments(script, silent, k, script.hp, reused=reused).mean * len(environment.prompts)


def test_which_estimators_have_the_value_of_the_kl() -> None:
    for environment in (*KL_WORLDS, ACTIONS):
        table = log_table(environment, "policy")
        kl = reverse_kl(environment, table)
        ratios = tokens_of(environment, table) - tokens_of(environment, log_table(environment, "reference"))
        for name in ESTIMATORS:
            estimate = estimator(kl=kl_in("loss", name)).module.kl_estimate
            whole = (chances(environment, table) * estimate(ratios.sum(-1))).sum(-1)
            by_token = (chances(environment, table) * (estimate(ratios) * environment.tree.mask).sum(-1)).sum(-1)
            for found in (whole, by_token):
                differ(found, kl) if name == "k2" else close(found, kl)


def test_values_of_the_estimators_at_one_half_against_two_fifths() -> None:
    """log 1.25 = .2231, its square over two .0249, and .8 - 1 + .2231 = .0231."""
    x = math.log(0.5 / 0.4)
    for name, value, digits in (("k1", x, 0.2231), ("k2", x * x / 2, 0.0249), ("k3", 0.4 / 0.5 - 1 + x, 0.0231)):
        found = estimator(kl=kl_in("loss", name)).module.kl_estimate(torch.tensor(x, dtype=torch.float64))
        close(found, value)
        assert round(float(found), 4) == digits


@pytest.mark.parametrize("unit", ["token", "sequence"])
def test_kl_in_the_loss_of_a_single_action(unit: str) -> None:
    for k in (1, 2):
        part = {name: kl_part(estimator(kl=kl_in("loss", name, unit)), ACTIONS, k) for name in ESTIMATORS}
        close(part["k1"], torch.zeros_like(part["k1"]))
        close(part["k2"], -uphill(ACTIONS, partial(reverse_kl, ACTIONS)))
        close(part["k3"], -uphill(ACTIONS, partial(forward_kl, ACTIONS)))


@pytest.mark.parametrize("environment", KL_WORLDS, ids=["short", "long", "level"])
def test_kl_in_the_loss_of_sequences(environment: Environment) -> None:
    policy, reference = log_table(environment, "policy"), log_table(environment, "reference")
    prefixes, zero = visits(environment), torch.zeros(len(policy), policy[0].numel())

    def at_prefixes(divergence: Callable[[Tensor], Tensor]) -> Tensor:
        """The gradient of a divergence at each prefix, where the prefixes come as often as they do."""
        return -uphill(environment, lambda table: (prefixes * divergence(table)).sum(-1))

    reverse = at_prefixes(lambda table: (table.exp() * (table - reference)).sum(-1))
    forward = at_prefixes(lambda table: (reference.exp() * (reference - table)).sum(-1))
    full = -uphill(environment, partial(reverse_kl, environment))
    wanted = {
        ("k1", "token"): zero,
        ("k1", "sequence"): zero,
        ("k2", "token"): reverse,
        ("k2", "sequence"): full,
        ("k3", "token"): forward,
        ("k3", "sequence"): -uphill(environment, partial(forward_kl, environment)),
    }
    for (name, unit), gradient in wanted.items():
        close(kl_part(estimator(kl=kl_in("loss", name, unit)), environment), gradient)
    differ(reverse, full)
    differ(forward, wanted["k3", "sequence"])


@pytest.mark.parametrize("quantity", ["sequence_advantage", "token_advantage"])
@pytest.mark.parametrize("unit", ["token", "sequence"])
def test_kl_in_the_reward(quantity: str, unit: str) -> None:
    """k1 is exactly -beta grad KL(pi || ref), as one sum or as what is still to come; k2 and k3 are something else."""
    for environment in (*KL_WORLDS, ACTIONS):
        full = uphill(environment, partial(reverse_kl, environment))
        for name in ESTIMATORS:
            script = estimator(kl=kl_in("reward", name, unit), quantity=quantity)
            found = kl_part(script, environment)
            close(found, -full) if name == "k1" else differ(found, -full)
            beside = mean_of(script, environment, 1, kl_coefficient=0.25)  # with rewards, linear in beta
            close(beside, expected(environment, rewards_of(environment)) + 0.25 * found)


def off_policy(term: str) -> Script:
    return edited(
        f"""
        def policy_loss(logprobs, old_logprobs, ref_logprobs, advantages, weights, mask, hp):
            logprobs, old_logprobs, ref_logprobs = (
                x.masked_fill(~mask, 0.0).sum(-1) for x in (logprobs, old_logprobs, ref_logprobs)
            )
            rho, k1 = (logprobs - old_logprobs).exp(), logprobs - ref_logprobs
            k2, k3 = k1.square() / 2, torch.expm1(-k1) + k1
            return (weights.amax(-1) * ({term})).sum()
        """
    )


@pytest.mark.parametrize("term", ["rho * k1", "rho * k3", "rho.detach() * k2"])
def test_kl_of_another_policys_responses(term: str) -> None:
    for environment in (*KL_WORLDS, ACTIONS):
        full = uphill(environment, partial(reverse_kl, environment))
        close(kl_part(off_policy(term), environment, reused=True), -full)


def test_a_detached_ratio_does_not_make_k1_and_k3_gradients_of_the_reverse_kl() -> None:
    for environment in KL_WORLDS:
        forward = uphill(environment, partial(forward_kl, environment))
        found = kl_part(off_policy("rho.detach() * k1"), environment, reused=True)
        close(found, torch.zeros_like(found))
        close(kl_part(off_policy("rho.detach() * k3"), environment, reused=True), -forward)


@pytest.mark.parametrize(("baseline", "own"), [("leave_one_out", 0), ("group_mean", 1), ("none", 0)])
def test_baselines_treat_kl_in_the_reward_like_the_reward(baseline: str, own: int) -> None:
    script, k, beta = estimator(baseline, kl=kl_in("reward", "k1")), 3, 0.7
    for environment in (fixed("real")[0], level()):
        full = uphill(environment, partial(reverse_kl, environment))
        wanted = (1 - own / k) * (expected(environment, rewards_of(environment)) - beta * full)
        close(mean_of(script, environment, k, kl_coefficient=beta), wanted)
    found = judge_penalty(script, 4)
    assert found is not None and (found.kind, found.weighting) == ("full", "exact")
    close(found.factor, 1 - own / 4)


def test_a_std_rescales_kl_in_the_reward_with_the_rest() -> None:
    """By the std of the returns R - beta KL: of each group one of its own, or of the whole batch."""
    environment, k, beta = fixed("real")[0], 3, 0.7
    tables, kl = environment.tables, kl_in("reward", "k1")
    plain, index = gradients(estimator("group_mean", kl=kl), environment, k, kl_coefficient=beta)
    returns = tables.rewards - beta * (tables.logprobs - tables.ref_logprobs).sum(-1)
    sampled = returns[torch.arange(2)[:, None], index]  # [n, 2, k]
    centred = sampled - sampled.mean(-1, keepdim=True)
    same = centred.abs().amax(-1, keepdim=True) < 1e-12
    stds = {"group": centred.square().mean(-1, keepdim=True).sqrt().masked_fill(same, 1.0)}
    stds["batch"] = centred.square().mean((1, 2), keepdim=True).sqrt()
    stds["batch"] = stds["batch"].masked_fill(same.all(1, keepdim=True), 1.0).expand(-1, 2, -1)
    for scope, std in stds.items():
        script = estimator("group_mean", {"scope": scope, "ddof": 0, "epsilon": 0.0}, kl=kl)
        found, _ = gradients(script, environment, k, kl_coefficient=beta)
        close(found, plain / std)
    by_group, by_batch = (judge_penalty(estimator("group_mean", n, kl=kl), 4) for n in (group_std(), batch_std()))
    assert by_group is not None and by_group.kind == "rescaled"
    assert by_batch is not None and (by_batch.kind, by_batch.weighting) == ("full", "asymptotic")


# -------- A critic --------


def critic(gamma: float = 1.0, trace: float = 1.0, kl: Any = None, **answer: Any) -> Script:
    """Generalized advantage estimation, where a token is charged its k1."""
    lambdas = {} if "length_adaptive" in answer else {"gae_lambda": trace}
    baseline = {"source": "critic", "gamma": gamma, **lambdas, **answer}
    return estimator(baseline, kl=kl or kl_in("reward", "k1"), quantity="token_advantage")


def under(script: Script, environment: Environment, values: Sequence[Sequence[float]]) -> Tensor:
    return mean_of(script, environment.with_values(values), 1, kl_coefficient=0.0)


CRITIC_WORLDS = [fixed("real")[0], fixed("real")[2]]


@pytest.mark.parametrize("environment", CRITIC_WORLDS, ids=["short", "long"])
def test_whole_returns_are_unbiased_under_any_critic(environment: Environment) -> None:
    """So whatever changes only the critic's values (its clipping, its pretraining, a lambda of its own) leaves E[g]."""
    G, places = expected(environment, rewards_of(environment)), len(environment.tree.prefixes)
    for seed in range(3):
        values = torch.randn(len(environment.prompts), places, generator=torch.Generator().manual_seed(seed))
        close(under(critic(), environment, (3 * values).tolist()), G)
    close(under(critic(), environment, environment.exact_values()), G)


@pytest.mark.parametrize("environment", CRITIC_WORLDS, ids=["short", "long"])
@pytest.mark.parametrize("trace", [0.0, 0.5, 0.95])
def test_a_bootstrapped_return_is_unbiased_only_under_the_exact_critic(environment: Environment, trace: float) -> None:
    G, exact = expected(environment, rewards_of(environment)), environment.exact_values()
    script = critic(trace=trace)
    close(under(script, environment, exact), G)
    for place, prefix in enumerate(environment.tree.prefixes):
        wrong = [[v + 0.5 * (s == place) for s, v in enumerate(row)] for row in exact]
        if prefix:
            differ(under(script, environment, wrong), G)
        else:  # nothing bootstraps from the value of the empty response, a baseline for the first token
            close(under(script, environment, wrong), G)


@pytest.mark.parametrize("environment", CRITIC_WORLDS, ids=["short", "long"])
def test_discounting_is_biased_for_the_undiscounted_return(environment: Environment) -> None:
    G, exact = expected(environment, rewards_of(environment)), environment.exact_values()
    for values in (exact, [[0.0] * len(row) for row in exact]):
        differ(under(critic(gamma=0.9), environment, values), G)


def test_what_changes_the_values_alone_changes_no_mean() -> None:
    """Clipping the values, pretraining them, and a lambda of their own leave the gradient of the policy as it is."""
    environment = fixed("real")[0]
    plain = under(critic(trace=0.95), environment, [[3.0, -2.0]] * 2)
    for answer in ({"value_clip": 0.2}, {"pretrain_steps": 50}, {"critic_lambda": 0.5}, {"coefficient": 0.1}):
        close(under(critic(trace=0.95, **answer), environment, [[3.0, -2.0]] * 2), plain)


@pytest.mark.parametrize("environment", CRITIC_WORLDS, ids=["short", "long"])
def test_a_lambda_of_0_leaves_each_token_its_own_kl(environment: Environment) -> None:
    """So the KL part is the partial gradient, with the distribution of prefixes held fixed; at 1 it is the full one."""
    full = uphill(environment, partial(reverse_kl, environment))
    for trace, wanted in ((1.0, full), (0.0, references(environment.tables)["partial"])):
        parts = [mean_of(critic(trace=trace), environment, 1, kl_coefficient=beta) for beta in (0.0, 1.0)]
        close(parts[1] - parts[0], -wanted)
    for trace, kind in ((1.0, "full"), (0.0, "partial"), (0.5, "other")):
        found = judge_penalty(critic(trace=trace), 4)
        assert found is not None and found.kind == kind


def by_hand(rewards: list[float], values: list[float], k1: list[float]) -> dict[str, Tensor]:
    """The rollouts of one response, and garbage on the pad behind it."""
    given = {"values_BGT": [*values, 9.0], "old_logprobs_BGT": [*k1, 9.0], "ref_logprobs_BGT": [0.0] * (len(k1) + 1)}
    tensors = {name: torch.tensor([[row]], dtype=torch.float64) for name, row in given.items()}
    mask = torch.tensor([[[True] * len(values) + [False]]])
    return {"rewards_BG": torch.tensor([rewards], dtype=torch.float64), "mask_BGT": mask, **tensors}


def test_advantages_of_a_critic_by_hand() -> None:
    """delta = (-.02 + .6 - .5, .01 + .8 - .6, 1 - .01 - .8) = (.08, .21, .19); A3 = .19, A2 = .21 + .95 A3 = .3905 and
    A1 = .08 + .95 A2 = .450975. The reward to go is 1 - .05 (k1 to come) = (.98, 1, .99)."""
    given = by_hand([1.0], [0.5, 0.6, 0.8], [0.4, -0.2, 0.2])
    for trace, wanted in ((0.95, [0.450975, 0.3905, 0.19]), (0.0, [0.08, 0.21, 0.19])):
        module = critic(trace=trace).module
        hp = module.Args(kl_coefficient=0.05)
        rollouts = module.Rollouts(**given)
        close(module.compute_advantages(rollouts, hp), [[[*wanted, 0.0]]])
        close(module.compute_value_targets(rollouts, hp)[..., :3], [[[0.98, 1.0, 0.99]]])
        assert module.compute_value_targets(rollouts, hp)[..., 3].isnan().all()
    module = critic(critic_lambda=0.95).module
    found = module.compute_value_targets(module.Rollouts(**given), module.Args(kl_coefficient=0.05))
    close(found[..., :3], [[[0.950975, 0.9905, 0.99]]])  # the advantages above, plus the values


def test_pads_do_not_bootstrap() -> None:
    """The value 100 on the pad: with it the last advantage would be .95 of 100 + ... and not the reward's."""
    module = critic(trace=0.95).module
    rollouts = module.Rollouts(
        rewards_BG=torch.tensor([[1.0]], dtype=torch.float64),
        mask_BGT=torch.tensor([[[True, True, False]]]),
        old_logprobs_BGT=torch.zeros(1, 1, 3, dtype=torch.float64),
        ref_logprobs_BGT=torch.zeros(1, 1, 3, dtype=torch.float64),
        values_BGT=torch.tensor([[[0.0, 0.0, 100.0]]], dtype=torch.float64),
    )
    close(module.compute_advantages(rollouts, module.Args()), [[[0.95, 1.0, 0.0]]])


@pytest.mark.parametrize(("length", "trace"), [(1000, 0.98), (100, 0.8), (21, 1 - 1 / 1.05), (20, 0.0), (5, 0.0)])
def test_a_lambda_by_length(length: int, trace: float) -> None:
    """1 - 1/(.05 l), and not below 0: with values of 0 the token u places before the last has lambda^u R."""
    module = critic(kl="none", length_adaptive={"alpha": 0.05}).module
    rollouts = module.Rollouts(
        rewards_BG=torch.tensor([[1.0]], dtype=torch.float64),
        mask_BGT=torch.ones(1, 1, length, dtype=torch.bool),
        values_BGT=torch.zeros(1, 1, length, dtype=torch.float64),
    )
    close(module.compute_advantages(rollouts, module.Args())[0, 0, -3:], [trace**2, trace, 1.0])


def test_the_value_loss_by_hand() -> None:
    """Targets (1, 1, 1), old values (0, 0, 0), clip .2: V = .1 costs .9^2 / 2; V = .5 has moved too far and costs
    .8^2 / 2 without a slope; V = -1 is the further of the two and costs 2^2 / 2 with its slope."""
    values = torch.tensor([[0.1, 0.5, -1.0, 7.0]], dtype=torch.float64, requires_grad=True)
    mask, weights = torch.tensor([[True, True, True, False]]), torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
    rows = (values, torch.zeros_like(values), torch.ones_like(values), weights, mask)
    for answer, costs, slopes in (
        ({}, (0.405, 0.125, 2.0), (-0.9, -0.5, -2.0)),
        ({"value_clip": 0.2}, (0.405, 0.32, 2.0), (-0.9, 0.0, -2.0)),
    ):
        module = critic(**answer).module
        hp = module.Args(baseline_coefficient=0.5)
        value = module.value_loss(*rows, hp)
        close(value.detach(), 0.5 * sum(w * c for w, c in zip((1, 2, 3), costs, strict=True)))
        (slope,) = torch.autograd.grad(value, values)
        close(slope, [[0.5 * w * s for w, s in zip((1, 2, 3, 4), (*slopes, 0.0), strict=True)]])


# -------- Preferences --------


DPO = Spec.model_validate(
    {
        "name": "dpo",
        "reward": "preferences",
        "kl": "implicit",
        "baseline": "pair",
        "normalization": "none",
        "objective": {"quantity": "preference", "beta": 0.3},
    }
)


@pytest.mark.parametrize("start", KL_WORLDS, ids=["short", "long", "level"])
def test_the_first_step_on_preferences_raises_the_chance_to_win(start: Environment) -> None:
    """On pairs from the reference, labelled by Bradley and Terry: grad of the loss at theta = ref is
    -2 beta grad P(y beats y'), y' from the reference; and the loss is log 2."""
    beta, wins = 0.3, torch.sigmoid(rewards_of(start)[:, :, None] - rewards_of(start)[:, None, :])  # [B, y, y']
    ref_tokens = tokens_of(start, log_table(start, "reference"))
    script = load_script(render(Plan(DPO), "dpo.yaml", "0" * 16), "dpo.py", Plan(DPO))
    reference, outcomes = ref_tokens.sum(-1), len(start.tree.responses)
    pairs = torch.cartesian_prod(torch.arange(outcomes), torch.arange(outcomes))  # the first is the chosen one
    drawn = reference.exp()[:, pairs].prod(-1) * 2 * wins[:, pairs[:, 0], pairs[:, 1]]

    def loss(table: Tensor) -> Tensor:
        logprobs, mask = tokens_of(start, table), start.tree.mask[pairs]
        given = [(logprobs[b][pairs], ref_tokens[b][pairs], drawn[b], mask) for b in range(len(start.prompts))]
        return torch.stack([script.module.preference_loss(*each, script.hp) for each in given])

    def chance(table: Tensor) -> Tensor:
        return torch.einsum("bi,bj,bij->b", chances(start, table), reference.exp(), wins)

    environment = replace(start, prompts=tuple(replace(p, policy=p.reference) for p in start.prompts))
    close(loss(log_table(environment, "policy")), [math.log(2)] * len(start.prompts))
    close(uphill(environment, loss), -2 * beta * uphill(environment, chance))
    differ(uphill(start, loss), -2 * beta * uphill(start, chance))  # elsewhere it is another


# -------- What the verdict makes of it --------

REAL_OF = {"token_mean": "asymptotic", "seq_mean_token_mean": "biased", "seq_mean_token_sum_norm": "proportional"}


@pytest.mark.parametrize(
    ("answers", "binary", "real", "factor"),
    [
        ({}, "unbiased", "unbiased", "1"),
        ({"baseline": "leave_one_out"}, "unbiased", "unbiased", "1"),
        ({"baseline": "group_mean"}, "proportional", "proportional", "(k - 1)/k"),
        ({"baseline": "batch_mean"}, "proportional", "proportional", "(kB - 1)/(kB)"),
        ({"baseline": "group_mean", "normalization": group_std()}, "reweighted", "biased", None),
        ({"baseline": "group_mean", "normalization": batch_std()}, "asymptotic", "asymptotic", None),
        *(({"aggregation": name}, verdict, verdict, None) for name, verdict in REAL_OF.items()),
    ],
    ids=str,
)
def test_verdicts(answers: dict[str, Any], binary: str, real: str, factor: str | None) -> None:
    script = estimator(**answers)
    found = {kind: judge(script, kind, 4) for kind in ("binary", "real")}
    assert (found["binary"].verdict, found["real"].verdict) == (binary, real)
    if factor is not None:
        assert str(found["real"].factor) == factor
        assert str(find_factor(script, 4, 2, script.hp)) == factor
