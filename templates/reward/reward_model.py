"""Reward: a reward model that scores the responses."""

from pathlib import Path

import torch
import transformers
from transformers import AutoTokenizer

from templates.sections.data import stop


class Scorer:
    """The reward model of a checkpoint: one number for a prompt and a response.

    It reads them with its own tokenizer: chat messages through its template, text as it is, with its EOS where the
    response ended.
    """

    def __init__(self, reward_model: str, device: torch.device, dtype: torch.dtype) -> None:
        if Path(reward_model).exists() and not (Path(reward_model) / "config.json").is_file():
            stop(f"--reward_model: {reward_model} is no checkpoint, it has no config.json")
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(reward_model)
            model = transformers.AutoModelForSequenceClassification.from_pretrained(reward_model, dtype=dtype)
        except Exception as error:  # of transformers, safetensors or the disk
            reason = str(error).partition("\n")[0]
            stop(f"--reward_model: cannot load {reward_model} ({reason})")
        if model.config.num_labels != 1:
            stop(f"--reward_model: {reward_model} gives {model.config.num_labels} numbers a response; one is needed")
        self.model = model.to(device).eval()
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self.model.config.pad_token_id = self.tokenizer.pad_token_id

    def text(self, prompt: str | list[dict[str, str]], completion: str, ended: bool) -> str:
        """What the reward model reads."""
        if isinstance(prompt, str):
            return prompt + completion + (self.tokenizer.eos_token or "") * ended
        messages = [*prompt, {"role": "assistant", "content": completion}]
        return self.tokenizer.apply_chat_template(messages, tokenize=False)

    @torch.no_grad()
    def __call__(self, rows: list[dict], completions: list[str], ended: list[bool]) -> list[float]:
        """One score a completion."""
        texts = [self.text(row["prompt"], c, e) for row, c, e in zip(rows, completions, ended, strict=True)]
        how = {"padding": True, "return_tensors": "pt", "add_special_tokens": isinstance(rows[0]["prompt"], str)}
        scores: list[float] = []
        for start in range(0, len(texts), 64):  # a chat template has written the special tokens itself
            batch = self.tokenizer(texts[start : start + 64], **how).to(self.model.device)
            scores += self.model(**batch).logits[:, 0].float().tolist()
        return scores
