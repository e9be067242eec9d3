"""A store in a folder, and stage programs run on it as real processes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from include.domain.canonical import digest, sha256_file
from include.domain.layout import RunDir
from include.domain.manifest import MANIFEST, Manifest
from include.domain.records import Demonstration, Message, Prompt, Reference, prompt_id_of
from include.domain.spec import InputPlace, Placement, Report, RunSpec
from include.runtime.tokenizer import chat_template_digest, has_tokenizer, tokenizer_digest
from include.transforms.datasets_io import DatasetHeader, SidedRow, write_dataset
from include.transforms.dimension_scores import DimensionScore
from local.layout import Layout
from local.ports import free_port

PROJECT = Path(__file__).resolve().parents[2]
ENVIRONMENT = digest("environment", {"test": "yes"})
TINY = {"hidden_size": 48, "layers": 2, "heads": 2, "steps": 60, "batch": 32, "learning_rate": 5e-3, "max_length": 48, "vocab_size": 320}
SFT = {
    "learning_rate": 3e-3,
    "steps": 8,
    "global_batch": 8,
    "warmup_steps": 2,
    "schedule": "linear",
    "max_grad_norm": 1.0,
    "weight_decay": 0.01,
    "betas": [0.9, 0.95],
    "max_length": 64,
    "precision": "fp32",
    "engine": "deepspeed",
    "zero_stage": 0,
    "optimizer": "torch_adamw",
    "attention": "sdpa",
    "eval_rows": 8,
    "eval_max_new_tokens": 12,
}


def cluster_python() -> str:
    """The interpreter that has torch and DeepSpeed: this one, ALIGN_CLUSTER_PYTHON, or the project's cluster environment."""
    named = os.environ.get("ALIGN_CLUSTER_PYTHON")
    local = Layout.find().built_cluster_environment / "bin/python"
    return named or (str(local) if local.exists() else sys.executable)


def question(first: int, second: int) -> Prompt:
    messages = (Message("user", f"{first} + {second} ="),)
    reference = Reference("arithmetic", "1", first + second)
    return Prompt(prompt_id_of(messages), messages, "made here", "CC0-1.0", "test", f"{first}+{second}", pii="none", reference=reference)


def sums(most: int = 12) -> list[tuple[int, int]]:
    pairs = [(a, b) for a in range(most) for b in range(most)]
    random.Random(3).shuffle(pairs)
    return pairs


@dataclass
class Started:
    """One attempt: its folder, exit code and what it said."""

    folder: Path
    code: int
    stderr: str

    @property
    def report(self) -> Report:
        return Report.from_json(json.loads((self.folder / "report.json").read_text()))

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def output(self, name: str) -> Path:
        return self.folder / "output" / name


@dataclass
class Store:
    """Inputs and runs below one folder."""

    root: Path
    threads: int = 1
    timeout_s: float = 110
    places: dict[str, InputPlace] = field(default_factory=dict)
    asked: dict[str, dict[str, InputPlace]] = field(default_factory=dict)
    """Stage key → its inputs as they were named: two folders may hold the same rows."""

    def raw(self, name: str, file: str, data: bytes) -> InputPlace:
        path = self.root / "sources" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        found = sha256_file(path)
        return self._place(name, InputPlace(str(path.parent), found, found))

    def artifact(self, name: str, folder: Path) -> InputPlace:
        found = Manifest.from_json(json.loads((folder / MANIFEST).read_text())).digest
        return self._place(name, InputPlace(str(folder), found, found))

    def dataset(self, name: str, rows: str, records: Iterable[SidedRow], scores: Iterable[DimensionScore] = ()) -> InputPlace:
        folder = self.root / "datasets" / name
        info = write_dataset(folder, DatasetHeader(name, rows, "filter@1", dimension_scores=tuple(scores)), records)
        return self._place(name, InputPlace(str(folder), info.content_hash, info.artifact_digest))

    def _place(self, name: str, place: InputPlace) -> InputPlace:
        self.places[name] = place
        return place

    def spec(self, stage: str, inputs: Mapping[str, str], config: Mapping[str, Any], seed: int = 5, salt: str = "") -> RunSpec:
        """`inputs`: the stage's name of an input → its name here."""
        models = [Path(self.places[name].path) for name in inputs.values() if has_tokenizer(Path(self.places[name].path))]
        spec = RunSpec(
            stage=stage,
            program=f"include.training.{stage}",
            inputs={name: self.places[source].digest for name, source in inputs.items()},
            code_revision=digest("code-revision", {"test": "yes"}),
            config=config,
            environment=ENVIRONMENT,
            seed=seed,
            tokenizer=tokenizer_digest(models[0]) if models else None,
            chat_template=chat_template_digest(models[0]) if models else None,
            rerun_salt=salt,
        )
        self.asked[spec.key] = {name: self.places[source] for name, source in inputs.items()}
        return spec

    def prepare(self, spec: RunSpec, n: int = 1, job_id: int = 100, restart: int = 0, **settings: Any) -> list[str]:
        """Writes what the control plane and the bootstrap write; gives the command's arguments."""
        run = self.root / RunDir(spec.key).root
        attempt = run / "attempts" / f"{n}-{job_id}.{restart}"
        attempt.mkdir(parents=True)
        (run / "spec.json").write_text(json.dumps(spec.to_json()))
        by_digest = {place.digest: place for place in self.places.values()}
        inputs = {name: by_digest[value] for name, value in spec.inputs.items()} | self.asked.get(spec.key, {})
        placement = Placement(spec.key, n, str(run), inputs, {"threads": self.threads, **settings}, {})
        (attempt / "placement.json").write_text(json.dumps(placement.to_json()))
        return ["--spec", str(run / "spec.json"), "--placement", str(attempt / "placement.json"), "--out", str(attempt)]

    def start(
        self, spec: RunSpec, arguments: list[str], wrapper: list[str] | None = None, place: Mapping[str, str] | None = None
    ) -> "Forked":
        """The program, or `wrapper` (a script and its arguments) around it, as a process of its own, `place` in its environment."""
        environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": str(self.threads), "TOKENIZERS_PARALLELISM": "false"}
        for name in [n for n in environment if n.startswith(("SLURM_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_"))]:
            del environment[name]
        stderr = Path(arguments[-1]) / f"stderr{(place or {}).get('RANK', '0').replace('0', '')}"
        return Forked([*(wrapper or ["-m", spec.program]), *arguments], {**environment, **(place or {})}, stderr)

    def run_ranks(self, spec: RunSpec, ranks: int, n: int = 1, wrappers: Mapping[int, list[str]] | None = None, **settings: Any) -> Started:
        """The program on several ranks; `wrappers` by rank. As srun does it, the end of one that failed ends the others."""
        arguments = self.prepare(spec, n, 100 + n, **settings)
        started = self.start_ranks(spec, arguments, ranks, wrappers)
        codes = wait_for_all(started, self.timeout_s)
        bad = next((code for code in codes if code), 0)
        return Started(Path(arguments[-1]), codes[0] or bad, "\n".join(rank.stderr.read_text() for rank in started))

    def start_ranks(
        self, spec: RunSpec, arguments: list[str], ranks: int, wrappers: Mapping[int, list[str]] | None = None
    ) -> list["Forked"]:
        # Not one of the kernel's: any outgoing connection may be given that before the first rank listens on it.
        common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        places = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
        return [self.start(spec, arguments, (wrappers or {}).get(rank), place) for rank, place in enumerate(places)]

    def run(self, spec: RunSpec, n: int = 1, wrapper: list[str] | None = None, **settings: Any) -> Started:
        arguments = self.prepare(spec, n, 100 + n, **settings)
        process = self.start(spec, arguments, wrapper)
        try:
            _, stderr = process.communicate(timeout=self.timeout_s)
        finally:
            process.kill()
        return Started(Path(arguments[-1]), process.returncode, stderr)


@cache
def _forker() -> subprocess.Popen[str]:
    """One for this test run; it ends with the run, as its input then ends."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"}
    command = [cluster_python(), str(Path(__file__).with_name("forker.py"))]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Forked:
    """A process started through the forker, with the part of Popen's interface that the tests use."""

    def __init__(self, argv: list[str], environment: Mapping[str, str], stderr: Path) -> None:
        self.stderr = stderr
        self.returncode = -1
        server = _forker()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps({"argv": argv, "env": dict(environment), "stderr": str(stderr)}) + "\n")
        server.stdin.flush()
        self.pid = int(server.stdout.readline())

    def poll(self) -> int | None:
        path = Path(f"{self.stderr}.status")
        if not path.exists():
            return None
        self.returncode = int(path.read_text())
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Waits for its end; gives ("", what it said on stderr)."""
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise AssertionError(f"process {self.pid} did not end in {timeout} s: {self.stderr.read_text()[-2000:]}")
            time.sleep(0.02)
        return "", self.stderr.read_text()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def wait_for_all(started: list[Forked], timeout_s: float) -> list[int]:
    """Their exit codes. When one has failed, the others have a few seconds to say so, as under srun --kill-on-bad-exit.

    Raises:
        AssertionError: they did not end in time; what has hung tells nothing.
    """
    end, failed, late = time.monotonic() + timeout_s, False, False
    while any(rank.poll() is None for rank in started):
        if not failed and any(rank.poll() for rank in started):
            failed, end = True, min(end, time.monotonic() + 5)
        if time.monotonic() > end:
            late = not failed
            for rank in started:
                rank.kill()
            end = time.monotonic() + 5
            failed = True
        time.sleep(0.02)
    if late:
        said = "\n".join(rank.stderr.read_text()[-2000:] for rank in started)
        raise AssertionError(f"{len(started)} ranks did not end in {timeout_s} s: {said}")
    return [rank.returncode for rank in started]


def wait_for_step(folder: Path, step: int, deadline_s: float = 60) -> None:
    """Until the attempt in `folder` has recorded so many steps."""
    end = time.monotonic() + deadline_s
    path = folder / "metrics.jsonl"
    while time.monotonic() < end:
        if path.exists() and len(path.read_text().splitlines()) >= step:
            return
        time.sleep(0.02)
    raise AssertionError(f"{folder} did not reach step {step} in {deadline_s} s")


def demonstrations(store: Store, name: str = "demonstrations", count: int = 60, wrong: Collection[int] = ()) -> InputPlace:
    """Sums as dialogues: 48 to learn from, the others to validate on; those numbered in `wrong` have another answer."""
    rows = []
    for at, (first, second) in enumerate(sums()[:count]):
        prompt = question(first, second)
        answer = f"{first} + {second} = {first + second}\nAnswer: {first + second}"
        if at in wrong:
            answer = answer[::-1]
        record = Demonstration(f"example-{first}-{second}", prompt, (Message("assistant", answer),), "made here", "CC0-1.0")
        side = "train" if at < count * 4 // 5 else "validation"
        rows.append(SidedRow(record.example_id, side, prompt.split_group, "demonstration", record.to_json()))
    return store.dataset(name, "demonstration", sorted(rows, key=lambda row: row.id))


def prompts(store: Store, name: str = "prompts", count: int = 10) -> InputPlace:
    records = [question(first, second) for first, second in sums()[:count]]
    rows = [SidedRow(record.prompt_id, "train", record.split_group, "preference", record.to_json()) for record in records]
    return store.dataset(name, "prompt", sorted(rows, key=lambda row: row.id))


def corpus() -> bytes:
    return "".join(json.dumps({"text": f"{a} + {b} = {a + b}"}) + "\n" for a, b in sums()).encode()


def tiny_base(store: Store, **changes: Any) -> Started:
    """Makes the tiny base and places it as `base`."""
    store.raw("source", "corpus.jsonl", corpus())
    config = {"kind": "tiny", "file": "corpus.jsonl", "dtype": "float32", "tiny": {**TINY, **changes}}
    started = store.run(store.spec("base_import", {"source": "source"}, config))
    assert started.code == 0, started.stderr
    store.artifact("base", started.output("base"))
    return started
