"""TRL's trainer as a stage of ours: the same contract, and the same losses, as it learns the same rows in the same order."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from include.domain.manifest import MANIFEST
from tests.training.harness import PROJECT, SFT, Started, Store

PEERS = PROJECT / ".local" / "venv-peers" / "bin" / "python"
PROGRAM = "include.training.foreign.trl_sft"
INPUTS = {"base": "base", "demonstrations": "demonstrations"}
PLAIN = {**SFT, "eval_rows": 0}
pytestmark = pytest.mark.skipif(not PEERS.exists(), reason="other trainers are not installed: make peers")


def _start(store: Store, config: dict[str, Any], n: int = 1, salt: str = "", **settings: Any) -> tuple[subprocess.Popen[str], Path]:
    spec = store.spec("sft", INPUTS, {**config, "trainer": "trl"}, salt=salt)
    arguments = store.prepare(spec, n, 100 + n, **settings)
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(PROJECT),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "HOME": str(store.root),
    }
    process = subprocess.Popen(
        [str(PEERS), "-W", "ignore", "-m", PROGRAM, *arguments], env=environment, cwd=store.root, text=True, stderr=subprocess.PIPE
    )
    return process, Path(arguments[-1])


def _run(store: Store, config: dict[str, Any], n: int = 1, salt: str = "", **settings: Any) -> Started:
    process, folder = _start(store, config, n, salt, **settings)
    _, stderr = process.communicate(timeout=900)
    return Started(folder, process.returncode, stderr)


def _losses(started: Started) -> list[float]:
    return [line["loss"] for line in started.lines]


@pytest.fixture(scope="module")
def foreign(store: Store) -> Started:
    done = _run(store, PLAIN)
    assert done.code == 0, done.stderr[-2000:]
    return done


def test_its_report_and_outputs_are_those_of_any_stage(foreign: Started) -> None:
    report = foreign.report
    assert (report.outcome, report.first_step, report.last_step, report.stop_reason) == ("complete", 0, 8, "last_step")
    manifest = json.loads((foreign.output("policy") / MANIFEST).read_text())
    assert manifest["kind"] == "model"
    assert set(report.outputs) == {"policy"}
    assert report.metrics["share_end_token_learned"] == 1.0
    assert report.summary["tokens"] > 0
    assert report.metrics["train_seconds"] > 0
    assert report.summary["tokens_per_s"] == report.metrics["tokens_per_s"] == report.summary["tokens"] / report.metrics["train_seconds"]
    assert 0 < report.summary["checkpoints"]["stall_share"] < 1
    assert report.summary["peak_memory_bytes"] > 1e8


def test_its_losses_and_rates_are_those_of_our_own_program(store: Store, foreign: Started) -> None:
    own = store.run(store.spec("sft", INPUTS, PLAIN, salt="beside trl"))
    assert _losses(foreign) == pytest.approx(_losses(own), abs=2e-4)
    assert [line["learning_rate"] for line in foreign.lines] == pytest.approx([line["learning_rate"] for line in own.lines])
    assert [line["tokens"] for line in foreign.lines] == [line["tokens"] for line in own.lines]


def test_interrupted_it_saves_and_the_next_attempt_goes_on_where_it_was(store: Store, foreign: Started) -> None:
    longer = {**PLAIN, "steps": 60}
    whole = _run(store, longer, salt="whole")
    process, folder = _start(store, longer, salt="signalled")
    end = time.monotonic() + 600
    while not (folder / "metrics.jsonl").exists() and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=600)
    first = Started(folder, process.returncode, "")
    assert (first.code, first.report.outcome) == (75, "interrupted")
    assert 0 < first.report.last_step < 60
    second = _run(store, longer, n=2, salt="signalled")
    assert second.code == 0, second.stderr[-2000:]
    assert second.report.first_step == first.report.last_step
    assert _losses(first) + _losses(second) == pytest.approx(_losses(whole), abs=1e-6)
    assert second.report.outputs == whole.report.outputs
