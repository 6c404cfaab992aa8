"""The formulas of `specc explain`: what is printed is read back and evaluated, and has to give the script's numbers.

The evaluator knows the words that the legend explains (mean, std, to_come, ...) and nothing of the answers.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from conftest import ALGORITHMS, ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.mathtext import MathTextParser
from strategies import every_spec, script_of, specs
from torch import Tensor

from specc import report
from specc.answers import QUESTIONS, answers_to
from specc.answers.baseline import Baseline
from specc.cli import main
from specc.formula import FUNCTIONS, SCOPES, SYMBOLS, Latex, Line, formula, latex, number
from specc.load import load_spec
from specc.plan import Plan
from specc.spec import Spec
from specc.verify.laws import Batch, last_tokens, make_batch
from specc.verify.script import Script

LINE = re.compile(r"(?:\w+|) +(\w+) += (.+?)(?:  .*)?")


def printed(spec: Spec) -> dict[str, str]:
    """The formulas as `specc explain` prints them: name -> expression."""
    lines = report.loss(spec)
    return dict(m.groups() for line in lines[: lines.index("where")] if (m := LINE.fullmatch(line)))


# -------- The evaluator --------


@dataclass(frozen=True)
class Scope:
    """What a statistic is over: `group`, or of it `group.tokens`."""

    name: str
    unit: str = "responses"

    def __getattr__(self, unit: str) -> Scope:
        return Scope(self.name, unit)


@dataclass
class Evaluator:
    """The words of the formulas on [B, G, T], float64; what is of a response is [B, G, 1]."""

    mask: Tensor
    ends: Tensor
    past: list[list[Tensor]] = field(default_factory=list)
    """of each mean and std over past steps, in the order of the text, what those have put in"""
    calls: int = 0

    def counted(self, x: Tensor, scope: Scope) -> tuple[Tensor, Tensor]:
        """The values and which of them count."""
        of = {"responses": self.mask[..., :1], "tokens": self.mask, "steps": self.ends}[scope.unit]
        if scope.unit == "responses":
            assert x.shape[-1] == 1, "a statistic over responses, of what each token has"
        return torch.broadcast_tensors(torch.as_tensor(x, dtype=torch.float64), of)

    def sum(self, x: Tensor, scope: Scope) -> Tensor:
        values, of = self.counted(x, scope)
        each = values.where(of, 0.0).sum(2, keepdim=True)
        if scope.name == "others":
            return each.sum(1, keepdim=True) - each
        return each.sum({"group": (1,), "batch": (0, 1), "update": (0, 1)}[scope.name], keepdim=True)

    def count(self, scope: Scope) -> Tensor:
        if scope.unit == "prompts":
            return torch.tensor(float(len(self.mask)))
        return self.sum(torch.ones_like(self.mask[..., :1], dtype=torch.float64), scope)

    def mean(self, x: Tensor, scope: Scope) -> Tensor:
        if scope.unit == "pairs":
            return x.mean()
        if scope.name == "past":
            seen = self.remembered(x, scope)
            return seen.mean() if len(seen) else torch.tensor(0.0)
        return self.sum(x, scope) / self.count(scope)

    def std(self, x: Tensor, scope: Scope, ddof: int) -> Tensor:
        if scope.name == "past":
            seen = self.remembered(x, scope)
            return seen.std(correction=ddof) if len(seen) > 1 else torch.tensor(0.0)
        deviations = torch.as_tensor(x) - self.mean(x, scope)
        return (self.sum(deviations**2, scope) / (self.count(scope) - ddof).clamp(min=1)).sqrt()

    def remembered(self, x: Tensor, scope: Scope) -> Tensor:
        values, of = self.counted(x, scope)
        if self.calls == len(self.past):
            self.past.append([])
        seen = self.past[self.calls]
        self.calls += 1
        before = torch.cat(seen) if seen else torch.zeros(0)
        seen.append(values[of])
        return before

    def sum_t(self, x: Tensor) -> Tensor:
        return (x * self.mask).sum(2, keepdim=True)

    def prod_t(self, x: Tensor) -> Tensor:
        return x.where(self.mask, 1.0).prod(2, keepdim=True)

    def to_come(self, x: Tensor, by: Tensor | float = 1.0) -> Tensor:
        values, at = (x * self.mask).unbind(2), torch.as_tensor(by, dtype=torch.float64)
        at = at[..., 0] if at.ndim else at
        T = len(values)
        return torch.stack([sum(at ** (u - t) * values[u] for u in range(t, T)) for t in range(T)], 2)

    def next(self, x: Tensor) -> Tensor:
        return torch.cat([(x * self.mask)[..., 1:], torch.zeros_like(x[..., :1])], 2)

    def names(self) -> dict[str, Any]:
        """What an expression may use, beside the symbols."""
        binary = {"min": torch.minimum, "max": torch.maximum}
        own = {name: getattr(self, name) for name in FUNCTIONS if hasattr(self, name)}
        return {
            **own,
            **{name: Scope(name) for name in SCOPES},
            **{name: on_tensors(function) for name, function in binary.items()},
            "where": on_tensors(torch.where, torch.bool),
            "clip": lambda x, low, high: x.clamp(low, high),
            "sg": torch.Tensor.detach,
            "log": torch.log,
            "exp": lambda x: torch.as_tensor(x, dtype=torch.float64).exp(),
            "sigmoid": torch.sigmoid,
            "first": lambda x: x[..., :1],
            "chosen": lambda x: x[:, 0],
            "rejected": lambda x: x[:, 1],
        }


def on_tensors(function: Callable[..., Tensor], first: torch.dtype = torch.float64) -> Callable[..., Tensor]:
    def call(x: Any, *others: Any) -> Tensor:
        return function(torch.as_tensor(x, dtype=first), *(torch.as_tensor(y, dtype=torch.float64) for y in others))

    return call


def evaluate(lines: dict[str, str], symbols: dict[str, Any], evaluator: Evaluator) -> dict[str, Any]:
    """The values of all names, the given ones included."""
    known = {**evaluator.names(), **symbols}
    for name, text in lines.items():
        known[name] = eval(text.replace("^", "**"), {"__builtins__": {}}, known)
    return known


# -------- What a script and its formulas are given --------


def rollouts(seed: int, kind: str, of_steps: bool) -> Batch:
    """Responses of one token or more, all of them scored; the rewards of steps add up to those of responses."""
    batch = make_batch(seed, 3, 4, 4, kind=kind)
    mask = batch.mask_BGT | (torch.arange(4) == 0)
    ends = mask & (batch.step_ends_BGT | last_tokens(mask))
    steps = make_batch(seed + 50, 3, 4, 4).logprobs_BGT.where(ends, torch.tensor(0.0).double())
    rewards = steps.sum(-1) if of_steps else batch.rewards_BG
    return batch._replace(mask_BGT=mask, step_ends_BGT=ends, step_rewards_BGT=steps, rewards_BG=rewards)


def symbols_of(batch: Batch, logprobs: Tensor, values: Tensor, state: dict[str, Tensor]) -> dict[str, Any]:
    lengths = batch.mask_BGT.sum(-1, keepdim=True).double()
    found = {
        "r": batch.rewards_BG[..., None],
        "s_t": batch.step_rewards_BGT,
        "length": lengths,
        "last_t": last_tokens(batch.mask_BGT).double(),
        "ends_t": batch.step_ends_BGT.double(),
        "pi_t": logprobs.exp(),
        "old_t": batch.old_logprobs_BGT.exp(),
        "ref_t": batch.ref_logprobs_BGT.exp(),
        "H_t": batch.extras_BGT,
        "V_t": batch.values_BGT,
        "v_t": values,
        "greedy": batch.greedy_rewards_B[:, None, None],
    }
    assert set(found) | {"score", "ended"} == set(SYMBOLS)
    return found | {"beta": state.get("kl_coefficient"), "b": state.get("moving_average", torch.tensor(0.0).double())}


def close(got: Any, want: Tensor, mask: Tensor, what: str) -> None:
    got = torch.as_tensor(got, dtype=torch.float64).detach().expand(want.shape).where(mask, 0.0)
    torch.testing.assert_close(got, want.detach().where(mask, 0.0), rtol=1e-9, atol=1e-9, msg=lambda m: f"{what}: {m}")


def check(spec: Spec, seed: int, kind: str = "real") -> None:
    """That the printed formulas give what the spec's script gives."""
    script = script_of(spec)
    lines = printed(spec)
    assert "loss" in lines
    if Plan(spec).own_functions:  # of which only the call is printed
        return None
    return check_pairs(script, lines, seed) if script.on_pairs else check_rollouts(script, lines, seed, kind)


def check_rollouts(script: Script, lines: dict[str, str], seed: int, kind: str) -> None:
    module, hp, plan = script.module, script.hp, script.plan
    assert plan is not None
    state: dict[str, Tensor] = {}
    past: list[list[Tensor]] = []
    for step in range(3):
        batch = rollouts(seed + step, kind, plan.credits_steps)
        mask = batch.mask_BGT
        evaluator = Evaluator(mask, batch.step_ends_BGT, past)
        logprobs = batch.logprobs_BGT.clone().requires_grad_()
        values = (batch.values_BGT + batch.extras_BGT - 1).requires_grad_()
        symbols = symbols_of(batch, logprobs, values, state)
        if script.has("transform_rewards"):
            ended, score = batch.greedy_rewards_B[:, None] > batch.rewards_BG, batch.rewards_BG
            batch = batch._replace(rewards_BG=module.transform_rewards(score, ended, mask.sum(-1), hp))
            symbols |= {"score": score[..., None], "ended": ended[..., None]}
            del symbols["r"]
        given = batch.rollouts(module, state=state)
        if script.carries("kl_coefficient"):
            symbols["beta"] = module.kl_coefficient_of(state, initial=hp.kl_adaptive_initial)
        found = evaluate(lines, symbols, evaluator)
        advantage = found.get("A_t", found.get("A"))
        assert advantage is not None
        advantages, weights = module.compute_advantages(given, hp), module.aggregation_weights(mask, hp)
        close(found["r"], batch.rewards_BG[..., None], mask[..., :1], "r")
        close(advantage, advantages, mask, "A")
        close(found["w_t"], weights, mask, "w")
        check_loss(script, batch, found, logprobs, advantages, weights, state | {"kl_coefficient": symbols["beta"]})
        if plan.critic:
            check_value_loss(script, batch, found, values, weights)
        state = module.update_state(given, hp) if script.has("update_state") else {}
        if "b_next" in found:  # in words: after the first step the mean alone
            moved = found["b_next"] / (1 if step else 1 - hp.baseline_decay)
            close(moved.squeeze(), state["moving_average"], torch.tensor(True), "b_next")


def check_loss(
    script: Script,
    batch: Batch,
    found: dict[str, Any],
    logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    state: dict[str, Tensor],
) -> None:
    inputs = {name: script.loss_input(name, batch, state) for name in script.loss_inputs}
    extra = {name: batch.extras_BGT.flatten(0, 1) if value is None else value for name, value in inputs.items()}
    again = batch.logprobs_BGT.clone().requires_grad_()
    tensors = (again, batch.old_logprobs_BGT, batch.ref_logprobs_BGT, advantages, weights, batch.mask_BGT)
    loss = script.module.policy_loss(*(x.flatten(0, 1) for x in tensors), script.hp, **extra)
    close(found["loss"].sum(), loss, torch.tensor(True), "loss")
    for name in ("A", "A_t", "w_t", "b"):
        assert not getattr(found.get(name), "requires_grad", False), name
    gradients = [torch.autograd.grad(value.sum(), at)[0] for value, at in ((found["loss"], logprobs), (loss, again))]
    close(*gradients, batch.mask_BGT, "gradient")


def check_value_loss(script: Script, batch: Batch, found: dict[str, Any], values: Tensor, weights: Tensor) -> None:
    module, hp = script.module, script.hp
    targets = module.compute_value_targets(batch.rollouts(module), hp)
    close(found["G_t"], targets, batch.mask_BGT, "G")
    again = values.detach().clone().requires_grad_()
    tensors = (again, batch.values_BGT, targets, weights, batch.mask_BGT)
    loss = module.value_loss(*(x.flatten(0, 1) for x in tensors), hp)
    close(found["value_loss"].sum(), loss, torch.tensor(True), "value loss")
    both = ((found["value_loss"], values), (loss, again))
    close(*(torch.autograd.grad(value.sum(), at)[0] for value, at in both), batch.mask_BGT, "value gradient")


def check_pairs(script: Script, lines: dict[str, str], seed: int) -> None:
    batch = make_batch(seed, 3, 2, 4)
    mask = batch.mask_BGT | (torch.arange(4) == 0)
    found = []
    logprobs = [batch.logprobs_BGT.clone().requires_grad_() for _ in range(2)]
    symbols = {"pi_t": logprobs[0].exp(), "ref_t": batch.ref_logprobs_BGT.exp(), "length": mask.sum(-1, keepdim=True)}
    found.append(evaluate(lines, symbols, Evaluator(mask, mask))["loss"])
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    found.append(script.module.preference_loss(logprobs[1], batch.ref_logprobs_BGT, weights, mask, script.hp))
    close(found[0], found[1], torch.tensor(True), "loss")
    gradients = [torch.autograd.grad(loss, at)[0] for loss, at in zip(found, logprobs, strict=True)]
    close(*gradients, mask, "gradient")


# -------- The tests --------


@pytest.mark.parametrize("kind", ["real", "ties"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_formulas_of_the_shipped_algorithms(name: str, kind: str) -> None:
    check(load_spec(ROOT / f"algorithms/{name}.yaml").spec, seed=7, kind=kind)


ANSWERS = [answer for question in QUESTIONS for answer in answers_to(question).values()]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: f"{answer.question}-{answer.answer_name()}")
def test_the_formulas_of_every_choice(answer: Any) -> None:
    found = every_spec(answer)
    assert found
    for spec in random.Random(0).sample(found, min(len(found), 12)):
        check(spec, seed=3)


@pytest.mark.parametrize("ratio", ["token", "sequence_mean_token"])
def test_a_ratio_on_advantages_of_tokens(ratio: str) -> None:
    """Whether the gradient of a ratio is each token's own shows where the advantages of a response's tokens differ."""
    data = load_spec(ROOT / "algorithms/reinforcepp.yaml").spec.model_dump()
    data["objective"] = {"quantity": "token_advantage", "ratio": ratio, "aggregation": "token_mean"}
    check(Spec.model_validate(data), seed=11)


@pytest.mark.parametrize("divide_by", ["std", "none"])
@pytest.mark.parametrize("baseline", ["none", "group_mean"])
def test_statistics_of_steps_beside_a_kl_in_the_reward(baseline: str, divide_by: str) -> None:
    data = load_spec(ROOT / "algorithms/grpo_process.yaml").spec.model_dump()
    data["kl"] = {"placement": "reward", "coefficient": 0.3}
    data["baseline"] = {"source": baseline, **({"unit": "step"} if baseline != "none" else {})}
    data["normalization"] = {"scope": "batch", "unit": "step", "subtract_mean": True, "divide_by": divide_by}
    check(Spec.model_validate(data), seed=5)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(specs(), st.integers(0, 99), st.sampled_from(["real", "ties"]))
def test_the_formulas_of_drawn_specs(spec: Spec, seed: int, kind: str) -> None:
    check(spec, seed, kind)


def test_an_answer_without_a_formula_is_named_and_explained() -> None:
    class Own(Baseline):
        """What a user's function says."""

        @property
        def name(self) -> str:
            return "own"

    spec = load_spec(ROOT / "algorithms/grpo.yaml").spec.model_copy(update={"baseline": Own()})
    (line,) = (line for line in report.loss(spec) if "own" in line)
    assert line.split() == ["baseline", "b", "=", "own_baseline(R)", "What", "a", "user's", "function", "says"]


def test_every_name_is_a_symbol_or_on_a_line_before() -> None:
    for name in ALGORITHMS:
        known = {*SYMBOLS, *SCOPES, *FUNCTIONS}
        for _, line in formula(load_spec(ROOT / f"algorithms/{name}.yaml").spec):
            if line.value:
                used = {part.id for part in ast.walk(line.tree) if isinstance(part, ast.Name)}
                assert used <= known, (name, line)
            known.add(line.name)


def test_the_legend_explains_what_occurs_and_nothing_else() -> None:
    text = "\n".join(report.loss(load_spec(ROOT / "algorithms/rloo.yaml").spec))
    assert "others  " in text and "ref_t  " in text and "the tokens of the response" in text
    assert not {"clip(", "group  ", "V_t", "std("} & set(re.findall(r"clip\(|group  |V_t|std\(", text))


@pytest.mark.parametrize("value", [0.2, 3e-4, 1e-6, 1.0, 5, -5.0, 1e300, 123456789, 0.1 + 0.2])
def test_a_number_keeps_its_digits(value: float) -> None:
    assert float(number(value)) == value


# -------- LaTeX --------

PRINTED = {
    "x % size_t": r"\mathtt{x \% size\_t}",
    "where(x >= 1, x, 0)": r"\begin{cases} x & \text{if } x \ge 1 \\ 0 & \text{else} \end{cases}",
    "a * (b + c) - (d - e)": r"a \, \left(b + c\right) - \left(d - e\right)",
    "-((a + b) * c)": r"-\left(a + b\right) \, c",
    "a * 1e-06": r"a \cdot 10^{-6}",
    "2.5e-07 * a": r"2.5 \cdot 10^{-7} \, a",
    "(a + b) ** 2 / c": r"\frac{\left(a + b\right)^{2}}{c}",
    "(a / b) ** (1 / c)": r"\left(\frac{a}{b}\right)^{\frac{1}{c}}",
    "to_come(d_t, 0.9 * lam)": r"\sum_{u \geq t} \left(0.9 \, \lambda\right)^{u - t} \, d_{u}",
    "first(R_t) - next(V_t)": r"R_{1} - V_{t+1}",
    "mean(s_t, others.steps)": r"\operatorname{mean}_{\text{others steps}}\left(s_{t}\right)",
    "-sum(w_t * (J_t - c_t), update.tokens)": r"-\sum_{\text{update tokens}} w_{t} \, \left(J_{t} - c_{t}\right)",
    "where(A < 0, 1, x)": r"\begin{cases} 1 & \text{if } A < 0 \\ x & \text{else} \end{cases}",
    "custom_baseline(R)": r"\operatorname{custom\_baseline}\left(R\right)",
}


@pytest.mark.parametrize("text", PRINTED)
def test_an_expression_in_latex(text: str) -> None:
    assert Latex().of(Line("x", text).tree) == PRINTED[text]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_explain_prints_latex_that_compiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib reads each formula; `align` and `cases`, which it does not know, are put on one line before."""
    monkeypatch.chdir(ROOT)
    text = CliRunner().invoke(main, ["explain", name, "--latex"]).stdout
    title, begin, *rows, end = text.splitlines()
    assert r"\mathtt" not in text  # what is only written as it is
    assert title.startswith(f"% {name}: ") and (begin, end) == (r"\begin{align*}", r"\end{align*}")
    assert len(rows) == sum(bool(line.value) for _, line in formula(load_spec(ROOT / f"algorithms/{name}.yaml").spec))
    for place, row in enumerate(rows):
        left, right = row.removesuffix(r" \\").split(" &= ")
        assert row.endswith(r" \\") == (place < len(rows) - 1)
        right = right.replace(r"\begin{cases}", r"\{").replace(r"\end{cases}", r"\}").replace("& ", "")
        MathTextParser("path").parse(f"${left} = {right.replace(chr(92) * 2, ',')}$")


def test_latex_is_one_environment() -> None:
    lines = [("kl", Line("x_t", "log(pi_t / ref_t)")), ("kl", Line("beta", "", "in words"))]
    row = r"  x_{t} &= \log\left(\frac{\pi_{t}}{\pi^{\mathrm{ref}}_{t}}\right)"
    assert latex(lines) == "\n".join([r"\begin{align*}", row, r"\end{align*}"])
