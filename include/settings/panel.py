"""How people compare the candidate's answers with others', blindly, for the gate."""

from pydantic import Field, model_validator

from include.settings.annotation import AnnotationSettings

_OF_TRAINING = ("verifier", "comparisons_per_prompt", "short_answer_share")


class PanelSettings(AnnotationSettings):
    """The panel of people. Counts are of the comparisons with one baseline: each has a batch of its own.

    `human_tasks`: so many items of the suite are compared at most, the first of its fixed order; 0: all of them.
    """

    verifier: bool = False
    min_decided: int = Field(0, ge=0)
    """Ties are an answer too: two models may be equally good."""
    min_annotators: int = Field(2, ge=1)
    """So many different people must have compared."""
    not_trainers: bool = True
    """Who labelled comparisons that the candidate learnt from is not counted among them."""

    @model_validator(mode="after")
    def _people_alone(self) -> "PanelSettings":
        usual = {name: PanelSettings.model_fields[name].default for name in _OF_TRAINING}
        if given := [name for name, value in usual.items() if getattr(self, name) != value]:
            raise ValueError(f"{given[0]} belongs to `annotation`: a panel is of people alone, and compares each item once with a baseline")
        return self
