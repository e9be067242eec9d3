"""What both sides of a comparison are given."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
WARM_UP = 3
"""Updates left out of the measurement: the first ones allocate. The last one is left out too: our reward model then looks at validation pairs."""
LEARNING_RATE = 1e-3
GIVEN_LEARNING_RATE = 1e-5
"""For a model that is given, which a larger one would throw off: rounding then grows from update to update."""
PPO_LEARNING_RATE = 1e-6
"""So small that the policy, and with it the length of its answers, stays what it was."""
BETA = 0.1
KL = 0.05
REWARD_SEED = 5
PROGRAMS = ("sft", "reward", "dpo")


@dataclass(frozen=True)
class Workload:
    """Sizes of model, batch and texts; `length` is the longest answer in words, the shortest has a quarter of it.

    batch: examples of an update over all ranks; of PPO the answers of an iteration. save_every: updates between two checkpoints, 0: none.
    vocabulary: 0 is the tiny model with a tokenizer's own; else random weights of a model with so many rows of embeddings.
    base: a folder that base import made, or a GGUF file; empty: made anew. new_tokens, epochs: PPO's. micro_batch: rows that our side
    computes at once, of like length where the program groups by it; 0: all of a rank's. TRL has all at once. device: cpu or cuda.
    reuse: our PPO learns from the passes that gave the old log-probabilities and values (`reuse_first_pass`).
    """

    program: str
    batch: int = 16
    steps: int = 25
    length: int = 64
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    vocabulary: int = 0
    threads: int = 2
    ranks: int = 1
    save_every: int = 0
    new_tokens: int = 48
    epochs: int = 2
    micro_batch: int = 0
    precision: str = "fp32"
    device: str = "cpu"
    packing: bool = False
    base: str = ""
    reuse: bool = True

    def __post_init__(self) -> None:
        if self.steps < WARM_UP + 3:
            raise ValueError(
                f"steps is {self.steps}: the first {WARM_UP} and the last one are not measured, so at least {WARM_UP + 3} are needed"
            )
        if self.batch % self.ranks:
            raise ValueError(f"batch {self.batch} cannot be shared by {self.ranks} ranks alike")

    @property
    def measured(self) -> int:
        """Updates between the first and the last moment that are compared."""
        return self.steps - WARM_UP - 1

    @property
    def learning_rate(self) -> float:
        return GIVEN_LEARNING_RATE if self.base else LEARNING_RATE

    @property
    def max_length(self) -> int:
        """Tokens that the longest sequence may have: a word takes about four at most."""
        return 64 + 8 * self.length

    @classmethod
    def numbers(cls) -> Iterator[tuple[str, type]]:
        return ((field.name, int) for field in fields(cls) if field.type is int or field.type == "int")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "Workload":
        return cls(**json.loads((folder / "workload.json").read_text("utf-8")))


LOGGED = 5
"""Updates whose mean loss is one figure of the comparison."""
EQUAL_LOSS = {"fp32": 1e-3, "bf16": 2e-2}
"""By how much the losses of two runs of equal work may differ at most: rounding grows from update to update."""


EQUAL_ANSWERS = 0.05
"""By what share the mean lengths of drawn answers may differ at most: each side draws its own, and longer ones are more work."""


def means_of(losses: Sequence[float]) -> list[float]:
    """The mean loss of each whole group of `LOGGED` updates, as TRL's log tells it."""
    return [sum(losses[at : at + LOGGED]) / LOGGED for at in range(0, len(losses) - LOGGED + 1, LOGGED)]


def seconds_of(ends: list[float]) -> float:
    """From the end of the last update of the warm-up to that of the last but one."""
    return ends[-2] - ends[WARM_UP - 1]
