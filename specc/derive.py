"""The verdict on a spec's estimator from the spec alone, by one rule for each answer, without running anything.

Each answer says in `effects` what it does to E[g], beside the gradient of E[R]; here the parts are put together, the
weakest statement of any of them being that of the whole. `specc verify` finds the same verdict by enumeration, and the
two have to agree on every spec.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specc.answers.base import VERDICTS, Effect, Penalty, weakest
from specc.weights import Weight

if TYPE_CHECKING:
    from specc.spec import Spec


@dataclass(frozen=True)
class Derived:
    """What follows for E[g], against the gradient of the mean of E[R] over the batch's prompts."""

    binary: str
    """the verdict for 0/1 rewards, at a KL coefficient of 0"""
    real: str
    """the verdict for rewards of any size and sign"""
    overall: str
    """the verdict of the spec, which its claim has to equal"""
    factor: str
    """the formula of c, in k responses a prompt and B prompts"""
    effects: tuple[Effect, ...]
    """the parts that change something, the worst first"""
    penalty: Penalty | None
    """the KL part"""
    off_policy_binary: str
    """the verdict for 0/1 rewards when the batch is from another policy"""
    off_policy_real: str

    @property
    def reasons(self) -> list[str]:
        """Why the verdict is not `unbiased`, one sentence for each answer that has to do with it."""
        said = [f"{effect.where}: {effect.reason}" for effect in self.effects if effect.reason]
        return said + ([f"{self.penalty.where}: {self.penalty.reason}"] if self.penalty else [])

    @property
    def sentence(self) -> str:
        """The verdict in a line, for `explain` and the docstring of the script."""
        if self.binary == self.real:
            parts = [self.said(self.binary)]
        else:
            parts = [f"{self.said(self.binary)}, for 0/1 rewards", f"{self.said(self.real)}, for real-valued ones"]
        return "; ".join(parts)

    def said(self, verdict: str) -> str:
        meaning = {
            "unbiased": "unbiased: E[g] is the gradient of E[R]",
            "proportional": f"proportional: E[g] is c times the gradient of E[R], c = {self.factor}",
            "asymptotic": f"asymptotic: E[g] tends to c times the gradient of E[R] in large batches, c = {self.factor}",
            "reweighted": "reweighted: each prompt's gradient is weighted by its success rate",
            "biased": "biased: E[g] does not point along the gradient of E[R]",
        }
        return meaning[verdict]


def derive(spec: Spec) -> Derived:
    """The verdict on a spec, composed from its answers' effects."""
    parts = [*(effect for answer in spec.answers.values() for effect in answer.effects(spec)), *spec.sampling.effects()]
    binary, real = weakest(part.binary for part in parts), weakest(part.real for part in parts)
    usual = spec.reward.scores_are_binary and binary == "reweighted"
    told = sorted(parts, key=lambda part: -VERDICTS.index(weakest((part.binary, part.real))))
    reused = (binary, real) if spec.objective.corrects_reuse else ("biased", "biased")
    factor = " x ".join(part.factor for part in parts if part.factor) or "1"
    overall = binary if usual else weakest((binary, real))
    return Derived(binary, real, overall, factor, tuple(told), spec.kl.penalty(spec), *reused)


def weight_of(spec: Spec) -> Weight | None:
    """w(p) at the spec's own group size, where its advantages depend on counts alone and on nothing else unknown."""
    rows = spec.normalization.on_counts(spec)
    return Weight((rows,)) if rows is not None else None
