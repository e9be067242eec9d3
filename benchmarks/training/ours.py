"""Our side: with a folder alone it makes base and rows; with OUT and a number it runs the stage program on them once."""

import json
import random
import sys
from pathlib import Path
from typing import Any

from benchmarks.training.workload import BETA, LEARNING_RATE, WARM_UP, Workload
from include.domain.records import Candidate, Demonstration, Message, PreferencePair, Prompt, candidate_id_of, prompt_id_of
from include.domain.spec import InputPlace
from include.runtime.tokenizer import chat_template_digest, tokenizer_digest
from include.training import dpo, sft
from include.training.model_io import load_causal_lm, load_tokenizer
from include.training.token_pairs import encoder, read_pairs
from include.training.tokenise import DemonstrationRows
from include.transforms.datasets_io import SidedRow
from tests.training.harness import Store, tiny_base

WORDS = ["red", "stone", "river", "seven", "light", "under", "quiet", "plus", "answer", "because", "number", "eleven", "house", "then"]
MAX_LENGTH = 512


def _text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words))


def _prompt(chance: random.Random, load: Workload, number: int) -> Prompt:
    messages = (Message("user", _text(chance, max(4, load.length // 2)) + f" {number}?"),)
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


def _row(store: Store, chance: random.Random, load: Workload, number: int) -> SidedRow:
    prompt = _prompt(chance, load, number)
    texts = [_text(chance, chance.randint(load.length // 4, load.length)) for _ in range(2)]
    name = f"row-{number:06d}"
    if load.program == "sft":
        record: Any = Demonstration(name, prompt, (Message("assistant", texts[0]),), "made here", "CC0-1.0")
    else:
        sides = [_candidate(store, prompt, text) for text in texts]
        record = PreferencePair(name, prompt, sides[0], sides[1], None, None, None, "verifier", False)
    return SidedRow(name, "train", prompt.split_group, "demonstration" if load.program == "sft" else "preference", record.to_json())


def made_store(folder: Path, load: Workload) -> Store:
    """The store with base and data; made where it is not there yet."""
    store = Store(folder / "store", threads=load.threads, timeout_s=3600)
    chance = random.Random(11)  # noqa: S311 - rows, not a secret
    tiny_base(store, hidden_size=load.hidden, layers=load.layers, heads=4, steps=2, batch=4, max_length=64)
    rows = [_row(store, chance, load, number) for number in range(load.batch * load.steps)]
    store.dataset("data", "demonstration" if load.program == "sft" else "pair", rows)
    return store


def _ids(store: Store, load: Workload) -> list[dict[str, Any]]:
    """The rows as ids, for whoever trains on the same."""
    tokenizer, data = load_tokenizer(Path(store.places["base"].path)), Path(store.places["data"].path)
    if load.program == "sft":
        rows = DemonstrationRows(data, "train", tokenizer, MAX_LENGTH)
        return [
            {"input_ids": list(r.ids), "labels": [t if m else -100 for t, m in zip(r.ids, r.loss_mask, strict=True)]}
            for r in map(rows.__getitem__, range(len(rows)))
        ]
    pairs = read_pairs(data, "train", encoder(tokenizer))
    return [
        {
            "prompt_ids": list(p.chosen[: p.prompt_length]),
            "chosen_ids": list(p.chosen[p.prompt_length :]),
            "rejected_ids": list(p.rejected[p.prompt_length :]),
        }
        for p in pairs
    ]


def _tokens(row: dict[str, Any]) -> int:
    """Real tokens of one example; of a pair both whole sequences, however they are computed."""
    return len(row["input_ids"]) if "input_ids" in row else 2 * len(row["prompt_ids"]) + len(row["chosen_ids"]) + len(row["rejected_ids"])


def prepare(folder: Path) -> None:
    load = Workload.read(folder)
    store = made_store(folder, load)
    rows = _ids(store, load)
    base = Path(store.places["base"].path)
    parameters = sum(value.numel() for value in load_causal_lm(base).parameters())
    places = {name: vars(place) for name, place in store.places.items()}
    told = {"rows": rows, "tokens": sum(map(_tokens, rows)), "parameters": parameters, "base": str(base), "places": places}
    (folder / "rows.json").write_text(json.dumps(told), "utf-8")


def config(load: Workload) -> dict[str, Any]:
    precision = "fp32" if load.precision == "fp32" else "bf16_autocast"
    shared = {
        "learning_rate": LEARNING_RATE,
        "steps": load.steps,
        "global_batch": load.batch,
        "max_length": MAX_LENGTH,
        "precision": precision,
    }
    return {**shared, "beta": BETA} if load.program == "dpo" else {**shared, **({"packing": True} if load.packing else {})}


def measure(folder: Path, out: Path, number: int) -> None:
    load = Workload.read(folder)
    told = json.loads((folder / "rows.json").read_text("utf-8"))
    store = Store(folder / "store", threads=load.threads)
    store.places = {name: InputPlace(**place) for name, place in told["places"].items()}
    inputs = (
        {"base": "base", "demonstrations": "data"}
        if load.program == "sft"
        else {"policy": "base", "reference": "base", "preferences": "data"}
    )
    arguments = store.prepare(
        store.spec(load.program, inputs, config(load), salt=str(number)), micro_batch=load.batch, save_every_steps=10**6
    )
    if {"sft": sft.main, "dpo": dpo.main}[load.program](arguments):
        raise SystemExit(1)
    lines = [json.loads(line) for line in (Path(arguments[-1]) / "metrics.jsonl").read_text("utf-8").splitlines()]
    seconds = lines[-1]["time"] - lines[WARM_UP - 1]["time"]
    out.write_text(json.dumps({"seconds": seconds, "loss": sum(line["loss"] for line in lines[-5:]) / 5}), "utf-8")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        prepare(Path(sys.argv[1]))
    else:
        measure(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
