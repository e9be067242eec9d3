"""Base import: pinned bytes in, a plain float32 folder out, the same every time."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from include.domain.manifest import MANIFEST, build_manifest
from include.runtime.chat import prompt_ids
from include.runtime.tokenizer import chat_template_digest, tokenizer_digest
from include.training.model_io import load_causal_lm, load_tokenizer
from tests.training.harness import PROJECT, TINY, Store, corpus, tiny_base

TINY_CONFIG: dict[str, Any] = {"kind": "tiny", "file": "corpus.jsonl", "dtype": "float32", "tiny": TINY}


def test_the_tiny_base_is_a_plain_folder_and_the_report_names_its_tokenizer(tmp_path: Path) -> None:
    done = tiny_base(Store(tmp_path))
    folder = done.output("base")
    weights = load_file(folder / "model.safetensors")
    count = sum(value.numel() for value in weights.values())
    assert {value.dtype for value in weights.values()} == {torch.float32}
    assert done.report.summary["parameters"] == count < 1_000_000
    assert done.report.summary["tokenizer"] == tokenizer_digest(folder)
    assert done.report.summary["chat_template"] == chat_template_digest(folder)
    assert "lm_head.weight" not in weights


def test_the_tiny_base_learns_its_corpus(store: Store) -> None:
    run = Path(store.places["base"].path).parents[1]
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < 0.5 * losses[0]


def test_the_same_corpus_and_seed_give_the_same_digest(store: Store, tmp_path: Path) -> None:
    assert tiny_base(Store(tmp_path)).report.outputs == {"base": store.places["base"].digest}


def test_another_corpus_under_the_same_name_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    place = store.raw("source", "corpus.jsonl", corpus())
    Path(place.path, "corpus.jsonl").write_bytes(corpus()[:-1])
    done = store.run(store.spec("base_import", {"source": "source"}, TINY_CONFIG))
    assert done.code == 1
    assert "corpus.jsonl is corrupt" in done.report.message


@pytest.mark.parametrize(
    ("data", "message"),
    [(b'{"text": "a"}\n{"prompt": "b"}\n', "line 2: neither a text nor a prompt with a response"), (b"\n", "holds no row")],
)
def test_a_row_that_cannot_be_learned_is_refused_by_its_line(tmp_path: Path, data: bytes, message: str) -> None:
    store = Store(tmp_path)
    store.raw("source", "corpus.jsonl", data)
    done = store.run(store.spec("base_import", {"source": "source"}, TINY_CONFIG))
    assert done.code == 1
    assert message in done.report.message


def test_a_tiny_model_that_is_not_tiny_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.raw("source", "corpus.jsonl", corpus())
    config = {**TINY_CONFIG, "tiny": {**TINY, "hidden_size": 256, "layers": 4}}
    done = store.run(store.spec("base_import", {"source": "source"}, config))
    assert done.code == 1
    assert "its limit is 1000000" in done.report.message


FOLDER_CONFIG: dict[str, Any] = {"kind": "safetensors", "file": "some-model", "dtype": "float32", "tiny": None}


def published(store: Store, folder: Path, **config: Any) -> Path:
    """The tiny base as somebody would publish it: bfloat16, two shards, under a manifest of pinned files; `config` changes config.json."""
    base = Path(store.places["base"].path)
    model = load_causal_lm(base).to(torch.bfloat16)
    model.save_pretrained(str(folder), max_shard_size="60KB")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (base / name).is_file():
            (folder / name).write_bytes((base / name).read_bytes())
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    (folder / MANIFEST).write_text(json.dumps(build_manifest("base", folder).to_json()))
    store.artifact("folder", folder)
    return folder


def test_a_folder_of_safetensors_becomes_the_same_model_in_float32(store: Store, tmp_path: Path) -> None:
    folder = published(store, tmp_path / "some-model")
    assert len(list(folder.glob("*.safetensors"))) > 1
    done = store.run(store.spec("base_import", {"model": "folder"}, FOLDER_CONFIG, salt="folder"))
    assert done.code == 0, done.stderr
    made, there = load_causal_lm(done.output("base")), load_causal_lm(folder)
    weights = dict(there.named_parameters())
    assert all(value.dtype == torch.float32 and torch.equal(value, weights[name]) for name, value in made.named_parameters())
    assert done.report.summary["tokenizer"] == tokenizer_digest(Path(store.places["base"].path))
    assert done.report.summary["chat_template"] == chat_template_digest(Path(store.places["base"].path))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Own"}}, "auto_map: it brings code of its own"),
        ({"quantization_config": {"quant_method": "gptq"}}, "its weights are quantised"),
        ({"num_hidden_layers": 3}, "weights do not fit a LlamaForCausalLM: model.layers.2"),
    ],
)
def test_a_folder_that_is_not_plain_weights_is_refused(store: Store, tmp_path: Path, config: dict[str, Any], words: str) -> None:
    published(store, tmp_path / "some-model", **config)
    done = store.run(store.spec("base_import", {"model": "folder"}, FOLDER_CONFIG, salt=words))
    assert done.code == 1
    assert words in done.report.message


def test_a_folder_with_another_byte_than_pinned_is_refused(store: Store, tmp_path: Path) -> None:
    folder = published(store, tmp_path / "some-model")
    with open(next(folder.glob("*.safetensors")), "r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\x7f")
    done = store.run(store.spec("base_import", {"model": "folder"}, FOLDER_CONFIG, salt="one byte"))
    assert done.code == 1
    assert "safetensors" in done.report.message


GGUF = Path(os.environ.get("ALIGN_TEST_GGUF", PROJECT / ".local" / "sources" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"))


@pytest.mark.skipif(not GGUF.is_file(), reason=f"{GGUF} is not there: run `make demo` once, or set ALIGN_TEST_GGUF")
@pytest.mark.timeout(400)
def test_a_gguf_becomes_a_float32_llama_that_answers(tmp_path: Path) -> None:
    store = Store(tmp_path, timeout_s=350)
    store.raw("source", GGUF.name, GGUF.read_bytes())
    done = store.run(store.spec("base_import", {"source": "source"}, {"kind": "gguf", "file": GGUF.name, "dtype": "float32"}))
    assert done.code == 0, done.stderr
    assert done.report.summary["parameters"] == 134_515_008
    folder = done.output("base")
    model, tokenizer = load_causal_lm(folder), load_tokenizer(folder)
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    ids = torch.tensor([prompt_ids(tokenizer, [{"role": "user", "content": "What is the capital of France?"}])])
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, ids.shape[1] :])
