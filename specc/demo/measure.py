"""Greedy and sampled accuracy of a policy, and a quiet transformers while a demo is made."""

# mypy: allow-untyped-calls
# (transformers leaves many constructors and methods without annotations)

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specc.demo.records import Record

Score = Callable[..., list[float]]
"""A verifier's `score`."""


@torch.no_grad()
def complete(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    *,
    max_new_tokens: int,
    sample: bool,
    batch_size: int,
) -> list[torch.Tensor]:
    """Return the response tokens of each prompt: int64, [up to max_new_tokens], the EOS included where there is one.

    Sampling is from the untempered softmax. `tokenizer` pads on the left.
    """
    ends = torch.tensor(model.generation_config.eos_token_id).reshape(-1)
    generate: Any = model.generate
    responses = []
    for start in range(0, len(prompts), batch_size):
        inputs = tokenizer(prompts[start : start + batch_size], return_tensors="pt", padding=True)
        out = generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=max_new_tokens,
            do_sample=sample,
            top_k=0 if sample else None,
            top_p=1.0 if sample else None,
        )
        for row in out[:, inputs["input_ids"].shape[1] :]:
            ended = torch.isin(row, ends).nonzero()
            responses.append(row[: int(ended[0]) + 1] if len(ended) else row)
    return responses


def texts(tokenizer: PreTrainedTokenizerBase, responses: list[torch.Tensor]) -> list[str]:
    """Return what a verifier reads: each response without its special tokens."""
    return [str(tokenizer.decode(response, skip_special_tokens=True)) for response in responses]


def accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    records: list[Record],
    score: Score,
    *,
    max_new_tokens: int,
    sample: bool = False,
    batch_size: int = 256,
) -> float:
    """Return the mean score, 0 to 1, of one completion for each record."""
    prompts = [record["prompt"] for record in records]
    responses = complete(model, tokenizer, prompts, max_new_tokens=max_new_tokens, sample=sample, batch_size=batch_size)
    answers = [record["answer"] for record in records]
    scores = score(prompts=prompts, completions=texts(tokenizer, responses), answer=answers)
    return sum(scores) / len(scores)


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back transformers' progress bars and advice, which mean nothing to someone who asked for a demo."""
    logging: Any = transformers.utils.logging
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
