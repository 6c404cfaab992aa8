"""Steps: where the steps of a response end, and their scores."""

from bisect import bisect_left

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from templates.reward.process_verifier import StepScorer
from templates.sections.rollouts import Responses


def split_steps(tokenizer: PreTrainedTokenizerBase, tokens: list[int], separator: str) -> tuple[list[str], list[int]]:
    """The texts of a response's steps, without the separators, and the index of the token that ends each.

    A step ends with the token that completes a separator, and the last one with the response. Blank lines and the like
    are no steps, and a token ends one at most. Without a separator every token is a step.
    """

    def text(count: int) -> str:
        return tokenizer.decode(tokens[:count], skip_special_tokens=True, clean_up_tokenization_spaces=False)

    if not separator:
        return [tokenizer.decode([token], skip_special_tokens=True) for token in tokens], list(range(len(tokens)))
    steps, ends = [], []
    whole, start, last = text(len(tokens)), 0, len(tokens) - 1
    while (at := whole.find(separator, start)) >= 0:
        step, start = whole[start:at], at + len(separator)
        # The first token with which the text is long enough; a character of which bytes are missing does not count.
        end = bisect_left(range(last), start, key=lambda i: len(text(i + 1).rstrip("\ufffd")))
        if ends and (end == ends[-1] or not step.strip()):
            steps[-1] += (separator + step) * bool(step.strip())
        elif step.strip():
            steps, ends = [*steps, step], [*ends, end]
    if whole[start:].strip() and not (ends and ends[-1] == last):
        return [*steps, whole[start:]], [*ends, last]
    if not ends:
        return [whole], [last]
    steps[-1] += (separator + whole[start:]) * bool(whole[start:].strip())
    return steps, [*ends[:-1], last]


def score_steps(
    scorer: StepScorer, tokenizer: PreTrainedTokenizerBase, rows: list[dict], responses: Responses
) -> tuple[Tensor, list[str], Tensor, Tensor]:
    """The sums of the steps' scores [B, G], NaN where one is missing; the texts of all responses, in order; the scores
    at the tokens that end steps, 0 elsewhere, and where these are, both [B, G, T]."""
    B, G, T = responses.tokens_BGT.shape
    pairs = zip(responses.tokens_BGT.flatten(0, 1), responses.mask_BGT.flatten(0, 1), strict=True)
    sampled = [tokens[mask].tolist() for tokens, mask in pairs]
    texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in sampled]
    split = [split_steps(tokenizer, tokens, scorer.separator) for tokens in sampled]
    repeated = [row for row in rows for _ in range(G)]
    scores = scorer(repeated, texts, [steps for steps, _ in split], responses.ended_BG.flatten().tolist())
    rewards, ends = torch.zeros(B * G, T), torch.zeros(B * G, T, dtype=torch.bool)
    for row, (values, (_, places)) in enumerate(zip(scores, split, strict=True)):
        rewards[row, places], ends[row, places] = torch.tensor(values), True
    rewards, ends = (x.view(B, G, T).to(responses.tokens_BGT.device) for x in (rewards, ends))
    return rewards.sum(-1), texts, rewards, ends
