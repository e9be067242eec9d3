"""Turns of both sides, each a process (or one a rank) of its own, alternating; what they measured, side by side."""

import json
import math
import os
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.training.workload import PROJECT, Workload, seconds_of
from local.layout import Layout

_LAYOUT = Layout.find()
OURS = _LAYOUT.built_cluster_environment / "bin/python"
PEERS = _LAYOUT.peers_environment / "bin/python"
PPO_TRL = PROJECT / ".local" / "trl-1.9.2"
SIDES = ("ours", "trl")
LONGEST_S = 3600


@dataclass
class Measured:
    """One workload: what each side's turns told, in their order."""

    load: Workload
    parameters: int
    tokens_per_step: float
    turns: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {side: [] for side in SIDES})

    def seconds(self, side: str) -> list[float]:
        """Seconds an update, of each turn."""
        return [seconds_of(found["ends"]) / self.load.measured for found in self.turns[side]]

    def cpu_ratio(self) -> float:
        """The same by CPU seconds of an update, which other work on the machine changes least."""
        if not all(self.turns.values()):
            return math.nan
        spent = {side: statistics.median(seconds_of(found["cpu"]) for found in self.turns[side]) for side in SIDES}
        return spent["trl"] / spent["ours"]

    def loss_difference(self) -> float:
        """The largest difference between the sides' mean losses of the same updates, over the whole run and all rounds."""
        pairs = zip(self.turns["ours"], self.turns["trl"], strict=True)
        found = [abs(a - b) for ours, trl in pairs for a, b in zip(ours["losses"], trl["losses"], strict=True)]
        return max(found, key=lambda difference: float("inf") if math.isnan(difference) else difference)

    def answer_tokens(self, side: str) -> float:
        """The mean length of the answers that a side's turns of PPO have drawn."""
        return statistics.mean(found["answer_tokens"] for found in self.turns[side])

    def median(self, side: str) -> float:
        """Seconds an update; not a number where the side had no turn."""
        return statistics.median(self.seconds(side)) if self.turns[side] else math.nan

    def tokens_per_s(self, side: str) -> float:
        return self.tokens_per_step / self.median(side)

    @property
    def ratio(self) -> float:
        """How many times as fast ours is, by the medians."""
        return self.median("trl") / self.median("ours")


def environment(load: Workload, side: str) -> dict[str, str]:
    """Of every process of a turn."""
    paths = [str(PROJECT), str(PROJECT / "plugins")]
    if side == "trl" and load.program == "ppo":
        paths.insert(0, str(PPO_TRL))
    given = {**os.environ, "OMP_NUM_THREADS": str(load.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    given |= {"PYTHONPATH": os.pathsep.join(paths), "TRL_EXPERIMENTAL_SILENCE": "1"}
    return given if load.device == "cuda" else {**given, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}


def _places(load: Workload) -> list[Mapping[str, str]]:
    """What tells each rank which it is."""
    if load.ranks == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(load.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(load.ranks)]


def turn(side: str, folder: Path, load: Workload, number: int) -> dict[str, Any]:
    """One run of one side; gives the ends of its updates and its losses."""
    module = "benchmarks.training.ours" if side == "ours" else f"benchmarks.training.trl_{'ppo' if load.program == 'ppo' else 'side'}"
    out = folder / f"{side}-{number}.json"
    argv = [str(OURS if side == "ours" else PEERS), "-W", "ignore", "-m", module, str(folder), str(out), str(number)]
    given, log = environment(load, side), folder / f"{side}-{number}.log"
    with log.open("wb") as said:
        started = [subprocess.Popen(argv, env={**given, **place}, cwd=PROJECT, stdout=said, stderr=said) for place in _places(load)]
        try:
            codes = [process.wait(LONGEST_S) for process in started]
        finally:
            for process in started:
                process.kill()
    if any(codes) or not out.exists():
        raise SystemExit(f"{side} ended with {codes}:\n{log.read_text('utf-8', 'replace')[-3000:]}")
    found: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return found


@contextmanager
def prepared(load: Workload, sides: Sequence[str] = SIDES) -> Iterator[tuple[Path, Measured]]:
    """A folder with base and rows, and an empty measurement."""
    needed = [OURS, *([PEERS] if "trl" in sides else []), *([PPO_TRL] if "trl" in sides and load.program == "ppo" else [])]
    missing = [path for path in needed if not path.exists()]
    if missing:
        raise SystemExit(f"{missing[0]} is missing: see docs/benchmarks.md, 'Training beside TRL'")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _made(folder, load)
        told = json.loads((folder / "rows.json").read_text("utf-8"))
        yield folder, Measured(load, told["parameters"], told["tokens"] / load.steps)


def _made(folder: Path, load: Workload, *what: str) -> None:
    (folder / "workload.json").write_text(load.to_json(), "utf-8")
    argv = [str(OURS), "-W", "ignore", "-m", "benchmarks.training.ours", str(folder), *what]
    done = subprocess.run(argv, env=environment(load, "ours"), cwd=PROJECT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"base and rows could not be made:\n{done.stderr[-3000:]}")


def random_base(folder: Path, load: Workload) -> Path:
    """The workload's base alone, made below `folder`; several workloads can then name it."""
    _made(folder, load, "base")
    return Path(json.loads((folder / "base.json").read_text("utf-8")))


def alternate(folder: Path, measured: Measured, rounds: int, sides: Sequence[str] = SIDES) -> Iterator[tuple[str, dict[str, Any]]]:
    """Turn after turn, the order of sides exchanged each round; each is kept in `measured`."""
    for number in range(rounds):
        for side in sides if number % 2 == 0 else sides[::-1]:
            found = turn(side, folder, measured.load, number)
            measured.turns[side].append(found)
            yield side, found


def compare(load: Workload, rounds: int, sides: Sequence[str] = SIDES) -> Measured:
    """All rounds without a word."""
    with prepared(load, sides) as (folder, measured):
        for _ in alternate(folder, measured, rounds, sides):
            pass
    return measured
