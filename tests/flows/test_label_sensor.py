"""What a batch still misses, in words, and when nothing is missing any more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from include.domain.records import Label
from include.flows.errors import NoAnswer, RubricInDoubt
from include.flows.label_sensor import LabelSensor, LabelTrigger, Moment, agreement_in, look, rubric_doubt, still_missing
from include.settings.annotation import AnnotationSettings

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
AT = Moment(NOW)


def wanted(**changed: Any) -> AnnotationSettings:
    settings = {"rubric": "r@1", "min_labels": 10, "min_decided": 6, "min_agreement": 0.6, "max_age_hours": 24.0, **changed}
    return AnnotationSettings.model_validate(settings)


def progress(**changed: Any) -> dict[str, Any]:
    """A batch that lacks nothing, but for what a test changes."""
    return {
        "labels": {"current": 12, "by_verdict": {"A": 4, "B": 4, "tie": 3, "both_bad": 1}},
        "missing": {"human": 0, "total": 0},
        "agreement": {"applicable": True, "share": 0.8},
        "freshest_label_at": (NOW - timedelta(hours=1)).isoformat(),
        **changed,
    }


def test_a_batch_with_enough_fresh_and_agreeing_labels_misses_nothing() -> None:
    assert still_missing(progress(), wanted(), AT) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"labels": {"current": 9, "by_verdict": {"A": 4, "B": 4, "tie": 1}}}, "1 more labels (9 of 10)"),
        ({"missing": {"human": 3, "total": 3}}, "3 comparisons by a person"),
        ({"labels": {"current": 12, "by_verdict": {"A": 2, "B": 3, "tie": 7}}}, "1 more decided comparisons (5 of 6)"),
        ({"freshest_label_at": (NOW - timedelta(hours=25)).isoformat()}, "labels younger than 24 h"),
        ({"agreement": {"applicable": True, "share": 0.59}}, "agreement 0.59 (at least 0.60): review the rubric"),
        ({"agreement": {"applicable": False, "share": None}}, "a second annotator: agreement of one is not applicable"),
    ],
)
def test_each_thing_that_is_missing_is_named_and_no_other(changed: dict[str, Any], words: str) -> None:
    missing = still_missing(progress(**changed), wanted(), AT)
    assert len(missing) == 1
    assert missing[0].startswith(words)


def test_ties_and_both_bad_are_labels_but_decide_nothing() -> None:
    undecided = progress(labels={"current": 40, "by_verdict": {"tie": 20, "both_bad": 10, "cannot_judge": 10}})
    assert still_missing(undecided, wanted(), AT) == ["6 more decided comparisons (0 of 6)"]


def test_an_empty_batch_misses_labels_decisions_and_a_second_annotator() -> None:
    empty = progress(labels={"current": 0, "by_verdict": {}}, freshest_label_at=None, agreement={"applicable": False, "share": None})
    assert [text.split(" (")[0] for text in still_missing(empty, wanted(), AT)] == [
        "10 more labels",
        "6 more decided comparisons",
        "a second annotator: agreement of one is not applicable",
    ]


def test_agreement_of_one_annotator_passes_only_where_the_recipe_says_so() -> None:
    alone = progress(agreement={"applicable": False, "share": None})
    assert still_missing(alone, wanted(agreement_not_applicable_passes=True), AT) == []
    assert still_missing(alone, wanted(agreement_not_applicable_passes=False), AT) != []
    low = progress(agreement={"applicable": True, "share": 0.1})
    assert still_missing(low, wanted(agreement_not_applicable_passes=True), AT) != [], "measured disagreement is no missing measurement"


def test_the_trigger_says_what_was_missing_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    trigger = LabelTrigger("batch-1", "tiny", deadline=0.0)
    monkeypatch.setattr(trigger, "_look", lambda last: ["3 comparisons by a person"] if last else [])
    assert _only_event(trigger) == {"status": "timeout", "missing": ["3 comparisons by a person"]}


def test_a_service_that_is_away_is_asked_again_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [ConnectionError("refused"), ["1 more labels"], []]
    trigger = LabelTrigger("batch-1", "tiny", deadline=datetime.now(UTC).timestamp() + 60)

    def look(last: bool) -> list[str]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(trigger, "_look", look)
    monkeypatch.setattr("include.flows.label_sensor.POLL_INTERVAL_S", 0.0)
    assert _only_event(trigger) == {"status": "ready"}
    assert answers == []


def test_the_trigger_is_whole_after_its_way_through_the_database() -> None:
    path, kwargs = LabelTrigger("batch-1", "tiny", deadline=12.5).serialize()
    assert path == f"{LabelTrigger.__module__}.{LabelTrigger.__qualname__}"
    assert LabelTrigger(**kwargs).serialize() == (path, kwargs)


def labels(*pairs: str) -> list[Label]:
    """Two annotators' verdicts on one comparison after another: "AB" means that the first said A, the second B."""
    made = []
    for task, said in enumerate(pairs):
        for annotator, verdict in zip(("anna", "ben"), said, strict=True):
            chosen, rejected = (f"{side}-{task}" for side in (("c1", "c2") if verdict == "A" else ("c2", "c1")))
            made.append(
                Label(
                    label_id=f"l{task}-{annotator}", task_id=f"t{task}", batch_id="b1", prompt_id=f"p{task}", candidate_a_id=f"c1-{task}",
                    candidate_b_id=f"c2-{task}", verdict=verdict, chosen_candidate_id=chosen, rejected_candidate_id=rejected,
                    rubric_version="r@1", annotator_id=annotator, annotator_kind="human", display_order=(f"c1-{task}", f"c2-{task}"),
                    swap_flag=False, dimension_scores={}, reason_codes=(), created_at="2026-05-04T11:00:00Z", supersedes=None,
                )
            )  # fmt: skip
    return made


LUCKY = ("AA",) * 8 + ("AB", "BA")
"""Eight of ten alike, and by chance alone 82 in a hundred would be: kappa is below 0."""
SURE = ("AA", "BB") * 5


class Service:
    """An annotation service whose batch lacks nothing but, perhaps, agreement beyond chance."""

    def __init__(self, *pairs: str, hours: float = 0.0) -> None:
        self.labels, self.snapshots, self.hours = labels(*pairs), 0, hours

    def progress(self, batch_id: str) -> dict[str, Any]:
        return progress(freshest_label_at=(datetime.now(UTC) - timedelta(hours=self.hours)).isoformat())

    def snapshot(self, batch_id: str) -> Any:
        self.snapshots += 1
        return SimpleNamespace(labels=self.labels)


def test_raw_agreement_by_luck_is_not_enough_where_kappa_is_required() -> None:
    assert still_missing(progress(), wanted(min_kappa=0.6), AT) == []
    (said,) = look(Service(*LUCKY), "b1", wanted(min_kappa=0.6))  # type: ignore[arg-type]
    assert said == "Cohen's kappa -0.11 (at least 0.60): review rubric r@1"
    assert look(Service(*SURE), "b1", wanted(min_kappa=0.6)) == []  # type: ignore[arg-type]


def test_kappa_that_is_not_asked_for_is_not_computed() -> None:
    service = Service(*LUCKY)
    assert look(service, "b1", wanted()) == []  # type: ignore[arg-type]
    assert service.snapshots == 0


def test_kappa_that_is_not_defined_is_not_enough_and_of_one_annotator_passes_where_the_recipe_says_so() -> None:
    (said,) = rubric_doubt(agreement_in(labels("AA", "AA")), wanted(min_kappa=0.6))
    assert said.startswith("Cohen's kappa is not defined for these labels (at least 0.60)")
    alone = agreement_in(labels("AB")[:1])
    assert rubric_doubt(alone, wanted(min_kappa=0.6)) != []
    assert rubric_doubt(alone, wanted(min_kappa=0.6, agreement_not_applicable_passes=True)) == []


def test_time_that_is_up_for_want_of_kappa_names_the_rubrics_review() -> None:
    sensor = LabelSensor(task_id="wait", run={"recipe": "tiny"}, batch={"batch_id": "b1", "url": ""})
    missing = look(Service(*LUCKY), "b1", wanted(min_kappa=0.6))  # type: ignore[arg-type]
    with pytest.raises(RubricInDoubt, match=r"b1: Cohen's kappa -0.11 .*review rubric r@1.*under a new version"):
        sensor.resume({}, {"status": "timeout", "missing": missing})  # type: ignore[typeddict-item]


def test_a_sensor_that_waited_in_vain_is_red_and_says_for_what() -> None:
    sensor = LabelSensor(task_id="wait", run={"recipe": "tiny"}, batch={"batch_id": "b1", "url": ""})
    with pytest.raises(NoAnswer, match="b1 is not ready in time; it still waits for 3 comparisons by a person"):
        sensor.resume({}, {"status": "timeout", "missing": ["3 comparisons by a person"]})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("hours", "changed", "awaited"),
    [
        (5.0, {}, "3 comparisons by a person, or 6 h without a new label"),
        (6.0, {}, None),
        (6.0, {"settle_hours": None}, "3 comparisons by a person"),
        (6.0, {"min_labels": 13}, "1 more labels"),
        (5.0, {"last": True}, None),
    ],
)
def test_enough_labels_and_a_settled_time_end_the_wait_for_people(hours: float, changed: dict[str, Any], awaited: str | None) -> None:
    moment = Moment(NOW, last=changed.pop("last", False))
    batch = progress(missing={"human": 3, "total": 3}, freshest_label_at=(NOW - timedelta(hours=hours)).isoformat())
    missing = still_missing(batch, wanted(**{"settle_hours": 6.0, **changed}), moment)
    assert (missing[0] if missing else "").startswith(awaited or "")
    assert bool(missing) == bool(awaited)


def test_nobody_is_waited_for_in_a_closed_batch() -> None:
    batch = progress(missing={"human": 3, "total": 3}, closed_at=NOW.isoformat())
    assert still_missing(batch, wanted(), AT) == []


def test_labels_that_an_earlier_run_has_used_do_not_grow_too_old() -> None:
    old = progress(freshest_label_at=(NOW - timedelta(days=8)).isoformat())
    assert still_missing(old, wanted(), Moment(NOW, taken=True)) == []
    assert still_missing(old, wanted(), AT) != []


def test_a_whole_batch_that_is_too_old_ends_at_once() -> None:
    with pytest.raises(NoAnswer, match="nothing younger will come"):
        look(Service(*SURE, hours=30.0), "b1", wanted())  # type: ignore[arg-type]
    assert look(Service(*SURE, hours=30.0), "b1", wanted(), taken=True) == []  # type: ignore[arg-type]


def _only_event(trigger: LabelTrigger) -> dict[str, Any]:
    import asyncio

    async def collect() -> list[dict[str, Any]]:
        return [dict(event.payload) async for event in trigger.run()]

    events = asyncio.run(collect())
    assert len(events) == 1
    return events[0]


def test_a_batch_that_grew_too_old_while_it_was_waited_for_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    trigger = LabelTrigger("batch-1", "tiny", deadline=datetime.now(UTC).timestamp() + 60)

    def look(last: bool) -> list[str]:
        raise NoAnswer("nothing younger will come")

    monkeypatch.setattr(trigger, "_look", look)
    event = _only_event(trigger)
    assert event == {"status": "never", "said": "nothing younger will come", "doubt": False}
    sensor = LabelSensor(task_id="wait", run={"recipe": "tiny"}, batch={"batch_id": "b1", "url": ""})
    with pytest.raises(NoAnswer, match="^nothing younger will come$"):
        sensor.resume({}, event)  # type: ignore[typeddict-item]
    with pytest.raises(RubricInDoubt, match="^kappa$"):
        sensor.resume({}, {"status": "never", "said": "kappa", "doubt": True})  # type: ignore[typeddict-item]
