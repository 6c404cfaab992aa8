"""What `specc verify` says: for people, as JSON, and as a picture."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from specc.answers.base import weakest
from specc.answers.objective import WIN_RATE
from specc.own_answers import is_own
from specc.verify.laws import LawResult
from specc.verify.run import Counterexample, Verified
from specc.verify.variance import Noise, Variance
from specc.verify.verdict import Compared, Judged, aim, compare_limit, expected
from specc.weights import GRID, Weight

SHOWN = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
"""success rates of the tables"""

REWARDS = {"binary": "0/1 rewards", "real": "real rewards"}

COLORS = {"unbiased": "green", "proportional": "green", "asymptotic": "cyan", "reweighted": "yellow", "biased": "red"}

MEANING = {
    "unbiased": "E[g] is the gradient of E[R]",
    "proportional": "E[g] is c times the gradient of E[R]",
    "asymptotic": "E[g] tends to a multiple of the gradient of E[R] as the batch grows",
    "reweighted": "each prompt's gradient is multiplied by w(p), p being its success rate",
    "biased": "E[g] does not point along the gradient of E[R]",
}


# -------- JSON --------


def as_json(verified: Verified) -> dict[str, Any]:
    """The stable form, which docs/verification.md describes; JSON has no infinity and no NaN, which become null."""
    found: dict[str, Any] = without_infinities(everything(verified))
    return found


def without_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_infinities(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def everything(verified: Verified) -> dict[str, Any]:
    script = verified.script
    return {
        "version": 1,
        "name": script.name,
        "group_size": verified.size,
        "seed": verified.seed,
        "verdict": verified.overall,
        "claim": script.claim,
        "target": script.target,
        "claim_refuted": verified.claim_refuted if verified.judges_claim else None,
        "rewards": {kind: of_class(judged) for kind, judged in verified.judged.items()},
        "off_policy": verified.off_policy,
        "weight": of_weight(verified.weight),
        "batch_error": [
            {"prompts": e.prompts, "group_size": e.size, "error": e.error, "within_95": e.within}
            for e in verified.errors
        ],
        "kl": None
        if verified.penalty is None
        else {
            "kind": verified.penalty.kind,
            "weighting": verified.penalty.weighting or None,
            "factor": verified.penalty.factor,
        },
        "variance": of_variance(verified.variance),
        "laws": [
            {"number": r.law.number, "name": r.law.name, "verdict": r.verdict, "detail": r.detail or None}
            for r in verified.laws
        ],
        "counterexample": None if verified.counterexample is None else of_counterexample(verified),
        "derived": None
        if verified.derived is None
        else {
            "binary": verified.derived.binary,
            "real": verified.derived.real,
            "reasons": [{"where": where, "why": why} for where, why in verified.derived.reasons],
        },
        "disagreements": verified.disagreements,
    }


def of_class(judged: Judged) -> dict[str, Any]:
    factor = judged.factor
    return {
        "verdict": judged.verdict,
        "exact": judged.exact,
        "factor": None if factor is None else {"value": factor.value, "formula": factor.formula},
        "largest_angle_degrees": judged.angle,
        "environments": judged.environments,
        "outcomes": judged.outcomes,
    }


def of_weight(weight: Weight | None) -> dict[str, Any] | None:
    if weight is None:
        return None
    return {"p": GRID, "w": [weight.at(p) for p in GRID], "F": [weight.integral(p) for p in GRID]}


def of_variance(variance: Variance | None) -> dict[str, Any] | None:
    if variance is None:
        return None

    def of_noise(noise: Noise) -> dict[str, float | None]:
        return {
            "trace": noise.trace,
            "signal": noise.signal,
            "noise_per_signal": noise.per_signal,
            "advantage": noise.advantage,
        }

    return {
        "group_size": variance.size,
        "closed_form": variance.closed_form,
        "environments": [{title: of_noise(n) for title, n in row.items()} for row in variance.environments],
        "sweep": {
            "group_size": variance.sweep_size,
            "p": GRID,
            "noise_per_signal": variance.sweep,
        },
    }


def of_counterexample(verified: Verified) -> dict[str, Any]:
    example = verified.counterexample
    assert example is not None
    compared, limit = shown(verified, example)
    prompts = []
    for b, prompt in enumerate(example.environment.prompts):
        prompts.append(
            {
                "policy": prompt.policy,
                "responses": [example.environment.tree.spell(y) for y in example.environment.tree.responses],
                "probabilities": example.environment.tables.probs[b].tolist(),
                "rewards": list(prompt.rewards),
                "expected_gradient": compared.mean[b].tolist(),
                "gradient": compared.gradient[b].tolist(),
                "angle_degrees": compared.angles[b],
            }
        )
    return {
        "refutes": example.statement,
        "rewards": example.rewards,
        "group_size": example.size,
        "in_the_limit": limit,
        "prompts": prompts,
    }


def shown(verified: Verified, example: Counterexample) -> tuple[Compared, bool]:
    """E[g] on the counterexample: of one batch with all of its prompts, or in the limit where that is the statement."""
    script, world = verified.script, example.environment
    hp = script.with_numbers(kl_coefficient=0.0)
    if example.statement == "asymptotic":
        return compare_limit(script, world, example.size, hp), True
    mean = expected(script, world, example.size, hp)
    return Compared(world, example.size, mean, aim(script, world) / len(world.prompts)), False


# -------- For people --------


def console() -> Console:
    """As wide as the terminal; where there is none, wide enough for every table."""
    width = None if sys.stdout.isatty() else 110
    return Console(highlight=False, markup=False, width=width)


def text_of(renderable: RenderableType) -> str:
    """What is printed, without the blanks to the right of a table."""
    out = console()
    with out.capture() as captured:
        out.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def render(verified: Verified) -> RenderableType:
    """The report on one script, a screen long."""
    parts: list[RenderableType] = [heading(verified), indented(verdicts(verified))]
    if verified.derived is not None and verified.overall != "unbiased":
        parts += [Text("Why", style="bold"), indented(reasons(verified.derived.reasons))]
    if verified.weight is not None and not verified.weight.constant:
        parts += [
            Text("Weight of a prompt by its success rate p, at equal lengths", style="bold"),
            indented(chart(verified.weight)),
        ]
    if verified.errors:
        parts += [Text("How far a batch is from proportional", style="bold"), indented(errors(verified))]
    if verified.variance is not None:
        title = "Noise per signal, tr Cov(g) / |E g|^2, for 0/1 rewards and one token"
        parts += [Text(title, style="bold"), indented(noise(verified.variance))]
    parts += [Text("Laws", style="bold"), indented(laws(verified.laws))]
    if verified.counterexample is not None and verified.overall != "unbiased":
        parts += [Text(f"Not {verified.counterexample.statement}", style="bold"), indented(counterexample(verified))]
    return Group(*parts, closing(verified))


def indented(inner: RenderableType) -> Padding:
    return Padding(inner, (0, 0, 1, 2))


def heading(verified: Verified) -> Text:
    plan = verified.script.plan
    title = (plan.spec.title or plan.spec.name) if plan else verified.script.name
    text = Text(title, style="bold")
    k = f"k = {counted(verified.size, 'response')} a prompt"
    pairs = "pairs of the policy's own responses, one chosen by Bradley and Terry from rewards"
    text.append(f"   {pairs if verified.script.on_pairs else k}", style="not bold")
    return text


def verdicts(verified: Verified) -> Table:
    table = grid()
    for kind, judged in verified.judged.items():
        text = explained(judged)
        if kind == "binary" and verified.script.slope is not None:
            text = text.replace("E[R]", str(verified.script.target))
        if verified.script.on_pairs:
            text = text.replace("E[R]", f"the {WIN_RATE}")
        table.add_row(REWARDS[kind], word(judged.verdict), text)
    if verified.script.on_pairs and verified.off_policy is not None:
        moved = "the policy has left the reference, which the pairs are from"
        table.add_row("later steps", word(weakest(verified.off_policy.values())), moved)
    elif verified.off_policy is not None:
        same = len(set(verified.off_policy.values())) == 1
        for kind, verdict in list(verified.off_policy.items())[: 1 if same else 2]:
            what = "reused batch" if same else f"reused, {REWARDS[kind]}"
            table.add_row(what, word(verdict), "the later updates of a batch, whose samples are from an older policy")
    if verified.penalty is not None:
        rule = verified.derived.penalty.reason if verified.derived and verified.derived.penalty else ""
        weighting = f", {verified.penalty.weighting}" if verified.penalty.weighting else ""
        table.add_row("KL part", Text(verified.penalty.kind + weighting), rule)
    return table


def reasons(found: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for where, why in found:
        table.add_row(Text(where), Text(why))
    return table


def explained(judged: Judged) -> str:
    text = MEANING[judged.verdict]
    if judged.factor is not None and judged.verdict == "proportional":
        text += f", c = {judged.factor}"
    if judged.verdict == "reweighted" and not judged.exact:
        text += ", as the batch grows"
    if judged.verdict == "biased":
        text += f": up to {judged.angle:.1f} degrees off"
    return text


def word(verdict: str) -> Text:
    return Text(verdict, style=COLORS[verdict])


def grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    return table


def chart(weight: Weight, width: int = 66, height: int = 5) -> Text:
    """w(p) in block characters, from p = 0.01 to 0.99, with F at a few places below."""
    points = [weight.at(0.01 + 0.98 * column / (width - 1)) for column in range(width)]
    top, bottom = max(points), min(0.0, *points)
    blocks = " ▁▂▃▄▅▆▇█"
    lines = []
    for row in reversed(range(height)):
        fill = ((point - bottom) / (top - bottom) * height - row for point in points)
        cells = "".join(blocks[max(0, min(8, round(part * 8)))] for part in fill)
        label = f"{top:.3g}" if row == height - 1 else f"{bottom:.3g}" if row == 0 else ""
        lines.append(f"{label:>6} {cells}")
    lines.append(" " * 7 + "p = 0.01" + "0.99".rjust(width - 8))
    values = ", ".join(f"{weight.at(p):.4g}" for p in (0.1, 0.5, 0.9))
    whole = ", ".join(f"{weight.integral(p):.4g}" for p in (0.1, 0.5, 0.9))
    lines.append(f"w = {values} at p = 0.1, 0.5, 0.9; its integral F, the objective, is {whole}")
    return Text("\n".join(lines))


def errors(verified: Verified) -> Table:
    table = grid()
    for each in verified.errors:
        how = "exact" if each.within is None else f"+- {100 * each.within:.1f}%, sampled, 95% interval"
        table.add_row(f"{each.prompts} prompts x {each.size}", f"{100 * each.error:.2f}%", how)
    return table


def noise(variance: Variance) -> Group:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("p =", no_wrap=True)
    for p in SHOWN:
        table.add_column(f"{p:g}", justify="right")
    for title, row in variance.sweep.items():
        name = "this estimator" if title == "this" else title
        table.add_row(name, *(f"{row[GRID.index(p)]:.2g}" for p in SHOWN))
    notes = averages(variance)
    for title in list(variance.sweep)[1:]:
        worse = variance.worse_than(title)
        if worse:
            notes.append(f"more than {title} at p = {spans(worse)}: it is not never worse")
    if variance.closed_form:
        notes.append(f"tr Cov(g) of a prompt = {variance.closed_form}")
    return Group(table, Text("\n".join(notes)))


def averages(variance: Variance) -> list[str]:
    """The estimator beside the others on the fixed environments, by geometric means over them."""
    lines = []
    for title in list(variance.environments[0])[1:]:
        pairs = [(row["this"], row[title]) for row in variance.environments]
        noises = geometric_mean([mine.per_signal / other.per_signal for mine, other in pairs if other.per_signal])
        spreads = geometric_mean([mine.advantage / other.advantage for mine, other in pairs if other.advantage])
        of = f"{noises:.2g} and {spreads:.2g} times those of {title}"
        lines.append(f"where lengths vary, k = {variance.size}: noise per signal and Var[A] are {of}")
    return lines


def geometric_mean(ratios: Sequence[float]) -> float:
    positive = [ratio for ratio in ratios if 0 < ratio < math.inf]
    return math.exp(math.fsum(map(math.log, positive)) / len(positive)) if positive else math.nan


def spans(rates: Sequence[float]) -> str:
    """Success rates as ranges: 0.01-0.12, 0.9."""
    found: list[list[float]] = []
    for p in rates:
        if found and p - found[-1][-1] < 0.015:
            found[-1].append(p)
        else:
            found.append([p])
    return ", ".join(f"{run[0]:g}" if len(run) == 1 else f"{run[0]:g} to {run[-1]:g}" for run in found)


def laws(results: Sequence[LawResult]) -> Group:
    """The laws side by side in two columns, and below them what is wrong with those that are broken."""
    signs = {"holds": Text("ok", style="green"), "broken": Text("BROKEN", style="bold red"), "skipped": Text("-")}
    table = Table.grid(padding=(0, 1))
    half = (len(results) + 1) // 2
    for row in range(half):
        cells: list[RenderableType] = []
        for result in results[row::half]:
            cells += [f"{result.law.number:>2}", signs[result.verdict], f"{result.law.title}  "]
        table.add_row(*cells)
    broken = [Text(f"{r.law.title}: {r.detail}", style="red") for r in results if r.verdict == "broken"]
    return Group(table, *broken)


def counterexample(verified: Verified) -> Group:
    """The smallest refutation found, with all that it takes to check it by hand."""
    example = verified.counterexample
    assert example is not None
    world = example.environment
    compared, limit = shown(verified, example)
    batch = "in the limit of large batches" if limit else f"one batch of {counted(len(world.prompts), 'prompt')}"
    parts: list[RenderableType] = [
        Text(f"{batch}, {counted(example.size, 'response')} each, {REWARDS[example.rewards]}")
    ]
    for b, prompt in enumerate(world.prompts):
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("", "response", "probability", "reward"):
            table.add_column(name, justify="right" if name in ("probability", "reward") else "left", no_wrap=True)
        for m, response in enumerate(world.tree.responses):
            first = f"prompt {b + 1}" if m == 0 else ""
            probability = f"{float(world.tables.probs[b, m]):.6g}"
            table.add_row(first, world.tree.spell(response), probability, f"{prompt.rewards[m]:g}")
        parts.append(table)
        factor = compared.factors[b]
        said = f"angle {compared.angles[b]:.2f} degrees" + (
            "" if math.isnan(factor) else f", E[g] along the gradient: {factor:.6g} of it"
        )
        parts.append(Text(f"E[g]     {numbers(compared.mean[b].tolist())}"))
        parts.append(Text(f"gradient {numbers(compared.gradient[b].tolist())}   {said}"))
    tokens = ", ".join(world.tree.spell((token,)) for token in range(world.tree.vocabulary))
    prefixes = ", ".join(f"after '{world.tree.spell(prefix)}'" if prefix else "first" for prefix in world.tree.prefixes)
    parts.append(Text(f"parameters: the logits of {tokens}; {prefixes}. '.' ends a response", style="dim"))
    return Group(*parts)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def numbers(values: Iterable[float]) -> str:
    return "[" + ", ".join(f"{value + 0.0:.5g}" for value in values) + "]"


def closing(verified: Verified) -> Text:
    lines = []
    claim = verified.script.claim
    if verified.claim_refuted:
        lines.append(Text(f"The claim `{claim}` is refuted: the estimator is {verified.overall}.", style="bold red"))
    elif verified.judges_claim:
        lines.append(Text(f"The claim `{claim}` holds.", style="green"))
    elif claim is not None:
        lines.append(Text(f"The claim `{claim}` is about {verified.script.target}, and is not judged."))
    else:
        lines.append(Text(f"No claim is made; `claim: {verified.overall}` would hold."))
    if verified.broken:
        lines.append(Text(f"{counted(len(verified.broken), 'law')} broken.", style="bold red"))
    own = verified.script.plan is not None and any(map(is_own, verified.script.plan.spec.answers.values()))
    for each in verified.disagreements:
        whose = "What your class says of itself is not so" if own else "This is an error in specc, please report it"
        lines.append(Text(f"{whose}: {each}", style="bold red"))
    return Text("\n").join(lines)


def summary(results: Sequence[Verified]) -> Table:
    """Several scripts, a line each."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("", "k", "0/1 rewards", "real rewards", "KL part", "laws", "claim"):
        table.add_column(name, no_wrap=True)
    for each in results:
        plan = each.script.plan
        kept = [result for result in each.laws if result.verdict == "holds"]
        law = Text(f"{len(each.broken)} broken", style="bold red") if each.broken else Text(f"{len(kept)} hold")
        claim = "-" if not each.judges_claim else "refuted" if each.claim_refuted else "holds"
        penalty = "-" if each.penalty is None else " ".join(filter(None, [each.penalty.kind, each.penalty.weighting]))
        table.add_row(
            plan.spec.name if plan else Path(each.script.name).stem,
            str(each.size),
            word(each.judged["binary"].verdict),
            word(each.judged["real"].verdict),
            penalty,
            law,
            Text(claim, style="bold red" if claim == "refuted" else ""),
        )
    return table


# -------- A picture --------


def plot(verified: Verified, path: Path) -> None:
    """w(p), F(p) and the noise along the sweep, in one picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    weight, variance = verified.weight, verified.variance
    assert variance is not None
    figure, axes = pyplot.subplots(1, 3 if weight else 1, figsize=(13 if weight else 5, 4), squeeze=False)
    if weight is not None:
        axes[0, 0].plot(GRID, [weight.at(p) for p in GRID])
        axes[0, 0].set(title="weight w(p)", xlabel="success rate p", ylim=(min(0, *map(weight.at, GRID)), None))
        axes[0, 1].plot(GRID, [weight.integral(p) for p in GRID])
        axes[0, 1].set(title="objective F(p)", xlabel="success rate p")
    for title, row in variance.sweep.items():
        name = "this estimator" if title == "this" else title
        axes[0, -1].plot(GRID, row, label=name, linestyle="-" if title == "this" else "--")
    axes[0, -1].set(title=f"noise per signal, k = {verified.size}", xlabel="success rate p", yscale="log")
    axes[0, -1].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
