"""Arguments: what every trainer can be told on the command line, besides the algorithm's own numbers."""

import operator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from templates.sections.data import stop


def arg(default: Any, help: str) -> Any:
    """A field of Args with its text for --help."""
    return field(default=default, metadata={"help": help})


@dataclass
class Args:
    # what to train, on what
    model: str = arg("", "the policy: a checkpoint's folder or a Hugging Face id")
    train_data: str = arg("", "prompts: JSONL or a dataset, with a column `prompt` of text or chat messages")
    eval_data: str | None = arg(None, "held-out prompts, like --train_data")
    output_dir: str = arg("", "folder for metrics, checkpoints and the trained model")
    resume: bool = arg(False, "go on from the last checkpoint in --output_dir")
    # the algorithm
    group_size: Annotated[int, ">= 1"] = arg(1, "responses sampled for each prompt (G)")
    temperature: Annotated[float, "> 0"] = arg(1.0, "temperature of the policy, when sampling and when scoring")
    epochs: Annotated[int, ">= 1"] = arg(1, "passes over each batch of responses")
    minibatches: Annotated[int, ">= 1"] = arg(1, "optimizer steps in each pass")
    max_sampling_rounds: Annotated[int, ">= 1"] = arg(10, "batches of prompts that a step may sample to fill its own")
    # the training
    steps: Annotated[int, ">= 1"] = arg(500, "steps, each with new responses to --prompts_per_step prompts")
    prompts_per_step: Annotated[int, ">= 1"] = arg(32, "prompts in a step's batch, over all processes (B)")
    max_prompt_length: Annotated[int, ">= 1"] = arg(1024, "longest prompt, in tokens; longer ones are left out")
    max_new_tokens: Annotated[int, ">= 1"] = arg(1024, "longest response, in tokens (T)")
    learning_rate: Annotated[float, "> 0"] = arg(1e-6, "peak learning rate of AdamW")
    lr_scheduler: str = arg("constant", "constant, linear or cosine, after the warm-up")
    warmup_steps: Annotated[int, ">= 0"] = arg(0, "optimizer steps over which the learning rate rises")
    adam_beta1: Annotated[float, ">= 0", "< 1"] = arg(0.9, "decay of AdamW's first moment")
    adam_beta2: Annotated[float, ">= 0", "< 1"] = arg(0.999, "decay of AdamW's second moment")
    weight_decay: Annotated[float, ">= 0"] = arg(0.0, "AdamW's weight decay")
    max_grad_norm: Annotated[float, "> 0"] = arg(1.0, "the gradient is clipped to this norm")
    # the machine
    prompts_per_forward: Annotated[int, ">= 1"] = arg(1, "prompts in one pass of a process, with their responses")
    prompts_per_generate: Annotated[int, ">= 1"] = arg(32, "prompts whose responses are sampled at once, a process")
    bf16: bool | None = arg(None, "bfloat16 autocast over float32 weights; by default where a GPU has it")
    gradient_checkpointing: bool = arg(False, "recompute activations in the backward pass: less memory, a third slower")
    seed: Annotated[int, ">= 0"] = arg(0, "seed of the data's order and of the samples")
    # what is written
    eval_every: Annotated[int, ">= 1"] = arg(50, "steps between evaluations on --eval_data, with greedy responses")
    save_every: Annotated[int, ">= 0"] = arg(50, "steps between checkpoints, and one at the end; 0 for none")
    keep_checkpoints: Annotated[int, ">= 1"] = arg(2, "checkpoints that are kept")
    report_to: str = arg("tensorboard", "accelerate's trackers, separated by commas")


def check_args(args: Args, required: tuple[str, ...]) -> None:
    """Stops the run at a bad argument, before anything is loaded."""
    for name in required:
        if not getattr(args, name):
            stop(f"--{name} is missing; --help says what it is")
    signs = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
    for name, hint in get_type_hints(Args, include_extras=True).items():
        for bound in getattr(hint, "__metadata__", ()):
            sign, limit = bound.split()
            if not signs[sign](getattr(args, name), float(limit)):
                stop(f"--{name} is {getattr(args, name)}, and must be {bound}")
    if args.lr_scheduler not in ("constant", "linear", "cosine"):
        stop(f"--lr_scheduler is {args.lr_scheduler}, and must be constant, linear or cosine")
    local, folder = Path(args.model), Path(args.output_dir)
    if local.exists() and not (local / "config.json").is_file():
        stop(f"--model: {args.model} is no checkpoint, it has no config.json")
    if not local.exists() and (local.is_absolute() or args.model.startswith(".") or args.model.count("/") > 1):
        stop(f"--model: there is no folder {args.model}")
    if folder.is_dir() and any(folder.iterdir()) and not args.resume:
        stop(f"--output_dir: {folder} is not empty; go on there with --resume, or name another folder")
