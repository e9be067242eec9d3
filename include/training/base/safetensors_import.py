"""A Hugging Face folder of safetensors as a plain float32 model: data alone, no pickle and no code of its own."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from include.training.base.chatml import END, START, TEMPLATE
from include.training.errors import TrainingError
from include.training.model_io import load_tokenizer


def read_folder(folder: Path, chat_template: str) -> tuple[Any, Any]:
    """(model, tokenizer) of a folder whose files have been verified.

    Args:
        chat_template: ``chatml`` (this project's), or ``source``: the folder's own.

    Raises:
        TrainingError: it brings code, is quantised, lacks or exceeds the weights of its architecture, or does not fit the template.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    for name, why in (("auto_map", "it brings code of its own, which is never run"), ("quantization_config", "its weights are quantised")):
        if config.get(name):
            raise TrainingError(f"{folder / 'config.json'} has {name}: {why}")
    tokenizer = _with_template(load_tokenizer(folder), folder, chat_template)
    model, found = AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, use_safetensors=True, local_files_only=True, trust_remote_code=False, output_loading_info=True
    )
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    if (missing := sorted(set(found["missing_keys"]) - tied)) or found["unexpected_keys"] or found["mismatched_keys"]:
        odd = missing or sorted(map(str, [*found["unexpected_keys"], *found["mismatched_keys"]]))
        raise TrainingError(f"{folder}: weights do not fit a {type(model).__name__}: {', '.join(odd[:3])}")
    return model.eval(), tokenizer


def _with_template(tokenizer: Any, folder: Path, chat_template: str) -> Any:
    if chat_template == "source":
        if not tokenizer.chat_template:
            raise TrainingError(f"{folder} brings no chat template: set base.chat_template to chatml, or take a model that has one")
        return tokenizer
    unknown = [token for token in (START, END) if tokenizer.convert_tokens_to_ids(token) in (None, tokenizer.unk_token_id)]
    if unknown or tokenizer.eos_token != END:
        reason = f"no token {unknown[0]}" if unknown else f"the end token {tokenizer.eos_token}, not {END}"
        raise TrainingError(f"{folder}: the tokenizer has {reason}, so it cannot speak ChatML: set base.chat_template to source")
    tokenizer.chat_template = TEMPLATE
    return tokenizer
