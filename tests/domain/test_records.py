"""Records: strict forms, and what contradicts itself is refused."""

from typing import Any

import pytest

from include.domain.errors import RecordError
from include.domain.records import Candidate, Demonstration, Label, Message, Prompt, Reference, SamplingConfig, prompt_id_of, record_digest

DIGEST = "sha256:" + "0" * 64


def prompt(text: str = "What is 2 + 3?", **changed: Any) -> Prompt:
    messages = (Message("user", text),)
    given = {"source": "test", "licence": "Apache-2.0", "usage_basis": "licence", "split_group": "g"}
    return Prompt(prompt_id_of(messages), messages, **{**given, **changed})


def label(**changed: Any) -> Label:
    given: dict[str, Any] = {
        "label_id": "l1",
        "task_id": "t1",
        "batch_id": "b1",
        "prompt_id": DIGEST,
        "candidate_a_id": "a",
        "candidate_b_id": "b",
        "verdict": "A",
        "chosen_candidate_id": "a",
        "rejected_candidate_id": "b",
        "rubric_version": "r@1",
        "annotator_id": "p1",
        "annotator_kind": "human",
        "display_order": ("b", "a"),
        "swap_flag": True,
        "dimension_scores": {"clarity": 4},
        "reason_codes": (),
        "created_at": "2026-01-01T00:00:00+00:00",
    }
    return Label(**{**given, **changed})


def test_a_prompt_survives_the_round_trip() -> None:
    tools = ({"name": "sum", "parameters": {"type": "object"}},)
    messages = (
        Message("system", "Be brief."),
        Message("user", "2+3"),
        Message("assistant", "", ({"id": "1"},)),
        Message("tool", "5", name="sum"),
    )
    before = Prompt(
        prompt_id_of(messages, tools), messages, "s", "MIT", "licence", "g", tools=tools, reference=Reference("arithmetic", "1", "5")
    )
    assert Prompt.from_json(before.to_json()) == before


def test_the_reference_is_outside_prompt_id_and_inside_the_record() -> None:
    plain, checked = prompt(), prompt(reference=Reference("arithmetic", "1", "5"))
    assert plain.prompt_id == checked.prompt_id
    assert record_digest("prompt-record", plain) != record_digest("prompt-record", checked)


def test_a_prompt_under_another_id_is_refused() -> None:
    with pytest.raises(RecordError, match="prompt_id"):
        Prompt(DIGEST, (Message("user", "x"),), "s", "MIT", "licence", "g")


def test_a_prompt_that_ends_with_the_assistant_is_refused() -> None:
    messages = (Message("user", "x"), Message("assistant", "y"))
    with pytest.raises(RecordError, match="ends with assistant"):
        Prompt(prompt_id_of(messages), messages, "s", "MIT", "licence", "g")


def test_an_unknown_field_is_named_with_the_known_ones() -> None:
    with pytest.raises(RecordError, match="'contnet'.*content"):
        Message.from_json({"role": "user", "contnet": "x"})


def test_a_demonstration_without_an_answer_is_refused() -> None:
    with pytest.raises(RecordError, match="assistant"):
        Demonstration("e", prompt(), (Message("user", "again"),), "s", "MIT")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"verdict": "left"}, "verdict"),
        ({"verdict": "tie"}, "contradict"),
        ({"chosen_candidate_id": "b", "rejected_candidate_id": "a"}, "contradict"),
        ({"swap_flag": False}, "swap_flag"),
        ({"display_order": ("a", "x")}, "display_order"),
        ({"candidate_b_id": "a"}, "itself"),
        ({"dimension_scores": {"clarity": 6}}, "1 to 5"),
        ({"dimension_scores": {"clarity": True}}, "1 to 5"),
        ({"annotator_kind": "robot"}, "annotator_kind"),
    ],
)
def test_a_label_that_contradicts_itself_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(RecordError, match=words):
        label(**changed)


@pytest.mark.parametrize("verdict", ["tie", "both_bad", "cannot_judge"])
def test_nobody_is_forced_to_choose(verdict: str) -> None:
    undecided = label(verdict=verdict, chosen_candidate_id=None, rejected_candidate_id=None)
    assert Label.from_json(undecided.to_json()) == undecided


def candidate(**changed: Any) -> Candidate:
    given: dict[str, Any] = {
        "candidate_id": "c",
        "prompt_id": DIGEST,
        "policy_checkpoint": DIGEST,
        "tokenizer_version": DIGEST,
        "chat_template": DIGEST,
        "sampling_config": SamplingConfig(1.0, 1.0, 32),
        "random_seed": 1,
        "response_text": "5",
        "finish_reason": "eos",
        "safety_filter_version": "none@1",
    }
    return Candidate(**{**given, **changed})


def test_a_candidate_of_a_policy_names_its_checkpoint() -> None:
    assert candidate().traced
    with pytest.raises(RecordError, match="policy_checkpoint"):
        candidate(policy_checkpoint=None)


@pytest.mark.parametrize("origin", ["external:forum@" + DIGEST, "synthetic:perturb@" + DIGEST])
def test_an_answer_from_elsewhere_never_counts_as_traced(origin: str) -> None:
    assert not candidate(origin=origin, policy_checkpoint=None).traced
    with pytest.raises(RecordError, match="must be null"):
        candidate(origin=origin)
