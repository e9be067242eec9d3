"""What an attempt cost, what it lost and saved by resuming, and whether preemption would leave it time to save."""

import json
import resource
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from include.domain.layout import AttemptName
from include.runtime.errors import RuntimeFault
from include.runtime.files import read_json
from include.runtime.progress import METRICS, PROGRESS
from include.runtime.ranks import Ranks
from include.runtime.saving import SaveCost
from include.runtime.supersede import attempts_in

REPORT = "report.json"
_TAIL_BYTES = 65_536


@dataclass
class Peaks:
    """The largest memory of any rank, in bytes, and how many GPUs they see together: those of the allocation, whichever process uses them."""

    memory: float = 0.0
    gpu_memory: float = 0.0
    gpus: int = 0

    def look(self, ranks: Ranks) -> None:
        """Of all ranks; every one of them must call it."""
        gpu = float(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else 0.0
        self.memory, self.gpu_memory = ranks.most(float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024), gpu)
        self.gpus = len({name for names in ranks.gather(seen_gpus()) for name in names})


def seen_gpus() -> list[str]:
    """Names of the GPUs that this process sees, the same in each process that sees them."""
    if not torch.cuda.is_available():
        return []
    found = range(torch.cuda.device_count())
    return [str(getattr(torch.cuda.get_device_properties(at), "uuid", f"{socket.gethostname()}/{at}")) for at in found]


def used(seconds: float, ranks: Ranks, peaks: Peaks) -> dict[str, float]:
    """Peak memory, and GPU time where there are GPUs: of all that the ranks see, as Slurm counts them, generators' and servers' among them."""
    if not peaks.memory:
        peaks.look(Ranks())
    figures = {"peak_memory_bytes": peaks.memory, "ranks": float(ranks.count)}
    if torch.cuda.is_available():
        figures["gpu_seconds"] = seconds * peaks.gpus
        figures["peak_gpu_memory_bytes"] = peaks.gpu_memory
    return figures


def furthest_step(attempts: Path, own: str) -> int:
    """The furthest step that an earlier attempt had reached, by its metrics.jsonl, or its progress.json, which may be a little older."""
    folders = [attempts / str(attempt) for attempt in attempts_in(attempts) if str(attempt) != own]
    return max((step for folder in folders for step in (_progress_step(folder / PROGRESS), _metrics_step(folder / METRICS))), default=0)


def _progress_step(path: Path) -> int:
    try:
        return int(read_json(path)["step"]) if path.is_file() else 0
    except (RuntimeFault, KeyError, TypeError, ValueError):
        return 0  # a progress file cut off by the machine's end tells nothing


def _metrics_step(path: Path) -> int:
    """The step of the last whole line."""
    if not path.is_file():
        return 0
    with path.open("rb") as stream:
        stream.seek(-min(_TAIL_BYTES, path.stat().st_size), 2)
        lines = stream.read().split(b"\n")
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (KeyError, TypeError, ValueError):
            continue  # cut off, or empty
    return 0


@dataclass(frozen=True)
class Resumption:
    """Steps done again because they were not in the checkpoint, and steps that the checkpoint spared."""

    steps_lost: int
    steps_spared: int

    def to_json(self, seconds_per_step: float) -> dict[str, float]:
        return {
            "steps_lost": float(self.steps_lost),
            "steps_spared": float(self.steps_spared),
            "seconds_lost": round(self.steps_lost * seconds_per_step, 3),
            "seconds_spared": round(self.steps_spared * seconds_per_step, 3),
        }


def preemption(cost: SaveCost, seconds_per_step: float, resources: Mapping[str, Any]) -> dict[str, Any] | None:
    """Whether a step and a save fit into the notice that the site gives; None where that is not known."""
    notice = resources.get("signal_lead_s")
    if not cost.saves or not isinstance(notice, (int, float)):
        return None
    needed = seconds_per_step + cost.longest_s
    return {"fits": needed <= notice, "needed_s": round(needed, 3), "notice_s": float(notice)}


def against_estimate(estimate: Any, seen: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """What was estimated beside what was seen and their ratio, for each figure that both have."""
    if not isinstance(estimate, Mapping):
        return {}
    rows = {}
    for name, value in seen.items():
        told = estimate.get(name)
        if isinstance(told, (int, float)) and told > 0 and value > 0:
            rows[name] = {"estimated": float(told), "seen": round(value, 4), "ratio": round(value / told, 4)}
    return rows


def earlier_stood_still(attempts: Path, own: str) -> str | None:
    """The attempt before `own`, if it was interrupted without having advanced a step."""
    mine = AttemptName.parse(own)
    earlier = sorted(name for name in attempts_in(attempts) if mine.newer_than(name))
    if not earlier or not (attempts / str(earlier[-1]) / REPORT).is_file():
        return None
    report = read_json(attempts / str(earlier[-1]) / REPORT)
    stood = report.get("outcome") == "interrupted" and report.get("last_step") == report.get("first_step")
    return str(earlier[-1]) if stood and report.get("stop_reason") == "signal" else None
