"""Reward: preferences, as pairs of answers to a prompt of which one was chosen."""

from transformers import PreTrainedTokenizerBase

from templates.sections.data import load_rows, stop, tokenize

SIDES = ("chosen", "rejected")


def load_pairs(source: str, argument: str) -> list[dict]:
    """The rows of a file or dataset with `prompt`, `chosen` and `rejected`, the latter two as text."""
    rows = load_rows(source, argument)
    for number, row in enumerate(rows, start=1):
        for side in SIDES:
            answer = row.get(side)
            if isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], dict):
                answer = answer[0].get("content") if answer[0].get("role") == "assistant" else None
            if not isinstance(answer, str):
                stop(
                    f"--{argument}: row {number} of {source} has no column `{side}` with text or one assistant message"
                )
            row[side] = answer
    return rows


def tokenize_pairs(
    rows: list[dict], tokenizer: PreTrainedTokenizerBase, longest_prompt: int, longest: int
) -> list[dict]:
    """Adds `ids`, the prompt's tokens, and `answers`, those of the chosen and of the rejected one, EOS included.

    An answer of more than `longest` tokens is cut there and has no EOS. A pair is left out where the prompt is too
    long, an answer is empty, or both are the same.
    """
    eos = tokenizer.eos_token_id
    if eos is None:
        stop("--model: its tokenizer has no EOS token, so no answer could end")
    prompted, kept = tokenize(rows, tokenizer, longest_prompt), []
    sides = (tokenizer([row[side] for row in prompted], add_special_tokens=False)["input_ids"] for side in SIDES)
    for row, *texts in zip(prompted, *sides, strict=True):
        chosen, rejected = ([*ids, eos][:longest] for ids in texts)
        kept += [{**row, "answers": [chosen, rejected]}] if all(texts) and chosen != rejected else []
    if len(kept) < len(prompted):
        print(
            f"{len(prompted) - len(kept)} of {len(rows)} pairs have an empty answer or two equal ones and are left out"
        )
    return kept or stop(f"no pair has two different answers within --max_new_tokens = {longest} tokens")
