"""Models: the process's place among the others, the policy, and the memory that the run needs."""

import os
from pathlib import Path

import torch
import transformers
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from templates.sections.arguments import Args
from templates.sections.data import stop


def start(args: Args, minibatches: int) -> Accelerator:
    """The accelerator, with bf16 settled, and a stop where the launch would train processes alone or unevenly."""
    if args.bf16 is None:
        args.bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    trackers = [name for name in args.report_to.split(",") if name]
    known = {"all", "tensorboard"} | {tracker.value for tracker in get_available_trackers()}
    if unknown := sorted(set(trackers) - known):
        stop(f"--report_to: {', '.join(unknown)} is not installed, or no tracker of accelerate's")
    precision = "bf16" if args.bf16 else "no"
    accelerator = Accelerator(mixed_precision=precision, log_with=trackers or None, project_dir=args.output_dir)
    launched, world = int(os.environ.get("WORLD_SIZE", 1)), accelerator.num_processes
    if launched != world:
        stop(f"{launched} processes were launched and accelerate sees {world}, so each would train alone")
    if args.prompts_per_step % (minibatches * world):
        parts = f"--minibatches {minibatches} x {world} processes"
        stop(f"--prompts_per_step {args.prompts_per_step} does not divide into {parts}")
    try:
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        stop(f"--output_dir: cannot make {args.output_dir} ({error.strerror})")
    return accelerator


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The policy's tokenizer, with a pad token."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # of transformers, tokenizers or the disk
        reason = str(error).partition("\n")[0]
        stop(f"--model: cannot load a tokenizer from {name} ({reason})")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return tokenizer


def config_without_dropout(name: str) -> transformers.PreTrainedConfig:
    """The checkpoint's configuration, with every dropout at 0."""
    config = transformers.AutoConfig.from_pretrained(name)
    for key, value in config.to_dict().items():
        if isinstance(value, float) and "drop" in key:
            setattr(config, key, 0.0)
    return config


def load_policy(name: str) -> tuple[PreTrainedModel, list[int]]:
    """The policy in float32 and the ids that end its responses; without dropout, whose noise is no ratio."""
    try:
        model = AutoModelForCausalLM.from_pretrained(name, config=config_without_dropout(name), dtype=torch.float32)
    except Exception as error:  # of transformers, safetensors or the disk
        reason = str(error).partition("\n")[0]
        stop(f"--model: cannot load {name} ({reason})")
    ends = model.generation_config.eos_token_id
    ends = model.config.eos_token_id if ends is None else ends
    eos_ids = ends if isinstance(ends, list) else [ends]
    if None in eos_ids:
        stop(f"--model: {name} has no eos_token_id in its configuration, so no response could end")
    # What the checkpoint says of top_k or top_p is not the policy's; what ends a response is, in the trained model too.
    model.generation_config = GenerationConfig(eos_token_id=eos_ids, pad_token_id=model.generation_config.pad_token_id)
    return model, eos_ids


def memory_line(trained: dict[str, torch.nn.Module], frozen: dict[str, torch.nn.Module]) -> str:
    """What the weights, the gradients and Adam's moments of the run take, in words; activations come on top."""
    sizes = {}
    for name, module in trained.items():
        count = sum(p.numel() for p in module.parameters())
        sizes |= {name: 4 * count, f"gradients of the {name}": 4 * count, f"Adam's moments of the {name}": 8 * count}
    million = sum(sizes[name] for name in trained) / 4e6
    sizes |= {name: sum(p.numel() * p.element_size() for p in module.parameters()) for name, module in frozen.items()}
    each = ", ".join(f"{name} {size / 1e9:.3g}" for name, size in sizes.items())
    return f"{million:.1f} M parameters; memory before activations {sum(sizes.values()) / 1e9:.3g} GB ({each})"
