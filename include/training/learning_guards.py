"""Guards of SFT, reward models, DPO and every other loss that is followed step by step: what goes wrong has a name and ends the run.

A guard is asked after each update and before anything of it is saved, so the last good checkpoint stays. Loss and
gradients that are not finite are refused by the engine before the update.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from include.domain.errors import SpecError
from include.runtime.errors import GuardTripped
from include.runtime.settings import Settings

CHECKS: Mapping[str, tuple[str, ...]] = {
    "loss_never_moves": (
        "learning rate: is it above 0 after the warm-up (learning_rate in metrics.jsonl)?",
        "labels: is anything learned (trained_tokens_per_row), do the two sides of pairs differ after truncation?",
        "modes: is the model in train mode with gradients?",
    ),
    "loss_diverging": (
        "learning rate too large, or the warm-up too short?",
        "lengths within a batch too different (group them)?",
        "tokenizers of data, model and reference the same?",
    ),
}
CHECKS = {**CHECKS, "kl_exploding": CHECKS["loss_diverging"], "no_gradient": CHECKS["loss_never_moves"]}


class LearningStop(GuardTripped):
    """A guard ended the run: its name, what was seen, and the checks in the order in which they pay."""

    def __init__(self, guard: str, seen: str) -> None:
        listed = " ".join(f"({i}) {check}" for i, check in enumerate(CHECKS[guard], 1))
        super().__init__(guard, f"{seen}. Check in this order: {listed}")


@dataclass(frozen=True)
class LearningLimits:
    """Thresholds; a recipe may set each of them.

    consecutive: updates in a row before a lasting trouble stops the run.
    flat_steps: over so many updates the loss must move by more than `flat_tolerance` of its size. 0 looks at nothing.
    loss_factor: the loss may not stay above so many times the first one's.
    kl_max: nats an answer; the distance between policy and reference that DPO may not stay above, on either side of 0.
    """

    consecutive: int = 5
    flat_steps: int = 50
    flat_tolerance: float = 1e-6
    loss_factor: float = 3.0
    kl_max: float = 500.0

    def __post_init__(self) -> None:
        if self.consecutive < 1 or self.flat_steps < 0 or self.flat_tolerance < 0 or self.loss_factor <= 1 or self.kl_max <= 0:
            raise SpecError(f"guards: consecutive and kl_max must be above 0, loss_factor above 1, the others not below 0: {self}")

    @classmethod
    def of(cls, config: Settings) -> "LearningLimits":
        """The section `guards` of a run's configuration; what it leaves out has its default."""
        given = config.section("guards", {})
        given.only(*(f.name for f in fields(cls)))
        whole = {name: given.integer(name, getattr(cls, name)) for name in ("consecutive", "flat_steps")}
        parts = {name: given.number(name, getattr(cls, name)) for name in ("flat_tolerance", "loss_factor", "kl_max")}
        return cls(**whole, **parts)  # type: ignore[arg-type]


class LearningGuards:
    """Sees every update once, in order; its history is part of a checkpoint."""

    def __init__(self, limits: LearningLimits) -> None:
        self.limits = limits
        self._losses: list[float] = []
        self._first = math.nan
        self._counts = {"loss_diverging": 0, "kl_exploding": 0, "no_gradient": 0}

    def check(self, step: int, figures: Mapping[str, float]) -> None:
        """After update `step` (from 1), on its figures: loss, grad_norm, kl_estimate where there is a reference, and kto's reference_point.

        Raises:
            LearningStop: a guard has tripped; the message names it, what was seen and what to check.
        """
        loss = figures["loss"]
        if math.isnan(self._first):
            self._first = loss
        self._lasting("no_gradient", figures["grad_norm"] == 0, f"step {step}: the gradient is exactly 0")
        high = self.limits.loss_factor * max(abs(self._first), 1e-3)
        self._lasting("loss_diverging", loss > high, f"step {step}: the loss is {loss:.4g}, at first it was {self._first:.4g}")
        kl = max(figures.get("kl_estimate", 0.0), figures.get("reference_point", 0.0), key=abs)
        self._lasting("kl_exploding", abs(kl) > self.limits.kl_max, f"step {step}: policy and reference are {kl:.4g} nats an answer apart")
        self._flat(step, loss)

    def _lasting(self, guard: str, seen: bool, told: str) -> None:
        self._counts[guard] = self._counts[guard] + 1 if seen else 0
        if self._counts[guard] >= self.limits.consecutive:
            raise LearningStop(guard, f"{told} ({self._counts[guard]} updates in a row)")

    def _flat(self, step: int, loss: float) -> None:
        if not self.limits.flat_steps:
            return
        self._losses = [*self._losses, loss][-self.limits.flat_steps :]
        if len(self._losses) == self.limits.flat_steps and _range(self._losses) <= self.limits.flat_tolerance * abs(loss):
            raise LearningStop("loss_never_moves", f"step {step}: the loss has been {loss:.6g} for {self.limits.flat_steps} updates")

    def state(self) -> dict[str, Any]:
        first = None if math.isnan(self._first) else self._first
        return {"losses": list(self._losses), "first": first, "counts": dict(self._counts)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._losses = list(state["losses"])
        self._first = math.nan if state["first"] is None else state["first"]
        self._counts = dict(state["counts"])


def _range(values: Sequence[float]) -> float:
    return max(values) - min(values)
