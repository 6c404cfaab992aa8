"""Rollouts: responses sampled from the policy, and their scores."""

from typing import NamedTuple

import torch
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from templates.reward.verifier import Scorer
from templates.sections.data import stop


class Responses(NamedTuple):
    """Prompts and the responses to them, on one process."""

    ids_BP: Tensor
    prompt_mask_BP: Tensor
    tokens_BGT: Tensor
    mask_BGT: Tensor  # True up to the first EOS and on it
    ended_BG: Tensor  # whether there is one


def generation_config(eos_ids: list[int], pad: int, longest: int, temperature: float) -> GenerationConfig:
    """Sampling from the policy's whole distribution at a temperature; greedy at 0."""
    how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    return GenerationConfig(eos_token_id=eos_ids, pad_token_id=pad, max_new_tokens=longest, **how)


def position_ids(mask: Tensor) -> Tensor:
    """Positions that count the tokens under a left-padded mask from 0. bool [rows, S] -> [rows, S]."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def respond(
    model: PreTrainedModel, ids_BP: Tensor, mask_BP: Tensor, G: int, how: GenerationConfig, at_once: int, shared: bool
) -> Responses:
    """G responses to each prompt, `at_once` prompts at a time."""
    model.eval()
    pairs = zip(ids_BP.split(at_once), mask_BP.split(at_once), strict=True)
    rows = [row for ids, mask in pairs for row in generate(model, ids, mask, G, how, shared).flatten(0, 1)]
    model.train()
    tokens_BGT = pad_sequence(rows, batch_first=True, padding_value=how.pad_token_id).view(len(ids_BP), G, -1)
    is_eos = torch.isin(tokens_BGT, torch.tensor(how.eos_token_id, device=tokens_BGT.device))
    mask_BGT = is_eos.cumsum(-1) - is_eos.long() == 0
    return Responses(ids_BP, mask_BP, tokens_BGT, mask_BGT, is_eos.any(-1))


@torch.no_grad()
def generate(
    model: PreTrainedModel, ids_BP: Tensor, mask_BP: Tensor, G: int, how: GenerationConfig, shared: bool
) -> Tensor:
    """Tokens of the responses [B, G, T]; each prompt is prefilled once and its cache expanded to the group."""
    cache = None
    if shared and ids_BP.shape[1] > 1:
        cache, mask = transformers.DynamicCache(config=model.config), mask_BP[:, :-1]
        model.base_model(ids_BP[:, :-1], attention_mask=mask, position_ids=position_ids(mask), cache=cache)
        cache.batch_repeat_interleave(G)
    ids, mask = (x.repeat_interleave(G, dim=0) for x in (ids_BP, mask_BP))
    try:
        tokens = model.generate(ids, attention_mask=mask.long(), cache=cache, generation_config=how)
    except RuntimeError as error:
        if "probability tensor" not in str(error):
            raise
        stop("the policy's probabilities are not finite any more; try a lower --learning_rate, and look at the rewards")
    return tokens[:, ids.shape[1] :].reshape(len(ids_BP), G, -1)


def score_responses(
    scorer: Scorer, tokenizer: PreTrainedTokenizerBase, rows: list[dict], responses: Responses
) -> tuple[Tensor, list[str]]:
    """The raw scores [B, G], NaN where there is none, and the texts of all responses, in order."""
    pairs, (B, G) = zip(*(x.flatten(0, 1) for x in responses[2:4]), strict=True), responses.ended_BG.shape
    texts = [tokenizer.decode(tokens[mask], skip_special_tokens=True) for tokens, mask in pairs]
    repeated = [row for row in rows for _ in range(G)]
    scores = scorer(repeated, texts, responses.ended_BG.flatten().tolist())
    return torch.tensor(scores, device=responses.ended_BG.device).view(B, G), texts
