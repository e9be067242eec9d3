"""What both sides of a comparison are given."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
WARM_UP = 3
"""Updates left out of the measurement: the first ones allocate."""
LEARNING_RATE = 1e-3
BETA = 0.1


@dataclass(frozen=True)
class Workload:
    """Sizes of model, batch and texts; `length` is the longest answer in words, the shortest has a quarter of it."""

    program: str
    batch: int = 16
    steps: int = 25
    length: int = 64
    hidden: int = 128
    layers: int = 4
    threads: int = 2
    precision: str = "fp32"
    packing: bool = False

    @classmethod
    def numbers(cls) -> Iterator[tuple[str, type]]:
        return ((field.name, int) for field in fields(cls) if field.type is int or field.type == "int")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "Workload":
        return cls(**json.loads((folder / "workload.json").read_text("utf-8")))
