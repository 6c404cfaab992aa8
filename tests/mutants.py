"""Tests of the tests: small plausible bugs in the templates, and the check that each of them is caught by.

    python -m tests.mutants

prints them as a table. The checks are the laws, by their names, and these, of which each is judged by running the
script on the one side and by deriving it from the spec on the other:

verdict      the verdict for 0/1 or for real rewards
factor       c, in batches of one prompt and of two
weight       w(p), the weight of a prompt by its success rate
kl           the KL part: its kind, its weighting and its coefficient
off-policy   the verdicts for a batch from another policy

Nothing of a mutant is kept: the templates are copied, and what it changes is read from the copy past all caches.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from specc.derive import Derived
from specc.fragments import Fragment, read_fragment
from specc.paths import templates_dir
from specc.plan import Plan
from specc.problems import SpecError
from specc.render import environment, render
from specc.spec import Spec
from specc.verify.environment import coin
from specc.verify.laws import LAWS, family
from specc.verify.laws import judge as judge_law
from specc.verify.pair_laws import check_pair_laws
from specc.verify.penalty import judge_penalty
from specc.verify.script import Script, load_script
from specc.verify.verdict import KINDS, compare, find_weight, judge

PAGE = "trainer.py.j2"
PAIRS_PAGE = "preference_trainer.py.j2"
PAGES = (PAGE, PAIRS_PAGE)


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One bug: `old`, which is once in the file, becomes `new`; and a spec whose script has it."""

    name: str
    file: str
    old: str
    new: str
    spec: dict[str, Any]
    caught_by: str

    @property
    def folder(self) -> str:
        return self.file.rpartition("/")[0] or "page"


# -------- The specs --------

SUM, NORM, TOKENS, MEAN, PROMPT = (
    "seq_mean_token_sum",
    "seq_mean_token_sum_norm",
    "token_mean",
    "seq_mean_token_mean",
    "prompt_mean",
)


def answers(
    *, aggregation: str = SUM, quantity: str = "sequence_advantage", sampling: Any = None, **others: Any
) -> dict[str, Any]:
    """A spec without a name, as in YAML. What is no question is a field of the objective."""
    questions = {
        "reward": others.pop("reward", "verifier"),
        "kl": others.pop("kl", "none"),
        "baseline": others.pop("baseline", "none"),
        "normalization": others.pop("normalization", "none"),
    }
    objective = {"quantity": quantity, "aggregation": aggregation, **others}
    return {**questions, "objective": objective, "sampling": {"group_size": 3, **(sampling or {})}}


def kl(placement: str, estimator: str, unit: str = "token", **others: Any) -> dict[str, Any]:
    return {"placement": placement, "estimator": estimator, "unit": unit, "coefficient": 0.1, **others}


def reward(**transforms: Any) -> dict[str, Any]:
    return {"source": "verifier", **transforms}


def pairs(kl: str = "implicit", **objective: Any) -> dict[str, Any]:
    """A spec on pairs."""
    questions = {"reward": "preferences", "kl": kl, "baseline": "pair", "normalization": "none"}
    return {**questions, "objective": {"quantity": "preference", "beta": 0.25, **objective}}


PLAIN = answers()
GROUP = answers(baseline="group_mean")
OTHERS = answers(baseline="leave_one_out")
LENGTHS = answers(baseline={"source": "length_weighted"})
OTHERS_LENGTHS = answers(baseline={"source": "length_weighted", "leave_one_out": True})
MOVING = answers(baseline={"source": "moving_average", "decay": 0.75})
GREEDY = answers(baseline="greedy")
CRITIC = answers(baseline={"source": "critic", "critic_lambda": 0.75}, quantity="token_advantage")
ADAPTIVE = answers(
    baseline={"source": "critic", "length_adaptive": {"alpha": 0.25}, "value_clip": 0.5}, quantity="token_advantage"
)
STD = answers(baseline="group_mean", normalization={"scope": "group", "ddof": 1, "epsilon": 0.25})
BATCH_STD = answers(baseline="group_mean", normalization={"scope": "batch", "ddof": 1, "epsilon": 0.25})
CENTRED = answers(normalization={"scope": "batch", "divide_by": "none", "subtract_mean": True})
TOKEN_STD = answers(normalization={"scope": "batch", "unit": "token", "subtract_mean": True})
RUNNING = answers(normalization={"scope": "running", "subtract_mean": True, "epsilon": 0.25})
RUNNING_CENTRE = answers(normalization={"scope": "running", "divide_by": "none", "subtract_mean": True})
BATCH_MEAN = answers(normalization={"scope": "batch", "divide_by": "mean", "epsilon": 0.25})
GROUP_MEAN = answers(baseline="group_mean", normalization={"scope": "group", "divide_by": "mean", "epsilon": 0.25})
K1_REWARD = answers(kl=kl("reward", "k1"))
K1_SEQUENCE = answers(kl=kl("reward", "k1", "sequence"), quantity="token_advantage")
K1_TO_GO = answers(kl=kl("reward", "k1"), quantity="token_advantage")
K1_AFTER = answers(kl=kl("reward", "k1", after_baseline=True), baseline="group_mean")
K2_SEQUENCE = answers(kl=kl("loss", "k2", "sequence"))
K3_LOSS = answers(kl=kl("loss", "k3"))
UNCLIPPED = answers(ratio="token")
CLIP = answers(ratio="token", clip={"low": 0.2, "high": 0.3})
DUAL = answers(ratio="token", clip={"low": 0.2, "high": 0.3, "dual": 3.0})
DETACHED = answers(ratio="token", detached_clip={"low": 0.5, "high": 4.0})
GATE = answers(ratio="token", soft_gate={"positive": 1.0, "negative": 1.5})
SEQUENCE = answers(ratio="sequence", baseline="leave_one_out")
SEQUENCE_MEAN = answers(ratio="sequence_mean")
SEQUENCE_MEAN_TOKEN = answers(ratio="sequence_mean_token")
ENTROPY = answers(entropy_bonus=0.01)
BEST = answers(quantity="likelihood", sampling={"keep": "best"})
POSITIVE = answers(sampling={"keep": "positive"})
LIKELY = answers(quantity="likelihood", sampling={"keep": "positive"})
MIXED = answers(sampling={"keep": "mixed", "resample": False})
SPREAD = answers(baseline="leave_one_out", sampling={"group_size": 6, "keep": {"max_variance": 4}})
STEPS: dict[str, Any] = {"reward": "process_reward", "quantity": "token_advantage"}
CREDIT = answers(**STEPS)
STEP_STD = answers(**STEPS, normalization={"scope": "batch", "unit": "step"})
STEP_BATCH = answers(**STEPS, baseline={"source": "batch_mean", "unit": "step"})
STEP_GROUP = answers(**STEPS, baseline={"source": "group_mean", "unit": "step"})
STEP_OTHERS = answers(**STEPS, baseline={"source": "leave_one_out", "unit": "step"})
TOKEN_CLIP = answers(ratio="sequence", baseline="leave_one_out", token_clip={"low": 0.4, "high": 0.5})
TOKEN_CLIP_MEAN = answers(ratio="sequence_mean", token_clip={"low": 0.4, "high": 0.5})
STD_OF_RETURNS: dict[str, Any] = {"ddof": 1, "epsilon": 0.25, "std_of": "returns"}
GROUP_RETURNS = answers(baseline="leave_one_out", normalization={"scope": "group", **STD_OF_RETURNS})
BATCH_RETURNS = answers(baseline="group_mean", normalization={"scope": "batch", **STD_OF_RETURNS})
PAST_RETURNS = answers(baseline="group_mean", normalization={"scope": "running", **STD_OF_RETURNS})
NLL = answers(baseline="leave_one_out", positive_nll={"coefficient": 0.5})
ADAPTS = {"adaptive": {"initial": 0.1, "target": 2.0, "horizon": 100}}
ADAPTIVE_KL = answers(kl={**kl("loss", "k2", "sequence"), "coefficient": ADAPTS})
PRETRAINED = answers(
    baseline={"source": "critic", "pretrain_steps": 3, "gae_lambda": 0.5, "gamma": 0.9}, quantity="token_advantage"
)
DPO = pairs()
SIMPO = pairs("none", length_normalized=True, margin=0.75)
SCORES = answers(reward=reward(clip=[-2.0, 3.0], missing_eos=-1.0, overlong={"limit": 12, "buffer": 4, "penalty": 0.5}))
TRUNCATED = answers(baseline="leave_one_out", sampling={"mask_truncated": True})

DIVISOR = "torch.where(std > 0, std + epsilon, 1.0)"
MOVED_EPSILON = "torch.where(std > 0, (std.square() + epsilon).sqrt(), 1.0)"
ALL_DIMS, OWN_DIMS = "tuple(range(advantages.ndim))", "tuple(range(1, advantages.ndim))"
INPUTS = """* plan.positive_nll %}
    {{ inputs | join(", ") }} = (x.masked_fill(~mask, 0.0) for x in ({{ inputs | join(", ") }}))
"""  # of the policy's loss, and not of the critic's
RESPONSES = "mask_BGT.any(-1).sum().clamp(min=1)"

# -------- The bugs --------

MUTANTS = [
    # baseline
    Mutant(
        "own sample kept in the leave-one-out mean",
        "baseline/leave_one_out.py",
        "return mean_B1 - (returns_BG - mean_B1) / others_B1",
        "return mean_B1",
        OTHERS,
        "verdict",
    ),
    Mutant(
        "leave-one-out over n, not n - 1",
        "baseline/leave_one_out.py",
        "(scored_BG.sum(dim=1, keepdim=True) - 1)",
        "scored_BG.sum(dim=1, keepdim=True)",
        OTHERS,
        "verdict",
    ),
    Mutant(
        "leave-one-out with a random number",
        "baseline/leave_one_out.py",
        "return mean_B1 - (returns_BG - mean_B1) / others_B1",
        "return mean_B1 - (returns_BG - mean_B1) / others_B1 + 1e-3 * torch.rand(())",
        OTHERS,
        "estimates_repeat",
    ),
    Mutant(
        "unscored responses counted in leave-one-out",
        "baseline/leave_one_out.py",
        "(scored_BG.sum(dim=1, keepdim=True) - 1)",
        "torch.full_like(mean_B1, returns_BG.shape[1] - 1)",
        OTHERS,
        "masked_out_responses_do_not_count",
    ),
    Mutant(
        "group mean over the wrong axis",
        "baseline/group_mean.py",
        "dim=1)",
        "dim=0)",
        GROUP,
        "order_does_not_exist",
    ),
    Mutant(
        "unscored responses counted in the group mean",
        "baseline/group_mean.py",
        "masked_mean(returns_BG, scored_BG, dim=1)",
        "returns_BG.mean(1, keepdim=True)",
        GROUP,
        "masked_out_responses_do_not_count",
    ),
    Mutant(
        "batch mean of each prompt",
        "baseline/batch_mean.py",
        "dim=(0, 1))",
        "dim=1)",
        answers(baseline="batch_mean"),
        "factor",
    ),
    Mutant(
        "unscored responses counted in the batch mean",
        "baseline/batch_mean.py",
        "masked_mean(returns_BG, scored_BG, dim=(0, 1))",
        "returns_BG.mean((0, 1), keepdim=True)",
        answers(baseline="batch_mean"),
        "rewards_plus_a_constant",
    ),
    Mutant(
        "lengths left out of the length-weighted mean",
        "baseline/length_weighted.py",
        "mask_BGT.sum(-1) * scored_BG",
        "scored_BG.long()",
        LENGTHS,
        "verdict",
    ),
    Mutant(
        "own sample kept in the length-weighted mean of the others",
        "baseline/length_weighted_leave_one_out.py",
        "(weighted_BG.sum(1, keepdim=True) - weighted_BG)",
        "weighted_BG.sum(1, keepdim=True)",
        OTHERS_LENGTHS,
        "verdict",
    ),
    Mutant(
        "moving average that sees the present batch",
        "baseline/moving_average.py",
        'torch.zeros_like(returns_BG) + state.get("moving_average", 0.0)',
        'torch.zeros_like(returns_BG) + 0.75 * state.get("moving_average", 0.0) + 0.25 * returns_BG.mean()',
        MOVING,
        "verdict",
    ),
    Mutant(
        "moving average with decay and 1 - decay swapped",
        "baseline/moving_average.py",
        "decay * average + (1 - decay) * mean",
        "(1 - decay) * average + decay * mean",
        MOVING,
        "every_number_acts",
    ),
    Mutant(
        "greedy baseline of the wrong prompt",
        "baseline/greedy.py",
        "greedy_rewards_B[:, None]",
        "greedy_rewards_B.roll(1)[:, None]",
        GREEDY,
        "order_does_not_exist",
    ),
    Mutant(
        "constant baseline ignored",
        "baseline/constant.py",
        "torch.full_like(returns_BG, value)",
        "torch.zeros_like(returns_BG)",
        answers(baseline={"source": "constant", "value": 0.5}),
        "every_number_acts",
    ),
    Mutant(
        "a critic's value of the same state for the next one",
        "baseline/critic.py",
        "functional.pad(values_BGT[..., 1:], (0, 1))",
        "values_BGT",
        CRITIC,
        "the_critic_sees_states",
    ),
    Mutant(
        "the value left out of the critic's target",
        "baseline/critic.py",
        "return values_BGT + lambda_advantages",
        "return lambda_advantages",
        CRITIC,
        "the_critic_sees_states",
    ),
    Mutant(
        "pads bootstrap",
        "baseline/critic.py",
        "    values_BGT = values_BGT.masked_fill(~mask_BGT, 0.0)\n",
        "",
        CRITIC,
        "masked_positions_do_not_exist",
    ),
    Mutant(
        "a lambda by length that falls below 0",
        "baseline/critic_length_adaptive.py",
        "(alpha * lengths_BG).clamp(min=1)",
        "(alpha * lengths_BG).clamp(min=0.1)",
        ADAPTIVE,
        "the_critic_sees_states",
    ),
    Mutant(
        "value clip ignored",
        "baseline/critic_clipped_error.py",
        "(values - old_values).clamp(-value_clip, value_clip)",
        "(values - old_values)",
        ADAPTIVE,
        "every_number_acts",
    ),
    Mutant(
        "half the squared error without its half",
        "baseline/critic_squared_error.py",
        "coefficient * 0.5 *",
        "coefficient *",
        CRITIC,
        "the_critic_sees_states",
    ),
    Mutant(
        "the nearer of the two errors of a clipped value",
        "baseline/critic_clipped_error.py",
        "torch.maximum",
        "torch.minimum",
        ADAPTIVE,
        "the_critic_sees_states",
    ),
    Mutant(
        "lambda and gamma swapped",
        "baseline/critic_fixed_lambda.py",
        "mask_BGT, gae_lambda, gamma)",
        "mask_BGT, gamma, gae_lambda)",
        PRETRAINED,
        "the_critic_sees_states",
    ),
    Mutant(
        "one step of pretraining more",
        "baseline/critic_pretraining.py",
        "step < pretrain_steps",
        "step <= pretrain_steps",
        PRETRAINED,
        "every_number_acts",
    ),
    Mutant(
        "mean over all tokens in place of all steps",
        "baseline/batch_mean_step.py",
        "masked_mean(rewards_BGT, steps_BGT, dim=(0, 1, 2))",
        "rewards_BGT.mean((0, 1, 2), keepdim=True)",
        STEP_BATCH,
        "rewards_plus_a_constant",
    ),
    Mutant(
        "batch mean of the steps of each prompt",
        "baseline/batch_mean_step.py",
        "dim=(0, 1, 2)",
        "dim=(1, 2)",
        STEP_BATCH,
        "rewards_plus_a_constant",
    ),
    Mutant(
        "mean of each response's own steps",
        "baseline/group_mean_step.py",
        "dim=(1, 2)",
        "dim=2",
        STEP_GROUP,
        "rewards_plus_a_constant",
    ),
    Mutant(
        "own steps kept in the mean of the others' steps",
        "baseline/leave_one_out_step.py",
        "mean_B11 - own_BG1 / others_BG1.clamp(min=1)",
        "mean_B11.expand(rewards_BGT.shape)",
        STEP_OTHERS,
        "rewards_plus_a_constant",
    ),
    Mutant(
        "steps without others charged nothing",
        "baseline/leave_one_out_step.py",
        "others_BG1.clamp(min=1), rewards_BGT)",
        "others_BG1.clamp(min=1), 0.0)",
        STEP_OTHERS,
        "degenerate_groups_are_defined",
    ),
    Mutant(
        "the rejected response less the chosen one",
        "baseline/pair.py",
        "rewards[:, 0] - rewards[:, 1]",
        "rewards[:, 1] - rewards[:, 0]",
        DPO,
        "verdict",
    ),
    Mutant(
        "the rejected response left out",
        "baseline/pair.py",
        "rewards[:, 0] - rewards[:, 1]",
        "rewards[:, 0]",
        DPO,
        "factor",
    ),
    # kl
    Mutant("sign of k1", "kl/k1.py", "return log_ratio", "return -log_ratio", K1_REWARD, "kl"),
    Mutant("k2 without 1/2", "kl/k2.py", "log_ratio.square() / 2", "log_ratio.square()", K2_SEQUENCE, "kl"),
    Mutant(
        "k3 with the ratio inverted",
        "kl/k3.py",
        "torch.expm1(-log_ratio) + log_ratio",
        "torch.expm1(log_ratio) - log_ratio",
        K3_LOSS,
        "kl",
    ),
    Mutant(
        "k3 without its linear term",
        "kl/k3.py",
        "torch.expm1(-log_ratio) + log_ratio",
        "torch.expm1(-log_ratio)",
        K3_LOSS,
        "on_policy_means_ratio_one",
    ),
    Mutant(
        "mask dropped in the KL of a token",
        "kl/per_token.py",
        ".masked_fill(~mask, 0.0)",
        "",
        K3_LOSS,
        "masked_positions_do_not_exist",
    ),
    Mutant(
        "mask by multiplication in the KL of a token",
        "kl/per_token.py",
        ".masked_fill(~mask, 0.0)",
        " * mask",
        K3_LOSS,
        "masked_positions_do_not_exist",
    ),
    Mutant(
        "KL of a token towards the reference's samples",
        "kl/per_token.py",
        "(logprobs - ref_logprobs)",
        "(ref_logprobs - logprobs)",
        K1_REWARD,
        "kl",
    ),
    Mutant(
        "KL of a response on every token",
        "kl/per_sequence.py",
        "* last_token(mask)",
        "* mask",
        K2_SEQUENCE,
        "kl",
    ),
    Mutant(
        "KL in the loss without a gradient",
        "kl/per_sequence.py",
        "kl_estimate(log_ratio) *",
        "kl_estimate(log_ratio).detach() *",
        K2_SEQUENCE,
        "kl",
    ),
    Mutant(
        "KL coefficient ignored",
        "kl/per_token.py",
        "return coefficient * ",
        "return 0.1 * ",
        K1_REWARD,
        "every_number_acts",
    ),
    Mutant(
        "log-ratio from the reference to the policy",
        "kl/implicit.py",
        "logprobs - ref_logprobs",
        "ref_logprobs - logprobs",
        DPO,
        "verdict",
    ),
    Mutant(
        "coefficient that moves away from its target",
        "kl/adaptive.py",
        "1 + error *",
        "1 - error *",
        ADAPTIVE_KL,
        "every_number_acts",
    ),
    Mutant(
        "steps of the coefficient without a bound above",
        "kl/adaptive.py",
        ".clamp(-0.2, 0.2)",
        ".clamp(min=-0.2)",
        ADAPTIVE_KL,
        "every_number_acts",
    ),
    Mutant(
        "KL of a token for that of a response",
        "kl/adaptive.py",
        ".masked_fill(~mask_BGT, 0.0).sum(-1)",
        ".masked_fill(~mask_BGT, 0.0).mean(-1)",
        ADAPTIVE_KL,
        "every_number_acts",
    ),
    Mutant(
        "unscored responses counted in the measured KL",
        "kl/adaptive.py",
        "scored_BG & mask_BGT.any(-1)",
        "mask_BGT.any(-1)",
        ADAPTIVE_KL,
        "masked_out_responses_do_not_count",
    ),
    # normalization
    Mutant(
        "group std with epsilon under the root",
        "normalization/group_std.py",
        DIVISOR,
        MOVED_EPSILON,
        STD,
        "weight",
    ),
    Mutant(
        "group std without epsilon",
        "normalization/group_std.py",
        "std + epsilon",
        "std",
        STD,
        "every_number_acts",
    ),
    Mutant(
        "groups of equal rewards divided by epsilon",
        "normalization/group_std.py",
        DIVISOR,
        "std + epsilon",
        STD,
        "degenerate_groups_are_defined",
    ),
    Mutant("group std of the whole batch", "normalization/group_std.py", OWN_DIMS, ALL_DIMS, STD, "verdict"),
    Mutant("batch std of each prompt", "normalization/batch_std.py", ALL_DIMS, OWN_DIMS, BATCH_STD, "verdict"),
    Mutant(
        "batch std with ddof swapped",
        "normalization/batch_std.py",
        ", ddof)",
        ", 1 - ddof)",
        BATCH_STD,
        "rewards_times_a_constant",
    ),
    Mutant(
        "batch std with epsilon under the root",
        "normalization/batch_std.py",
        DIVISOR,
        MOVED_EPSILON,
        BATCH_STD,
        "rewards_times_a_constant",
    ),
    Mutant("batch centre of each prompt", "normalization/batch_centre.py", ALL_DIMS, OWN_DIMS, CENTRED, "factor"),
    Mutant(
        "batch mean as divisor of each prompt",
        "normalization/batch_mean.py",
        "tuple(range(returns.ndim))",
        "tuple(range(1, returns.ndim))",
        BATCH_MEAN,
        "verdict",
    ),
    Mutant(
        "group mean as divisor without epsilon",
        "normalization/group_mean.py",
        " + epsilon\n",
        "\n",
        GROUP_MEAN,
        "weight",
    ),
    Mutant(
        "running centre of the present step",
        "normalization/running_centre.py",
        'torch.zeros_like(advantages) + state.get("mean", 0.0)',
        "torch.zeros_like(advantages) + advantages.mean()",
        RUNNING_CENTRE,
        "verdict",
    ),
    Mutant(
        "running std that includes the present step",
        "normalization/running_std.py",
        "(squares / (count - ddof).clamp(min=1)).sqrt()",
        "((squares + (advantages - advantages.mean()).square().sum()) / (count + advantages.numel() - ddof)).sqrt()",
        RUNNING,
        "verdict",
    ),
    Mutant(
        "running std with ddof swapped",
        "normalization/running_std.py",
        "(count - ddof)",
        "(count - (1 - ddof))",
        RUNNING,
        "rewards_times_a_constant",
    ),
    Mutant(
        "std of the group's returns over the whole batch",
        "normalization/group_std_of_returns.py",
        OWN_DIMS.replace("advantages", "returns"),
        ALL_DIMS.replace("advantages", "returns"),
        GROUP_RETURNS,
        "verdict",
    ),
    Mutant(
        "std of the group's returns with ddof swapped",
        "normalization/group_std_of_returns.py",
        ", ddof)",
        ", 1 - ddof)",
        GROUP_RETURNS,
        "weight",
    ),
    Mutant(
        "std of the batch's returns by prompt",
        "normalization/batch_std_of_returns.py",
        ALL_DIMS.replace("advantages", "returns"),
        OWN_DIMS.replace("advantages", "returns"),
        BATCH_RETURNS,
        "verdict",
    ),
    Mutant(
        "std of the batch's returns without epsilon",
        "normalization/batch_std_of_returns.py",
        "std + epsilon",
        "std",
        BATCH_RETURNS,
        "every_number_acts",
    ),
    Mutant(
        "std of the past returns with ddof swapped",
        "normalization/running_std_of_returns.py",
        "(count - ddof)",
        "(count - (1 - ddof))",
        PAST_RETURNS,
        "rewards_times_a_constant",
    ),
    Mutant(
        "past returns forgotten",
        "normalization/running_std_of_returns.py",
        "update_normalization(returns, valid, past)",
        "update_normalization(returns, valid, {})",
        PAST_RETURNS,
        "rewards_times_a_constant",
    ),
    # objective
    Mutant(
        "clip with its sides swapped",
        "objective/clip.py",
        "ratio.clamp(1 - low, 1 + high)",
        "ratio.clamp(1 - high, 1 + low)",
        CLIP,
        "ratio_is_bounded_on_one_side",
    ),
    Mutant(
        "clip with the maximum",
        "objective/clip.py",
        "torch.minimum(",
        "torch.maximum(",
        CLIP,
        "ratio_is_bounded_on_one_side",
    ),
    Mutant(
        "tokens counted as clipped whatever the advantage",
        "objective/clip.py",
        "(ratio > 1 + high) & (advantages > 0)",
        "ratio > 1 + high",
        CLIP,
        "clipped_tokens_have_no_gradient",
    ),
    Mutant(
        "dual clip on the wrong sign",
        "objective/dual_clip.py",
        "torch.where(advantages < 0,",
        "torch.where(advantages > 0,",
        DUAL,
        "ratio_is_bounded_on_one_side",
    ),
    Mutant(
        "dual clip that is not there",
        "objective/dual_clip.py",
        "torch.maximum(clipped_once, dual * advantages)",
        "clipped_once",
        DUAL,
        "every_number_acts",
    ),
    Mutant(
        "detached ratio not detached",
        "objective/detached_clip.py",
        "ratio.detach().clamp",
        "ratio.clamp",
        DETACHED,
        "on_policy_means_ratio_one",
    ),
    Mutant(
        "ratio detached where it must not be",
        "objective/unclipped.py",
        "return ratio * advantages",
        "return ratio.detach() * advantages",
        UNCLIPPED,
        "on_policy_means_ratio_one",
    ),
    Mutant(
        "soft gate whose slope is not 1",
        "objective/soft_gate.py",
        " * 4 / tau",
        " / tau",
        GATE,
        "on_policy_means_ratio_one",
    ),
    Mutant(
        "soft gate with the other sign's tau",
        "objective/soft_gate.py",
        "advantages > 0",
        "advantages < 0",
        GATE,
        "ratio_is_bounded_on_one_side",
    ),
    Mutant(
        "pi in place of log pi",
        "objective/log_likelihood.py",
        "return advantages * logprobs",
        "return advantages * logprobs.exp()",
        PLAIN,
        "on_policy_means_ratio_one",
    ),
    Mutant(
        "entropy sign",
        "objective/entropy_bonus.py",
        "return entropy_bonus",
        "return -entropy_bonus",
        ENTROPY,
        "every_number_acts",
    ),
    Mutant(
        "linear ratio of a token",
        "objective/ratio_token.py",
        "(logprobs - old_logprobs).exp()",
        "1 + (logprobs - old_logprobs)",
        CLIP,
        "ratio_is_bounded_on_one_side",
    ),
    Mutant(
        "ratio of a response silently truncated",
        "objective/ratio_sequence.py",
        ".exp()",
        ".exp().clamp(max=2.0)",
        SEQUENCE,
        "off-policy",
    ),
    Mutant(
        "mean ratio of a response without its length",
        "objective/ratio_sequence_mean.py",
        " / lengths",
        "",
        SEQUENCE_MEAN,
        "on_policy_means_ratio_one",
    ),
    Mutant(
        "mean ratio of a response over the padded length",
        "objective/ratio_sequence_mean.py",
        "mask.sum(-1, keepdim=True).clamp(min=1)",
        "mask.shape[-1]",
        SEQUENCE_MEAN,
        "padding_does_not_exist",
    ),
    Mutant(
        "mean ratio with token gradients not detached",
        "objective/ratio_sequence_mean_token.py",
        "ratio.detach() *",
        "ratio *",
        SEQUENCE_MEAN_TOKEN,
        "on_policy_means_ratio_one",
    ),
    Mutant(
        "reward-to-go without the token's own penalty",
        "objective/token_advantage.py",
        "penalties_BGT.flip(-1).cumsum(-1).flip(-1)",
        "(penalties_BGT.flip(-1).cumsum(-1).flip(-1) - penalties_BGT)",
        K1_TO_GO,
        "kl",
    ),
    Mutant(
        "reward-to-go from the wrong end",
        "objective/token_advantage.py",
        "penalties_BGT.flip(-1).cumsum(-1).flip(-1)",
        "penalties_BGT.cumsum(-1)",
        K1_TO_GO,
        "kl",
    ),
    Mutant(
        "mean of the penalties for their sum",
        "objective/sequence_advantage.py",
        "penalties_BGT.sum(-1)",
        "penalties_BGT.mean(-1)",
        K1_REWARD,
        "padding_does_not_exist",
    ),
    Mutant(
        "token mean over responses",
        "objective/token_mean.py",
        "mask_BGT.sum().clamp(min=1)",
        RESPONSES,
        answers(aggregation=TOKENS),
        "verdict",
    ),
    Mutant(
        "mean over the padded length",
        "objective/seq_mean_token_mean.py",
        "mask_BGT.sum(-1, keepdim=True).clamp(min=1)",
        "mask_BGT.shape[-1]",
        answers(aggregation=MEAN),
        "padding_does_not_exist",
    ),
    Mutant(
        "empty prompts counted",
        "objective/prompt_mean.py",
        "(tokens_B11 > 0).sum().clamp(min=1)",
        "len(mask_BGT)",
        answers(aggregation=PROMPT),
        "masked_out_responses_do_not_count",
    ),
    Mutant(
        "empty responses counted",
        "objective/seq_mean_token_sum.py",
        RESPONSES,
        "mask_BGT[..., 0].numel()",
        PLAIN,
        "masked_out_responses_do_not_count",
    ),
    Mutant(
        "max_length ignored",
        "objective/seq_mean_token_sum_norm.py",
        " / max_length",
        "",
        answers(aggregation=NORM, max_length=10),
        "factor",
    ),
    Mutant(
        "bounds of a token's ratio swapped",
        "objective/token_clip.py",
        "log_ratio.clamp(max=high)",
        "log_ratio.clamp(max=low)",
        TOKEN_CLIP,
        "ratio_is_bounded_on_one_side",
    ),
    Mutant(
        "a token's ratio bounded on both sides",
        "objective/token_clip.py",
        "log_ratio.clamp(max=high)",
        "log_ratio.clamp(-low, high)",
        TOKEN_CLIP,
        "ratio_is_bounded_on_one_side",
    ),
    Mutant(
        "bounded tokens counted whatever the advantage",
        "objective/token_clip.py",
        "(log_ratio > high) & (advantages > 0)",
        "log_ratio > high",
        TOKEN_CLIP,
        "clipped_tokens_have_no_gradient",
    ),
    Mutant(
        "the product bounded and not its tokens",
        "objective/ratio_sequence_token_clip.py",
        "bounded(logprobs - old_logprobs, advantages, low=low, high=high).sum(-1, keepdim=True)",
        "bounded((logprobs - old_logprobs).sum(-1, keepdim=True), advantages[:, :1], low=low, high=high)",
        TOKEN_CLIP,
        "clipped_tokens_have_no_gradient",
    ),
    Mutant(
        "product of bounded ratios without its length",
        "objective/ratio_sequence_mean_token_clip.py",
        " / mask.sum(-1, keepdim=True).clamp(min=1)",
        "",
        TOKEN_CLIP_MEAN,
        "on_policy_means_ratio_one",
    ),
    Mutant(
        "the reward kept beside the selection",
        "objective/likelihood.py",
        "torch.ones_like(rewards_BG)",
        "rewards_BG.clone()",
        BEST,
        "weight",
    ),
    Mutant(
        "rewards of 0 counted as correct",
        "objective/positive_nll.py",
        "rewards_BG > 0",
        "rewards_BG >= 0",
        NLL,
        "every_number_acts",
    ),
    Mutant(
        "likelihood of correct responses over all tokens",
        "objective/positive_nll.py",
        "correct_BGT.sum()",
        "mask_BGT.sum()",
        NLL,
        "every_number_acts",
    ),
    Mutant(
        "likelihood of correct responses minimized",
        "objective/positive_nll.py",
        "return coefficient *",
        "return -coefficient *",
        NLL,
        "every_number_acts",
    ),
    Mutant(
        "beta ignored",
        "objective/preference.py",
        "return beta * scores",
        "return scores",
        DPO,
        "every_number_acts",
    ),
    Mutant(
        "the chosen response helped by the margin",
        "objective/preference.py",
        "ahead - margin",
        "ahead + margin",
        SIMPO,
        "every_number_acts",
    ),
    Mutant(
        "log of a sigmoid that underflows",
        "objective/preference.py",
        "functional.logsigmoid(ahead - margin)",
        "(ahead - margin).sigmoid().log()",
        DPO,
        "degenerate_groups_are_defined",
    ),
    Mutant(
        "mean over a response's tokens for their sum",
        "objective/response_sum.py",
        "(values * mask).sum(-1)",
        "(values * mask).sum(-1) / mask.sum(-1).clamp(min=1)",
        DPO,
        "verdict",
    ),
    Mutant(
        "mean over a response's padded length",
        "objective/response_mean.py",
        "mask.sum(-1).clamp(min=1)",
        "mask.shape[-1]",
        SIMPO,
        "padding_does_not_exist",
    ),
    # sampling
    Mutant(
        "the worst response for the best",
        "sampling/best.py",
        "-torch.inf).argmax(",
        "torch.inf).argmin(",
        BEST,
        "verdict",
    ),
    Mutant(
        "an unscored response as the best",
        "sampling/best.py",
        "rewards_BG.masked_fill(~scored_BG, -torch.inf)",
        "rewards_BG",
        BEST,
        "selection_does_not_see_the_order",
    ),
    Mutant(
        "rewards of 0 kept as positive",
        "sampling/positive.py",
        "rewards_BG > 0",
        "rewards_BG >= 0",
        POSITIVE,
        "verdict",
    ),
    Mutant(
        "the rest of the group kept beside the positive",
        "sampling/positive.py",
        ".masked_fill(~positive_BG.gather(1, order_BG), -1)",
        "",
        LIKELY,
        "verdict",
    ),
    Mutant(
        "groups of equal rewards kept",
        "sampling/mixed.py",
        "highest_B > lowest_B",
        "highest_B >= lowest_B",
        MIXED,
        "verdict",
    ),
    Mutant(
        "unscored responses taken for wrong ones",
        "sampling/mixed.py",
        "rewards_BG.masked_fill(~scored_BG, torch.inf)",
        "rewards_BG.nan_to_num(0.0)",
        MIXED,
        "masked_out_responses_do_not_count",
    ),
    Mutant(
        "as many highest as there are to be lowest",
        "sampling/max_variance.py",
        "place < m - best_B1",
        "place < best_B1",
        SPREAD,
        "every_number_acts",
    ),
    Mutant(
        "variances by the difference of large numbers",
        "sampling/max_variance.py",
        "(sorted_BG - sorted_BG[:, :1]).masked_fill(",
        "sorted_BG.masked_fill(",
        SPREAD,
        "statistics_are_two_pass",
    ),
    Mutant(
        "the lowest responses alone",
        "sampling/max_variance.py",
        "place, place + gap_B1",
        "place, place",
        SPREAD,
        "every_number_acts",
    ),
    # reward
    Mutant(
        "a step not to the credit of the token that ends it",
        "reward/process_credit.py",
        "return rewards_BGT.cumsum(-1) - rewards_BGT",
        "return rewards_BGT.cumsum(-1)",
        CREDIT,
        "verdict",
    ),
    Mutant(
        "credit for the steps before a token",
        "reward/process_credit.py",
        "rewards_BGT.flip(-1).cumsum(-1).flip(-1)",
        "rewards_BGT.cumsum(-1)",
        STEP_STD,
        "verdict",
    ),
    Mutant(
        "scores less the mean of those of this process",
        "reward/clip.py",
        "rewards_BG.clamp(low, high)",
        "(rewards_BG - rewards_BG.mean()).clamp(low, high)",
        SCORES,
        "rewards_are_their_own",
    ),
    Mutant(
        "score range with one side",
        "reward/clip.py",
        "rewards_BG.clamp(low, high)",
        "rewards_BG.clamp(max=high)",
        SCORES,
        "every_number_acts",
    ),
    Mutant(
        "missing EOS ignored",
        "reward/missing_eos.py",
        "torch.where(ended_BG, rewards_BG, missing_eos)",
        "rewards_BG",
        SCORES,
        "every_number_acts",
    ),
    Mutant(
        "missing EOS on the responses that ended",
        "reward/missing_eos.py",
        "torch.where(ended_BG,",
        "torch.where(~ended_BG,",
        SCORES,
        "every_number_acts",
    ),
    Mutant(
        "overlong off by one",
        "reward/overlong.py",
        "(limit - buffer))",
        "(limit - buffer - 1))",
        SCORES,
        "every_number_acts",
    ),
    Mutant(
        "short responses rewarded by the overlong punishment",
        "reward/overlong.py",
        ".clamp(0.0, 1.0)",
        ".clamp(max=1.0)",
        SCORES,
        "every_number_acts",
    ),
    # sections
    Mutant(
        "mask dropped in the sum of a mean",
        "sections/statistics.py",
        "differences = (values - anchor).masked_fill(~mask, 0.0)",
        "differences = values - anchor",
        TOKEN_STD,
        "padding_does_not_exist",
    ),
    Mutant(
        "mean over everything that is there",
        "sections/statistics.py",
        "/ mask.sum(dim, keepdim=True).clamp(min=1)",
        "/ torch.ones_like(values).sum(dim, keepdim=True)",
        OTHERS,
        "masked_out_responses_do_not_count",
    ),
    Mutant(
        "std with ddof ignored",
        "sections/statistics.py",
        "(mask.sum(dim, keepdim=True) - ddof)",
        "mask.sum(dim, keepdim=True)",
        STD,
        "weight",
    ),
    Mutant(
        "std with ddof swapped",
        "sections/statistics.py",
        "(mask.sum(dim, keepdim=True) - ddof)",
        "(mask.sum(dim, keepdim=True) - (1 - ddof))",
        STD,
        "weight",
    ),
    Mutant(
        "one-pass variance",
        "sections/statistics.py",
        "(deviations.square().sum(dim, keepdim=True) / (mask.sum(dim, keepdim=True) - ddof).clamp(min=1)).sqrt()",
        "((values * mask).square().sum(dim, keepdim=True) / mask.sum(dim, keepdim=True).clamp(min=1)"
        " - masked_mean(values, mask, dim).square()).clamp(min=0).sqrt()",
        answers(normalization={"scope": "group", "ddof": 0}),
        "statistics_are_two_pass",
    ),
    Mutant(
        "std in float32",
        "sections/statistics.py",
        "deviations = (values - ",
        "deviations = (values.float() - ",
        STD,
        "float64_stays_float64",
    ),
    Mutant(
        "first token for the last",
        "sections/statistics.py",
        "mask.flip(-1).cumsum(-1).flip(-1) == 1",
        "mask.cumsum(-1) == 1",
        K1_SEQUENCE,
        "kl",
    ),
    Mutant(
        "last column for the last token",
        "sections/statistics.py",
        "mask & (mask.flip(-1).cumsum(-1).flip(-1) == 1)",
        "mask & (torch.arange(mask.shape[-1]) == mask.shape[-1] - 1)",
        SEQUENCE,
        "padding_does_not_exist",
    ),
    Mutant(
        "past steps merged without the shift of their means",
        "sections/running.py",
        " + shift.square() * past * count / total",
        "",
        RUNNING,
        "rewards_times_a_constant",
    ),
    Mutant(
        "mean of the past steps as that of their means",
        "sections/running.py",
        "shift * count / total",
        "shift / 2",
        RUNNING,
        "rewards_times_a_constant",
    ),
    # the page
    Mutant(
        "mean of the rows given",
        PAGE,
        "if plan.positive_nll }}).sum()",
        "if plan.positive_nll }}).mean()",
        PLAIN,
        "splits_do_not_exist",
    ),
    Mutant(
        "weights over the rows given",
        PAGE,
        "return -(weights * objective",
        "return -(weights / weights.sum() * objective",
        answers(aggregation=TOKENS),
        "splits_do_not_exist",
    ),
    Mutant(
        "mask dropped before the loss",
        PAGE,
        INPUTS,
        INPUTS.replace("x.masked_fill(~mask, 0.0)", "x"),
        UNCLIPPED,
        "masked_positions_do_not_exist",
    ),
    Mutant(
        "exp before the mask",
        PAGE,
        INPUTS,
        INPUTS.replace("{{ inputs |", "{{ inputs[2:] |").replace("({{ inputs |", "({{ inputs[2:] |"),
        UNCLIPPED,
        "masked_positions_do_not_exist",
    ),
    Mutant(
        "ratio of a response counted on every token",
        PAGE,
        "objective = objective * last_token(mask)",
        "objective = objective * mask",
        SEQUENCE,
        "on_policy_means_ratio_one",
    ),
    Mutant(
        "sign of the KL in the loss",
        PAGE,
        'objective = objective - {{ call("kl_penalty"',
        'objective = objective + {{ call("kl_penalty"',
        K2_SEQUENCE,
        "kl",
    ),
    Mutant(
        "advantages not detached",
        PAGE,
        "advantages_BG[..., None], 0.0).detach()",
        "advantages_BG[..., None], 0.0)",
        K1_REWARD,
        "on_policy_means_ratio_one",
    ),
    Mutant(
        "after_baseline ignored",
        PAGE,
        "{% elif plan.kl_after_baseline %}",
        "{% elif false %}",
        K1_AFTER,
        "kl",
    ),
    Mutant(
        "truncated responses kept",
        PAGE,
        "return mask_BGT & ended_BG[..., None]",
        "return mask_BGT",
        TRUNCATED,
        "verdict",
    ),
    Mutant(
        "unscored responses scored 0",
        PAGE,
        "rollouts.rewards_BG.masked_fill(~scored_BG, 0.0)",
        "rollouts.rewards_BG.masked_fill(~scored_BG, 0.0); scored_BG = torch.ones_like(scored_BG)",
        GROUP,
        "masked_out_responses_do_not_count",
    ),
    Mutant(
        "greedy responses without a score used",
        PAGE,
        " & rollouts.greedy_rewards_B.isfinite()[:, None]",
        "",
        GREEDY,
        "degenerate_groups_are_defined",
    ),
    Mutant(
        "baseline from the returns of the last column",
        PAGE,
        'call("baseline", returns_BG="returns_BGT[..., 0]"',
        'call("baseline", returns_BG="returns_BGT[..., -1]"',
        answers(kl=kl("reward", "k1"), quantity="token_advantage", baseline="group_mean"),
        "padding_does_not_exist",
    ),
    Mutant(
        "std of the advantages for that of the returns",
        PAGE,
        'returns="returns_BG", valid="scored_BG", mask_BGT="rollouts.mask_BGT") }}',
        'returns="advantages_BG", valid="scored_BG", mask_BGT="rollouts.mask_BGT") }}',
        GROUP_RETURNS,
        "rewards_times_a_constant",
    ),
    Mutant(
        "likelihood of correct responses in the advantage's weights",
        PAGE,
        '(weights * objective{{ " + " ~ call("likelihood_term") if plan.positive_nll }})',
        '(weights * (objective{{ " + " ~ call("likelihood_term") if plan.positive_nll }}))',
        NLL,
        "every_number_acts",
    ),
    Mutant(
        "mean of the pairs given",
        PAIRS_PAGE,
        '{{ call("log_chance") }}).sum()',
        '{{ call("log_chance") }}).mean()',
        DPO,
        "splits_do_not_exist",
    ),
    Mutant(
        "mask dropped before the log-ratio",
        PAIRS_PAGE,
        "(x.masked_fill(~mask, 0.0) for x in (logprobs, ref_logprobs))",
        "(x for x in (logprobs, ref_logprobs))",
        DPO,
        "masked_positions_do_not_exist",
    ),
]

# -------- Rendering --------


@contextmanager
def templates(mutant: Mutant) -> Iterator[None]:
    """A copy of the templates with a mutant in it, in place of the shipped ones.

    What is not touched is read as ever; what is, past the caches.
    """
    with tempfile.TemporaryDirectory() as made, ExitStack() as patches:
        folder = Path(made) / "templates"
        shutil.copytree(templates_dir(), folder, ignore=shutil.ignore_patterns("__pycache__"))
        text = (folder / mutant.file).read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.name}: what it replaces is {text.count(mutant.old)} times in {mutant.file}")
        (folder / mutant.file).write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")

        def read(question: str, name: str) -> Fragment:
            if f"{question}/{name}.py" != mutant.file:
                return read_fragment(question, name)
            with mock.patch("specc.fragments.templates_dir", lambda: folder):
                return read_fragment.__wrapped__(question, name)

        changed: dict[str, Any] = {"specc.plan.read_fragment": read, "specc.render.read_fragment": read}
        if mutant.file in PAGES:
            changed["specc.render.templates_dir"] = lambda: folder
            changed["specc.render.environment"] = environment.__wrapped__
        for place, stand_in in changed.items():
            patches.enter_context(mock.patch(place, stand_in))
        yield


def script_of(answers: dict[str, Any], mutant: Mutant | None = None) -> Script:
    """The estimator of a spec, from templates with a mutant or without one."""
    plan = Plan(Spec.model_validate({"name": "mutant", **answers}))
    with templates(mutant) if mutant else nullcontext():
        text = render(plan, "mutant.yaml", "0" * 16)
    return load_script(text, mutant.name if mutant else "unmutated", plan)


# -------- The checks --------


def same_number(left: Any, right: Any) -> bool:
    return math.isclose(float(left), float(right), rel_tol=1e-9, abs_tol=1e-12)


def verdict_differs(script: Script, derived: Derived) -> bool:
    size = derived.group_size
    weight = None if script.on_pairs else find_weight(script, size, script.with_numbers(kl_coefficient=0.0))
    judged = [judge(script, kind, size, weight=weight).verdict for kind in KINDS]
    return judged != [derived.binary, derived.real]


def off_policy_differs(script: Script, derived: Derived) -> bool:
    judged = [judge(script, kind, derived.group_size, reused=True).verdict for kind in KINDS]
    return judged != [derived.off_policy_binary, derived.off_policy_real]


def factor_differs(script: Script, derived: Derived) -> bool:
    """c of coins, where it is a number."""
    if derived.binary not in ("unbiased", "proportional"):
        return False
    hp, chances = script.with_numbers(kl_coefficient=0.0), ((1, 1), (1, 3))
    for prompts in (1, 2):
        if (wanted := derived.value(prompts)) is not None:
            (found,) = compare(script, coin(*chances[:prompts]), derived.group_size, hp)
            if not all(same_number(c, wanted) for c in found.factors):
                return True
    return False


def weight_differs(script: Script, derived: Derived) -> bool:
    left_out = any(part.factor and part.number is None for part in derived.effects)  # what the policy decides
    if derived.weight is None or left_out or derived.binary == "asymptotic":  # which says nothing of a prompt alone
        return False
    found = find_weight(script, derived.group_size, script.with_numbers(kl_coefficient=0.0))
    return not all(same_number(found.at(p), derived.weight.at(p)) for p in (0.1, 0.3, 0.5, 0.7, 0.9))


def kl_differs(script: Script, derived: Derived) -> bool:
    judged = judge_penalty(script, derived.group_size)
    if judged is None or derived.penalty is None:
        return (judged is None) != (derived.penalty is None)
    if (judged.kind, judged.weighting) != (derived.penalty.kind, derived.penalty.weighting):
        return True
    wanted = kl_factor(script) if judged.weighting == "exact" and judged.kind != "zero" else None
    return wanted is not None and (judged.factor is None or not same_number(judged.factor, wanted))


def kl_factor(script: Script) -> float | None:
    """c of the KL part, where it does not depend on the batch: what is in the loss is only weighted."""
    assert script.plan is not None
    spec = script.plan.spec
    parts = list(spec.objective.effects(spec))
    if spec.kl.in_reward:
        parts += spec.normalization.effects(spec)
    if spec.kl.in_reward and not script.plan.kl_after_baseline:
        parts += spec.baseline.effects(spec)
    values = [part.value(spec.sampling.group_size) for part in parts]
    return None if None in values else math.prod(float(value) for value in values if value is not None)


CHECKS: dict[str, Callable[[Script, Derived], bool]] = {
    "verdict": verdict_differs,
    "factor": factor_differs,
    "weight": weight_differs,
    "kl": kl_differs,
    "off-policy": off_policy_differs,
}


def fails(check: Callable[[Script, Derived], bool], script: Script) -> bool:
    """Whether the script is found out, be it by an error."""
    assert script.plan is not None
    try:
        return check(script, script.plan.derived)
    except SpecError:
        return True


def failing(script: Script, only: str | None = None) -> list[str]:
    """The names of all checks that fail, the laws in the order of their numbers first; or of one check, if it does."""
    laws = [law for law in sorted(LAWS, key=lambda law: law.number) if only in (None, law.name)]
    if script.on_pairs:
        results = [result for result in check_pair_laws(script, 0, 6) if result.law in laws]
    else:
        batches = list(family(script, seed=0, count=6)) if laws else []
        results = [judge_law(law, script, batches) for law in laws]
    broken = [result.law.name for result in results if result.verdict == "broken"]
    if script.breaks_ties:  # equal rewards of different responses are then not all treated alike
        script = dataclasses.replace(script, exchangeable=False)
    return broken + [name for name, check in CHECKS.items() if only in (None, name) and fails(check, script)]


def caught(mutant: Mutant, only: str | None = None) -> list[str]:
    return failing(script_of(mutant.spec, mutant), only)


def main() -> None:
    """The table, in Markdown."""
    print("| mutant | file | caught by | also caught by |", "|---|---|---|---|", sep="\n")
    survivors = []
    for mutant in MUTANTS:
        found = caught(mutant)
        if mutant.caught_by not in found:
            survivors.append(mutant.name)
        also = ", ".join(f"`{name}`" for name in found if name != mutant.caught_by)
        by = f"`{mutant.caught_by}`" if mutant.caught_by in found else f"**not by `{mutant.caught_by}`**"
        print(f"| {mutant.name} | `{mutant.file}` | {by} | {also} |", flush=True)
    if survivors:
        sys.exit(f"{len(survivors)} mutants survive: {', '.join(survivors)}")


if __name__ == "__main__":
    main()
