"""What an evaluation has found so far: plain values by deployment and suite, saved after every unit of work."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from include.eval.answers import Answer
from include.eval.errors import EvaluationError
from include.eval.latency import Sample

PART_FILE = "findings.json"
PART_SCHEMA = "align/findings/v1"
KINDS = ("answers", "choices", "rewards", "dimensions")
"""What is found of single models, as `Findings` names it."""
Values = dict[str, dict[str, list[Any]]]


def _nested() -> Values:
    return defaultdict(lambda: defaultdict(list))


@dataclass
class Findings:
    """deployment → suite → one value an entry, in the suite's order: answers, log-probabilities of options, rewards, and the points
    by dimension that the reward model gives."""

    answers: Values = field(default_factory=_nested)
    choices: Values = field(default_factory=_nested)
    rewards: Values = field(default_factory=_nested)
    dimensions: Values = field(default_factory=_nested)
    latency: dict[str, list[Sample]] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    """On how many each deployment ran while latency was measured."""
    hardware: str = ""
    generation_seconds: float = 0.0
    generated_tokens: int = 0

    def add(self, other: "Findings") -> None:
        """Takes what another run found about single models, where it is more than is known here. Latency is never taken."""
        took = False
        for kind in KINDS:
            mine, given = getattr(self, kind), getattr(other, kind)
            for deployment, suites in given.items():
                for suite, values in suites.items():
                    if len(values) > len(mine[deployment][suite]):
                        mine[deployment][suite], took = list(values), True
        if took:
            self.generation_seconds += other.generation_seconds
            self.generated_tokens += other.generated_tokens

    def to_bytes(self) -> bytes:
        body = {
            "answers": {d: {s: [a.to_json() for a in found] for s, found in suites.items()} for d, suites in self.answers.items()},
            **{kind: getattr(self, kind) for kind in KINDS[1:]},
            "latency": {d: [vars(sample) for sample in samples] for d, samples in self.latency.items()},
            "hardware": self.hardware,
            "devices": self.devices,
            "generation_seconds": self.generation_seconds,
            "generated_tokens": self.generated_tokens,
        }
        return json.dumps(body, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Findings":
        body = json.loads(data)
        found = cls(hardware=body["hardware"], generation_seconds=body["generation_seconds"], generated_tokens=body["generated_tokens"])
        for kind in KINDS:
            for deployment, suites in body[kind].items():
                for suite, values in suites.items():
                    getattr(found, kind)[deployment][suite] = [Answer.from_json(v) for v in values] if kind == "answers" else values
        found.devices = {d: int(count) for d, count in body.get("devices", {}).items()}
        found.latency = {d: [Sample(**sample) for sample in samples] for d, samples in body["latency"].items()}
        return found


def write_part(folder: Path, findings: Findings, backends: Mapping[str, str]) -> None:
    """What a part found, for the whole. `backends`: deployment → what computed its numbers."""
    body = {"schema": PART_SCHEMA, "backends": dict(backends), "findings": json.loads(findings.to_bytes())}
    (folder / PART_FILE).write_text(json.dumps(body, sort_keys=True, allow_nan=False) + "\n", "utf-8")


def read_part(folder: Path) -> tuple[Findings, dict[str, str]]:
    """What a part found, and on what backends."""
    body = json.loads((folder / PART_FILE).read_bytes())
    if body.get("schema") != PART_SCHEMA:
        raise EvaluationError(f"{folder / PART_FILE} has schema {body.get('schema')!r}, expected {PART_SCHEMA!r}")
    return Findings.from_bytes(json.dumps(body["findings"]).encode()), dict(body["backends"])
