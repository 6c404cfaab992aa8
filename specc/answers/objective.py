"""Question 5: what quantity is optimized?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from specc.answers.base import Answer, Block, Effect, Finding, longest_response, power
from specc.answers.custom import UNKNOWN, Own
from specc.custom import Interface, UserFunction
from specc.formula import Line, number
from specc.weights import Weight

if TYPE_CHECKING:
    from specc.answers.baseline import Baseline
    from specc.answers.normalization import Normalization
    from specc.spec import Spec

Positive = Annotated[float, Field(gt=0)]

WIN_RATE = "win rate"
"""The chance that a response of the policy is chosen over one of the policy that the pairs are from."""


class Clip(Block):
    """PPO's clip (arXiv:1707.06347): no gradient from a ratio that has moved far enough the advantage's way."""

    argument_prefix: ClassVar[str] = "clip_"

    low: Annotated[float, Field(gt=0, le=1)] = 0.2
    """negative advantages: the ratio is clipped below 1 - low"""
    high: Positive = 0.2
    """positive advantages: the ratio is clipped above 1 + high"""
    dual: Annotated[float, Field(gt=1)] | None = None
    """dual clip (arXiv:1912.09729): bound of the ratio where the advantage is negative"""

    def formula(self, rho: str, advantage: str) -> str:
        clipped = f"clip({rho}, 1 - {number(self.low)}, 1 + {number(self.high)})"
        bounded = f"min({rho} * {advantage}, {clipped} * {advantage})"
        if self.dual is None:
            return bounded
        return f"where({advantage} < 0, max({bounded}, {number(self.dual)} * {advantage}), {bounded})"


class DetachedClip(Block):
    """CISPO's weight (arXiv:2506.13585): the clipped ratio, detached, times A log pi; no token loses its gradient."""

    argument_prefix: ClassVar[str] = "detached_clip_"

    low: Annotated[float, Field(gt=0, le=1)] = 1.0
    """the weight is at least 1 - low; 1 means no lower bound"""
    high: Positive
    """the weight is at most 1 + high"""

    def formula(self, rho: str, advantage: str) -> str:
        return f"sg(clip({rho}, 1 - {number(self.low)}, 1 + {number(self.high)})) * {advantage} * log(pi_t)"


class SoftGate(Block):
    """SAPO's gate (arXiv:2511.20347): sigmoid(tau (ratio - 1)) 4 / tau in place of the clip, tau by the sign of A."""

    argument_prefix: ClassVar[str] = "soft_gate_"

    positive: Positive = 1.0
    """tau where the advantage is positive"""
    negative: Positive = 1.05
    """tau where the advantage is negative"""

    def formula(self, rho: str, advantage: str) -> str:
        tau = f"where({advantage} > 0, {number(self.positive)}, {number(self.negative)})"
        return f"sigmoid({tau} * ({rho} - 1)) * 4 / {tau} * {advantage}"


class TokenClip(Block):
    """GMPO's clip (arXiv:2507.20673): each token's log-ratio is bounded, on one side, before the tokens' product."""

    argument_prefix: ClassVar[str] = "token_clip_"

    low: Positive = 0.4
    """the log-ratio of a token is at least -low where the advantage is negative"""
    high: Positive = 0.4
    """the log-ratio of a token is at most high where the advantage is positive"""

    def of_token(self, ratio: str, advantage: str) -> str:
        """The bounded ratio of a token."""
        above, below = f"min({ratio}, exp({number(self.high)}))", f"max({ratio}, exp(-{number(self.low)}))"
        return f"where({advantage} > 0, {above}, {below})"

    def formula(self, rho: str, advantage: str) -> str:
        return f"{rho} * {advantage}"


class PositiveNLL(Block):
    """VAPO's likelihood term (arXiv:2504.05118): minus the mean log pi of the tokens of correct responses."""

    argument_prefix: ClassVar[str] = "positive_nll_"

    coefficient: Positive
    """weight of the likelihood of correct responses, those with a reward above 0"""


class TokenWeight(Own):
    """A weight of each token in the objective by a function of yours. It is detached, so it has no gradient itself."""

    OF: ClassVar[Interface] = Interface(
        "token_weight",
        {
            "logprobs": "[..., T], of the policy",
            "old_logprobs": "of the policy that sampled",
            "entropies": "of the policy's distribution at each token, in nats",
            "advantages": "[..., T]",
            "mask": "bool, True on response tokens",
        },
        "the weight of each token, [..., T]",
    )
    argument_prefix: ClassVar[str] = "token_weight_"

    function: Annotated[UserFunction, OF]
    """the function, as file.py::function from the spec's folder"""


class TokenLoss(Own):
    """The loss of each token by a function of yours, in the place of the surrogate; its mean is minimized."""

    OF: ClassVar[Interface] = Interface(
        "loss",
        {
            "logprobs": "[..., T], of the policy",
            "old_logprobs": "of the policy that sampled",
            "ratio": "the importance ratio that `ratio` asks for",
            "advantages": "[..., T]",
            "mask": "bool, True on response tokens",
        },
        "the loss of each token, [..., T], which the aggregation averages",
    )
    argument_prefix: ClassVar[str] = "loss_"

    function: Annotated[UserFunction, OF]
    """the function, as file.py::function from the spec's folder"""


class Objective(Answer):
    """The quantity whose gradient updates the policy."""

    question: ClassVar[str] = "objective"
    discriminator: ClassVar[str] = "quantity"

    uses_return: ClassVar[bool] = True
    """whether the reward is in it, beside deciding which responses are kept"""

    def return_on_counts(self, reward: int) -> float:
        """The return of a response with this 0/1 reward, without a KL."""
        return float(reward)

    token_level: ClassVar[bool] = False
    """whether each token has a return of its own"""

    @property
    def uses_ratio(self) -> bool:
        """Whether the gradient goes through pi/pi_old."""
        return False

    @property
    def once_a_response(self) -> bool:
        """Whether the surrogate's gradient flows through the product of a response's ratios, so that it counts once."""
        return False

    @property
    def weighting(self) -> str:
        """What the weights of the tokens do to a KL penalty: `exact` up to a factor, `asymptotic` or `biased`."""
        return "biased"

    @property
    def corrects_reuse(self) -> bool:
        """Whether E[g] is the same when the responses are from another policy."""
        return False

    @property
    def adds_terms(self) -> bool:
        """Whether something besides the reward and the KL is in the loss."""
        return True

    def returns(self, spec: Spec) -> Iterator[Line]:
        """R, the return of a response, or R_t where each token has its own."""
        yield Line("R", "r" + " - sum_t(c_t)" * spec.kl.in_reward)

    def formula(self, spec: Spec, advantage: str) -> Iterator[Line]:
        """The loss of one update, of the advantage that has this name."""
        yield Line("loss", f"{self.name}_objective({advantage})", self.describe())


class PolicyGradient(Objective):
    """Advantage times grad log pi, through an importance ratio or not, averaged by `aggregation`."""

    ratio: Literal["none", "token", "sequence", "sequence_mean", "sequence_mean_token"] = "none"
    """pi/pi_old: none, per token, of the sequence (full product), its 1/length power, or that with token gradients"""
    clip: Clip | None = None
    """PPO's clip of the ratio: {low, high, dual}"""
    detached_clip: DetachedClip | None = None
    """the clipped ratio as a detached weight: {low, high}"""
    soft_gate: SoftGate | None = None
    """a sigmoid gate on the ratio: {positive, negative}"""
    token_clip: TokenClip | None = None
    """bounds of each token's log-ratio, before their product: {low, high}"""
    aggregation: Literal[
        "token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "seq_mean_token_sum_norm", "prompt_mean"
    ]
    """how the per-token terms are averaged over what one optimizer step sees"""
    max_length: Annotated[int, Field(ge=1)] | None = None
    """the constant length that seq_mean_token_sum_norm divides by, in tokens"""
    entropy_bonus: Positive | None = None
    """coefficient of the policy's entropy, which is added to what is maximized"""
    positive_nll: PositiveNLL | None = None
    """the likelihood of correct responses, which is added to what is maximized: {coefficient}"""
    token_weight: TokenWeight | None = None
    """a weight of each token by a function of yours: file.py::function"""
    loss: TokenLoss | None = None
    """the loss of each token by a function of yours, in place of the surrogate: file.py::function"""

    def own_functions(self) -> list[UserFunction]:
        return [own.function for own in (self.loss, self.token_weight) if own is not None]

    @property
    def derivable(self) -> bool:
        return not self.own_functions()

    @property
    def weightings(self) -> dict[str, Block]:
        """What is done to the ratio, of which there may be one."""
        asked = {
            "clip": self.clip,
            "detached_clip": self.detached_clip,
            "soft_gate": self.soft_gate,
            "token_clip": self.token_clip,
        }
        return {name: block for name, block in asked.items() if block is not None}

    RATIOS: ClassVar[dict[str, tuple[str, str]]] = {
        "token": ("rho_t", "{}"),
        "sequence": ("rho", "prod_t({})"),
        "sequence_mean": ("rho", "prod_t({}) ** (1 / length)"),
        "sequence_mean_token": ("rho_t", "sg(prod_t({}) ** (1 / length)) * pi_t / sg(pi_t)"),
    }
    """the name and the expression of each ratio, in that of a token"""
    WEIGHTS: ClassVar[dict[str, str]] = {
        "token_mean": "1 / count(update.tokens)",
        "seq_mean_token_sum": "1 / count(update.responses)",
        "seq_mean_token_mean": "1 / (length * count(update.responses))",
        "seq_mean_token_sum_norm": "1 / ({max_length} * count(update.responses))",
        "prompt_mean": "1 / (count(group.tokens) * count(update.prompts))",
    }
    """the weight of a token under each aggregation"""

    def formula(self, spec: Spec, advantage: str) -> Iterator[Line]:
        gain = f"{advantage} * log(pi_t)"
        if self.uses_ratio:
            name, ratio = self.RATIOS[self.ratio]
            of_token = "pi_t / old_t"
            if self.token_clip is not None:
                yield Line("y_t", self.token_clip.of_token(of_token, advantage))
                of_token = "y_t"
            yield Line(name, ratio.format(of_token))
            gain = f"{name} * {advantage}"
            for block in (self.clip, self.detached_clip, self.soft_gate, self.token_clip):
                gain = block.formula(name, advantage) if block is not None else gain
        given = {"logprobs": "log(pi_t)", "old_logprobs": "log(old_t)", "entropies": "H_t", "advantages": advantage}
        given |= {"ratio": self.RATIOS[self.ratio][0]} if self.uses_ratio else {}
        if self.loss is not None:
            gain = f"-{self.loss.call(given)}"
        if self.token_weight is not None:
            gain = f"sg({self.token_weight.call(given)}) * {gain}"
        yield Line("J_t", f"last_t * {gain}" if self.once_a_response else gain)
        yield Line("w_t", self.WEIGHTS[self.aggregation].format(max_length=self.max_length))
        terms = "J_t" + " - c_t" * spec.kl.in_loss
        if self.entropy_bonus is not None:
            terms += f" + {number(self.entropy_bonus)} * H_t"
        loss = f"-sum(w_t * ({terms}), update.tokens)"
        if self.positive_nll is not None:
            yield Line("q_t", "where(r > 0, 1, 0) / max(sum(where(r > 0, 1, 0), update.tokens), 1)")
            loss += f" - {number(self.positive_nll.coefficient)} * sum(q_t * log(pi_t), update.tokens)"
        yield Line("loss", loss)

    AGGREGATIONS: ClassVar[dict[str, tuple[str, str]]] = {
        "token_mean": ("asymptotic", "the batch's number of tokens is random, and less so in large batches"),
        "seq_mean_token_sum": ("unbiased", ""),
        "seq_mean_token_mean": (
            "biased",
            "each response is weighted by 1/length, so short responses count more",
        ),
        "seq_mean_token_sum_norm": ("proportional", "each response's sum is divided by max_length, a constant"),
        "prompt_mean": (
            "biased",
            "each prompt is weighted by 1/tokens of its sampled responses, however large the batch",
        ),
    }

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """At ratio 1 the gradient of every ratio, clip and gate is A grad log pi; the aggregation weights it.

        An entropy bonus is a part of its own, beside E[R]."""
        for own in self.own_functions():
            yield Effect(self.question, "biased", "biased", f"{own.name}: {UNKNOWN}")
        verdict, why = self.AGGREGATIONS[self.aggregation]
        if verdict == "asymptotic":
            yield Effect(self.where, verdict, verdict, why, "1/(mean length)")
        elif verdict == "proportional" and self.max_length:
            yield Effect(self.where, verdict, verdict, why, f"1/{self.max_length}", Fraction(1, self.max_length))
        elif verdict != "unbiased":
            yield Effect(self.where, verdict, verdict, why, amount=self.by_lengths(spec))
        if self.positive_nll is not None:
            # E[sum over correct ones of grad log pi] = grad P(correct), over a number of tokens that all prompts share.
            k, sampling = spec.sampling.group_size, spec.sampling
            shares = Weight((tuple(sampling.kept_counts(j + 1)[0] / (j + 1) for j in range(k)),))  # that are kept
            verdict = "asymptotic" if shares.constant else "reweighted" if shares.positive else "biased"
            why = "the likelihood of correct responses adds the gradient of the success rate, over their random tokens"
            term = f"{self.positive_nll.coefficient:g}/(mean tokens of correct responses)"
            yield Effect(f"{self.question}.positive_nll", verdict, "biased", why, term=term)

    @property
    def where(self) -> str:
        return f"{self.question}.aggregation"

    def by_lengths(self, spec: Spec) -> str:
        """How differently two lengths count, under weights of 1/length."""
        long = longest_response(spec)
        short = min(10, max(1, long // 2))
        what = "a prompt whose responses have" if self.aggregation == "prompt_mean" else "one of"
        return f"{what} {short} tokens counts {long / short:g} times as much a token as one of {long}"

    @property
    def weighting(self) -> str:
        verdict, _ = self.AGGREGATIONS[self.aggregation]
        return verdict if verdict in ("asymptotic", "biased") else "exact"

    @property
    def corrects_reuse(self) -> bool:
        """With the ratio of the whole response, and nothing that bounds it: E_mu[pi/mu A g] = E_pi[A g]."""
        return self.ratio == "sequence" and not self.weightings and self.positive_nll is None

    @property
    def adds_terms(self) -> bool:
        return self.entropy_bonus is not None or self.positive_nll is not None

    @property
    def uses_ratio(self) -> bool:
        return self.ratio != "none"

    @property
    def once_a_response(self) -> bool:
        return self.ratio == "sequence" and self.detached_clip is None

    def fragments(self) -> tuple[str, ...]:
        if not self.uses_ratio:
            surrogate: tuple[str, ...] = ("log_likelihood",)
        else:
            weighting = next(iter(self.weightings), "unclipped")
            dual = self.clip is not None and self.clip.dual is not None
            surrogate = (f"ratio_{self.ratio}", "dual_clip" if dual else weighting)
            if self.token_clip is not None:  # acts inside the ratio
                surrogate = ("token_clip", f"ratio_{self.ratio}_token_clip", "unclipped")
        if self.loss is not None:
            surrogate = (f"ratio_{self.ratio}",) if self.uses_ratio else ()
        entropy = ("entropy_bonus",) if self.entropy_bonus is not None else ()
        likelihood = ("positive_nll",) if self.positive_nll is not None else ()
        return (self.name, *surrogate, *entropy, *likelihood, self.aggregation)

    def short(self) -> str:
        what = f"{self.ratio.replace('_', ' ')} ratio" if self.uses_ratio else "log pi"
        own = [function.called for function in self.own_functions()]
        return ", ".join(
            [what, *(name.replace("_", " ") for name in self.weightings), *own, self.aggregation.replace("_", " ")]
        )

    def describe(self) -> str:
        ratio = f"times the {self.ratio.replace('_', ' ')} ratio" if self.uses_ratio else "times log pi"
        weighting = "".join(f", {name.replace('_', ' ')}" for name in self.weightings)
        terms = ", plus an entropy bonus" if self.entropy_bonus is not None else ""
        terms += ", plus the likelihood of correct responses" if self.positive_nll is not None else ""
        if self.token_weight is not None:
            weighting += f", each token weighted by {self.token_weight.function.called}"
        if self.loss is not None:
            ratio = f"with {self.loss.function.called} as the loss of each token"
        return f"{self.name.replace('_', ' ')} {ratio}{weighting}{terms}, {self.aggregation.replace('_', ' ')}"

    def check(self, spec: Spec) -> Iterator[Finding]:
        for name, own in (("token_weight", self.token_weight), ("loss", self.loss)):
            if own is not None:
                yield from own.check_parameters(self.question, name)
        yield from self.check_loss()
        names = list(self.weightings) if self.loss is None else []
        if len(names) > 1:
            yield Finding(
                "two-weightings",
                self.at(names[1]),
                f"{names[0]} and {names[1]} cannot both act on the ratio",
                "each says in its own way what happens to a ratio far from 1",
                f"remove {', or '.join(reversed(names))}",
            )
        if names and not self.uses_ratio:
            yield Finding(
                "clip-without-ratio",
                self.at(names[0]),
                f"{names[0]} needs a ratio, and ratio is none",
                "with ratio: none the loss is -A log pi and there is nothing to clip",
                "ratio: sequence_mean" if names == ["token_clip"] else "ratio: token",
            )
        elif self.token_clip is not None and self.ratio not in ("sequence", "sequence_mean"):
            yield Finding(
                "token-clip-without-product",
                self.at("token_clip"),
                f"token_clip needs a ratio that is a product over tokens, and ratio is {self.ratio}",
                "it bounds the ratio of each token before the product is taken, with the gradient through all of them",
                "ratio: sequence_mean, or clip instead of token_clip",
            )
        if self.aggregation == "seq_mean_token_sum_norm" and self.max_length is None:
            yield Finding(
                "max-length-missing",
                self.at("aggregation"),
                "seq_mean_token_sum_norm needs max_length",
                "it divides each response's sum by a constant number of tokens, which only you know",
                "max_length: 3000",
            )
        if self.uses_ratio and self.ratio in ("sequence", "sequence_mean") and self.token_level:
            yield Finding(
                "sequence-ratio-token-advantage",
                self.at("ratio"),
                f"ratio: {self.ratio} cannot weight token_advantage",
                "one ratio for the whole response has one gradient, which cannot give each token its own advantage",
                "ratio: sequence_mean_token, or quantity: sequence_advantage",
            )
        if self.uses_ratio and spec.sampling.updates_per_batch == 1:
            for name in names:
                yield Finding(
                    "clip-idle",
                    self.at(name),
                    f"{name} acts only in runs that raise --epochs or --minibatches",
                    "sampling has epochs x minibatches = 1 update a batch, and in the first one every ratio is exactly "
                    f"1: the gradient is what it is without {name}",
                    "sampling: {minibatches: 4}, or accept: [clip-idle] when the script's arguments will raise them",
                    warning=True,
                )
        yield from self.check_scale(spec)
        if not self.uses_ratio and spec.sampling.updates_per_batch > 1:
            yield Finding(
                "reuse-without-ratio",
                self.at("ratio"),
                f"each batch is used for {spec.sampling.updates_per_batch} updates, without an importance ratio",
                f"in {spec.sampling.updates_per_batch - 1} of {spec.sampling.updates_per_batch} updates the responses "
                "come from an older policy, and nothing corrects for it: E[g] is biased there, whatever it is in the "
                "first",
                "ratio: token, or accept: [reuse-without-ratio] when this is meant",
                warning=True,
            )

    def check_loss(self) -> Iterator[Finding]:
        """Whether a loss of the author's own and the rest of the objective go together."""
        if self.loss is None:
            return
        function = self.loss.function
        asks = "ratio" in function.inputs
        if asks and not self.uses_ratio:
            yield Finding(
                "loss-without-ratio",
                self.at("loss"),
                f"{function.name} asks for a ratio, and ratio is none",
                f"the parameter `ratio` of {function.name} is the importance ratio that this field says",
                "ratio: token, or let the function ask for logprobs and old_logprobs",
            )
        elif self.uses_ratio and not asks:
            yield Finding(
                "dead-option",
                self.at("ratio"),
                f"ratio: {self.ratio} has no effect here",
                f"{function.name} takes the place of what is made of the ratio, and does not ask for `ratio`",
                f"ratio: none, or a parameter `ratio` of {function.name}",
            )
        for name in self.weightings:
            yield Finding(
                "dead-option",
                self.at(name),
                f"{name} has no effect beside a loss of yours",
                f"{function.name} takes the place of what {name} does to the ratio",
                f"remove {name}, or do it in {function.name}",
            )

    def check_scale(self, spec: Spec) -> Iterator[Finding]:
        """A clip of the size that single tokens take, on a ratio that is their mean and moves 1/sqrt(length) as much.

        That of GSPO (arXiv:2507.18071) is 3e-4 and 4e-4. One that no mean over the response reaches before the
        log-ratios of its tokens have a spread of 1 is taken for a token's.
        """
        if self.clip is None or self.ratio not in ("sequence_mean", "sequence_mean_token"):
            return
        length = longest_response(spec)
        wide = [name for name, bound in (("low", self.clip.low), ("high", self.clip.high)) if bound < 1]
        wide = [name for name in wide if getattr(self.clip, name) * math.sqrt(length) >= 1]
        if wide:
            name = wide[-1]
            bound = float(getattr(self.clip, name))
            to = power(1 + bound if name == "high" else 1 - bound, length)
            yield Finding(
                "clip-of-token-scale",
                self.at("clip", name),
                f"a clip of {bound:g} is for the ratios of tokens, and this one is their mean over the response",
                f"the mean of l log-ratios moves about sqrt(l) times less than each: over {length} tokens {bound:g} is "
                f"like {bound * math.sqrt(length):.3g} on each, and it acts once a response is {to} times as likely as "
                "it was",
                "clip: {low: 3e-4, high: 4e-4}, as in GSPO, or ratio: token",
                warning=True,
            )


class SequenceAdvantage(PolicyGradient):
    """One advantage for the whole response, on each of its tokens."""

    token_level: ClassVar[bool] = False

    quantity: Literal["sequence_advantage"] = "sequence_advantage"


class TokenAdvantage(PolicyGradient):
    """An advantage for each token, from the return that is still to come."""

    token_level: ClassVar[bool] = True

    quantity: Literal["token_advantage"] = "token_advantage"
    token_clip: None = None
    """none, as a product over tokens cannot give each token its own advantage"""

    def returns(self, spec: Spec) -> Iterator[Line]:
        earned = "to_come(s_t)" if spec.reward.credits_steps else "r"
        yield Line("R_t", earned + " - to_come(c_t)" * spec.kl.in_reward)

    def check(self, spec: Spec) -> Iterator[Finding]:
        yield from super().check(spec)
        of_tokens = spec.kl.in_reward and getattr(spec.kl, "unit", "") == "token"
        if not (of_tokens or spec.reward.credits_steps or spec.baseline.per_token):
            yield Finding(
                "token-advantage-constant",
                self.at(),
                "every token of a response gets the same advantage here",
                "nothing in this spec rewards single tokens: there is no KL per token in the reward, and no critic",
                "quantity: sequence_advantage, which has the same gradient and is easier to read",
                warning=True,
            )


class Likelihood(PolicyGradient):
    """The log-likelihood of the responses that are kept, as in fine-tuning on them (RAFT, arXiv:2304.06767)."""

    token_level: ClassVar[bool] = False
    uses_return: ClassVar[bool] = False

    quantity: Literal["likelihood"] = "likelihood"
    ratio: Literal["none"] = "none"
    """none: every response that is kept counts the same"""
    clip: None = None
    """none, as there is no ratio"""
    detached_clip: None = None
    """none, as there is no ratio"""
    soft_gate: None = None
    """none, as there is no ratio"""
    token_clip: None = None
    """none, as there is no ratio"""
    loss: None = None
    """none, as it is the likelihood"""

    def return_on_counts(self, reward: int) -> float:
        return 1.0

    def returns(self, spec: Spec) -> Iterator[Line]:
        yield Line("R", "1")

    def check(self, spec: Spec) -> Iterator[Finding]:
        yield from super().check(spec)
        if not spec.sampling.selects:
            yield Finding(
                "likelihood-of-all",
                self.at(),
                "likelihood needs a selection, and sampling keeps all responses",
                "the gradient of the log-likelihood of the policy's own samples is 0 in expectation, so nothing would "
                "be learned: the reward acts only through which responses are kept",
                "sampling: {group_size: 4, keep: best}",
            )
        answers: tuple[Baseline | Normalization, ...] = (spec.baseline, spec.normalization)
        for answer in answers:
            if not answer.leaves_as_is:
                yield Finding(
                    "likelihood-without-advantage",
                    answer.at(),
                    f"{answer.question}: {answer.name} has no effect with objective.quantity: likelihood",
                    "every response that is kept counts the same, so there is no advantage to make or to divide",
                    f"{answer.question}: none, or quantity: sequence_advantage",
                )
        if spec.kl.in_reward:
            yield Finding(
                "likelihood-without-advantage",
                spec.kl.at(),
                "KL in the reward has no effect with objective.quantity: likelihood",
                "the reward acts only through which responses are kept, which is decided by the score alone",
                "placement: loss",
            )


class Preference(Objective):
    """The logistic loss of pairs: -log sigmoid(r of the chosen response - r of the rejected one - margin).

    r is beta times the response's log-ratio to the reference (DPO, arXiv:2305.18290), or without one beta times its
    log-prob (SimPO, arXiv:2405.14734).
    """

    works_on: ClassVar[frozenset[str]] = frozenset({"pairs"})

    quantity: Literal["preference"] = "preference"
    beta: Positive = 0.1
    """scale of a response's reward, beta times its log-ratio to the reference or its log-prob"""
    length_normalized: bool = False
    """divide each log-ratio or log-prob by the length of its response"""
    margin: Annotated[float, Field(ge=0)] = 0.0
    """by how much the chosen response's reward is to be ahead (gamma)"""

    def fragments(self) -> tuple[str, ...]:
        return (self.name, "response_mean" if self.length_normalized else "response_sum")

    def returns(self, spec: Spec) -> Iterator[Line]:
        """h, the reward that the policy implies for a response."""
        of_token = "x_t" if spec.kl.in_contrast else "log(pi_t)"
        yield Line("h", f"{number(self.beta)} * sum_t({of_token})" + " / length" * self.length_normalized)

    def formula(self, spec: Spec, advantage: str) -> Iterator[Line]:
        ahead = f"{advantage} - {number(self.margin)}" if self.margin else advantage
        yield Line("loss", f"-mean(log(sigmoid({ahead})), update.pairs)")

    def describe(self) -> str:
        mean = " averaged over its tokens" if self.length_normalized else ""
        margin = " and a margin" if self.margin else ""
        return f"logistic loss of a pair, with each response's log-prob or log-ratio{mean}{margin}"

    def short(self) -> str:
        return ", ".join(
            ["logistic loss of pairs", *["mean log pi"] * self.length_normalized, *["margin"] * bool(self.margin)]
        )

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """At the reference every log-ratio is 0, and the gradient of a pair is sigmoid(margin) beta (s - s'), with
        s = grad log pi of the chosen response and s' of the rejected one. Over independent samples of which y is
        chosen over y' with a chance P(y, y') its mean is 4 sigmoid(margin) beta E[P s], and E[P s] is the gradient of
        the win rate against the reference."""
        if self.length_normalized:
            why = "each response's log-prob is divided by its length, so short responses move more"
            yield Effect(f"{self.question}.length_normalized", "biased", "biased", why)
        if not spec.kl.in_contrast:
            why = "without a reference a pair counts by how the policy's own log-probs order it, from the first step on"
            yield Effect("kl", "biased", "biased", why)
        else:
            factor = f"4 x {self.beta:g} sigmoid({self.margin:g})" if self.margin else f"2 x {self.beta:g}"
            why = "the loss's slope at the reference"
            yield Effect(
                self.question, "proportional", "proportional", why, factor, 4 * self.beta / (1 + math.exp(-self.margin))
            )
