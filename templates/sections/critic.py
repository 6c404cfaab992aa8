"""Critic: a model of its own, or a head on the policy's hidden states, that gives every prefix a value."""

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from templates.sections.data import stop
from templates.sections.logprobs import Policy, hidden_before
from templates.sections.models import config_without_dropout
from templates.sections.rollouts import Responses


class ValueHead(nn.Module):
    """A linear map of hidden states to values, in float32; they are 0 before it is trained."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 1)
        self.linear.load_state_dict({"weight": torch.zeros(1, size), "bias": torch.zeros(1)})

    def forward(self, hidden: Tensor, mask_BGT: Tensor) -> Tensor:
        """Values of the states before the tokens under the mask, [N, H] -> [B, G, T], 0 off the mask."""
        with torch.autocast(hidden.device.type, enabled=False):
            values = self.linear(hidden.float()).squeeze(-1)
        return values.new_zeros(mask_BGT.shape).masked_scatter(mask_BGT, values)


class Critic(nn.Module):
    """A language model's backbone with a value head."""

    def __init__(self, model: PreTrainedModel, shared: bool) -> None:
        super().__init__()
        self.model, self.shared = model, shared
        self.head = ValueHead(model.config.get_text_config().hidden_size).to(model.device)

    def forward(self, ids_BP: Tensor, mask_BP: Tensor, tokens_BGT: Tensor, mask_BGT: Tensor) -> Tensor:
        """The value of the state before each token, the first of which is the prompt's. [B, G, T], 0 off the mask."""
        hidden = hidden_before(self.model, self.shared, ids_BP, mask_BP, tokens_BGT, mask_BGT)
        return self.head(hidden, mask_BGT)


class ActorCritic(Policy):
    """A policy with a value head on its hidden states, so that one forward pass gives log-probs and values."""

    def __init__(self, model: PreTrainedModel, temperature: float, shared: bool) -> None:
        super().__init__(model, temperature, shared)
        self.head = ValueHead(model.config.get_text_config().hidden_size).to(model.device)

    def forward(
        self, ids_BP: Tensor, mask_BP: Tensor, tokens_BGT: Tensor, mask_BGT: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs, entropies and the values of the states before each token, all [B, G, T], 0 off the mask."""
        hidden = hidden_before(self.model.base_model, self.shared, ids_BP, mask_BP, tokens_BGT, mask_BGT)
        return *self.score_all(hidden, tokens_BGT, mask_BGT), self.head(hidden, mask_BGT)


def critic_from_reward_model(
    reward_model: str, tokenizer: PreTrainedTokenizerBase, like: PreTrainedModel, shared: bool
) -> Critic:
    """A critic that starts as a reward model, head included; it reads the policy's tokens, so those have to be its own.

    Stops the run where the two tokenizers differ.
    """
    if AutoTokenizer.from_pretrained(reward_model).get_vocab() != tokenizer.get_vocab():
        stop(f"--reward_model: {reward_model} has another tokenizer than the policy, so no critic can start from it")
    loader, config = transformers.AutoModelForSequenceClassification, config_without_dropout(reward_model)
    model = loader.from_pretrained(reward_model, config=config, dtype=torch.float32).to(like.device)
    critic = Critic(model.base_model, shared and type(model.base_model) is type(like.base_model))
    if isinstance(score := getattr(model, "score", None), nn.Linear):
        critic.head.linear.load_state_dict(score.state_dict(), strict=False)  # it may have no bias
    return critic


@torch.no_grad()
def token_values(critic: nn.Module, responses: Responses, at_once: int) -> Tensor:
    """Values of the states before all response tokens [B, G, T], `at_once` prompts at a time."""
    return torch.cat([critic(*part) for part in zip(*(x.split(at_once) for x in responses[:4]), strict=True)])


@torch.no_grad()
def logprobs_and_values(policy: nn.Module, responses: Responses, at_once: int) -> tuple[Tensor, Tensor]:
    """Log-probs of all response tokens and the values before them, both [B, G, T], `at_once` prompts at a time."""
    parts = zip(*(x.split(at_once) for x in responses[:4]), strict=True)
    logprobs, _, values = zip(*(policy(*part) for part in parts), strict=True)
    return torch.cat(logprobs), torch.cat(values)


def describe_values(values_BGT: Tensor, targets_BGT: Tensor) -> dict[str, float]:
    """The mean value, and the share of the returns' variance that the values explain, over the tokens with a target."""
    known = targets_BGT.isfinite()
    values, targets = values_BGT[known].double(), targets_BGT[known].double()
    total, left = (x.var(correction=0).item() if len(x) else 0.0 for x in (targets, targets - values))
    mean = values.mean().item() if len(values) else 0.0
    return {"values": mean, "explained_variance": 1 - left / total if total > 0 else 0.0}
