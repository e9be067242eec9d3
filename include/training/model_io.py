"""Models in and out: plain Hugging Face folders, float32, offline, and equal after a reload."""

import gc
import os
import shutil
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from include.runtime.tokenizer import TOKENIZER_FILES
from include.training.errors import TrainingError

transformers_logging.disable_progress_bar()  # logs are files


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder; nothing is fetched and no foreign code is run."""
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def load_causal_lm(folder: Path, attention: str = "sdpa") -> Any:
    """A causal language model in float32 and eval mode, weights from safetensors alone."""
    model = AutoModelForCausalLM.from_pretrained(
        str(folder),
        dtype=torch.float32,
        attn_implementation=attention,
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
    )
    return model.eval()


def compute_device() -> torch.device:
    """Where a program that uses no engine computes: the first GPU it was given, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def parameters_of(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Name → parameter; a tied one stands once, under its first name."""
    return dict(model.named_parameters())


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copies the tokenizer's files byte for byte: the same digests in every stage."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def save_model(model: Any, tokenizer_folder: Path, target: Path) -> None:
    """Writes a plain folder that loads offline, and proves it: the reloaded model gives equal logits.

    Both are compared in the CPU's memory, where `model` lies from then on: a device need not hold two of them, nor one.

    Raises:
        TrainingError: the model that was read back differs.
    """
    model.eval()
    model.save_pretrained(str(target), safe_serialization=True, max_shard_size="1000GB")
    copy_tokenizer(tokenizer_folder, target)
    ids = probe_ids(model.to("cpu"))
    with torch.no_grad():
        written = model(input_ids=ids).logits
        again = load_causal_lm(target, model.config._attn_implementation)
        read = again(input_ids=ids).logits
    if not torch.equal(written, read):
        difference = float((written - read).abs().max())
        raise TrainingError(f"{target} gives other logits after a reload (largest difference {difference:.3g})")
    del again
    gc.collect()


def probe_ids(model: Any) -> torch.Tensor:
    """A few ids spread over the vocabulary."""
    size = int(model.config.vocab_size)
    device = next(model.parameters()).device
    return torch.arange(16, device=device)[None] * max(1, size // 16) % size
