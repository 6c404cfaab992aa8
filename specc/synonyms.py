"""What TRL, verl, OpenRLHF and papers call the fields and words of a spec: for did-you-mean alone, none is accepted.

Only names whose meaning is one field's. The targets are paths without the answer, `kl.coefficient`: which answers have
the field is read off the classes.
"""

from __future__ import annotations

from typing import NamedTuple


class Term(NamedTuple):
    """Names that others have for one field; `note` says how its values differ from theirs.

    Of a `common` word it is meant only in the block that the field is in.
    """

    field: str
    names: str
    note: str = ""
    common: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.field.split("."))


FIELDS = (
    Term("reward.clip", "reward_clip reward_clip_range clip_reward_range"),
    Term("reward.overlong.buffer", "len", common=True),
    Term("reward.overlong.buffer", "overlong_buffer_len soft_punish_cache"),
    Term("reward.overlong.limit", "max_len max_length max_response_length max_resp_len", common=True),
    Term("reward.overlong.penalty", "penalty_factor overlong_penalty_factor"),
    Term(
        "reward.missing_eos",
        "missing_eos_penalty eos_penalty non_eos_penalty",
        "it is a score, and not what is taken off",
    ),
    Term("kl.placement", "use_kl_loss use_kl_in_reward kl_in_reward kl_in_loss"),
    Term("kl.estimator", "kl_penalty kl_loss_type kl_estimator kl_type"),
    Term("kl.coefficient", "beta kl_coef kl_coeff init_kl_coef kl_loss_coef kl_penalty_coef kl_beta coef coeff"),
    Term("kl.coefficient.adaptive.target", "target_kl kl_target"),
    Term("kl.coefficient.adaptive.horizon", "kl_horizon"),
    Term("baseline.source", "adv_estimator advantage_estimator", "`normalization:` says what divides it"),
    Term("baseline.decay", "momentum ema_decay", common=True),
    Term("baseline.gae_lambda", "lam lambda lambd lmbda gae_lam lambda_gae"),
    Term("baseline.gamma", "discount discount_factor"),
    Term("baseline.value_clip", "cliprange_value value_clip_range vf_clip_param value_clip_eps clip_range_vf"),
    Term("baseline.coefficient", "vf_coef vf_coeff vf_loss_coef value_loss_coef value_coef"),
    Term("baseline.pretrain_steps", "critic_warmup freezing_actor_steps value_pretrain_steps"),
    Term("normalization.scope", "scale_rewards normalize_advantages norm_adv whiten whiten_advantages group_norm"),
    Term("normalization.scope", "norm_adv_by_std_in_grpo norm_adv_by_std advantage_normalization"),
    Term("normalization.epsilon", "eps"),
    Term("objective.clip", "epsilon eps clip_range cliprange clip_eps eps_clip clip_ratio clip_epsilon clip_param"),
    Term("objective.clip.low", "epsilon_low eps_low clip_ratio_low eps_clip_low clip_range_low cliprange_low clip_low"),
    Term(
        "objective.clip.high",
        "epsilon_high eps_high clip_ratio_high eps_clip_high clip_range_high cliprange_high clip_high clip_higher",
    ),
    Term("objective.clip.low", "min lower lower_bound", "the ratio is clipped below 1 - low", common=True),
    Term("objective.clip.high", "max upper upper_bound", "the ratio is clipped above 1 + high", common=True),
    Term("objective.clip.dual", "delta clip_ratio_c dual_clip"),
    Term("objective.detached_clip.low", "epsilon_low eps_low clip_ratio_low"),
    Term("objective.detached_clip.high", "epsilon_high eps_high clip_ratio_high", "the weight is at most 1 + high"),
    Term("objective.aggregation", "loss_agg_mode loss_type loss_aggregation loss_reduction reduction"),
    Term("objective.max_length", "loss_scale_factor"),
    Term("objective.ratio", "importance_sampling_level is_level importance_ratio", "GSPO has sequence_mean"),
    Term("objective.entropy_bonus", "entropy_coef entropy_coeff ent_coef entropy_loss_coef entropy_weight"),
    Term("objective.margin", "gamma simpo_gamma target_margin", "it is SimPO's gamma, and not gamma/beta", common=True),
    Term("objective.length_normalized", "average_log_prob length_normalization"),
    Term("sampling.group_size", "num_generations n rollout_n n_samples_per_prompt num_samples_per_prompt rloo_k"),
    Term("sampling.group_size", "num_samples num_return_sequences samples_per_prompt num_responses_per_prompt"),
    Term("sampling.temperature", "temp"),
    Term("sampling.epochs", "ppo_epochs num_ppo_epochs num_iterations n_epochs num_epochs"),
    Term("sampling.minibatches", "num_mini_batches num_minibatches nminibatches mini_batches"),
    Term("sampling.minibatches", "mini_batch_size ppo_mini_batch_size", "it is their number, and not their size"),
    Term("sampling.keep", "dynamic_sampling filter_groups dynamic_filtering", "DAPO has `keep: mixed, resample: true`"),
    Term("sampling.mask_truncated", "mask_truncated_completions overlong_filter overlong_filtering"),
    Term("defaults.learning_rate", "lr actor_lr actor_learning_rate policy_lr"),
    Term("defaults.critic_learning_rate", "critic_lr value_lr"),
    Term("defaults.lr_scheduler", "lr_scheduler_type scheduler"),
    Term("defaults.max_grad_norm", "grad_clip clip_grad gradient_clipping max_norm"),
    Term("defaults.warmup_steps", "num_warmup_steps lr_warmup_steps"),
    Term(
        "defaults.warmup_steps",
        "warmup_ratio lr_warmup_ratio lr_warmup_steps_ratio",
        "it counts steps, and is no share of them",
    ),
    Term("defaults.steps", "max_steps total_steps total_training_steps num_train_steps"),
    Term("defaults.prompts_per_step", "batch_size train_batch_size rollout_batch_size", "it counts prompts"),
    Term("defaults.max_prompt_length", "prompt_max_len max_prompt_len"),
    Term("defaults.max_new_tokens", "max_completion_length max_response_length response_length max_tokens"),
    Term("defaults.max_new_tokens", "generate_max_len max_gen_len"),
)

WORDS = {
    "reward.source": {"rm": "reward_model", "prm": "process_reward", "rule": "verifier", "rule_based": "verifier"}
    | {"function": "verifier", "rlvr": "verifier", "pairs": "preferences", "pairwise": "preferences"},
    "kl.placement": {"penalty": "reward", "kl_penalty": "reward", "kl_loss": "loss"},
    "kl.estimator": {"kl": "k1", "mse": "k2", "low_var_kl": "k3", "schulman": "k3"},
    "baseline.source": {"gae": "critic", "value": "critic", "value_function": "critic", "value_model": "critic"}
    | {"loo": "leave_one_out", "ema": "moving_average"},
    "normalization.scope": {"whiten": "batch", "whitening": "batch", "global": "batch", "prompt": "group"},
    "objective.quantity": {"sft": "likelihood", "nll": "likelihood"},
    "objective.aggregation": {"grpo": "seq_mean_token_mean", "dr_grpo": "seq_mean_token_sum_norm"}
    | {"drgrpo": "seq_mean_token_sum_norm", "dapo": "token_mean", "token": "token_mean"},
    "objective.ratio": {"sequence_token": "sequence_mean_token", "gspo_token": "sequence_mean_token"}
    | {"gspo": "sequence_mean", "geometric_mean": "sequence_mean", "geo_mean": "sequence_mean"},
    "sampling.keep": {"filter_groups": "mixed", "dynamic": "mixed", "dynamic_sampling": "mixed"}
    | {"best_of_n": "best", "correct": "positive"},
}
"""by field, other words for a word of ours"""


def terms(name: object) -> list[Term]:
    """The fields that others call so."""
    word = str(name).strip().lower().replace("-", "_")
    return [term for term in FIELDS if word in term.names.split()]


def word_for(field: str, value: object) -> str | None:
    """Our word for a value that others give to a field."""
    return WORDS.get(field, {}).get(str(value).strip().lower().replace("-", "_"))
