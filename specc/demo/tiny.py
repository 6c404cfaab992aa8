"""The tiny demo: a 0.13 M-parameter policy that sorts digits, and a reward model of its size, trained on the spot.

Supervised fine-tuning on a mixed teacher makes the policy sort some of the time. Its own samples, compared by the
verifier, make preference pairs, on which the reward model is trained. All of it is deterministic for a seed.
"""

# mypy: allow-untyped-calls
# (transformers leaves many constructors and methods without annotations)

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerBase,
)

from specc.demo.characters import EOS, character_tokenizer
from specc.demo.files import sorting_step_verifier, sorting_verifier
from specc.demo.measure import accuracy, complete, quiet, texts
from specc.demo.records import Record, write_records
from specc.demo.sorting import sft_records, sort, sorting_records

if TYPE_CHECKING:
    from specc.demo import DemoFiles

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors")

ALPHABET = "0123456789="
CONTEXT = 128
HIDDEN, LAYERS, HEADS, HEAD, MLP = 64, 2, 2, 32, 256
"""0.13 M parameters. vLLM's CPU build refuses heads of fewer than 32 dimensions."""

MAX_NEW_TOKENS = 8
"""Four digits and EOS, and room for a response that runs on and is wrong for it."""

THREADS = 1
"""Models of this size gain nothing from a second thread, and sums over a fixed number of them repeat bit for bit."""

SFT_STEPS, SFT_BATCH, SFT_RATE = 500, 64, 5e-3

AGES = (100, 150, 200, 300, SFT_STEPS)
"""Steps of the fine-tuning at which the policy is sampled for preference pairs. The young ones make the near misses
(ascending, a digit wrong) that a policy under reinforcement will try on the reward model."""
PAIR_PROMPTS = 4_000
SAMPLES = 2
"""Responses for each prompt at each age."""

RM_STEPS, RM_BATCH, RM_RATE = 500, 64, 3e-3
RM_NEAR_MISSES = 4.0
"""How many times more often a pair is drawn whose rejected response is ascending, so wrong only in which digits it has.
Most wrong samples are easier to tell, and a reward model that only tells those apart is soon exploited."""
RM_CENTER = 0.02
"""Weight of the mean squared reward in the loss. It keeps rewards within a few units of 0, right ones near a ceiling:
without it, reinforcement gains most by what moves the logit furthest, which is not to sort."""
RM_CUT, RM_BARE = 0.15, 0.10
"""Shares of the reward model's training pairs that are changed; see `pair_texts`."""

TRAINING = {
    "steps": 60,
    "prompts_per_step": 32,
    "group_size": 8,
    "max_new_tokens": 8,
    "learning_rate": 3e-4,
    "prompts_per_forward": 32,
    "prompts_per_generate": 200,
    "eval_every": 20,
    "save_every": 20,
}
"""Arguments that teach it to sort in ten seconds."""


def build(files: DemoFiles, *, seed: int, report: Callable[[str], None]) -> dict[str, float]:
    """Write every part of `files`, whose directory exists; return the measured accuracies."""
    train, heldout = sorting_records(seed)
    examples = sft_records(seed + 1, heldout)
    write_records(files.train, train)
    write_records(files.heldout, heldout)
    # The tiny demo has them all.
    assert files.sft and files.pairs and files.heldout_pairs and files.reward_model and files.step_verifier
    write_records(files.sft, examples)
    shutil.copyfile(sorting_verifier.__file__, files.verifier)
    shutil.copyfile(sorting_step_verifier.__file__, files.step_verifier)

    with reproducible(seed), quiet():
        tokenizer = character_tokenizer(ALPHABET, CONTEXT)
        report("fine-tuning a tiny policy to sort digits, some of the time")
        policy = new_policy(tokenizer)
        snapshots = fine_tune(policy, tokenizer, examples)
        for folder in (files.model, files.reward_model):
            tokenizer.save_pretrained(folder)
        policy.save_pretrained(files.model)
        score = sorting_verifier.score
        greedy = accuracy(policy, tokenizer, heldout, score, max_new_tokens=MAX_NEW_TOKENS)
        # Five samples for each problem: one is too noisy.
        sampled = accuracy(policy, tokenizer, heldout * 5, score, max_new_tokens=MAX_NEW_TOKENS, sample=True)
        report(f"held-out accuracy before reinforcement: {greedy:.1%} greedy, {sampled:.1%} sampled")

        report("training a reward model on pairs of the policy's own samples")
        asked = list(dict.fromkeys(example["prompt"] for example in examples))[:PAIR_PROMPTS]
        pairs = preference_pairs(snapshots, tokenizer, asked)
        heldout_pairs = preference_pairs(snapshots, tokenizer, [record["prompt"] for record in heldout])
        write_records(files.pairs, pairs)
        write_records(files.heldout_pairs, heldout_pairs)
        reward_model = train_reward_model(policy, tokenizer, pairs)
        reward_model.save_pretrained(files.reward_model)
        ordered = pair_accuracy(reward_model, tokenizer, heldout_pairs)
        report(f"reward model: {ordered:.1%} of {len(heldout_pairs)} held-out pairs in the right order")
    return {
        "greedy_accuracy": round(greedy, 4),
        "sampled_accuracy": round(sampled, 4),
        "pair_accuracy": round(ordered, 4),
    }


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Seed torch and fix its threads inside the block; leave the caller's random state and threads as they were."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(THREADS)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def new_policy(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    special = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HEAD,
        intermediate_size=MLP,
        max_position_embeddings=CONTEXT,
        **special,
    )
    policy = LlamaForCausalLM(config)
    policy.generation_config = GenerationConfig(**special)
    return policy


def fine_tune(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, examples: list[Record]
) -> list[LlamaForCausalLM]:
    """Train on the completions (EOS included) of `examples`, in place, and leave the policy in eval mode.

    Return the policy at each of `AGES`, the youngest first.
    """
    prompts = tokenizer([example["prompt"] for example in examples])["input_ids"]
    batch = tokenizer(
        [example["prompt"] + example["completion"] + EOS for example in examples],
        return_tensors="pt",
        padding=True,
        padding_side="right",
    )
    inputs, mask = batch["input_ids"], batch["attention_mask"]  # [examples, tokens], int64
    prompt_lengths = torch.tensor([len(prompt) for prompt in prompts])
    in_completion = (torch.arange(inputs.shape[1]) >= prompt_lengths[:, None]) & mask.bool()
    labels = inputs.masked_fill(~in_completion, -100)  # -100: no loss
    policy.train()
    optimizer, scheduler = adamw(policy, SFT_RATE, SFT_STEPS)
    snapshots = []
    for done in range(1, SFT_STEPS + 1):
        rows = torch.randint(len(inputs), (SFT_BATCH,))
        step(policy(input_ids=inputs[rows], attention_mask=mask[rows], labels=labels[rows]).loss, optimizer, scheduler)
        if done in AGES:
            snapshots.append(copy.deepcopy(policy).eval())
    policy.eval()
    return snapshots


def preference_pairs(
    snapshots: list[LlamaForCausalLM], tokenizer: PreTrainedTokenizerBase, asked: list[str]
) -> list[Record]:
    """Return every pair of a right and a wrong sample for a prompt, columns `prompt`, `chosen` and `rejected`.

    The samples are those of all the snapshots, as the verifier judges them; the texts are without EOS. Samples that
    did not end are left out, and so are prompts with only right or only wrong ones.
    """
    prompts = [prompt for prompt in asked for _ in range(SAMPLES)]
    written: dict[str, dict[str, None]] = {prompt: {} for prompt in asked}  # distinct samples, in order of appearance
    for policy in snapshots:
        responses = complete(policy, tokenizer, prompts, max_new_tokens=MAX_NEW_TOKENS, sample=True, batch_size=2048)
        for prompt, response, text in zip(prompts, responses, texts(tokenizer, responses), strict=True):
            if response[-1] == tokenizer.eos_token_id:
                written[prompt].setdefault(text)
    pairs = []
    for prompt, distinct in written.items():
        samples = list(distinct)
        answers = [sort(prompt.removesuffix("="))] * len(samples)
        judged = sorting_verifier.score(prompts=[prompt] * len(samples), completions=samples, answer=answers)
        right = [text for text, reward in zip(samples, judged, strict=True) if reward == 1.0]
        wrong = [text for text, reward in zip(samples, judged, strict=True) if reward == 0.0]
        pairs += [{"prompt": prompt, "chosen": a, "rejected": b} for a in right for b in wrong]
    return pairs


def pair_texts(pair: Record, rng: random.Random) -> tuple[str, str]:
    """Return the (better, worse) text of a pair as the reward model reads them in training.

    As a rule both end with EOS, since both samples ended. But reinforcement shows a reward model responses that never
    end, which these samples hardly contain. So some pairs set the chosen response against a beginning of it without
    EOS: to stop short is worse. And some show both without EOS: that changes nothing in their order.
    """
    prompt, chosen, rejected = pair["prompt"], pair["chosen"], pair["rejected"]
    draw = rng.random()
    if draw < RM_CUT:
        return prompt + chosen + EOS, prompt + chosen[: rng.randint(1, len(chosen))]
    if draw < RM_CUT + RM_BARE:
        return prompt + chosen, prompt + rejected
    return prompt + chosen + EOS, prompt + rejected + EOS


def train_reward_model(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, pairs: list[Record]
) -> LlamaForSequenceClassification:
    """Return a Bradley-Terry reward model, -log sigmoid(r_better - r_worse), that starts from the policy's backbone."""
    config = LlamaConfig(**{**policy.config.to_dict(), "num_labels": 1, "architectures": None})
    model = LlamaForSequenceClassification(config)
    model.model.load_state_dict(policy.model.state_dict())
    rng = random.Random(torch.initial_seed())
    better, worse = zip(*(pair_texts(pair, rng) for pair in pairs), strict=True)
    batch = tokenizer([*better, *worse], return_tensors="pt", padding=True)
    inputs, mask = batch["input_ids"], batch["attention_mask"]  # [2 * pairs, tokens]
    ascending = [pair["rejected"] == sort(pair["rejected"]) for pair in pairs]
    weights = torch.where(torch.tensor(ascending), RM_NEAR_MISSES, 1.0)
    optimizer, scheduler = adamw(model, RM_RATE, RM_STEPS)
    model.train()
    for _ in range(RM_STEPS):
        drawn = torch.multinomial(weights, RM_BATCH, replacement=True)
        rows = torch.cat([drawn, drawn + len(pairs)])
        rewards = model(input_ids=inputs[rows], attention_mask=mask[rows]).logits.view(2, RM_BATCH)
        bradley_terry = -torch.nn.functional.logsigmoid(rewards[0] - rewards[1]).mean()
        step(bradley_terry + RM_CENTER * rewards.square().mean(), optimizer, scheduler)
    model.eval()
    return model


def scores(model: LlamaForSequenceClassification, tokenizer: PreTrainedTokenizerBase, read: list[str]) -> Tensor:
    """Return the reward of each text, [texts]: a logit, of which only differences mean anything."""
    batch = tokenizer(read, return_tensors="pt", padding=True)
    logits: Tensor = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return logits[:, 0]


@torch.no_grad()
def pair_accuracy(
    model: LlamaForSequenceClassification, tokenizer: PreTrainedTokenizerBase, pairs: list[Record]
) -> float:
    """Return the share of pairs whose chosen response, ended, scores higher than the rejected one."""
    chosen = scores(model, tokenizer, [pair["prompt"] + pair["chosen"] + EOS for pair in pairs])
    rejected = scores(model, tokenizer, [pair["prompt"] + pair["rejected"] + EOS for pair in pairs])
    return float((chosen > rejected).float().mean())


def adamw(
    model: torch.nn.Module, rate: float, steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Return AdamW and a schedule: a short linear warm-up to `rate`, then a cosine to zero over `steps`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)


def step(loss: Tensor, optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.step()
    scheduler.step()
