"""Data: prompts with the columns that the reward reads."""

import json
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase


def stop(message: str) -> NoReturn:
    """Ends the run with one sentence that says what is wrong."""
    raise SystemExit("error: " + message.replace("\n", " "))


def load_rows(source: str, argument: str) -> list[dict]:
    """The rows of a JSONL file or of a Hugging Face dataset (an id, `id:split`, or a folder), each with a `prompt`."""
    if Path(source).is_file():
        try:
            lines = Path(source).read_text(encoding="utf-8").split("\n")
            rows = [json.loads(line) for line in lines if line.strip()]
        except UnicodeDecodeError as error:
            stop(f"--{argument}: {source} is not UTF-8 ({error.reason} at byte {error.start})")
        except json.JSONDecodeError as error:
            stop(f"--{argument}: {source}:{lines.index(error.doc) + 1} is not a line of JSON ({error.msg})")
    elif source.endswith((".jsonl", ".json")):
        stop(f"--{argument}: there is no file {source}")
    else:
        from datasets import load_dataset, load_from_disk

        name, _, split = source.partition(":")
        try:
            on_disk = (Path(name) / "dataset_info.json").exists()
            rows = (load_from_disk(name) if on_disk else load_dataset(name, split=split or "train")).to_list()
        except Exception as error:  # the library's own errors say what is wrong, and there are many kinds
            stop(f"--{argument}: cannot load the dataset {name} ({error})")
    for number, row in enumerate(rows, start=1):
        if not (isinstance(row, dict) and isinstance(row.get("prompt"), str | list)):
            stop(f"--{argument}: row {number} of {source} has no column `prompt` with text or chat messages")
    return rows or stop(f"--{argument}: {source} has no rows")


def tokenize(rows: list[dict], tokenizer: PreTrainedTokenizerBase, longest: int) -> list[dict]:
    """Adds `ids` to the rows, the prompt's tokens, and leaves out the prompts that are longer than `longest` tokens."""
    kept = []
    for row in rows:
        text, chat = row["prompt"], isinstance(row["prompt"], list)
        try:
            text = tokenizer.apply_chat_template(text, add_generation_prompt=True, tokenize=False) if chat else text
        except Exception as error:  # the template is a program of its own
            stop(f"the tokenizer's chat template cannot write the prompt {str(text)[:80]} ({error})")
        ids = tokenizer(text, add_special_tokens=not chat)["input_ids"]  # a template writes them itself
        kept += [{**row, "ids": ids}] if 0 < len(ids) <= longest else []
    if left_out := len(rows) - len(kept):
        print(f"{left_out} of {len(rows)} prompts are empty or longer than {longest} tokens and are left out")
    return kept or stop(f"no prompt has at most --max_prompt_length = {longest} tokens")


def pad_left(rows: list[dict], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The rows' prompts as one left-padded batch of ids and its mask, both [B, P]."""
    longest = max(len(row["ids"]) for row in rows)
    ids = [[pad] * (longest - len(row["ids"])) + row["ids"] for row in rows]
    mask = [[False] * (longest - len(row["ids"])) + [True] * len(row["ids"]) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def rows_of_step(rows: list[dict], step: int, count: int, seed: int) -> list[dict]:
    """The `count` rows of a step: every epoch is a permutation of its own, so a step's rows depend on nothing else."""
    first, chosen = step * count, []
    while len(chosen) < count:
        epoch, start = divmod(first + len(chosen), len(rows))
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch)).tolist()
        chosen += [rows[i] for i in order[start : start + count - len(chosen)]]
    return chosen
