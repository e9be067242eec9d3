"""Settings of low-rank adapters, for every stage that has them."""

from pydantic import Field

from include.settings.base import Settings


class LoraSettings(Settings):
    """Low-rank adapters instead of all weights. `alpha` left out is twice the rank, `targets` all linear layers of a block."""

    rank: int = Field(16, ge=1)
    alpha: float | None = Field(None, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: tuple[str, ...] | None = None
