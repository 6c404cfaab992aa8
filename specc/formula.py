"""The loss of a spec as formulas, put together from the parts that its answers own.

A part is a `Line`: a name and an expression in a small language with Python's grammar, which is printed as text and as
LaTeX from the same tree. Names that end in `_t` have a value for each token. The tests read the printed text back and
evaluate it beside the script.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specc.spec import Spec


@dataclass(frozen=True)
class Line:
    """`name = value`, or without a value what the name stands for, in words."""

    name: str
    value: str
    note: str = ""

    @property
    def text(self) -> str:
        return ast.unparse(self.tree).replace(" ** ", "^") if self.value else ""

    @property
    def tree(self) -> ast.expr:
        return ast.parse(self.value, mode="eval").body


def number(value: float | int) -> str:
    """A number of the spec in an expression, with all of its digits."""
    return repr(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)


def product(*factors: float | str) -> str:
    """The product of numbers and expressions, without factors of 1."""
    told = [factor if isinstance(factor, str) else number(factor) for factor in factors]
    return " * ".join(factor for factor in told if factor != "1") or "1"


def formula(spec: Spec) -> list[tuple[str, Line]]:
    """The lines of the loss in the order of the signal chain, each with the word of the answer that it is of."""
    return list(lines_of(spec) if spec.online else lines_of_pairs(spec))


def lines_of(spec: Spec) -> Iterator[tuple[str, Line]]:
    objective, baseline, normalization = spec.objective, spec.baseline, spec.normalization
    yield from owned("sampling", spec.sampling.formula())
    yield from owned("reward", spec.reward.formula())
    yield from owned("kl", spec.kl.formula())
    final = "A_t" if objective.token_level else "A"
    by_steps = baseline.over_steps or normalization.over_steps
    if by_steps:
        steps = ["s_t", *["e_t"] * (not baseline.leaves_as_is), *["n_t"] * (not normalization.leaves_as_is)]
        before, after = steps[len(steps) - 1 - (not normalization.leaves_as_is)], steps[-1]
    else:
        before, after = final if normalization.leaves_as_is else final.lower(), final
    if not by_steps and (not baseline.per_token or normalization.of_returns):
        yield from owned("objective", objective.returns(spec))
    if not (by_steps and baseline.leaves_as_is):
        yield from owned("baseline", baseline.formula(spec, before))
    if not normalization.leaves_as_is:
        yield from owned("normalization", normalization.formula(spec, before, after))
    if by_steps:
        yield "objective", Line(final, f"to_come(ends_t * {after})" + " - to_come(c_t)" * spec.kl.in_reward)
    yield from owned("objective", objective.formula(spec, final))
    yield from owned("baseline", baseline.losses(spec))


def lines_of_pairs(spec: Spec) -> Iterator[tuple[str, Line]]:
    yield from owned("kl", spec.kl.formula())
    yield from owned("objective", spec.objective.returns(spec))
    yield from owned("baseline", spec.baseline.formula(spec, "d"))
    yield from owned("objective", spec.objective.formula(spec, "d"))


def owned(word: str, lines: Iterable[Line]) -> Iterator[tuple[str, Line]]:
    for line in lines:
        yield word, line


# --- what the names stand for ---

SYMBOLS = {
    "score": "what the source of the reward gives a response",
    "r": "the reward of a response",
    "s_t": "the reward of the step that ends at token t, and 0 elsewhere",
    "ended": "whether the response ended",
    "length": "the response's tokens",
    "last_t": "1 on the last token of a response, 0 elsewhere",
    "ends_t": "1 on a token that ends a step, 0 elsewhere",
    "pi_t": "probability of token t under the policy; the loss is differentiated in it alone",
    "old_t": "the same under the policy that sampled: the value of pi_t in the first update of a batch",
    "ref_t": "the same under the reference",
    "H_t": "the policy's entropy at token t",
    "V_t": "the critic's value of the state before token t when the batch was sampled; 0 after the last token",
    "v_t": "the critic's value of that state now; the value loss is differentiated in it alone",
    "greedy": "the reward of the prompt's greedy response",
}
"""Names that no line defines."""

SCOPES = {
    "group": "the responses to the same prompt",
    "others": "the other responses to the same prompt; of one that is alone, itself",
    "batch": "all responses of the step, over all processes",
    "past": "those of all past steps",
    "update": "what one optimizer step sees, with its tokens, responses and prompts",
}

FUNCTIONS = {
    "mean": "mean(x, over): each response counts once, or each token or step where it is over .tokens or .steps",
    "std": "std(x, over, ddof): the same; the sum of squared deviations is divided by the count minus ddof",
    "sum": "",
    "count": "",
    "sum_t": "sum_t, prod_t: over the tokens of the response",
    "prod_t": "sum_t, prod_t: over the tokens of the response",
    "to_come": "to_come(x_t, by): x_t + by x_(t+1) + by^2 x_(t+2) + ... to the last token; by is 1 unless given",
    "next": "next(x_t): x_(t+1), 0 after the last token",
    "first": "first(x_t): its value at the first token, which is that of the whole response",
    "where": "where(c, x, y): x where c is true, else y",
    "clip": "clip(x, low, high): x, raised to low and lowered to high",
    "sg": "sg(x): x, as a number that is not differentiated",
    "chosen": "",
    "rejected": "",
    "log": "",
    "exp": "",
    "min": "",
    "max": "",
    "sigmoid": "",
}
"""The functions of the expressions, with what is to be said of them."""


def legend(lines: Iterable[Line]) -> Iterator[tuple[str, str]]:
    """What the names and functions of the lines stand for, those alone that occur."""
    listed = list(lines)
    used = {part.id for line in listed if line.value for part in ast.walk(line.tree) if isinstance(part, ast.Name)}
    yield from ((name, meaning) for name, meaning in SYMBOLS.items() if name in used - {line.name for line in listed})
    yield from ((name, meaning) for name, meaning in SCOPES.items() if name in used)
    said = dict.fromkeys(meaning for name, meaning in FUNCTIONS.items() if name in used and meaning)
    yield from (tuple(meaning.split(": ", 1)) for meaning in said)  # type: ignore[misc]


# --- LaTeX ---

LETTERS = {
    "pi": r"\pi",
    "old": r"\pi^{\mathrm{old}}",
    "ref": r"\pi^{\mathrm{ref}}",
    "rho": r"\rho",
    "lam": r"\lambda",
    "beta": r"\beta",
    "tau": r"\tau",
    "length": r"\ell",
    "loss": r"\mathcal{L}",
    "value_loss": r"\mathcal{L}_V",
    "last": r"\mathbf{1}^{\mathrm{last}}",
    "ends": r"\mathbf{1}^{\mathrm{step}}",
}
"""The names that are not set as they are written."""

SIGNS = {ast.Gt: ">", ast.GtE: r"\ge", ast.Lt: "<", ast.LtE: r"\le", ast.Eq: "=", ast.NotEq: r"\ne"}

SUM, PRODUCT, POWER, ATOM = range(4)
"""How tightly an expression holds together, by the last operation in it."""


def latex(lines: Iterable[tuple[str, Line]]) -> str:
    """The lines as one `align*` environment of amsmath."""
    rows = [f"  {letter(line.name)} &= {Latex().of(line.tree)}" for _, line in lines if line.value]
    return "\n".join([r"\begin{align*}", " \\\\\n".join(rows), r"\end{align*}"])


def letter(name: str, index: str = "t") -> str:
    """A name in LaTeX; one for each token has an index."""
    base, for_token = (name[:-2], True) if name.endswith("_t") else (name, False)
    return LETTERS.get(base, base if len(base) == 1 else upright("mathrm", base)) + f"_{{{index}}}" * for_token


def upright(command: str, name: str) -> str:
    escaped = re.sub(r"([%&#$_{}])", r"\\\1", name)
    return rf"\{command}{{{escaped}}}"


@dataclass(frozen=True)
class Latex:
    """The printer of an expression; `index` is that of the token which it is of."""

    index: str = "t"

    def of(self, node: ast.expr, least: int = SUM) -> str:
        """The expression, in parentheses where it holds together less than asked."""
        text, level = self.printed(node)
        return text if level >= least else rf"\left({text}\right)"

    def printed(self, node: ast.expr) -> tuple[str, int]:
        match node:
            case ast.Name(id=name):
                return letter(name, self.index), ATOM
            case ast.Constant(value=value):
                return constant(repr(value))
            case ast.Attribute() as scope:
                return rf"\text{{{words(scope)}}}", ATOM
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"-{self.of(operand, PRODUCT)}", SUM
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return rf"\frac{{{self.of(left)}}}{{{self.of(right)}}}", POWER
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                return f"{self.of(left, ATOM)}^{{{self.of(right)}}}", POWER
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                factors = self.of(left, PRODUCT), self.of(right, POWER)
                return (r" \cdot " if factors[1][0].isdigit() else r" \, ").join(factors), PRODUCT
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return f"{self.of(left)} + {self.of(right)}", SUM
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return f"{self.of(left)} - {self.of(right, PRODUCT)}", SUM
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in SIGNS:
                return f"{self.of(left)} {SIGNS[type(op)]} {self.of(right)}", SUM
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
                return self.call(name, arguments, {str(k.arg): k.value for k in keywords})
        return upright("mathtt", ast.unparse(node)), ATOM  # which an answer of one's own may have: as it is written

    def call(self, name: str, given: list[ast.expr], keywords: dict[str, ast.expr]) -> tuple[str, int]:
        match name, given:
            case (("sum_t" | "prod_t"), [x]):
                return rf"\{name[:-2]}_{{t}} {self.of(x, PRODUCT)}", PRODUCT
            case "sum", [x, scope]:
                return rf"\sum_{{\text{{{words(scope)}}}}} {self.of(x, PRODUCT)}", PRODUCT
            case "count", [scope]:
                return rf"N_{{\text{{{words(scope)}}}}}", ATOM
            case (("mean" | "std"), [x, scope]):
                ddof = "".join(rf",\, \mathrm{{ddof}} = {self.of(value)}" for value in keywords.values())
                return rf"\operatorname{{{name}}}_{{\text{{{words(scope)}}}{ddof}}}\left({self.of(x)}\right)", ATOM
            case "to_come", [x, *by]:
                power = "".join(rf"\left({self.of(rate)}\right)^{{u - t}} \, " for rate in by)
                return rf"\sum_{{u \geq t}} {power}{Latex('u').of(x, POWER)}", PRODUCT
            case "next", [x]:
                return Latex(f"{self.index}+1").printed(x)
            case "first", [x]:
                return Latex("1").printed(x)
            case (("chosen" | "rejected"), [ast.Name(id=of)]):
                return rf"{letter(of)}_{{\mathrm{{{name}}}}}", ATOM
            case "where", [condition, x, y]:
                rows = rf"{self.of(x)} & \text{{if }} {self.of(condition)} \\ {self.of(y)} & \text{{else}}"
                return rf"\begin{{cases}} {rows} \end{{cases}}", ATOM
        known = {"log": r"\log", "exp": r"\exp", "min": r"\min", "max": r"\max", "sigmoid": r"\sigma"}
        inside = r",\, ".join(self.of(x) for x in given)
        return rf"{known.get(name, upright('operatorname', name))}\left({inside}\right)", ATOM


def constant(text: str) -> tuple[str, int]:
    """A number: 1e-06 is a power of ten."""
    mantissa, e, exponent = text.partition("e")
    if not e:
        return text, ATOM
    power = f"10^{{{int(exponent)}}}"
    return (power, POWER) if mantissa == "1" else (rf"{mantissa} \cdot {power}", PRODUCT)


def words(scope: ast.expr) -> str:
    """`batch.tokens` in words."""
    return re.sub(r"\W+", " ", ast.unparse(scope))
