"""Settings of what a reward model learns beside the preference."""

from typing import Annotated

from pydantic import Field, model_validator

from include.settings.base import Settings, added_identity


class DimensionSettings(Settings):
    """Which dimensions of the rubric, and how much they weigh."""

    dimensions: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")], ...] = added_identity(())
    """Dimensions of the rubric that are learnt beside the preference, from the scores that labels gave chosen answers."""
    dimension_weight: float = added_identity(0.1, gt=0)
    """Of their mean squared error, beside the Bradley-Terry loss."""

    @model_validator(mode="after")
    def _dimensions_of_a_rubric(self) -> "DimensionSettings":
        if len(set(self.dimensions)) != len(self.dimensions) or "preference" in self.dimensions:
            raise ValueError(f"dimensions {list(self.dimensions)}: each once, and none called preference, which is the first output's name")
        if not self.dimensions and self.dimension_weight != type(self).model_fields["dimension_weight"].default:
            raise ValueError("dimension_weight weighs dimensions, and none is named")
        return self
