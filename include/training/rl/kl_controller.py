"""How strongly PPO is held to the reference: an adaptive coefficient, or a fixed one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CONTROLLERS = ("adaptive", "fixed")


@dataclass
class KlController:
    """The coefficient of the per-token KL, moved after each batch.

    adaptive: × `factor` when the batch's KL (mean over answers of the sum over tokens) is above twice the target,
    ÷ `factor` when below half of it; never below `floor`. fixed: stays at `coefficient`.
    """

    controller: str = "adaptive"
    target: float = 6.0
    coefficient: float = 0.1
    factor: float = 1.5
    floor: float = 1e-4

    def __post_init__(self) -> None:
        if self.controller not in CONTROLLERS:
            raise ValueError(f"kl controller {self.controller!r} is none of {', '.join(CONTROLLERS)}")
        if self.target <= 0 or self.factor <= 1 or self.floor <= 0 or self.coefficient < 0:
            raise ValueError(f"kl: target and floor must be above 0, factor above 1, coefficient not negative: {self}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "KlController":
        """Reads {controller, target, initial, factor, floor}; an unknown key is an error."""
        names = {"controller": "controller", "target": "target", "initial": "coefficient", "factor": "factor", "floor": "floor"}
        if unknown := set(config) - set(names):
            raise ValueError(f"kl.{sorted(unknown)[0]} is not a setting; there are {', '.join(names)}")
        return cls(**{names[key]: value for key, value in config.items()})

    def update(self, batch_kl: float) -> float:
        """Moves the coefficient by one batch's KL and gives the new one."""
        if self.controller == "adaptive":
            if batch_kl > 2 * self.target:
                self.coefficient *= self.factor
            elif batch_kl < self.target / 2:
                self.coefficient = max(self.coefficient / self.factor, self.floor)
        return self.coefficient

    def state(self) -> dict[str, float]:
        return {"coefficient": self.coefficient}

    def load_state(self, state: Mapping[str, float]) -> None:
        self.coefficient = float(state["coefficient"])
