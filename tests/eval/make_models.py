"""Makes three tiny models with random weights and a reward model: ``make_models.py FOLDER`` (the cluster's Python)."""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from include.domain.manifest import MANIFEST, build_manifest
from include.runtime.reward_model import PREFERENCE
from include.runtime.reward_stats import RewardNormaliser, RunningStats
from include.training.base.tiny_model import TinySettings, build_model, build_tokenizer
from include.training.model_io import copy_tokenizer, save_model

SHAPE = TinySettings(hidden_size=32, layers=2, heads=2, steps=1, batch=1, learning_rate=1e-3, max_length=64, vocab_size=300)


def finish(folder: Path, kind: str) -> None:
    (folder / MANIFEST).write_text(json.dumps(build_manifest(kind, folder).to_json()))


def _earlier(root: Path, texts: list[dict[str, str]]) -> None:
    """A model of an earlier base: another tokenizer, and another way to write down a conversation."""
    tokenizer = build_tokenizer(texts, SHAPE.vocab_size - 12)
    tokenizer.chat_template = tokenizer.chat_template.replace("assistant", "answer")
    tokenizer.save_pretrained(root / "earlier_tokenizer")
    torch.manual_seed(9)
    (root / "earlier").mkdir()
    model = build_model(SHAPE, tokenizer)
    for weight in model.model.layers.parameters():
        if weight.dim() == 2:
            weight.data *= 20
    save_model(model, root / "earlier_tokenizer", root / "earlier")
    finish(root / "earlier", "model")


def make(root: Path) -> None:
    texts = [{"text": f"{a} + {b} = {a + b}\nAnswer: {a + b}"} for a in range(10) for b in range(10)]
    tokenizer = build_tokenizer(texts, SHAPE.vocab_size)
    tokenizer.save_pretrained(root / "tokenizer")
    for seed, name in enumerate(("candidate", "sft", "base")):
        torch.manual_seed(seed)
        folder = root / name
        folder.mkdir()
        model = build_model(SHAPE, tokenizer)
        for weight in model.model.layers.parameters():
            if weight.dim() == 2:
                weight.data *= 20  # as they are drawn, tied embeddings make every model repeat its last token
        save_model(model, root / "tokenizer", folder)
        finish(folder, "model")
    _earlier(root, texts)
    reward = root / "reward_model"
    config = AutoConfig.from_pretrained(root / "sft", num_labels=3)
    config.id2label = {0: PREFERENCE, 1: "clarity", 2: "factuality"}
    AutoModelForSequenceClassification.from_config(config).save_pretrained(reward)
    copy_tokenizer(root / "tokenizer", reward)
    RewardNormaliser(RunningStats.of([-0.1, 0.0, 0.2])).write(reward)
    finish(reward, "reward_model")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
