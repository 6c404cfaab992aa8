"""Question 3: where does the baseline come from?"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from specc.answers.base import WITHOUT_OWN, Answer, Block, Effect, Finding, check_unit_of_steps, longest_response, power
from specc.answers.custom import OwnAnswer
from specc.custom import Interface, UserFunction
from specc.formula import Line, number, product

if TYPE_CHECKING:
    from specc.spec import Spec


Unit = Literal["response", "step"]


class Baseline(Answer):
    """What is taken from the return to make the advantage."""

    question: ClassVar[str] = "baseline"
    discriminator: ClassVar[str] = "source"
    argument_prefix: ClassVar[str] = "baseline_"

    reads_returns: ClassVar[bool] = True
    """whether it is computed from the returns of this batch"""
    leaves_as_is: ClassVar[bool] = False
    """whether the advantage is the return"""
    reads_past: ClassVar[bool] = False
    """whether it is computed from the returns of past batches"""
    of_steps: ClassVar[str] = ""
    """what it is where its unit is a step"""
    one_number: ClassVar[bool] = False
    """whether it is the same for every response of the batch"""
    per_token: ClassVar[bool] = False
    """whether each token has a baseline of its own"""
    per_prompt: ClassVar[bool] = False
    """whether it is the same for all responses to a prompt, and may differ between prompts"""
    variance: ClassVar[str] = ""
    """tr Cov for one prompt, of a sum over tokens without a normalization, where it has a closed form"""

    # A baseline is b_i = sum_j alpha_ij R_j, or independent of the batch's responses. One that reads the returns and
    # does not say how has no derived verdict.

    def own(self, size: int) -> str:
        """alpha_ii, the share of a response's own return in its baseline: 0, 1/k, 1/(kB), `lengths` or `unknown`."""
        return "unknown" if self.reads_returns else "0"

    def column(self, size: int) -> str:
        """sum_j alpha_ji, the share of a response's return in all baselines together: 0, 1, `lengths` or `unknown`."""
        return "unknown" if self.reads_returns else "0"

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        """The baseline of a response with a 0/1 reward in a group with `correct` right ones; None where it depends
        on more than these."""
        return None

    def at_equal_lengths(self, reward: int, correct: int, size: int) -> float | None:
        """The same where all responses are equally long."""
        return self.on_counts(reward, correct, size)

    @property
    def derivable(self) -> bool:
        return self.over_steps or self.own(2) != "unknown" or type(self).effects is not Baseline.effects

    @property
    def over_steps(self) -> bool:
        """Whether it is a mean of step rewards, taken from each of them before they are added up."""
        return getattr(self, "unit", "response") == "step"

    def fragments(self) -> tuple[str, ...]:
        return (self.name + "_step" * self.over_steps,)

    def describe(self) -> str:
        return self.of_steps if self.over_steps else super().describe()

    def short(self) -> str:
        return super().short() + " of steps" * self.over_steps

    @property
    def same_for(self) -> str:
        """Over what it is one number: `run`, `batch`, `prompt` or `response`, the narrowest that is sure."""
        if self.leaves_as_is or (self.one_number and not self.reads_returns and not self.reads_past):
            return "run"
        return "batch" if self.one_number else "prompt" if self.per_prompt else "response"

    @property
    def same_in_group(self) -> bool:
        """Whether all responses to a prompt have the same baseline, between 0 and 1 where their rewards are."""
        return self.one_number or not (self.reads_returns or self.per_token)

    def kl_kind(self, unit: str) -> str:
        """What k1 in the reward comes to under it: `full`, `partial` or `other`, as in `Penalty.kind`."""
        return "full"

    def formula(self, spec: Spec, name: str) -> Iterator[Line]:
        """The advantage under this name, of the returns, or of the rewards of steps."""
        returns, whole = ("R_t", "first(R_t)") if spec.objective.token_level else ("R", "R")
        if self.leaves_as_is:
            yield Line(name, returns)
            return
        if self.over_steps:
            returns = whole = "s_t"
        elif getattr(spec.kl, "after_baseline", False):
            whole = "r"
        yield from self.values_of(whole)
        yield Line(name, f"{returns} - b")

    def values_of(self, returns: str) -> Iterator[Line]:
        """b of the returns of whole responses, or of the rewards of steps."""
        yield Line("b", f"{self.name}_baseline({returns})", self.describe())

    def losses(self, spec: Spec) -> Iterator[Line]:
        """What it learns by, beside the policy's loss."""
        yield from ()

    def check(self, spec: Spec) -> Iterator[Finding]:
        if not self.over_steps:
            return
        yield from check_unit_of_steps(self, spec)
        if not (spec.normalization.leaves_as_is or spec.normalization.over_steps):
            yield Finding(
                "mixed-units",
                self.at("unit"),
                "the baseline is of steps, and the normalization is not",
                "what is left of the single steps is to be divided by a statistic of theirs, before they are added up",
                "normalization: {unit: step} as well, or remove unit",
            )

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """A baseline takes alpha_ii of E[g] away, since E[R_j g_i] = 0 for the other responses (Williams 1992).

        A mean m from each step leaves G_t - m N_t, N_t being the steps to come: E[g] = grad E[R] - m grad E[N]."""
        if self.over_steps:
            why = "a mean taken from every step charges a response for the number of its steps"
            yield Effect(f"{self.question}.unit", "biased", "biased", why)
            return
        k = spec.sampling.group_size
        if (own := self.own(k)) in WITHOUT_OWN:
            why = f"a response's own reward is in its baseline, with a share of {own}"
            prompts = 1 if own == "1/k" else spec.defaults.prompts_per_step
            left = 1 - Fraction(1, k * prompts) if prompts else None
            amount = f"E[g] is {left} of what it is without" if left is not None else ""
            number = left if own == "1/k" else None
            yield Effect(self.question, "proportional", "proportional", why, WITHOUT_OWN[own], number, amount=amount)
        elif own != "0":
            why = "a response's own reward is in its baseline, with a share that depends on its length"
            unknown = f"nothing is known about the share of a response's own reward in {self.name}"
            yield Effect(self.question, "biased", "biased", why if own == "lengths" else unknown)


class NoBaseline(Baseline):
    """No baseline: the advantage is the return (Williams 1992)."""

    reads_returns: ClassVar[bool] = False
    leaves_as_is: ClassVar[bool] = True

    variance: ClassVar[str] = "V_0/k"

    source: Literal["none"] = "none"

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        return 0.0


class Constant(Baseline):
    """A constant, the same for every prompt."""

    reads_returns: ClassVar[bool] = False
    one_number: ClassVar[bool] = True

    variance: ClassVar[str] = "V_b/k"

    source: Literal["constant"] = "constant"
    value: float
    """the constant"""

    def values_of(self, returns: str) -> Iterator[Line]:
        yield Line("b", number(self.value))

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        return self.value


class BatchMean(Baseline):
    """The mean return of the whole batch, the response's own included."""

    one_number: ClassVar[bool] = True
    of_steps: ClassVar[str] = "the mean step reward of the whole batch, the response's own included"

    source: Literal["batch_mean"] = "batch_mean"
    unit: Unit = "response"
    """what the mean is of: returns of responses, or rewards of single steps, each of which it is then taken from"""

    def values_of(self, returns: str) -> Iterator[Line]:
        yield Line("b", f"mean({returns}, {'batch.steps' if self.over_steps else 'batch'})")

    def own(self, size: int) -> str:
        return "unknown" if self.over_steps else "1/(kB)"

    def column(self, size: int) -> str:
        return "unknown" if self.over_steps else "1"


class MovingAverage(Baseline):
    """A moving average of the mean returns of past batches; 0 in the first step."""

    reads_returns: ClassVar[bool] = False
    reads_past: ClassVar[bool] = True
    one_number: ClassVar[bool] = True

    source: Literal["moving_average"] = "moving_average"
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """share of the old average that one step keeps"""

    def values_of(self, returns: str) -> Iterator[Line]:
        yield Line("b", "", "the average that past steps leave, 0 in the first")
        moved = f"{number(self.decay)} * b + (1 - {number(self.decay)}) * mean({returns}, batch)"
        yield Line("b_next", moved, "b of the next step; after the first one the mean alone")


class GroupBaseline(Baseline):
    """A baseline from the responses to the same prompt, which needs more than one of them."""

    min_group_size: ClassVar[int] = 2

    def check(self, spec: Spec) -> Iterator[Finding]:
        yield from super().check(spec)
        if spec.sampling.size < 2:
            yield Finding(
                "group-of-one",
                self.at(),
                f"{self.name} needs at least 2 responses a prompt, and {spec.sampling.why_one}",
                "the baseline comes from the responses to the same prompt; one response has nothing to compare with, "
                "and every advantage would be 0 or undefined",
                spec.sampling.more_than_one,
            )


PAIRS = "A2/k - (k - 2)|G|^2/(k(k - 1)) + sigma^2 T/(k(k - 1))"
"""tr Cov of the unbiased sample covariance of return and score, which leave-one-out is."""


class GroupMean(GroupBaseline):
    """The mean return of the prompt's group, the response's own included."""

    of_steps: ClassVar[str] = "the mean step reward of the prompt's group, the response's own included"
    variance: ClassVar[str] = f"((k - 1)/k)^2 ({PAIRS})"

    per_prompt: ClassVar[bool] = True

    source: Literal["group_mean"] = "group_mean"
    unit: Unit = "response"
    """what the mean is of: returns of responses, or rewards of single steps, each of which it is then taken from"""

    def values_of(self, returns: str) -> Iterator[Line]:
        yield Line("b", f"mean({returns}, {'group.steps' if self.over_steps else 'group'})")

    def own(self, size: int) -> str:
        return "unknown" if self.over_steps else "1/k"

    def column(self, size: int) -> str:
        return "unknown" if self.over_steps else "1"

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        return None if self.over_steps else correct / size


class LeaveOneOut(GroupBaseline):
    """The mean return of the other responses to the same prompt (Kool et al. 2019)."""

    of_steps: ClassVar[str] = "the mean step reward of the other responses to the same prompt"
    variance: ClassVar[str] = PAIRS

    source: Literal["leave_one_out"] = "leave_one_out"
    unit: Unit = "response"
    """what the mean is of: returns of responses, or rewards of single steps, each of which it is then taken from"""

    def values_of(self, returns: str) -> Iterator[Line]:
        yield Line("b", f"mean({returns}, {'others.steps' if self.over_steps else 'others'})")

    def own(self, size: int) -> str:
        return "unknown" if self.over_steps else "0"

    def column(self, size: int) -> str:
        return "unknown" if self.over_steps else "1"

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        if self.over_steps:
            return None
        return (correct - reward) / (size - 1) if size > 1 else float(reward)  # alone, it has no advantage


class LengthWeighted(GroupBaseline):
    """The group's mean return weighted by length, near the minimum-variance baseline (OPO, arXiv:2505.23585)."""

    source: Literal["length_weighted"] = "length_weighted"
    leave_one_out: bool = False
    """leave the response's own return out of its baseline"""

    def values_of(self, returns: str) -> Iterator[Line]:
        over = "others" if self.leave_one_out else "group"
        yield Line("b", f"sum(length * {returns}, {over}) / sum(length, {over})")

    @property
    def same_for(self) -> str:
        return "response" if self.leave_one_out else "prompt"

    def own(self, size: int) -> str:
        return "0" if self.leave_one_out else "lengths"

    def column(self, size: int) -> str:
        """Of two responses each is the other's whole baseline, however long."""
        return "1" if self.leave_one_out and size == 2 else "lengths"

    def on_counts(self, reward: int, correct: int, size: int) -> float | None:
        return float(correct - reward) if self.column(size) == "1" else None

    def at_equal_lengths(self, reward: int, correct: int, size: int) -> float | None:
        if not self.leave_one_out:
            return correct / size
        return (correct - reward) / (size - 1) if size > 1 else float(reward)  # alone, it has no advantage

    def fragments(self) -> tuple[str, ...]:
        return (self.name + "_leave_one_out" * self.leave_one_out,)

    def short(self) -> str:
        return super().short() + " leave one out" * self.leave_one_out

    def describe(self) -> str:
        who = "the other responses'" if self.leave_one_out else "the group's"
        return f"{who} mean return weighted by length, near the minimum-variance baseline (OPO, arXiv:2505.23585)"


class Greedy(Baseline):
    """The reward of the prompt's greedy response (ReMax, arXiv:2310.10505)."""

    reads_returns: ClassVar[bool] = False

    per_prompt: ClassVar[bool] = True

    source: Literal["greedy"] = "greedy"

    def values_of(self, returns: str) -> Iterator[Line]:
        yield Line("b", "greedy")


def to_come(gamma: float, trace: float | str) -> str:
    """The errors d_t from a token on, each times gamma and lambda for every token in between."""
    by = product(gamma, trace)
    return "to_come(d_t)" if by == "1" else f"to_come(d_t, {by})"


SHORT_LAMBDA = 0.5
"""A length-adaptive lambda below this, at the longest response, is one for longer responses."""


class LengthAdaptive(Block):
    """VAPO's lambda (arXiv:2504.05118): 1 - 1/(alpha l) for a response of l tokens, and never below 0."""

    argument_prefix: ClassVar[str] = "baseline_length_adaptive_"

    alpha: Annotated[float, Field(gt=0)]
    """lambda is 1 - 1/(alpha l), so the sum of its powers is alpha l"""

    def of(self, length: int) -> float:
        """lambda of a response with so many tokens."""
        return max(0.0, 1 - 1 / (self.alpha * length))


class Critic(Baseline):
    """A critic's value of every prefix: generalized advantage estimation (Schulman et al., arXiv:1506.02438)."""

    reads_returns: ClassVar[bool] = False
    per_token: ClassVar[bool] = True

    source: Literal["critic"] = "critic"
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """lambda of the advantages; 1 = return - value"""
    length_adaptive: LengthAdaptive | None = None
    """a lambda by the response's length in place of gae_lambda: {alpha}"""
    critic_lambda: Annotated[float, Field(ge=0, le=1)] = 1.0
    """lambda of what the critic learns; 1 = return"""
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """discount of a token's reward one token earlier"""
    value_clip: Annotated[float, Field(gt=0)] | None = None
    """how far a value moves before its loss stops falling"""
    coefficient: Annotated[float, Field(gt=0)] = 1.0
    """weight of the value loss, half the squared error"""
    pretrain_steps: Annotated[int, Field(ge=0)] | None = None
    """first steps, in which only the critic is trained"""
    backbone: Literal["own", "shared"] = "own"
    """whether the critic is a model of its own, or a value head on the policy's hidden states"""
    initial: Literal["policy", "reward_model"] = "policy"
    """the model that an own backbone starts from"""

    @property
    def whole_returns(self) -> bool:
        """Whether the advantage is the return that is still to come, minus the value."""
        return self.length_adaptive is None and self.gae_lambda * self.gamma == 1

    def fragments(self) -> tuple[str, ...]:
        trace = "critic_fixed_lambda" if self.length_adaptive is None else "critic_length_adaptive"
        error = "critic_squared_error" if self.value_clip is None else "critic_clipped_error"
        pretraining = ("critic_pretraining",) if self.pretrain_steps is not None else ()
        return (self.name, trace, error, *pretraining)

    def formula(self, spec: Spec, name: str) -> Iterator[Line]:
        yield Line("r_t", "last_t * r" + " - c_t" * spec.kl.in_reward)
        yield Line("d_t", f"r_t + {product(self.gamma, 'next(V_t)')} - V_t")
        trace: float | str = self.gae_lambda
        if self.length_adaptive is not None:
            trace = "lam"
            yield Line("lam", f"1 - 1 / max({number(self.length_adaptive.alpha)} * length, 1)")
        yield Line(name, to_come(self.gamma, trace))

    def losses(self, spec: Spec) -> Iterator[Line]:
        yield Line("G_t", f"V_t + {to_come(self.gamma, self.critic_lambda)}")
        error = "(v_t - G_t) ** 2"
        if self.value_clip is not None:
            bound = number(self.value_clip)
            yield Line("z_t", f"V_t + clip(v_t - V_t, -{bound}, {bound})")
            error = f"max({error}, (z_t - G_t) ** 2)"
        both = "the critic's, which is added to the policy's" if self.backbone == "shared" else "the critic's"
        yield Line("value_loss", f"sum({product('w_t', self.coefficient, 0.5, error)}, update.tokens)", both)

    def describe(self) -> str:
        fixed = f"lambda {self.gae_lambda:g}"
        trace = fixed if self.length_adaptive is None else "lambda by the response's length"
        where = "on the policy's hidden states" if self.backbone == "shared" else f"that starts from the {self.start}"
        return f"a critic {where}, generalized advantages with {trace}"

    @property
    def start(self) -> str:
        return self.initial.replace("_", " ")

    def short(self) -> str:
        trace = f"lambda {self.gae_lambda:g}" if self.length_adaptive is None else "length-adaptive lambda"
        return f"critic, {trace}"

    def column(self, size: int) -> str:
        """With smaller lambdas a return counts less on the tokens far from it."""
        return "0" if self.whole_returns else "lengths"

    def kl_kind(self, unit: str) -> str:
        """A token's k1 counts at the tokens before it, times (gamma lambda)^distance: at all, or at its own alone."""
        if self.whole_returns:
            return "full"
        fixed = self.length_adaptive is None
        return "partial" if fixed and self.gae_lambda == 0 and unit == "token" else "other"

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """With lambda = gamma = 1, A_t is the return minus V(s_t), and E[V(s_t) grad log pi] = 0 for any V. A lambda
        below 1 puts V in the place of rewards to come (Schulman et al., arXiv:1506.02438, section 3)."""
        name = "gae_lambda" if self.length_adaptive is None else "length_adaptive"
        if self.length_adaptive is not None or self.gae_lambda < 1:
            why = "a lambda below 1 bootstraps from the critic's values, which is unbiased only where they are V^pi"
            amount = f"of the reward itself {self.left(spec)}, and the rest is the critic's word"
            yield Effect(f"{self.question}.{name}", "biased", "biased", why, amount=amount)
        if self.gamma < 1:
            why = "the reward is discounted, so that of a long response counts less at its first tokens"
            left = power(self.gamma, longest_response(spec) - 1)
            amount = f"{left} of it at the first of {longest_response(spec)} tokens"
            yield Effect(f"{self.question}.gamma", "biased", "biased", why, amount=amount)

    def lambda_of(self, length: int) -> float:
        """lambda of a response with so many tokens."""
        return self.gae_lambda if self.length_adaptive is None else self.length_adaptive.of(length)

    def left(self, spec: Spec) -> str:
        """What the first token's advantage holds of the reward at the end of a long response."""
        length = longest_response(spec)
        trace = self.gamma * self.lambda_of(length)
        share = power(trace, length - 1) if trace else "nothing" if length > 1 else "all"
        return f"{share} reaches the first of {length} tokens"

    def check(self, spec: Spec) -> Iterator[Finding]:
        if not getattr(spec.objective, "token_level", False):
            yield Finding(
                "critic-needs-tokens",
                self.at(),
                "a critic needs objective.quantity: token_advantage",
                "it gives every token a value, and so an advantage of its own; "
                f"{spec.objective.name} has no advantage for each token",
                "quantity: token_advantage",
            )
        if spec.reward.credits_steps:
            yield Finding(
                "critic-credits-steps",
                self.at(),
                "a critic learns from the reward at the end, and this spec gives credit to single steps",
                "its targets and its advantages would leave the rewards of the steps out",
                "reward: {credit: outcome, ...}, or another baseline",
            )
        from_reward_model = self.initial == "reward_model"
        if self.backbone == "shared" and from_reward_model:
            yield Finding(
                "dead-option",
                self.at("initial"),
                "initial has no effect with backbone: shared",
                "a shared backbone is the policy's own, and is not initialized apart from it",
                "remove initial, or backbone: own",
            )
        elif from_reward_model and "reward model" not in spec.reward.models:
            yield Finding(
                "critic-without-reward-model",
                self.at("initial"),
                "the critic cannot start from a reward model that there is none of",
                f"the reward comes from a {spec.reward.name.replace('_', ' ')}",
                "initial: policy, or reward: reward_model",
            )
        if self.backbone == "shared" and self.pretrain_steps is not None:
            yield Finding(
                "pretraining-moves-policy",
                self.at("pretrain_steps"),
                "pretrain_steps needs a critic with a backbone of its own",
                "training a shared backbone for the values moves the policy, which pretraining has to leave as it is",
                "backbone: own, or remove pretrain_steps",
            )
        of_responses = spec.kl.in_reward and getattr(spec.kl, "unit", "") == "sequence"
        if of_responses and self.gae_lambda == 0 and self.length_adaptive is None:
            yield Finding(
                "kl-on-last-token",
                self.at("gae_lambda"),
                "with gae_lambda: 0 the KL of a response is charged to its last token alone",
                "a KL per sequence is a reward at the end, and a lambda of 0 hands no reward on to earlier tokens",
                "gae_lambda: 0.95, or kl: {unit: token, ...}",
            )
        if self.value_clip is not None and spec.sampling.updates_per_batch == 1:
            yield Finding(
                "clip-idle",
                self.at("value_clip"),
                "value_clip acts only in runs that raise --epochs or --minibatches",
                "sampling has epochs x minibatches = 1 update a batch, and in the first one every value is its old "
                f"one, at a distance of 0 and not of {self.value_clip:g}",
                "sampling: {minibatches: 4}, or accept: [clip-idle] when the script's arguments will raise them",
                warning=True,
            )
        longest = spec.defaults.max_new_tokens
        if self.length_adaptive is not None and longest is not None and self.lambda_of(longest) < SHORT_LAMBDA:
            alpha = self.length_adaptive.alpha
            yield Finding(
                "adaptive-lambda-zero",
                self.at("length_adaptive"),
                f"lambda is 0 for responses of up to {1 / alpha:g} tokens, and at most {self.lambda_of(longest):.3g}",
                "it is 1 - 1/(alpha l), made for long responses, and defaults.max_new_tokens lets none be longer than "
                f"{longest}: of the reward itself {self.left(spec)}, and the critic's values stand for the rest",
                f"alpha: {20 / longest:.3g} for a lambda of 0.95 at {longest} tokens, or gae_lambda: 0.95",
                warning=True,
            )


class Pair(Baseline):
    """The other response of the pair: what counts is by how much the chosen one is ahead of the rejected one."""

    works_on: ClassVar[frozenset[str]] = frozenset({"pairs"})

    source: Literal["pair"] = "pair"

    def formula(self, spec: Spec, name: str) -> Iterator[Line]:
        yield Line(name, "chosen(h) - rejected(h)")

    def effects(self, spec: Spec) -> Iterator[Effect]:
        """None: the two responses are independent, and E[grad log pi] = 0 for the other one's part."""
        yield from ()


class Custom(OwnAnswer, Baseline):
    """A function of yours, `file.py::function`, which goes into the script as it is written."""

    OF: ClassVar[Interface] = Interface(
        "baseline",
        {
            "returns_BG": "the return of each response, 0 where it has no score",
            "scored_BG": "bool, whether it has one",
            "mask_BGT": "bool, its tokens",
            "greedy_rewards_B": "the rewards of the prompts' greedy responses",
        },
        "what is taken from each return, [B, G] or a shape that broadcasts to it",
    )

    def values_of(self, returns: str) -> Iterator[Line]:
        yield Line("b", self.call({"returns_BG": returns, "greedy_rewards_B": "greedy"}), self.function.described)

    source: Literal["custom"] = "custom"
    function: Annotated[UserFunction, OF]
    """the function, as file.py::function from the spec's folder"""
