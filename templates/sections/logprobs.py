"""Log-probs: the policy's probabilities of the tokens that were sampled."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from templates.sections.data import stop
from templates.sections.rollouts import Responses, position_ids


class Packed(NamedTuple):
    """Prompts and their responses as the rows of a forward pass."""

    ids: Tensor  # [rows, S]
    positions: Tensor  # [rows, S]
    attention: Tensor  # which positions are seen: bool [rows, S], or [rows, 1, S, S] where responses share a prompt
    before: Tensor  # flat position from which each response token is predicted [B, G, T]


def pack(ids_BP: Tensor, mask_BP: Tensor, tokens_BGT: Tensor, shared: bool) -> Packed:
    """One row a prompt, which its responses share, kept apart by the attention mask; or one row a response."""
    (B, G, T), P = tokens_BGT.shape, ids_BP.shape[1]
    inputs_BGT, steps_T = tokens_BGT[..., :-1], torch.arange(T, device=ids_BP.device)  # nothing follows the last token
    if not shared:
        ids = torch.cat([ids_BP.repeat_interleave(G, dim=0), inputs_BGT.flatten(0, 1)], dim=1)
        mask = functional.pad(mask_BP.repeat_interleave(G, dim=0), (0, T - 1), value=True)
        before = torch.arange(B * G, device=ids.device)[:, None] * ids.shape[1] + P - 1 + steps_T
        return Packed(ids, position_ids(mask), mask, before.view(B, G, T))
    ids = torch.cat([ids_BP, inputs_BGT.flatten(1)], dim=1)
    S, device = ids.shape[1], ids.device
    continued_BGT = mask_BP.sum(1)[:, None, None] + steps_T[:-1].expand(B, G, T - 1)
    positions = torch.cat([position_ids(mask_BP), continued_BGT.flatten(1)], dim=1)
    seen = torch.zeros(B, S, S, dtype=torch.bool, device=device)
    seen[:, :, :P] = mask_BP[:, None]
    seen[:, :P, :P] &= torch.ones(P, P, dtype=torch.bool, device=device).tril()
    causal = torch.ones(T - 1, T - 1, dtype=torch.bool, device=device).tril()
    seen[:, P:, P:] = torch.block_diag(*[causal] * G) if T > 1 else False
    seen |= torch.eye(S, dtype=torch.bool, device=device)  # a pad sees itself: an empty row of attention is undefined
    before_GT = P - 1 + steps_T + torch.arange(G, device=device)[:, None] * (T - 1)
    before_GT[:, 0] = P - 1
    return Packed(ids, positions, seen[:, None], torch.arange(B, device=device)[:, None, None] * S + before_GT)


def sharing_pays(prompt: int, group_size: int, response: int, hidden: int) -> bool:
    """Whether one row for prompt and all responses is cheaper than a row each: its attention is over the whole row.

    A token costs about 6 x hidden in the linear layers and the row's length in attention, both times 4 x hidden.
    """
    row, alone = prompt + group_size * response, prompt + response
    return row * (6 * hidden + row) < group_size * alone * (6 * hidden + alone)


def hidden_before(
    backbone: PreTrainedModel, shared: bool, ids_BP: Tensor, mask_BP: Tensor, tokens_BGT: Tensor, mask_BGT: Tensor
) -> Tensor:
    """The hidden states from which the response tokens under the mask are predicted. [N, H]."""
    (_, G, T), P, config = tokens_BGT.shape, ids_BP.shape[1], backbone.config.get_text_config()
    windows = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    fits = all(window >= P + T for window in windows if window)  # the mask of a shared row knows no window
    rows = pack(ids_BP, mask_BP, tokens_BGT, shared and fits and sharing_pays(P, G, T, config.hidden_size))
    output = backbone(rows.ids, attention_mask=rows.attention, position_ids=rows.positions, use_cache=False)
    return output.last_hidden_state.flatten(0, 1)[rows.before[mask_BGT]]


class Policy(nn.Module):
    """A language model that answers with log-probs."""

    chunk = 1024  # tokens whose logits are in memory at a time

    def __init__(self, model: PreTrainedModel, temperature: float, shared: bool) -> None:
        super().__init__()
        self.model, self.temperature, self.shared = model, temperature, shared

    def forward(self, ids_BP: Tensor, mask_BP: Tensor, tokens_BGT: Tensor, mask_BGT: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs of the tokens at the sampling temperature and entropies in nats, both [B, G, T], 0 off the mask."""
        hidden = hidden_before(self.model.base_model, self.shared, ids_BP, mask_BP, tokens_BGT, mask_BGT)
        return self.score_all(hidden, tokens_BGT, mask_BGT)

    def score_all(self, hidden: Tensor, tokens_BGT: Tensor, mask_BGT: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of the tokens under the mask, from the hidden states before them [N, H]."""
        chunks = list(zip(hidden.split(self.chunk), tokens_BGT[mask_BGT].split(self.chunk), strict=True))
        if torch.is_grad_enabled() and len(chunks) > 1:
            parts = [checkpoint(self.score, h, target, use_reentrant=False) for h, target in chunks]
        else:
            parts = [self.score(h, target) for h, target in chunks]
        logprobs, entropies = (torch.cat(part) for part in zip(*parts, strict=True))
        blank = logprobs.new_zeros(mask_BGT.shape)
        return blank.masked_scatter(mask_BGT, logprobs), blank.masked_scatter(mask_BGT, entropies)

    def score(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs of the targets and entropies, in float32. [N, H], [N] -> [N], [N]."""
        logits, config = self.model.get_output_embeddings()(hidden).float(), self.model.config.get_text_config()
        scale = getattr(config, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0)
        if cap := getattr(config, "final_logit_softcapping", None):
            logits, scale = torch.tanh(logits * (scale / cap)), cap
        if scale != self.temperature:
            logits = logits * (scale / self.temperature)
        logprobs = logits.log_softmax(-1)
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, targets[:, None]).squeeze(-1), entropies


@torch.no_grad()
def probe_sharing(model: PreTrainedModel) -> bool:
    """Whether the model can compute a prompt once for several responses, found by trying it on a few tokens.

    Stops the run when its log-probs differ from the model's own logits even with a row for each response.
    """
    ids = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]], device=model.device)
    mask = torch.tensor([[False, True, True, True], [True] * 4], device=model.device)
    tokens = torch.arange(12, device=model.device).view(2, 2, 3) % model.config.get_text_config().vocab_size
    rows = pack(ids, mask, tokens, shared=False)
    logits = model(rows.ids, attention_mask=rows.attention, position_ids=rows.positions, use_cache=False).logits
    right = logits.float().flatten(0, 1)[rows.before].log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)

    def differs(shared: bool) -> bool:
        policy = Policy(model, temperature=1.0, shared=shared)
        try:
            logprobs, _ = policy(ids, mask, tokens, torch.ones_like(tokens).bool())
        except (RuntimeError, ValueError, TypeError, IndexError):
            return True  # the model does not take such a mask
        return not torch.allclose(logprobs, right, atol=1e-3 if right.dtype == torch.float32 else 0.1)

    if differs(shared=False):
        stop("this model does more to its logits than its head does, and Policy.score would have to do it too")
    return not differs(shared=True)


@torch.no_grad()
def token_logprobs(policy: nn.Module, responses: Responses, at_once: int) -> Tensor:
    """Log-probs of all response tokens [B, G, T], `at_once` prompts at a time."""
    return torch.cat([policy(*part)[0] for part in zip(*(x.split(at_once) for x in responses[:4]), strict=True)])
