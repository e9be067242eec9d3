"""A GGUF file as a plain float32 Llama folder.

Float32, because weights on a coarse grid swallow small updates; a plain folder, because the object that transformers
builds from a GGUF cannot be saved. Its weights are copied into an ordinary Llama and the logits compared.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from include.training.errors import TrainingError

_NOT_OURS = ("quantization_config", "_name_or_path", "transformers_version", "dtype", "torch_dtype")


def read_gguf(path: Path) -> tuple[Any, Any]:
    """(model, tokenizer) of a GGUF file of the Llama family."""
    folder, file = str(path.parent), path.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file, local_files_only=True)
    source = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32, local_files_only=True).eval()
    if not isinstance(source, LlamaForCausalLM):
        raise TrainingError(f"{path} is a {type(source).__name__}; only the Llama family is imported from GGUF")
    return _plain_copy(source, tokenizer, path), tokenizer


def _plain_copy(source: Any, tokenizer: Any, path: Path) -> Any:
    settings = {key: value for key, value in source.config.to_dict().items() if key not in _NOT_OURS}
    model = LlamaForCausalLM(LlamaConfig.from_dict(settings)).to(torch.float32).eval()
    missing = model.load_state_dict({name: value.clone() for name, value in source.state_dict().items()}, strict=False)
    absent = [name for name in missing.missing_keys if name != "lm_head.weight"]
    if absent or missing.unexpected_keys:
        raise TrainingError(f"{path}: weights do not fit a plain Llama: missing {absent}, unexpected {missing.unexpected_keys}")
    model.tie_weights()
    ids = tokenizer("The capital of France is", return_tensors="pt", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        difference = float((source(input_ids=ids).logits - model(input_ids=ids).logits).abs().max())
    if difference != 0.0:
        raise TrainingError(f"{path}: the plain copy gives other logits (largest difference {difference:.3g})")
    return model
