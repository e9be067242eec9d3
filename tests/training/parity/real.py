"""A real model and a short batch of real text as a case: written to a folder once, read by both sides."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, LlamaForCausalLM

from include.runtime.chat import Encoded
from tests.training.parity.cases import PAD, Setup

MODEL, BATCH = "model", "batch.json"
PROBLEMS = [
    ("Tom has 3 apples and buys 4 more. How many has he?", "3 + 4 = 7\nAnswer: 7", "He has many apples."),
    ("A book has 120 pages; Ann read 45. How many are left?", "120 - 45 = 75\nAnswer: 75", "120 - 45 = 65\nAnswer: 65"),
    (
        "Four friends share 20 sweets. How many does each get?",
        "20 / 4 = 5\nAnswer: 5",
        "Each of the four friends gets twenty sweets, I think.",
    ),
]
"""Question, right answer, and one that is not preferred."""


def write(folder: Path, model: Any, encode: Any) -> None:
    """Args: encode: (question, answer) → `Encoded`, as the programs encode a dialogue."""
    model.save_pretrained(folder / MODEL)
    rows = [[_plain(encode(question, answer)) for answer in answers] for question, *answers in PROBLEMS]
    # TRL's reward model is read at the last token that is not the padding's.
    assert not any(PAD in row["ids"] for pair in rows for row in pair)
    (folder / BATCH).write_text(json.dumps(rows), "utf-8")


def _plain(encoded: Encoded) -> dict[str, Any]:
    return {"ids": list(encoded.ids), "loss_mask": list(encoded.loss_mask), "prompt_length": encoded.prompt_length}


def read(folder: Path) -> Setup:
    """The models load from the folder at each call, in float32."""
    rows = json.loads((folder / BATCH).read_text("utf-8"))
    pairs = [(_encoded(chosen), _encoded(rejected)) for chosen, rejected in rows]
    return Setup(
        policy=lambda: _causal(folder),
        reference=lambda: _moved(_causal(folder)),
        reward_model=lambda: _scorer(folder),
        dialogues=[chosen for chosen, _ in pairs],
        pairs=pairs,
    )


def _encoded(row: dict[str, Any]) -> Encoded:
    return Encoded(tuple(row["ids"]), tuple(row["loss_mask"]), row["prompt_length"])


def _causal(folder: Path) -> Any:
    return LlamaForCausalLM.from_pretrained(folder / MODEL, dtype=torch.float32, local_files_only=True).eval()


@torch.no_grad()
def _moved(model: Any) -> Any:
    """Another model than the policy, by a formula: the last norm a little larger here, a little smaller there."""
    weight = model.model.norm.weight
    weight.mul_(1 + 0.02 * torch.sin(torch.arange(len(weight), dtype=torch.float32)))
    return model


@torch.no_grad()
def _scorer(folder: Path) -> Any:
    """The same layers with a head that follows from a formula."""
    made = AutoModelForSequenceClassification.from_pretrained(folder / MODEL, num_labels=1, dtype=torch.float32, local_files_only=True)
    made.config.pad_token_id = PAD
    places = torch.arange(made.score.weight.numel(), dtype=torch.float32)
    made.score.weight.copy_((0.02 * torch.sin(places + 1)).reshape(made.score.weight.shape))
    return made.eval()
