"""Base import: raw files, pinned by their sha256, become a plain float32 model folder.

kind ``gguf``: a GGUF file of the Llama family. kind ``safetensors``: a Hugging Face folder. kind ``tiny``: a corpus, from which a tokenizer and a model of under a
million parameters are made from the seed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from include.runtime.inputs import verify_raw
from include.runtime.job import Job
from include.runtime.program import run_program
from include.runtime.tokenizer import chat_template_digest, tokenizer_digest
from include.training.base.chatml import TEMPLATE
from include.training.base.gguf_import import read_gguf
from include.training.base.safetensors_import import read_folder
from include.training.base.tiny_model import TinySettings, TinyTrainer, build_model, build_tokenizer, read_corpus
from include.training.loop import run_steps
from include.training.model_io import save_model

SOURCE = "source"
FOLDER = "model"
"""The input of kind safetensors: several files under a manifest, which the runtime verifies."""


def train(job: Job) -> None:
    job.config.only("kind", "file", "dtype", "tiny", "chat_template")
    job.config.text("dtype", ("float32",), "float32")
    kind = job.config.text("kind", ("gguf", "tiny", "safetensors"))
    if kind == "safetensors":
        path = job.input(FOLDER)
    else:
        path = verify_raw(SOURCE, job.input(SOURCE), job.config.text("file"), job.input_digest(SOURCE))
    make = {"gguf": _from_gguf, "tiny": _from_corpus, "safetensors": _from_folder}[kind]
    model, tokenizer, metrics = make(job, path)
    aside = job.out / "tokenizer"
    tokenizer.save_pretrained(str(aside))
    with job.output("base", "base", {"stage": job.stage, "key": job.spec.key}) as folder:
        save_model(model, aside, folder)
        summary = {
            "tokenizer": tokenizer_digest(folder),
            "chat_template": chat_template_digest(folder),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        }
    job.complete(metrics, summary)


def _from_gguf(job: Job, path: Path) -> tuple[Any, Any, dict[str, float]]:
    job.expect(1)
    model, tokenizer = read_gguf(path)
    if job.config.text("chat_template", ("chatml", "source"), "chatml") == "chatml":
        tokenizer.chat_template = TEMPLATE
    job.record(1, {})
    job.check_stop()
    return model, tokenizer, {}


def _from_folder(job: Job, path: Path) -> tuple[Any, Any, dict[str, float]]:
    job.expect(1)
    model, tokenizer = read_folder(path, job.config.text("chat_template", ("chatml", "source"), "chatml"))
    job.record(1, {})
    job.check_stop()
    return model, tokenizer, {}


def _from_corpus(job: Job, path: Path) -> tuple[Any, Any, dict[str, float]]:
    settings = TinySettings.of(job.config.section("tiny"))
    rows = read_corpus(path)
    tokenizer = build_tokenizer(rows, settings.vocab_size)
    model = build_model(settings, tokenizer)
    outcome = run_steps(job, TinyTrainer(model, tokenizer, rows, settings, job.seed), settings.steps)
    return model, tokenizer, outcome.metrics()


def main(argv: Sequence[str] | None = None) -> int:
    return run_program("base_import", train, argv, raw=frozenset({SOURCE}))


if __name__ == "__main__":
    raise SystemExit(main())
