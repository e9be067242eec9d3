"""How answers are compared, and how labels become pairs."""

import math
from typing import Literal

from pydantic import Field, model_validator

from include.settings.base import Settings, added_identity


class AnnotationSettings(Settings):
    """Preference collection."""

    rubric: str
    """name@version in configs/rubrics."""
    human_tasks: int = Field(0, ge=0)
    """Comparisons kept for people; the verifier takes the rest. With an unattended demonstration the verifier takes all. Without a
    verifier: so many are compared at all, drawn by hash; 0: all of them."""
    verifier: bool = True
    comparisons_per_prompt: int = added_identity(1, ge=1)
    """So many pairs of a prompt's different answers are compared at most; more than one needs `generate.candidates_per_prompt` above 2."""
    short_answer_share: float = added_identity(0.0, ge=0, le=1)
    """Where fewer comparisons are labelled than there are: so many of them at least, as far as there are any, have one answer that is
    at most two thirds as long as the other, so that short and good ones are seen to win."""
    overlap_share: float = Field(0.0, ge=0, le=1)
    overlap_annotators: int = added_identity(2, ge=2, le=50)
    """So many different people get each comparison of the share."""
    max_annotator_share: float | None = added_identity(None, gt=0, le=1)
    """Of the labels that people are asked for, one person gives at most this share."""
    gold: str | None = added_identity(None)
    """name@version in configs/gold: comparisons whose verdict is known, mixed unseen among people's work."""
    gold_share: float = added_identity(0.05, gt=0, le=1)
    """Gold items for each comparison that people get, drawn anew for each batch."""
    min_gold_accuracy: float | None = added_identity(None, ge=0, le=1)
    """Whose gold accuracy is below it, their labels of the batch are held for review: listed, and not used."""
    min_gold_labels: int = added_identity(5, ge=1)
    """Before so many gold labels nobody is judged by them."""
    gold_reviewed: tuple[str, ...] = added_identity(())
    """Annotators whose held labels somebody has looked at and accepts."""
    min_labels: int = Field(ge=1)
    min_decided: int = Field(1, ge=1)
    min_agreement: float = Field(0.6, ge=-1, le=1)
    min_kappa: float | None = added_identity(None, ge=-1, le=1)
    """Agreement beyond chance (Cohen's kappa) that is required; below it the rubric is reviewed. Left out: a warning below 0.6 is all."""
    agreement_not_applicable_passes: bool = False
    settle_hours: float | None = added_identity(None, ge=0)
    """With enough labels, and none new for so long, comparisons that people have not got to are given up. Left out: all are waited for."""
    max_age_hours: float = Field(168.0, gt=0)
    """How old the newest label of a batch may be when the first run takes it; what a run has taken does not grow too old."""
    timeout_hours: float = Field(72.0, gt=0)

    @model_validator(mode="after")
    def _gold_fits(self) -> "AnnotationSettings":
        if self.min_gold_accuracy is not None and self.gold is None:
            raise ValueError("min_gold_accuracy needs `gold`: without gold items nobody's accuracy is known")
        return self

    def surely_decided(self, comparisons: int) -> int:
        """So many of a batch's `comparisons` have a decided label at least once `min_decided` labels are: some comparisons get several."""
        people = min(self.human_tasks, comparisons) if self.human_tasks or self.verifier else comparisons
        several = math.ceil(people * self.overlap_share - 1e-9)
        again = several * (self.overlap_annotators - 1)
        return max(self.min_decided - again, math.ceil(self.min_decided / self.overlap_annotators) if again else 0)


class PreferenceSettings(Settings):
    """How labels become pairs."""

    aggregation: Literal["majority@1"] = "majority@1"
    rubrics: tuple[str, ...]
    max_imported_share: float = Field(0.0, ge=0, le=1)
    max_pairs_per_prompt: int = Field(4, ge=1)
    reward_max_imported_share: float = Field(0.0, ge=0, le=1)
    min_train_pairs: int = Field(8, ge=1)
    min_short_win_share: float = added_identity(0.2, ge=0, le=1)
    """Below this share of wins of the short answer, among pairs that have one, there is a warning."""
    earlier_batches: int = added_identity(0, ge=0)
    """Labels of so many earlier batches of the project are learnt from too, the newest ones, under the rubrics that are named."""
