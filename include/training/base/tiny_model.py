"""A language model small enough for tests, made from a seed: its tokenizer, and a short pre-training on a corpus.

The corpus is JSON Lines: {"text"} is learned as it stands; {"prompt", "response"} as a dialogue, answer included.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from include.runtime.chat import Encoded, dialogue
from include.runtime.checkpoint import Checkpoint, Snapshot
from include.runtime.errors import GuardTripped
from include.runtime.settings import Settings
from include.training.base.chatml import END, PAD, START, TEMPLATE
from include.training.engines.optimizer_state import capture_state, restore_state
from include.training.errors import TrainingError
from include.training.examples.batching import collate, rows_at
from include.training.loop import StepResult
from include.training.schedule import ScheduleSettings, learning_rate_at
from include.training.scoring import AnswerScorer

MOST_PARAMETERS = 1_000_000
_KEYS = ("hidden_size", "layers", "heads", "steps", "batch", "learning_rate", "max_length", "vocab_size")


@dataclass(frozen=True)
class TinySettings:
    """Shape and pre-training of the tiny model."""

    hidden_size: int
    layers: int
    heads: int
    steps: int
    batch: int
    learning_rate: float
    max_length: int
    vocab_size: int

    @classmethod
    def of(cls, section: Settings) -> "TinySettings":
        section.only(*_KEYS)
        sizes = {name: section.positive(name) for name in ("hidden_size", "layers", "heads", "steps", "batch", "max_length")}
        if sizes["hidden_size"] % (2 * sizes["heads"]):
            raise TrainingError(f"tiny.hidden_size {sizes['hidden_size']} must be a multiple of twice tiny.heads {sizes['heads']}")
        return cls(**sizes, learning_rate=section.number("learning_rate"), vocab_size=section.positive("vocab_size", 512))


def read_corpus(path: Path) -> list[dict[str, str]]:
    """The rows of the corpus; a row without text is refused by its line. Lines end with a line feed only."""
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        row = json.loads(line)
        if not (isinstance(row.get("text"), str) or (isinstance(row.get("prompt"), str) and isinstance(row.get("response"), str))):
            raise TrainingError(f"{path} line {number}: neither a text nor a prompt with a response")
        rows.append(row)
    if not rows:
        raise TrainingError(f"{path} holds no row")
    return rows


def build_tokenizer(rows: Sequence[dict[str, str]], vocab_size: int) -> Any:
    """A byte-level BPE of the corpus: any text goes in, and comes out byte for byte."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    core.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    core.train_from_iterator(_texts(rows), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token=PAD, eos_token=END, additional_special_tokens=[START])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _texts(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    for row in rows:
        yield from (row[name] for name in ("text", "prompt", "response") if name in row)
    yield from ("system\n", "user\n", "assistant\n") * len(rows)


def build_model(settings: TinySettings, tokenizer: Any) -> Any:
    """An untrained Llama with tied embeddings; torch's seed decides its weights."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden_size,
            intermediate_size=settings.hidden_size * 8 // 3 // 32 * 32,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.heads,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    count = sum(parameter.numel() for parameter in model.parameters())
    if count >= MOST_PARAMETERS:
        raise TrainingError(f"tiny has {count} parameters, its limit is {MOST_PARAMETERS}: lower hidden_size, layers or vocab_size")
    return model


class TinyTrainer:
    """Plain AdamW with a cosine schedule: seconds long, so no engine is wanted."""

    def __init__(self, model: Any, tokenizer: Any, rows: Sequence[dict[str, str]], settings: TinySettings, seed: int) -> None:
        self.scorer = AnswerScorer(model)
        self.tokenizer = tokenizer
        self.settings = settings
        self.seed = seed
        self.items = [self._encode(row).truncate(settings.max_length) for row in rows]
        self.optimizer = torch.optim.AdamW(
            self.scorer.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        warmup = min(20, settings.steps // 5)
        self.schedule = ScheduleSettings(settings.learning_rate, warmup, settings.steps, "cosine")

    def _encode(self, row: dict[str, str]) -> Encoded:
        if "text" in row:
            ids = [*self.tokenizer(row["text"], add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
            return Encoded(tuple(ids), (True,) * len(ids), 0)
        prompt, response = {"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["response"]}
        return dialogue(self.tokenizer, [prompt], [response])

    def train_step(self, step: int) -> StepResult:
        self.scorer.train()
        batch = collate(
            [self.items[i] for i in rows_at(step, self.settings.batch, len(self.items), self.seed)], self.tokenizer.pad_token_id
        )
        loss = -self.scorer(batch.input_ids, batch.attention_mask, batch.rows, batch.columns, batch.targets).mean()
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.scorer.parameters(), 1.0))
        value = float(loss.detach())
        if not (math.isfinite(value) and norm < float("inf")):
            raise GuardTripped("non_finite_loss", f"step {step + 1}: loss {value}, gradient norm {norm}")
        rate = learning_rate_at(step, self.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return StepResult({"loss": value, "grad_norm": norm, "learning_rate": rate}, batch.tokens)

    def capture(self) -> Snapshot:
        return Snapshot(capture_state(self.scorer, self.optimizer))

    def restore(self, checkpoint: Checkpoint) -> None:
        restore_state(checkpoint, self.scorer, self.optimizer)
