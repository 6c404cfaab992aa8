"""The plan: what a spec needs, derived once, and used by the templates, by `explain` and by `verify`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from specc.answers import QUESTIONS
from specc.answers.base import Finding, Parameter
from specc.custom import UserFunction
from specc.derive import Derived, derive
from specc.fragments import Fragment, Function, read_fragment
from specc.spec import Spec


def without_repeats(found: dict[str, list[Fragment]]) -> Iterator[tuple[str, list[Fragment]]]:
    """The fragments, with what several functions of one user's file use in the first place only."""
    seen: set[tuple[Path, str]] = set()
    for folder, fragments in found.items():
        kept = []
        for fragment in fragments:
            if fragment.parts:
                new = [part for part in fragment.parts if (fragment.path, part) not in seen]
                seen |= {(fragment.path, part) for part in fragment.parts}
                fragment = replace(fragment, code="\n\n\n".join(new))
            kept.append(fragment)
        yield folder, kept


@dataclass(frozen=True)
class Plan:
    """What follows from a spec. Templates branch on these flags, never on an answer's name."""

    spec: Spec

    @cached_property
    def fragments(self) -> dict[str, list[Fragment]]:
        """The fragments of each question, and of the sampling, in the order of the script."""
        chosen = {question: answer.fragments() for question, answer in self.spec.answers.items()}
        chosen["sampling"] = self.spec.sampling.fragments()
        found = {folder: [read_fragment(folder, name) for name in names] for folder, names in chosen.items()}
        for question, answer in self.spec.answers.items():
            found[question] += [function.fragment for function in answer.own_functions()]
        return dict(without_repeats(found))

    @cached_property
    def functions(self) -> dict[str, tuple[str, Function]]:
        """Every function of the chosen fragments: name -> its question and its signature."""
        return {
            name: (question, function)
            for question, fragments in self.fragments.items()
            for fragment in fragments
            for name, function in fragment.functions.items()
        }

    @property
    def own_functions(self) -> list[UserFunction]:
        """The functions of the author's own, in the order of the script."""
        return [function for answer in self.spec.answers.values() for function in answer.own_functions()]

    def takes(self, parameter: str) -> bool:
        """Whether any of the chosen functions asks for this."""
        return any(parameter in function.positional for _, function in self.functions.values())

    @cached_property
    def derived(self) -> Derived:
        """What the estimator's expectation is."""
        return derive(self.spec)

    # the numbers

    @cached_property
    def question_parameters(self) -> dict[str, dict[str, Parameter]]:
        """The numbers that the chosen fragments take, by question and field."""
        taken = {
            question: {
                function.field_of(name)
                for q, function in self.functions.values()
                if q == question
                for name in function.keyword_only
            }
            for question in self.fragments
        }
        return {
            question: {p.field: p for p in parameters if p.field in taken[question]}
            for question, parameters in self.spec.algorithm_parameters().items()
        }

    @property
    def parameters(self) -> list[Parameter]:
        """The numbers that become arguments of the script, in the order of the questions, and those of the sampling."""
        of_answers = [p for question in QUESTIONS for p in self.question_parameters[question].values()]
        return of_answers + (list(self.spec.sampling.parameters()) if self.online else [])

    @property
    def estimator_parameters(self) -> list[Parameter]:
        """The numbers of the answers that act in the estimator: not those of functions that are told the step, which
        are the trainer's."""
        of_trainer = {
            (question, function.field_of(name))
            for question, function in self.functions.values()
            if "step" in function.positional
            for name in function.keyword_only
        }
        every = ((question, p) for question, taken in self.question_parameters.items() for p in taken.values())
        return [p for question, p in every if (question, p.field) not in of_trainer and not isinstance(p.value, str)]

    def findings(self) -> Iterator[Finding]:
        """Numbers that the author wrote and that no chosen fragment takes: they would be ignored."""
        for question, answer in self.spec.answers.items():
            live = {parameter.argument for parameter in self.question_parameters[question].values()}
            written = answer.model_fields_set
            for parameter in answer.parameters():
                place = (question, *([parameter.block] if parameter.block else []), parameter.field)
                if parameter.argument not in live and (parameter.block or parameter.field) in written:
                    yield Finding(
                        "dead-option",
                        place,
                        f"{parameter.field} has no effect here",
                        f"with this combination of answers nothing in the script reads it: {answer.describe()}",
                        f"remove {parameter.field}",
                    )

        if self.spec.defaults.critic_learning_rate is not None and not self.own_critic:
            yield Finding(
                "dead-option",
                ("defaults", "critic_learning_rate"),
                "critic_learning_rate has no effect here",
                "there is no critic with a backbone and an optimizer of its own",
                "remove critic_learning_rate",
            )

    # the data

    @property
    def online(self) -> bool:
        """Whether the policy is trained on responses that it samples, and not on pairs that are given."""
        return self.spec.online

    @property
    def cached_reference(self) -> bool:
        """Whether the log-probs of given responses under the policy at step 0 are found once, before the first step."""
        return self.spec.kl.in_contrast

    # the signal

    @property
    def token_level(self) -> bool:
        """Whether returns are kept for each token."""
        return self.spec.objective.token_level

    @property
    def over_tokens(self) -> bool:
        """Whether each token counts once in the statistics of the normalization."""
        return self.spec.normalization.over_tokens or (self.token_level and "normalize" in self.functions)

    @property
    def per_token(self) -> bool:
        """Whether advantages have a token axis before the end."""
        return self.token_level or self.over_tokens

    @property
    def dims(self) -> str:
        """The shape of returns, as the suffix of their names."""
        return "BGT" if self.token_level else "BG"

    @property
    def to_return(self) -> str:
        """The function that makes returns of rewards and penalties: the only one of the quantity's own fragment."""
        return next(iter(self.fragments["objective"][0].functions))

    @property
    def returns_of_responses(self) -> str:
        """The returns of whole responses, which are those of their first tokens."""
        return "returns_BGT[..., 0]" if self.token_level else "returns_BG"

    @property
    def kl_in_reward(self) -> bool:
        return self.spec.kl.in_reward

    @property
    def kl_in_loss(self) -> bool:
        return self.spec.kl.in_loss

    @property
    def kl_after_baseline(self) -> bool:
        return bool(getattr(self.spec.kl, "after_baseline", False))

    @property
    def kl_moves(self) -> bool:
        """Whether the KL's coefficient is carried from step to step."""
        return "kl_coefficient_of" in self.functions

    @property
    def reference_moves(self) -> bool:
        """Whether the reference becomes the policy now and then."""
        return "reference_step" in self.functions

    @property
    def has_baseline(self) -> bool:
        return "baseline" in self.functions or self.critic

    @property
    def critic(self) -> bool:
        """Whether a critic gives every token a value."""
        return self.spec.baseline.per_token

    @property
    def own_critic(self) -> bool:
        """Whether the critic is a model of its own, with its own optimizer."""
        return self.critic and getattr(self.spec.baseline, "backbone", "") == "own"

    @property
    def shared_critic(self) -> bool:
        """Whether the critic is a head on the policy's hidden states."""
        return self.critic and not self.own_critic

    @property
    def critic_from_reward_model(self) -> bool:
        return self.own_critic and getattr(self.spec.baseline, "initial", "") == "reward_model"

    @property
    def pretrains(self) -> bool:
        """Whether the first steps train the critic alone."""
        return "pretrains" in self.functions

    @property
    def normalizers(self) -> list[tuple[str, str]]:
        """The functions of the normalization and what their result does to the advantage, or "" if it is the result."""
        return [pair for pair in (("centre", "-"), ("scale", "/"), ("normalize", "")) if pair[0] in self.functions]

    @property
    def transforms(self) -> list[str]:
        """The functions that the raw score goes through."""
        fragments = self.fragments["reward"][len(self.spec.reward.scorer_fragments) :]
        return [name for fragment in fragments for name in fragment.functions]

    @property
    def scorer(self) -> str:
        """The class that scores responses, or their steps."""
        return "StepScorer" if self.scores_steps else "Scorer"

    @property
    def scores_steps(self) -> bool:
        """Whether the scores are of steps, whose sum is a response's reward."""
        return self.spec.reward.scores_steps

    @property
    def credits_steps(self) -> bool:
        """Whether a token's return leaves out the steps that ended before it."""
        return self.spec.reward.credits_steps

    @property
    def over_steps(self) -> bool:
        """Whether step rewards are centred or normalized before they are added up."""
        return self.spec.baseline.over_steps or self.spec.normalization.over_steps

    # the selection

    @property
    def selects(self) -> bool:
        return self.spec.sampling.selects

    @property
    def select_first(self) -> bool:
        """Whether responses are selected before advantages are made, which then see nothing else."""
        return self.spec.sampling.of_kept

    @property
    def select(self) -> str:
        """The function of the interface that selects."""
        return "select" if self.select_first else "select_after"

    @property
    def resamples(self) -> bool:
        """Whether other prompts take the place of those that are dropped."""
        return bool(self.spec.sampling.resample)

    @property
    def constant_return(self) -> bool:
        """Whether every response's return is the same."""
        return not self.spec.objective.uses_return

    @property
    def greedy(self) -> bool:
        return self.takes("greedy_rewards_B")

    @property
    def state_updates(self) -> list[str]:
        """The functions that carry statistics to the next step."""
        updates = [name for name in self.functions if name.startswith("update_")]
        return updates + ["update_normalization"] * self.carries_advantages

    @property
    def normalization_state(self) -> bool:
        return any("state" in self.functions[name][1].positional for name, _ in self.normalizers)

    @property
    def carries_advantages(self) -> bool:
        """Whether the statistics that the normalization carries are those of the advantages."""
        needs = (self.functions[name][1].positional for name, _ in self.normalizers)
        return any({"state", "advantages"} <= set(parameters) for parameters in needs)

    @property
    def carries_returns(self) -> bool:
        """Whether statistics of the returns are carried to the next step."""
        return any({"returns", "returns_BG"} & set(function.positional) for function in self.updates)

    @property
    def normalizers_read_returns(self) -> bool:
        return any("returns" in self.functions[name][1].positional for name, _ in self.normalizers)

    @property
    def updates_read_returns(self) -> bool:
        """Whether what is carried to the next step is computed from the returns."""
        return self.normalization_state or any("returns_BG" in f.positional for f in self.updates)

    @property
    def updates(self) -> list[Function]:
        return [self.functions[name][1] for name in self.functions if name.startswith("update_")]

    # the loss

    @property
    def uses_ratio(self) -> bool:
        return self.spec.objective.uses_ratio

    @property
    def uses_old(self) -> bool:
        """Whether the loss looks at the log-probs under the policy that sampled."""
        return self.uses_ratio or any(
            "old_logprobs" in self.functions[name][1].positional
            for name in ("loss", "token_weight")
            if name in self.functions
        )

    @property
    def own_loss(self) -> bool:
        """Whether the loss of a token is a function of the author's own."""
        return "loss" in self.functions

    @property
    def weighs_tokens(self) -> bool:
        return "token_weight" in self.functions

    @property
    def uses_entropies(self) -> bool:
        """Whether the loss looks at the entropy of each token's distribution."""
        return self.online and self.takes("entropies")

    @property
    def has_clip(self) -> bool:
        return "clipped" in self.functions

    @property
    def once_a_response(self) -> bool:
        return self.spec.objective.once_a_response

    @property
    def entropy_bonus(self) -> bool:
        return "entropy_term" in self.functions

    @property
    def positive_nll(self) -> bool:
        """Whether the likelihood of correct responses is a term of the loss."""
        return "likelihood_term" in self.functions

    @property
    def counts_by_ratio(self) -> bool:
        """Whether what is clipped is the ratio, and not each token's part of it."""
        return self.has_clip and "ratio" in self.functions["clipped"][1].positional

    @property
    def loss_inputs(self) -> list[str]:
        """The tensors that the loss takes besides those of every script, by keyword."""
        wanted = {
            "entropies": self.uses_entropies,
            "kl_coefficient": self.kl_in_loss and self.kl_moves,
            "likelihood_weights": self.positive_nll,
        }
        return [name for name, there in wanted.items() if there]

    @property
    def aggregation(self) -> str:
        return next(iter(read_fragment("objective", self.spec.objective.fragments()[-1]).functions))

    @property
    def skips_rows(self) -> bool:
        """Whether a response with advantage 0 has no gradient, so that its passes in the update can be left out."""
        return self.online and not (self.kl_in_loss or self.entropy_bonus or self.shared_critic or self.own_loss)

    @property
    def mask_truncated(self) -> bool:
        return self.spec.sampling.mask_truncated

    # the models and the passes

    @property
    def reference(self) -> bool:
        return self.kl_in_reward or self.kl_in_loss

    @property
    def measures_kl(self) -> bool:
        """Whether the KL of the batch is in its advantages or in the statistics of the step."""
        return self.kl_in_reward or self.kl_moves

    @property
    def needs_old_logprobs(self) -> bool:
        """Whether anything looks at the log-probs under the policy that sampled, beside those of the update."""
        return self.measures_kl or self.uses_old

    @property
    def old_pass(self) -> str:
        """When the policy scores its samples before the update: always, when a batch is reused, or never.

        Always where the log-probs are needed besides: for KL in the reward, or to measure the KL; or the values are."""
        always = self.measures_kl or self.shared_critic
        return "always" if always else "reused" if self.uses_old else ""

    @property
    def frozen_models(self) -> dict[str, str]:
        """Models that are in memory and not trained: name -> where the script holds them."""
        return ({"reference": "reference"} if self.reference else {}) | self.spec.reward.in_memory

    @property
    def models(self) -> list[str]:
        """The models in memory."""
        head = " with a value head" * self.shared_critic
        return [f"policy{head} (trained)", *["critic (trained)"] * self.own_critic, *self.frozen_models]

    @property
    def passes(self) -> list[str]:
        """What a step runs, in order."""
        if not self.online:
            once = "once, before the first step: forward pass of the policy over all pairs, as the reference"
            return [once] * self.cached_reference + ["forward and backward pass of the policy over the step's pairs"]
        reused = self.spec.sampling.updates_per_batch > 1
        every = self.spec.sampling.updates_per_batch
        steps = {
            f"generate {self.spec.sampling.group_size} response(s) a prompt": True,
            "generate one greedy response a prompt": self.greedy,
            "score the responses with the reward model": bool(self.spec.reward.in_memory),
            f"keep {self.spec.sampling.describe()}"
            + ", and sample other prompts in place of the rest" * self.resamples: self.selects,
            "forward pass of the policy over the samples, for their log-probs": self.old_pass == "always"
            or (bool(self.old_pass) and reused),
            "forward pass of the reference over the samples": self.reference,
            "forward pass of the critic over the samples, for their values": self.own_critic,
            f"forward and backward pass of the critic, {every} update(s)": self.own_critic,
            f"forward and backward pass of the policy, {every} update(s)"
            + ", without the responses whose advantage is 0" * self.skips_rows: True,
        }
        return [step for step, wanted in steps.items() if wanted]

    @property
    def min_group_size(self) -> int:
        return max(answer.min_group_size for answer in self.spec.answers.values())

    @property
    def reward_arguments(self) -> dict[str, tuple[str, str]]:
        return self.spec.reward.where
