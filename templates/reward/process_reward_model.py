"""Reward: a process reward model that scores the steps of the responses."""

from pathlib import Path

import torch
import transformers
from torch import Tensor
from transformers import (
    AutoTokenizer,
)

from templates.sections.data import stop


class StepScorer:
    """The process reward model of a checkpoint: one number for each step, read at the step's last token.

    It is a model for token classification with one label, or one for sequence classification, whose head is applied to
    single tokens. It reads prompt and steps with its own tokenizer, the separator after each but the last, and its EOS
    where the response ended. The pieces are tokenized one by one, so that each ends with a token of its own.
    """

    def __init__(self, reward_model: str, device: torch.device, dtype: torch.dtype, *, separator: str) -> None:
        if Path(reward_model).exists() and not (Path(reward_model) / "config.json").is_file():
            stop(f"--reward_model: {reward_model} is no checkpoint, it has no config.json")
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(reward_model)
            kind = (transformers.AutoConfig.from_pretrained(reward_model).architectures or [""])[0]
            self.whole = kind.endswith("ForSequenceClassification")
            kinds = transformers.AutoModelForTokenClassification, transformers.AutoModelForSequenceClassification
            loader = kinds[self.whole]
            self.model = loader.from_pretrained(reward_model, dtype=dtype).to(device).eval()
        except Exception as error:  # of transformers, safetensors or the disk
            reason = str(error).partition("\n")[0]
            stop(f"--reward_model: cannot load {reward_model} ({reason})")
        if self.model.config.num_labels != 1:
            stop(f"--reward_model: {reward_model} gives {self.model.config.num_labels} numbers a step; one is needed")
        if self.whole and not hasattr(self.model, "score"):
            stop(f"--reward_model: {reward_model} has no head `score` that could be applied to single tokens")
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self.tokenizer.padding_side = "right"
        self.separator = separator

    def ids(self, text: str, special: bool = False) -> list[int]:
        return self.tokenizer(text, add_special_tokens=special)["input_ids"]

    def read(self, prompt: str | list[dict[str, str]], steps: list[str], ended: bool) -> tuple[list[int], list[int]]:
        """What the model reads, as ids, and the places in it at which the steps end."""
        if isinstance(prompt, str):
            ids = self.ids(prompt, special=True)
        else:
            text = self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
            ids = self.ids(text)
        places = []
        for number, step in enumerate(steps, start=1):
            ids = ids + self.ids(step + self.separator * (number < len(steps)))
            if number == len(steps) and ended and self.tokenizer.eos_token_id is not None:
                ids = [*ids, self.tokenizer.eos_token_id]
            places.append(len(ids) - 1)
        return ids, places

    @torch.no_grad()
    def __call__(
        self, rows: list[dict], completions: list[str], steps: list[list[str]], ended: list[bool]
    ) -> list[list[float]]:
        """The scores of each completion's steps, of which the completion itself is made."""
        read = [self.read(row["prompt"], parts, e) for row, parts, e in zip(rows, steps, ended, strict=True)]
        scores: list[list[float]] = []
        for start in range(0, len(read), 64):
            part = read[start : start + 64]
            batch = self.tokenizer.pad({"input_ids": [ids for ids, _ in part]}, return_tensors="pt")
            values = self.values(batch.to(self.model.device)).float().tolist()
            scores += [[row[place] for place in places] for row, (_, places) in zip(values, part, strict=True)]
        return scores

    def values(self, batch: dict[str, Tensor]) -> Tensor:
        """The head's number at every token. [rows, S]."""
        if not self.whole:
            return self.model(**batch).logits[..., 0]
        return self.model.score(self.model.base_model(**batch).last_hidden_state)[..., 0]
