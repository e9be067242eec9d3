"""What a comparison trains on, made on the spot: a base, rows as records and as ids, prompts and a reward model for PPO."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.training.workload import REWARD_SEED, Workload
from include.domain.manifest import MANIFEST, build_manifest
from include.domain.records import Candidate, Demonstration, Message, PreferencePair, Prompt, candidate_id_of, prompt_id_of
from include.runtime.chat import dialogue, prompt_ids
from include.runtime.tokenizer import chat_template_digest, tokenizer_digest
from include.training import base_import, reward_model
from include.training.examples.batching import rows_at
from include.training.model_io import copy_tokenizer, load_causal_lm, load_tokenizer
from include.training.pairs.rows import encoder, read_pairs
from include.transforms.datasets_io import SidedRow, read_rows
from tests.training.harness import Store

WORDS = ["red", "stone", "river", "seven", "light", "under", "quiet", "plus", "answer", "because", "number", "eleven", "house", "then"]
OPTIMISER = {"max_grad_norm": 1.0, "weight_decay": 0.0, "betas": [0.9, 0.999], "schedule": "constant", "warmup_steps": 0}
VALIDATION = 8
POLICY_STEPS = 150
"""Enough for the tiny policy to end its answers, at ragged lengths."""


def _text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words))


def _answer(chance: random.Random, load: Workload) -> str:
    return _text(chance, chance.randint(max(1, load.length // 4), load.length))


def _question(chance: random.Random, load: Workload, number: int) -> str:
    return _text(chance, max(4, load.length // 2)) + f" {number}?"


def _prompt(text: str, number: int) -> Prompt:
    messages = (Message("user", text),)
    return Prompt(prompt_id_of(messages), messages, "made here", "CC0-1.0", "benchmark", f"g{number}", pii="none")


def _candidate(store: Store, prompt: Prompt, text: str) -> Candidate:
    folder = Path(store.places["base"].path)
    body: dict[str, Any] = {
        "prompt_id": prompt.prompt_id,
        "policy_checkpoint": None,
        "tokenizer_version": tokenizer_digest(folder),
        "chat_template": chat_template_digest(folder),
        "sampling_config": None,
        "random_seed": None,
        "response_text": text,
        "finish_reason": "eos",
        "safety_filter_version": "none@1",
        "origin": "synthetic:benchmark@1",
        "token_ids": None,
        "tool_calls": None,
    }
    return Candidate.from_json({**body, "candidate_id": candidate_id_of(body)})


def _row(store: Store, chance: random.Random, load: Workload, number: int, side: str = "train") -> SidedRow:
    prompt = _prompt(_question(chance, load, number), number)
    texts = [_answer(chance, load) for _ in range(2)]
    name = f"row-{number:06d}"
    if load.program == "sft":
        record: Any = Demonstration(name, prompt, (Message("assistant", texts[0]),), "made here", "CC0-1.0")
        return SidedRow(name, side, prompt.split_group, "demonstration", record.to_json())
    if load.program == "ppo":
        return SidedRow(prompt.prompt_id, side, prompt.split_group, "rl", prompt.to_json())
    return _pair_row(store, name, prompt, texts, side)


def _pair_row(store: Store, name: str, prompt: Prompt, texts: Sequence[str], side: str) -> SidedRow:
    sides = [_candidate(store, prompt, text) for text in texts]
    record = PreferencePair(name, prompt, sides[0], sides[1], None, None, None, "verifier", False)
    return SidedRow(name, side, prompt.split_group, "preference", record.to_json())


def made_store(folder: Path, load: Workload) -> Store:
    """The store with base and data, and for PPO a reward model."""
    store = Store(folder / "store", threads=load.threads, timeout_s=3600)
    chance = random.Random(11)  # noqa: S311 - rows, not a secret
    _base(store, load)
    count = load.batch * (4 if load.program == "ppo" else load.steps)
    rows = [_row(store, chance, load, number) for number in range(count)]
    if load.program == "reward":
        rows += [_row(store, chance, load, count + number, "validation") for number in range(VALIDATION)]
    kind = {"sft": "demonstration", "ppo": "prompt"}.get(load.program, "pair")
    store.dataset("data", kind, sorted(rows, key=lambda row: row.id))
    if load.program == "ppo":
        _reward_model(store, load, chance)
    return store


def _base(store: Store, load: Workload) -> None:
    """The one that is given; or the tiny model, trained for a few updates (for PPO until it ends its answers), or random weights of a larger one."""
    if load.base:
        store.artifact("base", _given_base(store, Path(load.base)))
        return
    chance = random.Random(12)  # noqa: S311
    dialogues = [{"prompt": _question(chance, load, n), "response": _answer(chance, load)} for n in range(400)]
    store.raw("source", "corpus.jsonl", "".join(json.dumps(row) + "\n" for row in dialogues).encode())
    shape = {"hidden_size": load.hidden, "layers": load.layers, "heads": load.heads}
    tiny: dict[str, Any] = {"learning_rate": 3e-3, "max_length": load.max_length, "vocab_size": 320, "batch": 16, "steps": 2, **shape}
    if load.program == "ppo" and not load.vocabulary:
        tiny["steps"] = POLICY_STEPS
    if load.vocabulary:
        tiny |= {"hidden_size": 32, "layers": 1, "heads": 2}
    config = {"kind": "tiny", "file": "corpus.jsonl", "dtype": "float32", "tiny": tiny}
    store.artifact("base", run(store, base_import.main, store.spec("base_import", {"source": "source"}, config)) / "base")
    if load.vocabulary:
        store.artifact("base", _random_base(store, load))


def _given_base(store: Store, path: Path) -> Path:
    """A model of somebody's: a folder that base import made, or a GGUF file, which is imported here."""
    if path.is_dir():
        return path
    store.raw("source", path.name, path.read_bytes())
    config = {"kind": "gguf", "file": path.name, "dtype": "float32"}
    return run(store, base_import.main, store.spec("base_import", {"source": "source"}, config)) / "base"


def _random_base(store: Store, load: Workload) -> Path:
    """Random weights from a configuration; the tokenizer is the tiny one's, whose ids are the first rows of the embeddings."""
    tokenizer, folder = Path(store.places["base"].path), store.root / "random-base"
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=load.vocabulary,
        hidden_size=load.hidden,
        intermediate_size=-(-load.hidden * 8 // 3 // 64) * 64,
        num_hidden_layers=load.layers,
        num_attention_heads=load.heads,
        max_position_embeddings=max(2048, load.max_length),
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=load_tokenizer(tokenizer).eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(str(folder), max_shard_size="1000GB")
    copy_tokenizer(tokenizer, folder)
    (folder / MANIFEST).write_text(json.dumps(build_manifest("base", folder).to_json()), "utf-8")
    return folder


def _reward_model(store: Store, load: Workload, chance: random.Random) -> None:
    """A few updates of our own program on random pairs: its scores mean nothing, its cost is that of any."""
    rows = []
    for number in range(48):
        texts = [_answer(chance, load) for _ in range(2)]
        side = "train" if number < 32 else "validation"
        rows.append(_pair_row(store, f"pair-{number:03d}", _prompt(_question(chance, load, number), number), texts, side))
    store.dataset("pairs", "pair", rows)
    config = {
        **OPTIMISER,
        "learning_rate": 1e-4,
        "steps": 4,
        "global_batch": 8,
        "max_length": load.max_length,
        "early_stop": {"every_steps": 4},
    }
    spec = store.spec("reward_model", {"base": "base", "preferences": "pairs"}, config, REWARD_SEED)
    store.artifact("reward_model", run(store, reward_model.main, spec) / "reward_model")


def run(store: Store, program: Any, spec: Any) -> Path:
    """One attempt in this process; gives the folder of its outputs."""
    arguments = store.prepare(spec)
    if program(arguments):
        raise SystemExit(f"{spec.stage} failed, see {arguments[-1]}")
    return Path(arguments[-1]) / "output"


def ids_of(store: Store, load: Workload) -> list[dict[str, Any]]:
    """The training rows as ids, for whoever trains on the same."""
    tokenizer, data = load_tokenizer(Path(store.places["base"].path)), Path(store.places["data"].path)
    if load.program == "sft":
        told = [Demonstration.from_json(row.record) for row in read_rows(data, "train")]
        rows = [dialogue(tokenizer, row.prompt.messages, row.response) for row in told]
        return [{"input_ids": list(r.ids), "labels": [t if m else -100 for t, m in zip(r.ids, r.loss_mask, strict=True)]} for r in rows]
    if load.program == "ppo":
        prompts = [Prompt.from_json(row.record) for row in read_rows(data, "train")]
        return [{"input_ids": list(prompt_ids(tokenizer, prompt.messages))} for prompt in prompts]
    return [
        {
            "prompt_ids": list(p.chosen[: p.prompt_length]),
            "chosen_ids": list(p.chosen[p.prompt_length :]),
            "rejected_ids": list(p.rejected[p.prompt_length :]),
        }
        for p in read_pairs(data, "train", encoder(tokenizer))
    ]


def in_our_order(rows: list[dict[str, Any]], load: Workload) -> list[dict[str, Any]]:
    """The rows as our updates take them, one pass; whoever trains on them one after another makes the same updates."""
    return [rows[i] for step in range(load.steps) for i in rows_at(step, load.batch, len(rows), REWARD_SEED)]


def tokens_of(row: dict[str, Any]) -> int:
    """Real tokens of one example; of a pair both whole sequences, however they are computed."""
    return len(row["input_ids"]) if "input_ids" in row else 2 * len(row["prompt_ids"]) + len(row["chosen_ids"]) + len(row["rejected_ids"])


def prepare_base(folder: Path) -> None:
    """The base alone; its folder is told in base.json."""
    load = Workload.read(folder)
    store = Store(folder / "store", threads=load.threads)
    _base(store, load)
    (folder / "base.json").write_text(json.dumps(store.places["base"].path), "utf-8")


def prepare(folder: Path) -> None:
    """Store, ids and sizes of the workload of `folder`, told in rows.json."""
    load = Workload.read(folder)
    store = made_store(folder, load)
    rows = ids_of(store, load)
    if load.program != "ppo":
        rows = in_our_order(rows, load)
    base = Path(store.places["base"].path)
    parameters = sum(value.numel() for value in load_causal_lm(base).parameters())
    places = {name: vars(place) for name, place in store.places.items()}
    told = {"rows": rows, "tokens": sum(map(tokens_of, rows)), "parameters": parameters, "base": str(base), "places": places}
    (folder / "rows.json").write_text(json.dumps(told), "utf-8")
