"""Greedy answers of models to a suite's hold-out problems, judged by each problem's verifier; prints the counts as JSON.

python -m benchmarks.training.held_out '{"models": {name: folder}, "suite": folder, "tokens": 32, "threads": 1}'
"""

import json
import sys
from pathlib import Path

import torch

from include.domain.records import Prompt, SuiteItem
from include.training.examples.heldout import answer_check
from include.training.model_io import load_causal_lm, load_tokenizer
from include.transforms.datasets_io import read_suite

ROWS = 128


def counts(folder: Path, prompts: list[Prompt], tokens: int) -> dict[str, int]:
    shares = answer_check(load_causal_lm(folder), load_tokenizer(folder), prompts, tokens, ROWS)
    return {"n": len(prompts), **{name: round(share * len(prompts)) for name, share in shares.items()}}


def main() -> None:
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(asked["threads"])
    items = [SuiteItem.from_json(row.record) for row in read_suite(Path(asked["suite"]))]
    prompts = [item.prompt for item in items if item.prompt.reference is not None]
    print(json.dumps({name: counts(Path(folder), prompts, asked["tokens"]) for name, folder in asked["models"].items()}))


if __name__ == "__main__":
    main()
