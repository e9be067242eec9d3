"""What the annotation service is asked for: comparisons, as annotators may see them, and the batch that they make."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from include.domain.records import Candidate, Prompt, Rubric


@dataclass(frozen=True)
class Gold:
    """The verdict that is known to be right, and by whom it was confirmed."""

    verdict: str
    confirmed_by: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """Two answers to one prompt, to be compared."""

    prompt: Prompt
    candidate_a: Candidate
    candidate_b: Candidate
    gold: Gold | None = None

    def to_request(self) -> dict[str, Any]:
        """What annotators may see of it."""
        prompt = self.prompt.to_json()
        body: dict[str, Any] = {"prompt": {key: prompt[key] for key in ("prompt_id", "messages", "tools", "pii", "pii_detector")}}
        for side, candidate in (("candidate_a", self.candidate_a), ("candidate_b", self.candidate_b)):
            answer = candidate.to_json()
            body[side] = {key: answer[key] for key in ("candidate_id", "response_text", "tool_calls")}
        body["gold"] = {"verdict": self.gold.verdict, "confirmed_by": list(self.gold.confirmed_by)} if self.gold else None
        return body


@dataclass(frozen=True)
class BatchRequest:
    """A batch to be made: `human` of the tasks go to people, the rest to the verifier.

    overlap_share: of the people's tasks, the share that `overlap_annotators` different people get each.
    gold_items: comparisons with a known verdict, mixed unseen into the people's work; their labels stay out of this batch.
    per_annotator: so many of the people's tasks one of them is given at most. review: below which gold accuracy, of how many gold
    labels at least, an annotator is listed for review. not_by: annotators (pseudonyms) who are given none of the tasks.
    """

    purpose: str
    rubric: Rubric
    tasks: Sequence[Comparison]
    human: int
    overlap_share: float = 0.0
    overlap_annotators: int = 2
    gold_items: Sequence[Comparison] = ()
    per_annotator: int | None = None
    review: tuple[float, int] | None = None
    not_by: Sequence[str] = ()

    def to_request(self) -> dict[str, Any]:
        return {
            "purpose": self.purpose,
            "rubric": self.rubric.to_json(),
            "tasks": [task.to_request() for task in self.tasks],
            "assignment": {
                "human": self.human,
                "verifier": "rest",
                **({"per_annotator": self.per_annotator} if self.per_annotator else {}),
                **({"not_by": sorted(self.not_by)} if self.not_by else {}),
            },
            "overlap": {"share": self.overlap_share, "annotators": self.overlap_annotators},
            "gold_items": [item.to_request() for item in self.gold_items],
            **({"review": {"min_gold_accuracy": self.review[0], "min_gold_labels": self.review[1]}} if self.review else {}),
        }
