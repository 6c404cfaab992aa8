"""Statistical claims about the estimators, each with a check that enumerates compiled scripts: `docs/claims.md`.

    python tests/claims.py            prints the page
    python tests/claims.py --write    writes it

A check finds the verdict from what it computes; the declared one has to equal it (`tests/test_claims.py`).
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from test_oracles import (
    ACTIONS,
    ESTIMATORS,
    OTHER_PROMPT,
    batch_std,
    by_count,
    critic,
    edited,
    estimator,
    expected,
    facts,
    gradients,
    group_std,
    kl_in,
    kl_part,
    leave_one_out_trace,
    mean_of,
    one_token,
    ordered,
    reverse_kl,
    uphill,
)
from torch import Tensor

from specc.plan import Plan
from specc.render import render
from specc.spec import Spec
from specc.verify.enumerate import Context, batches, moments
from specc.verify.environment import COIN, SHORT, Environment, coin, far, fixed, level, stepped, world
from specc.verify.script import Script, load_script
from specc.verify.verdict import Compared, compare, compare_limit, distinct, find_weight
from specc.weights import Weight

PAGE = Path(__file__).parents[1] / "docs" / "claims.md"

RATES = (0.1, 0.5, 0.9)
WORDS = ("reward", "kl", "baseline", "normalization", "objective")
TRUE, SCALED, FALSE, OPEN = "true", "true up to a factor", "false", "underspecified"

Found = tuple[str, str]
"""the verdict as found, and the numbers that it was found from"""


@dataclass(frozen=True)
class Claim:
    """What is said of an estimator, and what comes out of it."""

    word: str
    text: str
    verdict: str
    check: Callable[[], Found]


CLAIMS: list[Claim] = []


def claim(word: str, text: str, verdict: str) -> Callable[[Callable[[], Found]], Callable[[], Found]]:
    """Enters a check, which runs once."""

    def enter(check: Callable[[], Found]) -> Callable[[], Found]:
        once = cache(check)
        CLAIMS.append(Claim(word, text, verdict, once))
        return once

    return enter


# -------- Verdicts and numbers --------


def cases(*holds: bool) -> str:
    """True in all cases, in none, or in some of those that the claim does not tell apart."""
    return TRUE if all(holds) else OPEN if any(holds) else FALSE


def same(actual: Any, wanted: Any) -> bool:
    actual, wanted = (torch.as_tensor(x, dtype=torch.float64) for x in (actual, wanted))
    return float((actual - wanted).norm()) <= max(1e-10 * float(wanted.norm()), 1e-13)


def of_gradient(script: Script, worlds: Iterable[Environment], sizes: Sequence[int] = (2, 3)) -> str:
    """Whether E[g] is the gradient of E[R], or a multiple of it that depends on the size of the batch alone."""
    verdict = TRUE
    for k in sizes:
        factors: dict[int, list[float]] = {}
        for each in (each for environment in worlds for each in compare(script, environment, k, script.hp)):
            factors.setdefault(len(each.environment.prompts), []).extend(each.factors)
            if not each.parallel:
                return FALSE
            verdict = verdict if each.equal else SCALED
        if any(len(distinct(values)) > 1 for values in factors.values()):
            return FALSE
    return verdict


def n(x: Any) -> str:
    """A number, or several, with four significant digits."""
    if isinstance(x, Tensor):
        x = x.tolist()
    if isinstance(x, list | tuple):
        return ", ".join(n(value) for value in x)
    settled = float(f"{x:.10g}")  # so that rounding errors do not decide what ends in a 5
    return f"{settled:.4g}" if abs(x) > 1e-12 else "0"


def angle(actual: Tensor, wanted: Tensor) -> float:
    """The largest number of degrees between two gradients of a prompt. [B, P]."""
    return max(Compared(HALF, 0, actual, wanted).angles)  # in whatever world


def trace(script: Script, environment: Environment, k: int, **numbers: float) -> float:
    """tr Cov(g)."""
    return moments(script, environment, k, script.with_numbers(**numbers), covariance=True).trace


def noise(script: Script, environment: Environment, k: int) -> float:
    """tr Cov(g)/|E g|^2."""
    found = moments(script, environment, k, covariance=True)
    return found.trace / float(found.mean.square().sum())


def on_coin(script: Script, k: int = 2) -> str:
    """E[g] and the gradient in the logit of the right response, where the greedy one is right."""
    environment = coin((3, 1))
    mean, gradient = mean_of(script, environment, k)[0, 1], expected(environment, environment.tables.rewards)[0, 1]
    return f"coin with p = 3/4, k = {k}: E[g] = {n(float(mean))}, gradient pq = {n(float(gradient))}"


@cache
def weight(script: Script, k: int) -> Weight:
    return find_weight(script, k, script.hp)


def weights(script: Script, k: int) -> str:
    return f"{n([weight(script, k).at(p) for p in RATES])} at p = {n(RATES)}"


def of_rate(script: Script, k: int) -> str:
    """Whether prompts of all success rates are weighted by 1, or alike."""
    found = weight(script, k)
    return FALSE if not found.constant else TRUE if same(found.at(0.5), 1.0) else SCALED


def advantages_of(script: Script, rewards: Sequence[float], **numbers: float) -> Tensor:
    """The advantages of a group of these rewards. [k]."""
    environment = one_token(rewards)
    hp = script.with_numbers(**numbers)
    _, advantages = Context(script, environment, hp, reused=False).slopes(torch.arange(len(rewards))[None, None])
    return advantages[0, 0, :, 0]


def covariance(probs: Tensor, x: Tensor, y: Tensor) -> float:
    return float((probs * x * y).sum() - (probs * x).sum() * (probs * y).sum())


# -------- Worlds --------

REAL = (fixed("real")[0], fixed("real")[2])
QUARTER, HALF = coin((1, 3)), coin((1, 1))
DIE = one_token((-1, 0, 1, 2, 3))
PAIRS = level(uniform=True).only(0)  # aa, ab, ba, bb
TILTED = world(COIN, (((1, 1),), (0, 0), ((1, 3),), ((1, 1),)))
SEQUENCES = (fixed("real")[0], fixed("real")[2], level())

THREE = (8.2, 6.5, 9.1)
CLIP = {"low": 0.2, "high": 0.2}

EVERY = "4 other prompts, k = 2, 3: equal"


# -------- Reward --------


@claim("reward", "The reward of a whole response may be put on each of its tokens: E[g] is the gradient of E[R].", TRUE)
def _() -> Found:
    return of_gradient(estimator(), (coin((3, 1)), *REAL)), f"{on_coin(estimator())}; {EVERY}"


@claim("reward", "A wrong last token also lowers the right tokens before it, which biases the gradient.", FALSE)
def _() -> Found:
    environment = PAIRS.with_rewards([(0, 1, 0, 1)])
    found = moments(estimator(), environment, 1, covariance=True)
    first, noisy = found.mean[0, :2], float(found.covariance.diagonal()[:2].sum())
    verdict = of_gradient(estimator(), (environment,), (1,))
    return (
        cases(verdict != TRUE),
        f"two fair tokens, reward 1 if the second is b, k = 1: E[g] of the first token is {n(first)}, which is its "
        f"gradient; the variance that it costs is {n(noisy)}",
    )


@claim("reward", "Learning from correct responses only, or from wrong ones only, has another mean gradient.", FALSE)
def _() -> Found:
    scripts = {"correct only": by_count("r"), "wrong only": by_count("r - 1"), "both": estimator("leave_one_out")}
    means = [mean_of(script, QUARTER, 4) for script in scripts.values()]
    traces = [trace(script, QUARTER, 4) for script in scripts.values()]
    return (
        cases(not same(means[0], means[1]), not same(means[0], means[2])),
        f"p = 1/4, k = 4, advantages R, R - 1 and leave-one-out: E[g] = {n([float(m[0, 1]) for m in means])}; only "
        f"tr Cov(g) differs: {n(traces)}",
    )


BEST_OF_K = {"quantity": "likelihood", "sampling": {"keep": "best"}}


@claim("reward", "Training on the best of k responses (RAFT) has the gradient of the success rate.", FALSE)
def _() -> Found:
    script, k = estimator(**BEST_OF_K), 4
    assert all(same(weight(script, k).at(p), (1 - (1 - p) ** (k - 1)) / p) for p in RATES)
    return of_rate(script, k), f"k = {k}: prompts are weighted by w = (1 - q^(k - 1))/p = {weights(script, k)}"


def keeping(keep: Any, size: int = 4, **answers: Any) -> Script:
    more = {"resample": False} if keep == "mixed" else {}
    return estimator(sampling={"group_size": size, "keep": keep, **more}, **answers)


@claim("reward", "Keeping the m of n responses whose rewards vary most leaves the objective what it was.", FALSE)
def _() -> Found:
    script = keeping({"max_variance": 4}, 16, baseline="leave_one_out")
    return (
        of_rate(script, 16),
        f"m = 4 of n = 16, leave-one-out, 0/1 rewards: w = {weights(script, 16)}, without the selection 1",
    )


@claim("reward", "With the group's std besides (PODS), a prompt's weight tends to 1/(2pq) as n grows.", TRUE)
def _() -> Found:
    script, sizes = keeping({"max_variance": 4}, 16, baseline="group_mean", normalization=group_std()), (16, 48, 160)
    limits = [1 / (2 * p * (1 - p)) for p in RATES]
    found = [[weight(script, size).at(p) for p in RATES] for size in sizes]
    errors = [max(abs(w / limit - 1) for w, limit in zip(row, limits, strict=True)) for row in found]
    return (
        cases(errors[0] > errors[1] > errors[2], errors[2] < 1e-5),
        f"m = 4, n = 16, then 48, then 160: w = {'; '.join(n(row) for row in found)} at p = {n(RATES)}, and 1/(2pq) = "
        f"{n(limits)}, the slope of log(p/q)/2",
    )


@claim("reward", "Groups of equal rewards may be left out: they teach nothing.", OPEN)
def _() -> Found:
    scripts = [keeping("mixed", baseline="leave_one_out"), keeping("mixed")]
    limits = [compare_limit(script, coin((1, 4), (3, 2)), 2, script.hp) for script in scripts]
    return (
        cases(*(each.common for each in limits)),
        f"p = 0.2, 0.6, k = 2, as the batch grows: w = {n(limits[0].factors)} with leave-one-out, "
        f"w = {n(limits[1].factors)} without a baseline, where they do teach",
    )


@claim("reward", "Sampling until all groups are mixed (DAPO) changes only a factor that all prompts share.", TRUE)
def _() -> Found:
    answers = {"baseline": "group_mean", "normalization": group_std()}
    environment = coin((1, 4), (3, 2))
    kept, every = (compare_limit(s, environment, 3, s.hp) for s in (keeping("mixed", **answers), estimator(**answers)))
    shares = [a / b for a, b in zip(kept.factors, every.factors, strict=True)]
    mixed = sum(1 - p**3 - (1 - p) ** 3 for p in (0.2, 0.6)) / 2
    assert same(shares, [1 / mixed] * 2)
    return (
        cases(len(distinct(shares)) == 1),
        f"p = 0.2, 0.6, k = 3, the group's mean and std, as the batch grows: w = {n(kept.factors)}, and "
        f"{n(every.factors)} of all groups: {n(shares[0])} times, 1 over the share of mixed groups",
    )


@claim("reward", "The rewards of mixed groups alone, without a baseline (Reinforce-Rej), weight prompts alike.", FALSE)
def _() -> Found:
    script, k = keeping("mixed"), 4
    assert all(same(weight(script, k).at(p), 1 - p ** (k - 1)) for p in RATES)
    return of_rate(script, k), f"k = {k}: w = 1 - p^(k - 1) = {weights(script, k)}"


@claim("reward", "Adding the likelihood of correct responses (VAPO) leaves the direction for 0/1 rewards.", OPEN)
def _() -> Found:
    script, environment = estimator(baseline="leave_one_out", positive_nll={"coefficient": 0.5}), coin((1, 4), (3, 2))
    (small,) = compare(script, environment, 2, script.hp)
    large = compare_limit(script, environment, 2, script.hp)
    return (
        cases(small.common, large.common),
        f"p = 0.2, 0.6, leave-one-out, k = 2, a coefficient of 0.5: w = {n(small.factors)} in a batch of both, "
        f"{n(large.factors)} as the batch grows",
    )


def steps(baseline: Any = "none") -> Script:
    return estimator(baseline, reward={"source": "process_reward"}, quantity="token_advantage")


@claim(
    "reward", "Rewards of steps, to the credit of the tokens up to their ends, have the gradient of their sum.", TRUE
)
def _() -> Found:
    worlds = (stepped("real"), *REAL)
    return of_gradient(steps(), worlds, (1, 2)), f"{len(worlds)} worlds of responses with one to three steps: equal"


@claim("reward", "The mean of steps, taken from each step (process supervision), only shifts credit.", FALSE)
def _() -> Found:
    script, environment = steps({"source": "batch_mean", "unit": "step"}), stepped("real").only(0)
    tables = environment.tables
    count = tables.step_ends.sum(-1).double()
    mean = float((tables.probs * tables.rewards).sum() / (tables.probs * count).sum())
    found = compare_limit(script, environment, 2, script.hp)
    charged = expected(environment, tables.rewards) - mean * expected(environment, count)
    assert same(found.mean, charged)
    return (
        cases(found.parallel),
        f"as the batch grows, E[g] = G - m grad E[N], with N steps of a response and the mean m = {n(mean)} of one: "
        f"{n(found.angles[0])} degrees off G",
    )


# -------- KL --------


@claim("kl", "k1 and k3 are unbiased estimates of the value of KL(pi || ref), k2 is not.", TRUE)
def _() -> Found:
    found, holds = {}, []
    for environment in (TILTED, ACTIONS):
        tables = environment.tables
        x = (tables.logprobs - tables.ref_logprobs).sum(-1)
        kl = (tables.probs * x).sum(-1)
        for name in ESTIMATORS:
            estimate = estimator(kl=kl_in("loss", name)).module.kl_estimate
            value = (tables.probs * estimate(x)).sum(-1)
            holds.append(same(value, kl) != (name == "k2"))
            if environment is TILTED:
                found[name] = float(value)
    return (
        cases(*holds),
        f"log(2)/2 + log(2/3)/2 = {n(math.log(2) / 2 + math.log(2 / 3) / 2)}; E k1, k2, k3 = {n(list(found.values()))}",
    )


def penalties(placement: str, name: str, environment: Environment, unit: str = "token") -> tuple[Tensor, Tensor]:
    """The KL part of E[g], and -grad KL(pi || ref)."""
    full = -uphill(environment, partial(reverse_kl, environment))
    return kl_part(estimator(kl=kl_in(placement, name, unit)), environment), full


def tilted(placement: str, name: str) -> str:
    part, full = penalties(placement, name, TILTED)
    return f"KL part of E[g] = ({n(part[0])}), reverse KL ({n(full[0])})"


@claim("kl", "k1 in the reward has exactly the gradient of KL(pi || ref), of whole responses too.", TRUE)
def _() -> Found:
    holds = [same(*penalties("reward", "k1", environment)) for environment in (TILTED, ACTIONS, *SEQUENCES)]
    return cases(*holds), f"{tilted('reward', 'k1')}; equal on responses of 1 to 3 tokens"


@claim("kl", "k1 in the loss penalizes the KL.", FALSE)
def _() -> Found:
    parts = [penalties("loss", "k1", environment)[0] for environment in (TILTED, ACTIONS, *SEQUENCES)]
    return cases(*(not same(part, torch.zeros_like(part)) for part in parts)), tilted("loss", "k1")


@claim("kl", "k3 in the loss has the gradient of the reverse KL, whose value it estimates.", FALSE)
def _() -> Found:
    pairs = [penalties("loss", "k3", environment) for environment in (TILTED, ACTIONS, *SEQUENCES)]
    part = penalties("loss", "k3", TILTED)[0][0]
    ref_minus_pi = TILTED.tables.ref_logprobs[0, :, 0].exp() - TILTED.tables.probs[0]
    assert same(part, ref_minus_pi)
    return (
        cases(*(same(*pair) for pair in pairs)),
        f"{tilted('loss', 'k3')}: it is ref - pi, as of the forward KL(ref || pi); with three responses up to "
        f"{n(angle(*penalties('loss', 'k3', ACTIONS)))} degrees off",
    )


@claim("kl", "k2 in the loss has the gradient of the reverse KL.", OPEN)
def _() -> Found:
    holds = [
        all(same(*penalties("loss", "k2", environment)) for environment in (TILTED, ACTIONS)),
        all(same(*penalties("loss", "k2", environment)) for environment in SEQUENCES),
        all(same(*penalties("loss", "k2", environment, "sequence")) for environment in SEQUENCES),
    ]
    off = angle(*penalties("loss", "k2", level()))
    return (
        cases(*holds),
        f"{tilted('loss', 'k2')}. For each token of responses of two, it leaves out how prefixes come about: up to "
        f"{n(off)} degrees off; for a response's sum it is exact again",
    )


@claim("kl", "k3 in the reward is the same penalty as k1, whose value it has.", FALSE)
def _() -> Found:
    pairs = [penalties("reward", "k3", environment) for environment in (TILTED, ACTIONS, *SEQUENCES)]
    return (
        cases(*(same(*pair) for pair in pairs)),
        f"{tilted('reward', 'k3')}; with three responses up to {n(angle(*pairs[1]))} degrees off",
    )


@claim("kl", "With KL in the reward, the return at early tokens is only the KL to come, not the final reward.", FALSE)
def _() -> Found:
    script = estimator(kl=kl_in("reward", "k1"), quantity="token_advantage")
    environment = fixed("real")[2].only(0)
    last = len(environment.tree.responses) - 1
    more = [r + (m == last) for m, r in enumerate(environment.prompts[0].rewards)]
    returns = []
    for each in (environment, environment.with_rewards([more])):
        _, advantages = Context(script, each, script.hp, reused=False).slopes(torch.tensor([[[last]]]))
        returns.append(advantages[0, 0, 0])
    rise = returns[1] - returns[0]
    return (
        cases(not same(rise[0], 1.0), not same(rise[1], 1.0)),
        f"a response of 3 tokens with reward 0: G_t = {n(returns[0])}; with reward 1 they rise by {n(rise)}",
    )


# -------- Baseline --------


def constant(value: float) -> tuple[Script, dict[str, float]]:
    return estimator({"source": "constant", "value": 1.0}), {"baseline_value": value}


@claim("baseline", "A constant baseline, whatever its value, leaves E[g].", TRUE)
def _() -> Found:
    script, holds = constant(1.0)[0], []
    for value in (-5.0, 0.75, 100.0):
        for environment in (QUARTER, *REAL):
            wanted = expected(environment, environment.tables.rewards)
            holds.append(same(mean_of(script, environment, 2, baseline_value=value), wanted))
    found = [float(mean_of(script, QUARTER, 2, baseline_value=b)[0, 1]) for b in (-5.0, 0.75, 100.0)]
    return cases(*holds), f"p = 1/4, k = 2, b = -5, 0.75, 100: E[g] = {n(found)}; 4 other prompts: equal"


@claim("baseline", "A baseline lowers the variance.", OPEN)
def _() -> Found:
    script, best = constant(1.0)[0], facts(QUARTER).best
    values = (0.0, best, 2 * best - 0.1, 2 * best + 0.1)
    traces = [trace(script, QUARTER, 2, baseline_value=b) for b in values]
    return (
        cases(*(t < traces[0] for t in traces[1:])),
        f"p = 1/4, k = 2: b = {n(list(values))} have tr Cov(g) = {n(traces)}: lower between 0 and twice the best "
        f"b = E[R |s|^2]/E|s|^2 = {n(best)}",
    )


@claim("baseline", "The batch's mean reward as baseline is unbiased.", SCALED)
def _() -> Found:
    script = estimator("batch_mean")
    factors = [compare(script, coin(*[(1, 3)] * B), k, script.hp)[0].factors[0] for B, k in ((1, 2), (2, 2), (3, 2))]
    return (
        of_gradient(script, (QUARTER, *REAL)),
        f"k = 2 and 1, 2, 3 prompts: E[g] = (N - 1)/N of the gradient = {n(factors)}, N = 2, 4, 6 responses",
    )


@claim("baseline", "A moving average of past rewards, or the greedy response's reward, is an unbiased baseline.", TRUE)
def _() -> Found:
    scripts = estimator({"source": "moving_average", "decay": 0.75}), estimator("greedy")
    verdicts = [of_gradient(script, (coin((3, 1)), *REAL)) for script in scripts]
    assert len(set(verdicts)) == 1
    return verdicts[0], f"both: {on_coin(scripts[0])}; {EVERY}"


@claim("baseline", "Leave-one-out is unbiased.", TRUE)
def _() -> Found:
    script = estimator("leave_one_out")
    return of_gradient(script, (coin((3, 1)), *REAL)), f"{on_coin(script)}; {EVERY}"


@claim("baseline", "Leave-one-out is unbiased only if the other responses are from the current policy too.", FALSE)
def _() -> Found:
    """The first response is from the policy, the others from another one: its share of the gradient, k times."""
    script, k, holds = estimator("leave_one_out"), 3, []
    for environment in (far("real").only(0), fixed("real")[2].only(1)):
        tables = environment.tables
        outcomes = len(environment.tree.responses)
        index = torch.tensor(list(itertools.product(range(outcomes), repeat=k)))
        probs = tables.probs[0, index[:, 0]] * tables.old_probs[0, index[:, 1:]].prod(1)
        slopes, _ = Context(script, environment, script.hp, reused=False).slopes(index[:, None])
        mean = k * torch.einsum("n,nt,ntp->p", probs, slopes[:, 0, 0], tables.scores[0, index[:, 0]])
        holds.append(not same(mean, expected(environment, tables.rewards)[0]))
        if len(holds) == 1:
            shown = mean, expected(environment, tables.rewards)[0]
    other = edited(OTHER_PROMPT)
    holds.append(of_gradient(other, REAL) != TRUE)
    return (
        cases(*holds),
        f"k = 3, rewards 2, -1, 1, the two others being old samples: E[g] = ({n(shown[0])}), gradient ({n(shown[1])}); "
        f"another prompt's mean is as good",
    )


@claim("baseline", "The variance of a leave-one-out advantage is sigma^2 (k - 2)/(k - 1).", FALSE)
def _() -> Found:
    sigma2, sizes = facts(DIE).sigma2, (2, 3, 4)
    found = []
    for k in sizes:
        probs, _, advantages = ordered(estimator("leave_one_out"), DIE, k)
        found.append(covariance(probs, advantages[:, 0], advantages[:, 0]))
    assert all(same(v, sigma2 * k / (k - 1)) for v, k in zip(found, sizes, strict=True))
    claimed = [sigma2 * (k - 2) / (k - 1) for k in sizes]
    return (
        cases(*(same(v, c) for v, c in zip(found, claimed, strict=True))),
        f"die, sigma^2 = {n(sigma2)}, k = 2, 3, 4: Var[A] = {n(found)} = sigma^2 k/(k - 1), and not {n(claimed)}",
    )


@claim("baseline", "A response's reward and its leave-one-out baseline have covariance sigma^2/(k - 1).", FALSE)
def _() -> Found:
    k, sums, found = 3, [], []
    for environment in (QUARTER, coin((3, 1))):
        probs, rewards, advantages = ordered(estimator("leave_one_out"), environment, k)
        R, b = rewards[:, 0], (rewards - advantages)[:, 0]
        found.append(covariance(probs, R, b))
        sums.append([float((probs * x).sum()) for x in (R, b, R * b)])
    mean_R, mean_b, mean_Rb = (sum(pair) / 2 for pair in zip(*sums, strict=True))
    claimed = facts(QUARTER).sigma2 / (k - 1)
    across = mean_Rb - mean_R * mean_b
    assert same(found, [0.0, 0.0]) and same(across, 1 / 16)  # the means are 1/4 and 3/4
    return (
        cases(*(same(c, claimed) for c in (*found, across))),
        f"p = 1/4, 3/4, k = 3: the covariance is {n(found)} for each prompt, and {n(across)} = Var[mu] across both; "
        f"sigma^2/(k - 1) = {n(claimed)}",
    )


@claim("baseline", "With k = 2 leave-one-out is already close to the best baseline.", FALSE)
def _() -> Found:
    oracle, numbers = constant(facts(DIE).mu)
    pairs = [(trace(estimator("leave_one_out"), DIE, k), trace(oracle, DIE, k, **numbers)) for k in (2, 3, 4)]
    return (
        cases(pairs[0][0] < 1.1 * pairs[0][1]),
        f"die, k = 2: tr Cov(g) = {n(pairs[0][0])}, and {n(pairs[0][1])} with the true mean as baseline: "
        f"{n(pairs[0][0] / pairs[0][1])} times; k = 3, 4: {n([a / b for a, b in pairs[1:]])} times",
    )


@claim("baseline", "The noise of leave-one-out is proportional to sigma^2/(k - 1).", FALSE)
def _() -> Found:
    f, sizes = facts(DIE), (2, 3, 4)
    traces = [trace(estimator("leave_one_out"), DIE, k) for k in sizes]
    assert all(same(t, leave_one_out_trace(f, k)) for t, k in zip(traces, sizes, strict=True))
    shares = [t * (k - 1) / f.sigma2 for t, k in zip(traces, sizes, strict=True)]
    return (
        cases(len(distinct(shares)) == 1),
        f"die, k = 2, 3, 4: tr Cov(g) (k - 1)/sigma^2 = {n(shares)}: it is (sigma^2 T - (k - 2)/k |G|^2)/(k - 1) with "
        f"T = |s|^2 = {n(f.T)} and |G|^2 = {n(f.G2)}",
    )


@claim("baseline", "Leave-one-out is never noisier than no baseline.", FALSE)
def _() -> Found:
    scripts = estimator("leave_one_out"), estimator()
    zero, often = one_token((-1.5, 0, -0.5, 2)), coin((9, 1))
    pairs = [[trace(script, each, 4) for script in scripts] for each in (zero, often)]
    return (
        cases(*(a <= b for a, b in pairs)),
        f"k = 4, tr Cov(g) with and without it: {n(pairs[0])} for rewards -1.5, 0, -0.5, 2 of four even responses; "
        f"{n(pairs[1])} for a coin with p = 0.9",
    )


@claim("baseline", "Leave-one-out has less noise than the batch's mean.", OPEN)
def _() -> Found:
    scripts, halves = (estimator("leave_one_out"), estimator("batch_mean")), coin((1, 1), (1, 1))
    worlds = halves.with_rewards([(0, 1), (4, 5)]), halves
    apart, alike = ([noise(script, each, 2) for script in scripts] for each in worlds)
    return (
        cases(apart[0] < apart[1], alike[0] < alike[1]),
        f"two fair coins, k = 2, tr Cov(g)/|E g|^2 of both: {n(apart)} for rewards 0, 1 and 4, 5, {n(alike)} for 0, 1 "
        f"twice",
    )


@claim("baseline", "A leave-one-out baseline is best used at its full size, R - alpha b with alpha = 1.", FALSE)
def _() -> Found:
    def best(k: int) -> float:
        """The lowest point of the parabola tr Cov(g) of alpha."""
        zero, half, one = (trace(scaled_baseline(alpha), DIE, k) for alpha in (0.0, 0.5, 1.0))
        bend = 2 * (one - 2 * half + zero)
        return 0.5 - (one - zero) / (2 * bend)

    f, sizes = facts(DIE), (2, 3, 4)
    found, level_part = [best(k) for k in sizes], f.mu**2 * f.T
    formula = [level_part / (level_part + (f.sigma2 * f.T + f.G2) / (k - 1)) for k in sizes]
    assert all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(found, formula, strict=True))
    return (
        cases(*(same(alpha, 1.0) for alpha in found)),
        f"die, k = 2, 3, 4: tr Cov(g) is least at alpha = {n(found)} = m/(m + (sigma^2 T + |G|^2)/(k - 1)), m = mu^2 T",
    )


def scaled_baseline(alpha: float) -> Script:
    return edited(
        f"""
        def compute_advantages(rollouts, hp):
            r, k = rollouts.rewards_BG, rollouts.rewards_BG.shape[1]
            others = (r.sum(1, keepdim=True) - r) / (k - 1)
            return (r - {alpha} * others)[..., None] * rollouts.mask_BGT
        """
    )


@claim("baseline", "One very low reward raises the other leave-one-out advantages, by delta/(k - 1).", TRUE)
def _() -> Found:
    before, after = (advantages_of(estimator("leave_one_out"), r) for r in ((1, 2, 3, 4), (-8, 2, 3, 4)))
    rise = after - before
    return (
        cases(*(same(x, 9 / 3) for x in rise[1:])),
        f"rewards 1, 2, 3, 4, then -8 for 1 (delta = 9, k = 4): A = {n(before)}, then {n(after)}",
    )


@claim("baseline", "Of rewards 8.2, 6.5, 9.1, the mean is 7.93, the leave-one-out baselines 7.8, 8.65, 7.35.", TRUE)
def _() -> Found:
    rewards = torch.tensor(THREE, dtype=torch.float64)
    means = rewards - advantages_of(estimator("group_mean"), THREE)
    baselines = rewards - advantages_of(estimator("leave_one_out"), THREE)
    return (
        cases(same(means[0], 23.8 / 3), same(baselines, [7.8, 8.65, 7.35])),
        f"mean {n(means[0].item())}; baselines {n(baselines)}, advantages {n(rewards - baselines)}",
    )


@claim("baseline", "The group's mean, own reward included (GRPO), is the leave-one-out baseline (RLOO).", SCALED)
def _() -> Found:
    mean, others = (gradients(estimator(b), REAL[0], 3)[0] for b in ("group_mean", "leave_one_out"))
    shares = advantages_of(estimator("group_mean"), THREE) / advantages_of(estimator("leave_one_out"), THREE)
    factor = float(shares[0])
    verdict = TRUE if same(mean, others) else SCALED if same(mean, factor * others) else FALSE
    return verdict, f"batch by batch, k = 3: g is {n(factor)} = (k - 1)/k of that"


def traced(trace_decay: float, values: Sequence[float]) -> tuple[Tensor, float]:
    """E[g] and tr Cov(g) under a critic, on pairs of tokens."""
    script = critic(trace=trace_decay)
    hp = script.with_numbers(kl_coefficient=0.0)
    found = moments(script, PAIRS.with_values([values]), 1, hp, covariance=True)
    return found.mean, found.trace


@claim("baseline", "Generalized advantage estimation with lambda = 1 does without the critic.", FALSE)
def _() -> Found:
    (exact,) = PAIRS.exact_values()
    tried = [[0.0] * 3, exact, [10.0, -10.0, 5.0]]
    found = [traced(1.0, values) for values in tried]
    assert all(same(mean, expected(PAIRS, PAIRS.tables.rewards)) for mean, _ in found)
    traces = [noisy for _, noisy in found]
    return (
        cases(all(same(t, traces[0]) for t in traces)),
        f"pairs of tokens, k = 1: unbiased for any V, which is still the baseline: tr Cov(g) = {n(traces)} for V = 0, "
        f"V^pi = ({n(exact)}) and V = (10, -10, 5)",
    )


@claim("baseline", "Generalized advantage estimation with lambda < 1 is unbiased.", OPEN)
def _() -> Found:
    (exact,) = PAIRS.exact_values()
    gradient = expected(PAIRS, PAIRS.tables.rewards)
    means = [traced(0.0, values)[0] for values in (exact, [0.0] * 3)]
    return (
        cases(*(same(mean, gradient) for mean in means)),
        f"pairs of tokens, lambda = 0, the first token's b: E[g] = {n(float(means[0][0, 1]))} for V = V^pi, "
        f"{n(float(means[1][0, 1]))} for V = 0, gradient {n(float(gradient[0, 1]))}",
    )


# -------- Normalization --------


def grpo(ddof: int = 0) -> Script:
    return estimator("group_mean", group_std(ddof))


@claim("normalization", "Dividing by the group's std favours prompts that are almost always right or wrong.", TRUE)
def _() -> Found:
    found = [weight(grpo(), 8).at(p) for p in (0.1, 0.3, 0.5, 0.7, 0.9)]
    return cases(found[0] > found[1] > found[2] < found[3] < found[4]), f"0/1 rewards, k = 8: w = {weights(grpo(), 8)}"


@claim("normalization", "For 0/1 rewards, GRPO's advantages and leave-one-out are the same up to a factor.", FALSE)
def _() -> Found:
    sizes = (2, 3, 4, 8)
    alike = [weight(grpo(), k).constant for k in sizes]
    assert alike == [True, True, False, False]
    found = "; ".join(f"{n([weight(grpo(), k).at(p) for p in RATES])} for k = {k}" for k in sizes)
    verdict = TRUE if all(alike) else FALSE
    return verdict, f"beside leave-one-out's 1, w at p = {n(RATES)} is {found}. It holds at k = 2 and 3"


@claim("normalization", "The group's std only reweights prompts, whatever the rewards.", FALSE)
def _() -> Found:
    environment = one_token((0, 1, 5))
    (found,) = compare(grpo(), environment, 3, grpo().hp)
    return (
        cases(found.parallel),
        f"one prompt, three even responses with rewards 0, 1, 5, k = 3: E[g] = ({n(found.mean[0])}), gradient "
        f"({n(found.gradient[0])}), {n(found.angles[0])} degrees apart",
    )


@claim("normalization", "In an all-correct group the std is 0, so advantages explode where epsilon is tiny.", FALSE)
def _() -> Found:
    largest = 0.0
    for k, epsilon in itertools.product((2, 4, 8), (0.0, 1e-12, 1e-6)):
        for reward in (1.0, 0.1):
            found = advantages_of(grpo(), (reward,) * k, normalization_epsilon=epsilon)
            largest = max(largest, float(found.abs().max()))
    return (
        cases(largest > 0),
        f"k = 2, 4, 8, epsilon 0, 1e-12, 1e-6, rewards all 1 or all 0.1: the largest abs(A) is {n(largest)}, exactly",
    )


@claim("normalization", "Almost equal rewards give almost no advantage.", FALSE)
def _() -> Found:
    found = advantages_of(grpo(), (0.5, 0.5001))
    plain = advantages_of(estimator("leave_one_out"), (0.5, 0.5001))
    return (
        cases(float(found.abs().max()) < 0.01),
        f"rewards 0.5, 0.5001, k = 2: A = {n(found)} by the group's std, as for 0 and 1; leave-one-out: {n(plain)}",
    )


@claim("normalization", "No advantage is larger than sqrt(k - 1) after division by the group's std.", TRUE)
def _() -> Found:
    sizes, holds, attained = (2, 4, 8), [], []
    for ddof in (0, 1):
        for k in sizes:
            index = torch.tensor([[[1] * K + [0] * (k - K)] for K in range(k + 1)])
            _, advantages = Context(grpo(ddof), HALF, grpo(ddof).hp, reused=False).slopes(index)
            attained.append(float(advantages.abs().max()))
            holds.append(attained[-1] <= math.sqrt(k - 1) * (1 + 1e-12))
    for environment in (DIE, one_token((0, 1, 100))):
        _, _, advantages = ordered(grpo(), environment, 4)
        holds.append(float(advantages.abs().max()) <= math.sqrt(3) * (1 + 1e-12))
    return (
        cases(*holds),
        f"k = 2, 4, 8, largest abs(A): {n(attained[:3])} with ddof 0, where one response differs; {n(attained[3:])} "
        f"= (k - 1)/sqrt(k) with ddof 1",
    )


@claim("normalization", "The std of the rewards 8.2, 6.5, 9.1 is 1.07.", FALSE)
def _() -> Found:
    scores = [advantages_of(grpo(ddof), THREE) for ddof in (0, 1)]
    stds = [float(advantages_of(estimator("group_mean"), THREE)[0] / z[0]) for z in scores]
    return (
        cases(*(round(std, 2) == 1.07 for std in stds)),
        f"{n(stds[0])} with ddof 0, z-scores {n(scores[0])}; {n(stds[1])} with ddof 1, z-scores {n(scores[1])}",
    )


@claim("normalization", "Dividing by the batch's std instead of the group's weights all prompts alike.", OPEN)
def _() -> Found:
    script = estimator("group_mean", batch_std())
    (small,) = compare(script, coin((1, 9), (1, 1), (9, 1)), 4, script.hp)
    large = compare_limit(script, coin((1, 9), (1, 1), (9, 1)), 2, script.hp)
    return (
        cases(small.common, large.common),
        f"p = 0.1, 0.5, 0.9: w = {n(small.factors)} in a batch of three prompts, k = 4; {n(large.factors)} as the "
        f"batch grows, k = 2",
    )


MAXRL = ("group_mean", {"scope": "group", "divide_by": "mean", "epsilon": 0.0})


@claim("normalization", "Dividing by the group's mean reward (MaxRL) maximizes log p, whose slope is 1/p.", OPEN)
def _() -> Found:
    script, sizes = estimator(*MAXRL), (4, 256)
    errors = [[abs(weight(script, k).at(p) * p - 1) for p in RATES] for k in sizes]
    assert all(same(weight(script, 4).at(p), (1 - (1 - p) ** 3) / p) for p in RATES)
    return (
        cases(*(max(row) < 1e-9 for row in errors)),
        f"1/p = {n([1 / p for p in RATES])} at p = {n(RATES)}; w = (1 - q^(k - 1))/p = "
        f"{n([weight(script, 4).at(p) for p in RATES])} for k = 4, {n([weight(script, 256).at(p) for p in RATES])} for "
        f"k = 256",
    )


@claim("normalization", "For 0/1 rewards MaxRL has the objective of fine-tuning on the best of k (RAFT).", TRUE)
def _() -> Found:
    pairs = [[weight(script, k) for script in (estimator(*MAXRL), estimator(**BEST_OF_K))] for k in (2, 4, 16)]
    return (
        cases(*(same(a.at(p), b.at(p)) for a, b in pairs for p in RATES)),
        f"k = 2, 4, 16: the same w at p = {n(RATES)}, for k = 16 {n([pairs[2][0].at(p) for p in RATES])}",
    )


# -------- Objective --------


@claim("objective", "Averaging over the tokens of each response, 1/L, only rescales the gradient.", FALSE)
def _() -> Found:
    even = ((1, 1), (1, 1))
    environment = world(SHORT, (even, (0, 0, 1), even, even))
    script = estimator("leave_one_out", aggregation="seq_mean_token_mean")
    (found,) = compare(script, environment, 2, script.hp)
    return (
        of_gradient(script, (environment, *REAL)),
        f"responses '.', 'a.', 'aa' from even tokens with rewards 0, 0, 1, leave-one-out, k = 2: E[g] = "
        f"({n(found.mean[0])}), gradient ({n(found.gradient[0])}), {n(found.angles[0])} degrees apart",
    )


@claim("objective", "Dr. GRPO is leave-one-out (RLOO), in the first update of a batch.", SCALED)
def _() -> Found:
    doctor = estimator("group_mean", aggregation="seq_mean_token_sum_norm", ratio="token", clip=CLIP)
    found, others = (gradients(each, REAL[0], 3)[0] for each in (doctor, estimator("leave_one_out")))
    factor = float((found * others).sum() / others.square().sum())
    verdict = TRUE if same(found, others) else SCALED if same(found, factor * others) else FALSE
    return verdict, f"batch by batch, k = 3, a max_length of 8: g is {n(factor)} = (k - 1)/k/8 of that"


@claim("objective", "Averaging over all tokens of the batch (DAPO) treats responses of all lengths alike.", OPEN)
def _() -> Found:
    first, second = ((1, 3), (1, 1)), ((3, 1), (1, 1))
    environment = world(SHORT, (first, (0, 1, 3), first, first), (second, (-2, 1, -1), second, second))
    script = estimator("leave_one_out", aggregation="token_mean")
    (small,) = compare(script, environment, 2, script.hp)
    large = compare_limit(script, environment, 2, script.hp)
    return (
        cases(small.parallel, large.common),
        f"two prompts of '.', 'a.', 'aa', with '.' in 1 and 3 of 4, rewards 0, 1, 3 and -2, 1, -1, k = 2: up to "
        f"{n(max(small.angles))} degrees off; as the batch grows {n(large.factors)} of the gradient, 1 over the mean "
        f"length",
    )


@claim("objective", "PPO's clip bounds the ratio with which a token enters the gradient.", FALSE)
def _() -> Found:
    script, environment, k = estimator(ratio="token", clip=CLIP), far("real"), 1
    tables = environment.tables
    index = torch.cat([chunk for chunk, _ in batches(tables, k, tables.old_probs)])
    slopes, _ = Context(script, environment, script.hp, reused=True).slopes(index)
    A = tables.rewards[torch.arange(2)[:, None], index][..., None].expand(slopes.shape)
    rho = (tables.logprobs - tables.old_logprobs).exp()[torch.arange(2)[:, None], index]
    assert same(slopes[slopes != 0], (A * rho / (2 * k))[slopes != 0])

    def kept(side: Tensor) -> list[float]:
        """The ratios of the tokens that have a gradient."""
        return sorted({round(x, 12) for x in rho[(slopes != 0) & side & tables.mask[index]].tolist()})

    good, bad = kept(A > 0), kept(A < 0)
    return (
        cases(min(good) >= 0.8, max(bad) <= 1.2),
        f"clip 0.2, old samples with ratios 12, {n(12 / 23)} and 1: those with a gradient are {n(good)} where A > 0, "
        f"and {n(bad)} where A < 0",
    )


@claim("objective", "GSPO's sequence ratio makes the first update of a batch another one than GRPO's.", FALSE)
def _() -> Found:
    answers = {"baseline": "group_mean", "normalization": group_std(), "aggregation": "seq_mean_token_mean"}
    plain, sequence = (estimator(**answers, ratio=r, clip=CLIP) for r in ("token", "sequence_mean"))
    first = [gradients(each, REAL[1], 2)[0] for each in (plain, sequence)]
    later = [moments(each, far("real"), 2, each.hp, reused=True).mean for each in (plain, sequence)]
    return (
        cases(not same(*first)),
        f"the largest difference between the gradients of a batch is {n(float((first[0] - first[1]).abs().max()))}, "
        f"over {len(first[0])} batches of two prompts; on old samples, later, E[g] is up to {n(angle(*later))} "
        f"degrees apart",
    )


@claim("objective", "GSPO-token has the gradient of GSPO, where all tokens of a response have one advantage.", TRUE)
def _() -> Found:
    answers = {"baseline": "group_mean", "normalization": group_std(), "aggregation": "seq_mean_token_mean"}
    pair = [estimator(**answers, ratio=r, clip=CLIP) for r in ("sequence_mean", "sequence_mean_token")]
    first = [gradients(each, REAL[1], 2)[0] for each in pair]
    later = [moments(each, far("real"), 2, each.hp, reused=True).mean for each in pair]
    return (
        cases(same(*first), same(*later)),
        f"the largest difference between the gradients of a batch is {n(float((first[0] - first[1]).abs().max()))}, "
        f"over {len(first[0])} batches of two prompts; on old samples, later, between E[g], "
        f"{n(float((later[0] - later[1]).abs().max()))}",
    )


def on_pairs(kl: str, **objective: Any) -> Script:
    answers = {"quantity": "preference", **objective}
    return preferences(json.dumps({**PREFERENCES, "kl": kl, "objective": answers}))


PREFERENCES = {"name": "oracle", "reward": "preferences", "baseline": "pair", "normalization": "none"}


@cache
def preferences(answers: str) -> Script:
    plan = Plan(Spec.model_validate_json(answers))
    return load_script(render(plan, "oracle.yaml", "0" * 16), "oracle.py", plan)


@claim("objective", "DPO's first step, on pairs of the policy's own, has the gradient of the win rate.", SCALED)
def _() -> Found:
    betas, alone, later, exact = (0.1, 0.5), [], 0.0, True
    for beta in betas:
        script = on_pairs("implicit", beta=beta)
        found = [each for world in (coin((1, 3)), *REAL) for each in compare(script, world, 2, script.hp)]
        exact &= all(each.parallel and same(each.factors, [2 * beta] * len(each.factors)) for each in found)
        alone.append(found[0].factors[0])
        moved = [each for world in REAL for each in compare(script, world, 2, script.hp, reused=True)]
        later = max(later, *(angle for each in moved for angle in each.angles))
    return (
        SCALED if exact else FALSE,
        f"beta = {n(betas)}: {n(alone)} = 2 beta of it; later, when the policy has left the reference, up to "
        f"{n(later)} degrees off",
    )


@claim("objective", "SimPO's first step has the gradient of the win rate, too.", FALSE)
def _() -> Found:
    script = on_pairs("none", beta=2.0, length_normalized=True, margin=1.0)
    found = [each for world in REAL for each in compare(script, world, 2, script.hp)]
    return (
        cases(all(each.parallel for each in found)),
        f"beta = 2, margin 1, responses of 1 to 3 tokens: up to {n(max(a for each in found for a in each.angles))} "
        f"degrees off",
    )


@claim("objective", "A ratio for each token makes later updates of a batch unbiased.", FALSE)
def _() -> Found:
    found = {}
    for ratio in ("none", "token", "sequence"):
        script = estimator(ratio=ratio)
        found[ratio] = compare(script, far("real"), 2, script.hp, reused=True)
    angles = [max(angle for each in found[r] for angle in each.angles) for r in found]
    assert all(each.equal for each in found["sequence"])
    return (
        cases(all(each.parallel for each in found["token"])),
        f"old samples, rewards 2, -1, 1 and -1, 3, 0, no clip: up to {n(angles[1])} degrees off, without a ratio "
        f"{n(angles[0])}; with the product over the response E[g] is the gradient",
    )


# -------- The page --------

HEAD = """# Claims

Statistical claims about policy-gradient estimators for language models, each decided by enumerating compiled scripts on
small policies. `python tests/claims.py --write` computes every verdict and number and writes this page.
"""

FOOT = """## Reading the tables

A claim is *true up to a factor* where what it says is off by a constant that no policy or reward changes, and
*underspecified* where it holds in one of the cases that its row names and not in another. Numbers have four significant
digits; those called equal agree to 1e-10.

- k is the number of responses a prompt, p a prompt's success rate and q = 1 - p. A *coin* has one right and one wrong
  response of one token; the gradient of p in the logit of the right one is pq.
- w(p) is the weight in E[g] = w(p) times the gradient of p. Without reweighting it is the same for all p.
- g is the gradient of a batch, uphill; G is that of E[R]; s is that of log pi of a response. tr Cov(g) is the sum of
  the variances of g's entries.
- The *die* has five responses of one token, equally probable, with rewards -1, 0, 1, 2, 3: mu = 1, sigma^2 = 2.
- *Pairs of tokens* are aa, ab, ba, bb, equally probable, with rewards 0, 1, 3, -1. V is that of the empty response, of
  a and of b.
- The *win rate* is the chance that a response of the policy is chosen over one of the policy that wrote the pairs, a
  response being chosen over another with the chance sigmoid of the difference of their rewards.
- In the table on KL, pi = (1/2, 1/2) and ref = (1/4, 3/4) for two responses of one token, and the coefficient is 1.
- *Old samples* are responses '.', 'a.', 'aa' from a policy with '.' in 1 of 24, where pi has 1 of 2; what follows a is
  even in both.
- '.' ends a response: '.', 'a.' and 'aa' have 1, 2 and 2 tokens. The gradient is in the logits of '.' and a, first and
  then after a. The *other prompts* have responses of 1 to 3 tokens, and rewards of either sign.
"""


def page() -> str:
    """The Markdown."""
    parts = [HEAD]
    for word in WORDS:
        rows = ["| claim | verdict | computed |", "|---|---|---|"]
        for each in CLAIMS:
            if each.word == word:
                verdict, evidence = each.check()
                cells = [each.text, verdict, evidence]
                rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append(f"## {word}\n\n" + "\n".join(rows) + "\n")
    return "\n".join([*parts, FOOT])


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
