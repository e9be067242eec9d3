"""``PYTHON load_with_peft.py BASE ADAPTER OUT``: an adapter of ours on its base by peft; writes the logits of a few ids."""

import json
import sys
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM


def main(base: str, adapter: str, out: str) -> None:
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, local_files_only=True), adapter).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.arange(20)[None] % model.config.vocab_size).logits
    Path(out).write_text(json.dumps(logits[0].tolist()), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
