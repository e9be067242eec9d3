"""Models as they are deployed: read from their folders, offline, without foreign code, in the dtype of the deployment."""

import os
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging as transformers_logging

from include.eval.errors import EvaluationError
from include.runtime.reward_model import dimensions_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

transformers_logging.disable_progress_bar()  # logs are files


def device() -> torch.device:
    """The accelerator where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_name() -> str:
    """What the numbers were computed on: the accelerator's model, or ``cpu``."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def load_tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def load_policy(folder: Path, dtype: str) -> Any:
    """A causal language model in eval mode."""
    if dtype not in DTYPES:
        raise EvaluationError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
    model = AutoModelForCausalLM.from_pretrained(
        str(folder),
        dtype=DTYPES[dtype],
        attn_implementation="sdpa",
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
    )
    return model.to(device()).eval()


def load_reward_model(folder: Path) -> Any:
    """A reward model's sequence classifier, in float32 and eval mode; refuses one whose head is not in the file, or whose labels are others."""
    model, found = AutoModelForSequenceClassification.from_pretrained(
        str(folder),
        dtype=torch.float32,
        attn_implementation="sdpa",
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    if found["missing_keys"]:
        raise EvaluationError(f"{folder} is not a reward model: missing {sorted(found['missing_keys'])}")
    dimensions_of(model.config, folder)
    return model.to(device()).eval()
