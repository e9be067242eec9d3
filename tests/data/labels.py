"""Prompts, candidates and labels made for tests."""

from typing import Any

from include.domain.canonical import digest
from include.domain.records import Candidate, Label, Message, Prompt, SamplingConfig, candidate_id_of, prompt_id_of
from include.domain.split import side_of
from include.transforms.draft import Draft
from include.transforms.split import SplitSettings, group_of

SPLIT = SplitSettings("test-salt", {"train": 0.6, "validation": 0.2, "holdout": 0.2})
POLICY = "sha256:" + "a" * 64
RUBRIC = "made@1"


def prompt(n: int, pii: str = "none") -> Prompt:
    messages = (Message("user", f"Question {n}?"),)
    group = group_of(Draft("made", n, messages, "CC0-1.0", "licence"))
    return Prompt(prompt_id_of(messages), messages, "made", "CC0-1.0", "licence", group, pii=pii, pii_detector="test")


def prompts_on(side: str, n: int, pii: str = "none") -> list[Prompt]:
    """The first `n` prompts on a side of SPLIT."""
    found = (prompt(i, pii) for i in range(10_000))
    on_side = (p for p in found if side_of(SPLIT.salt, p.split_group, p.safety_class, SPLIT.shares) == side)
    return [next(on_side) for _ in range(n)]


def candidate(of: Prompt, text: str, **changed: Any) -> Candidate:
    body: dict[str, Any] = {
        "prompt_id": of.prompt_id,
        "policy_checkpoint": POLICY,
        "tokenizer_version": "t",
        "chat_template": "c",
        "sampling_config": SamplingConfig(1.0, 1.0, 32).to_json(),
        "random_seed": 1,
        "response_text": text,
        "finish_reason": "eos",
        "safety_filter_version": "none",
        "origin": "policy",
        "token_ids": None,
        "tool_calls": None,
        **changed,
    }
    return Candidate.from_json({"candidate_id": candidate_id_of(body), **body})


def label(a: Candidate, b: Candidate, verdict: str, **changed: Any) -> Label:
    """A label of A shown left, unless `swap_flag` says otherwise."""
    swapped = changed.get("swap_flag", False)
    won = {"A": (a, b), "B": (b, a)}.get(verdict)
    body: dict[str, Any] = {
        "task_id": digest("task", [a.candidate_id, b.candidate_id]),
        "batch_id": "batch-1",
        "prompt_id": a.prompt_id,
        "candidate_a_id": a.candidate_id,
        "candidate_b_id": b.candidate_id,
        "verdict": verdict,
        "chosen_candidate_id": won and won[0].candidate_id,
        "rejected_candidate_id": won and won[1].candidate_id,
        "rubric_version": RUBRIC,
        "annotator_id": "annotator-1",
        "annotator_kind": "human",
        "display_order": (b.candidate_id, a.candidate_id) if swapped else (a.candidate_id, b.candidate_id),
        "swap_flag": swapped,
        "dimension_scores": {},
        "reason_codes": (),
        "created_at": "2026-01-01T00:00:00Z",
        **changed,
    }
    body.setdefault("label_id", digest("label-id", {**body, "n": str(body)}))
    return Label(**body)
