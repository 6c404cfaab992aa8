"""Arguments of the trainers on pairs, in the place of those of `arguments`."""

from dataclasses import dataclass
from typing import Annotated

from templates.sections.arguments import arg


@dataclass
class Args:
    # what to train, on what
    model: str = arg("", "the policy, as it starts and as the reference: a checkpoint's folder or a Hugging Face id")
    train_data: str = arg("", "pairs: JSONL or a dataset, with columns `prompt`, `chosen` and `rejected`")
    eval_data: str | None = arg(None, "held-out pairs, like --train_data")
    output_dir: str = arg("", "folder for metrics, checkpoints and the trained model")
    resume: bool = arg(False, "go on from the last checkpoint in --output_dir")
    # the algorithm
    # the training
    steps: Annotated[int, ">= 1"] = arg(500, "steps, each on --prompts_per_step pairs")
    prompts_per_step: Annotated[int, ">= 1"] = arg(64, "prompts in a step's batch, a pair each, over all processes (B)")
    max_prompt_length: Annotated[int, ">= 1"] = arg(1024, "longest prompt, in tokens; longer ones are left out")
    max_new_tokens: Annotated[int, ">= 1"] = arg(1024, "longest response, in tokens (T); longer ones are cut")
    learning_rate: Annotated[float, "> 0"] = arg(1e-6, "peak learning rate of AdamW")
    lr_scheduler: str = arg("constant", "constant, linear or cosine, after the warm-up")
    warmup_steps: Annotated[int, ">= 0"] = arg(0, "optimizer steps over which the learning rate rises")
    adam_beta1: Annotated[float, ">= 0", "< 1"] = arg(0.9, "decay of AdamW's first moment")
    adam_beta2: Annotated[float, ">= 0", "< 1"] = arg(0.999, "decay of AdamW's second moment")
    weight_decay: Annotated[float, ">= 0"] = arg(0.0, "AdamW's weight decay")
    max_grad_norm: Annotated[float, "> 0"] = arg(1.0, "the gradient is clipped to this norm")
    # the machine
    prompts_per_forward: Annotated[int, ">= 1"] = arg(1, "pairs in one forward and backward pass, a process")
    bf16: bool | None = arg(None, "bfloat16 autocast over float32 weights; by default where a GPU has it")
    gradient_checkpointing: bool = arg(False, "recompute activations in the backward pass: less memory, a third slower")
    seed: Annotated[int, ">= 0"] = arg(0, "seed of the data's order")
    # what is written
    eval_every: Annotated[int, ">= 1"] = arg(50, "steps between evaluations on --eval_data")
    save_every: Annotated[int, ">= 0"] = arg(50, "steps between checkpoints, and one at the end; 0 for none")
    keep_checkpoints: Annotated[int, ">= 1"] = arg(2, "checkpoints that are kept")
    report_to: str = arg("tensorboard", "accelerate's trackers, separated by commas")
