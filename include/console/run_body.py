"""What a request for an alignment run says, and how it is refused when it says something that cannot be done."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from include.domain.errors import AlignmentError

_Name = Annotated[str, Field(min_length=1, max_length=300, pattern=r"^[^\s\x00-\x1f]+$")]


class RunBody(BaseModel):
    """POST /v1/alignment-runs. `rewardModel` may be left out: then the newest that passed its gate and came from the same SFT model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["dpo", "ppo"]
    baseCheckpoint: _Name
    referenceCheckpoint: _Name
    dataset: _Name
    config: _Name
    rewardModel: _Name | None = None


class CompareBody(BaseModel):
    """POST /v1/alignment-runs/compare."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runs: Annotated[list[_Name], Field(min_length=2, max_length=10)]


class FieldRefused(AlignmentError):
    """A field of a request that cannot be honoured; `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class Unusable(AlignmentError):
    """What answers requests is not there, or not ready; the message says what to do."""
