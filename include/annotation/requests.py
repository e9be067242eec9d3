"""What comes in over HTTP: strict, so that nothing the annotators must not know can even be sent."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

MAX_TEXT = 1_000_000
MAX_TASKS = 20_000
MAX_MESSAGES = 1_000

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
LongText = Annotated[str, StringConstraints(max_length=MAX_TEXT)]
Verdict = Literal["A", "B", "tie", "both_bad", "cannot_judge"]
ShownVerdict = Literal["left", "right", "tie", "both_bad", "cannot_judge"]
Purpose = Literal["train", "gold", "calibration", "evaluation"]
ToolCalls = list[dict[str, Any]]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MessageIn(Strict):
    role: Literal["system", "user", "assistant", "tool"]
    content: LongText
    tool_calls: ToolCalls | None = None
    name: Name | None = None


class PromptIn(Strict):
    """A prompt as annotators may see it: masked, and without the reference."""

    prompt_id: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
    messages: list[MessageIn] = Field(min_length=1, max_length=MAX_MESSAGES)
    tools: list[dict[str, Any]] | None = None
    pii: str
    pii_detector: Annotated[str, StringConstraints(max_length=200)] = ""

    @model_validator(mode="before")
    @classmethod
    def _not_the_reference(cls, value: Any) -> Any:
        if isinstance(value, dict) and "reference" in value:
            raise ValueError("a prompt's reference must never be sent to the annotation service")
        return value

    @model_validator(mode="after")
    def _only_known_pii(self) -> "PromptIn":
        if self.pii not in ("none", "masked"):
            raise ValueError(f"pii is {self.pii!r}: annotators see only prompts found free of personal data ('none') or masked ('masked')")
        return self


class CandidateIn(Strict):
    candidate_id: Name
    response_text: LongText
    tool_calls: ToolCalls | None = None


class GoldIn(Strict):
    verdict: Verdict
    confirmed_by: list[Name] = Field(min_length=1)


class TaskIn(Strict):
    prompt: PromptIn
    candidate_a: CandidateIn
    candidate_b: CandidateIn
    gold: GoldIn | None = None

    @model_validator(mode="after")
    def _two_candidates(self) -> "TaskIn":
        if self.candidate_a.candidate_id == self.candidate_b.candidate_id:
            raise ValueError("a candidate can't be compared with itself")
        return self


class RubricIn(Strict):
    rubric_id: Name
    version: Name
    text: LongText
    dimensions: list[Name] = Field(max_length=20)
    reason_codes: list[Name] = Field(max_length=100)


class OverlapIn(Strict):
    share: float = Field(0.0, ge=0.0, le=1.0)
    annotators: int = Field(2, ge=2, le=50)


class AssignmentIn(Strict):
    human: Annotated[int, Field(ge=0)] | Literal["rest"]
    verifier: Annotated[int, Field(ge=0)] | Literal["rest"]
    per_annotator: Annotated[int, Field(ge=1)] | None = None
    """So many of the people's tasks one of them is given at most."""
    not_by: Annotated[list[Name], Field(max_length=10_000)] | None = None
    """Pseudonyms of annotators who are given none of them."""

    def human_of(self, total: int) -> int:
        """How many of `total` tasks go to people. Raises ValueError when the two shares do not make up the whole."""
        if self.human == "rest" and self.verifier == "rest":
            raise ValueError("assignment: only one of human and verifier can be 'rest'")
        human = total - int(self.verifier) if self.human == "rest" else int(self.human)
        verifier = total - human if self.verifier == "rest" else int(self.verifier)
        if human < 0 or verifier < 0 or human + verifier != total:
            raise ValueError(f"assignment: human {self.human} and verifier {self.verifier} do not make up {total} tasks")
        return human


class ReviewIn(Strict):
    """Who is listed for review: below this gold accuracy, once there are so many gold labels."""

    min_gold_accuracy: float = Field(ge=0.0, le=1.0)
    min_gold_labels: int = Field(ge=1)


class BatchIn(Strict):
    purpose: Purpose
    rubric: RubricIn
    tasks: list[TaskIn] = Field(min_length=1, max_length=MAX_TASKS)
    assignment: AssignmentIn
    overlap: OverlapIn = OverlapIn(share=0.0, annotators=2)
    gold_items: list[TaskIn] = Field(default_factory=list, max_length=MAX_TASKS)
    review: ReviewIn | None = None

    def to_body(self) -> dict[str, Any]:
        """What the batch's digest is taken of: without what came later and is not used, so that it is the digest it always was."""
        body = self.model_dump()
        if self.review is None:
            del body["review"]
        if self.assignment.per_annotator is None:
            del body["assignment"]["per_annotator"]
        if self.assignment.not_by is None:
            del body["assignment"]["not_by"]
        return body

    @model_validator(mode="after")
    def _consistent(self) -> "BatchIn":
        self.assignment.human_of(len(self.tasks))
        gold = [task.gold is not None for task in self.tasks]
        if self.purpose == "gold" and not all(gold):
            raise ValueError("every task of a gold batch needs its gold verdict")
        if self.purpose != "gold" and any(gold):
            raise ValueError("only a gold batch has gold verdicts on its tasks; mix known ones in through gold_items")
        if self.purpose == "gold" and self.gold_items:
            raise ValueError("a gold batch has no gold_items: all its tasks are gold")
        if not all(item.gold for item in self.gold_items):
            raise ValueError("every one of gold_items needs its gold verdict")
        seen: set[tuple[str, frozenset[str]]] = set()
        for task in [*self.tasks, *self.gold_items]:
            pair = (task.prompt.prompt_id, frozenset((task.candidate_a.candidate_id, task.candidate_b.candidate_id)))
            if pair in seen:
                raise ValueError(f"the same two candidates are compared twice for {pair[0]}")
            seen.add(pair)
        return self


class LabelIn(Strict):
    """A judgement in terms of what was seen: left and right, never A and B."""

    verdict: ShownVerdict
    reason_codes: list[Name] = Field(default_factory=list, max_length=100)
    dimension_scores: dict[Name, Annotated[int, Field(ge=1, le=5)]] = Field(default_factory=dict)
    supersedes: Name | None = None


class WithdrawalIn(Strict):
    reason: Annotated[str, StringConstraints(min_length=1, max_length=2_000)]


class ErasureIn(Strict):
    """Prompts whose texts go, by id."""

    prompt_ids: list[Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]] = Field(min_length=1, max_length=1_000)
