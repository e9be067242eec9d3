"""The weekly audit as a DAG run: against a real annotation service, a real catalog and a real store."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from include.cli import main
from include.data.annotation_audit import NOTHING, NOTHING_CROSSED, REVIEW, Interval, Thresholds
from include.data.annotation_client import AnnotationClient, AnnotationUnreachable
from include.domain.canonical import hex_of
from include.domain.manifest import Manifest
from include.flows import annotation_audit, services
from include.flows.annotation_audit import audit_labels, interval_of, require_no_review, thresholds_of
from include.flows.errors import NoInterval, ToBeReviewed
from tests.airflow_database import serialize
from tests.annotation.support import RUBRIC, World, batch, gold, good_side
from tests.flows.conftest import Plane
from tests.flows.test_people_reach import people  # noqa: F401  the fixture
from tests.flows.things import ROOT

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
WEEK = timedelta(days=7)
PARAMS = {"recipe": "tiny"}
WRITER = "dag:audit_annotation/manual__1/audit/1"


@pytest.fixture
def dag(plane: Plane, people: World) -> Any:  # noqa: F811
    """The DAG as Airflow reads it, in a control plane of its own."""
    return serialize(ROOT / "dags/audit_annotation.py")["audit_annotation"]


def sensible(shown: dict[str, Any]) -> str:
    """Prefers the good answer of even tasks and of gold items, the other one of odd tasks: two who do so agree, and not by saying one thing."""
    number = int(re.findall(r"\d+", shown["left"]["text"])[0])
    return good_side(shown) if number >= 1000 or number % 2 == 0 else {"left": "right", "right": "left"}[good_side(shown)]


def contrary(shown: dict[str, Any]) -> str:
    return {"left": "right", "right": "left"}[sensible(shown)]


def work(people: World, at: datetime, how: dict[str, Callable[[dict[str, Any]], str]], rubric: str = "worked-answers@1") -> None:  # noqa: F811
    """A day's batch of 24 comparisons that everybody of `how` judges, with 6 gold items among them."""
    people.clock.moment = at
    body = batch(24, overlap={"share": 1.0, "annotators": max(2, len(how))}, gold_items=[gold(1000 + n) for n in range(6)])
    body["rubric"] = RUBRIC | {"rubric_id": rubric.partition("@")[0], "version": rubric}
    made = people.made(body, f"{at.isoformat()} {rubric}")
    for name, judge in how.items():
        if name not in people.tokens:
            people.add(name, "annotator", "human")
        while shown := people.next(name, made)["task"]:
            people.clock.forward(10)
            assert people.label(name, shown["task_id"], judge(shown)).status_code == 201
    people.clock.moment = MONDAY + 5 * WEEK


def pseudonym(people: World, name: str) -> str:  # noqa: F811
    account = people.service.accounts.of_token(people.tokens[name])
    assert account is not None
    return people.service.identities.pseudonym_of(account)


def states(ended: Any) -> dict[str, str]:
    return {ti.task_id: str(ti.state) for ti in ended.get_task_instances()}


def test_a_backfilled_week_counts_only_its_own_labels_and_says_who_is_to_be_reviewed(
    dag: Any, people: World, plane: Plane, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    work(people, MONDAY + timedelta(days=1), {"ada": sensible, "bo": sensible})
    work(people, MONDAY + WEEK + timedelta(days=1), {"ada": sensible, "cy": contrary})
    first = dag.test(logical_date=MONDAY + WEEK)
    second = dag.test(logical_date=MONDAY + 2 * WEEK)
    empty = dag.test(logical_date=MONDAY + 3 * WEEK)
    assert [str(ended.state) for ended in (first, second, empty)] == ["success", "failed", "success"]
    assert states(second) == {"audit": "success", "review": "failed"}
    assert states(empty) == {"audit": "success", "review": "success"}
    nothing, crossed, fine = services.catalog().audits.newest()
    assert [row.status for row in (fine, crossed, nothing)] == [NOTHING_CROSSED, REVIEW, NOTHING]
    assert [(row.since, row.until) for row in (fine, crossed)] == [
        ("2026-03-02T00:00:00Z", "2026-03-09T00:00:00Z"),
        ("2026-03-09T00:00:00Z", "2026-03-16T00:00:00Z"),
    ]
    assert [row.body["labels"] for row in (fine, crossed)] == [{"people": 60, "gold": 12, "programs": 0}] * 2
    who = pseudonym(people, "cy")
    named = {(one["kind"], one["name"], one["measure"]) for one in crossed.body["review"]}
    assert named == {
        ("annotator", who, "gold"),
        ("annotator", who, "majority"),
        ("annotator", pseudonym(people, "ada"), "majority"),
        ("rubric", "worked-answers@1", "kappa"),
    }
    assert "cy" not in {one["name"] for one in crossed.body["annotators"]}
    assert crossed.body["rubrics"][0]["measures"]["kappa"]["before"]["kappa"] == 1.0
    assert nothing.body["before"]["labels"]["people"] == 60
    for row in (fine, crossed, nothing):
        folder = Path(plane.store_root, "reports/audits", hex_of(row.digest))
        kept = Manifest.from_json(services.store().read_json(f"reports/audits/{hex_of(row.digest)}/manifest.json"))
        assert (kept.digest, kept.kind) == (row.digest, "report")
        assert services.store().read_json(f"reports/audits/{hex_of(row.digest)}/report.json") == row.body
        assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "report.json"]
        assert services.catalog().artifacts.locate(row.digest, services.store().uri) == f"reports/audits/{hex_of(row.digest)}"
    capsys.readouterr()
    assert main(["audit", "--week", "2026-W11"]) == 0
    told = capsys.readouterr().out
    assert f"annotator {who}: gold items right: 0 of 6 (0.00), at least 0.8 is asked for" in told
    assert {one["median_seconds"] for one in crossed.body["annotators"]} == {10.0}
    assert told.splitlines()[-1] == f"Report {crossed.digest}, written by {crossed.writer}"
    assert main(["audit", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [nothing.since, crossed.since, fine.since]
    assert main(["audit", "--week", "2026-W40"]) == 1
    assert "no audit is in the catalog of week 2026-W40" in capsys.readouterr().err
    assert main(["audit", "--week", "ten"]) == 1
    assert "write one as 2026-W10" in capsys.readouterr().err


def test_the_same_run_twice_is_the_same_report_whatever_was_corrected_since(dag: Any, people: World) -> None:  # noqa: F811
    work(people, MONDAY + timedelta(days=1), {"ada": sensible, "bo": sensible})
    dag.test(logical_date=MONDAY + WEEK)
    found = people.ask("pipeline", "GET", "/v1/labels", params={"since": MONDAY.isoformat(), "until": (MONDAY + WEEK).isoformat()}).json()
    for one in found["labels"][:9]:
        people.ask("pipeline", "POST", f"/v1/labels/{one['label']['label_id']}/withdraw", json={"reason": "misread"})
    dag.test(run_conf={"since": "2026-03-02T01:00:00+01:00", "until": "2026-03-09T00:00:00Z"})
    (row,) = services.catalog().audits.newest()
    assert row.status == NOTHING_CROSSED
    dag.test(run_conf={"since": "2026-03-02T00:00:00Z", "until": "2026-03-09T00:00:00Z", "min_items": 1000})
    assert len({one.digest for one in services.catalog().audits.newest()}) == 2


def test_a_run_without_a_logical_date_audits_the_week_before_it_was_due(dag: Any, people: World, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    slept: list[float] = []
    monkeypatch.setattr(annotation_audit, "sleep", slept.append)
    work(people, datetime.now(UTC) - timedelta(days=2), {"ada": sensible, "bo": sensible})
    people.clock.moment = datetime.now(UTC) + timedelta(minutes=5)
    ended = dag.test(logical_date=None)
    assert (str(ended.state), ended.logical_date) == ("success", None)
    (row,) = services.catalog().audits.newest()
    assert row.body["labels"]["people"] == 60
    assert datetime.fromisoformat(row.until) - datetime.fromisoformat(row.since) == WEEK
    (waited,) = slept
    assert 0 < waited <= 60


def test_one_rubric_alone_is_audited_where_it_is_named(plane: Plane, people: World, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    hostile = "<b>\n@1"
    work(people, MONDAY + timedelta(days=1), {"ada": sensible, "bo": contrary}, hostile)
    work(people, MONDAY + timedelta(days=2), {"ada": sensible, "bo": sensible})
    week = Interval(MONDAY, MONDAY + WEEK)
    both = audit_labels(PARAMS, week, WRITER)
    assert any(line.startswith("rubric <b>\\n@1: Cohen's kappa") for line in both["review"])
    one = audit_labels({**PARAMS, "rubric": "worked-answers@1"}, week, WRITER)
    assert (one["status"], one["review"]) == (NOTHING_CROSSED, [])
    capsys.readouterr()
    assert audit_labels({**PARAMS, "rubric": "no-such@1"}, week, WRITER)["status"] == NOTHING
    assert r"there are labels by '<b>\n@1', 'worked-answers@1'" in capsys.readouterr().out


def test_a_service_that_is_away_is_an_error_and_keeps_nothing(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def away(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        raise httpx.ConnectError("refused")

    client = AnnotationClient("http://nowhere", "token", sleep=lambda _: None)
    client._http = httpx.Client(base_url="http://nowhere", transport=httpx.MockTransport(away))
    monkeypatch.setattr(services, "annotation", lambda role: client)
    with pytest.raises(AnnotationUnreachable, match="does not answer"):
        audit_labels(PARAMS, Interval(MONDAY, MONDAY + WEEK), WRITER)
    assert len(asked) == 5
    assert services.catalog().audits.newest() == []
    assert not services.store().exists("reports/audits")


def test_what_is_to_be_reviewed_is_named_with_what_to_do() -> None:
    told = {"digest": "sha256:1", "status": REVIEW, "review": ["annotator ann_1: gold"], "since": "a", "until": "b"}
    with pytest.raises(
        ToBeReviewed, match=r"annotator ann_1: gold\n.*withdraw_labels.*gold_reviewed.*new version.*bin/align audit sha256:1"
    ):
        require_no_review(told)
    assert require_no_review({**told, "status": NOTHING, "review": []}) == NOTHING


def test_thresholds_are_the_parameters_else_the_recipes_else_the_usual_ones(plane: Plane) -> None:
    assert thresholds_of({"recipe": "assistant-7b"}) == Thresholds(min_gold_accuracy=0.75, min_gold_labels=5, min_kappa=0.6)
    assert thresholds_of({"recipe": "assistant-7b", "min_gold_accuracy": 0.0, "min_items": 3}).min_gold_accuracy == 0.0
    assert thresholds_of({"recipe": "tiny", "min_kappa": 0.4}).min_kappa == 0.4
    assert thresholds_of({"recipe": "tiny"}).min_gold_accuracy == 0.8


DUE = SimpleNamespace(run_after=datetime(2026, 4, 1, 12, 0, 0, 5, tzinfo=UTC))


@pytest.mark.parametrize(
    ("params", "interval", "expected"),
    [
        ({}, (MONDAY, MONDAY + WEEK), (MONDAY, MONDAY + WEEK)),
        ({}, (None, None), (datetime(2026, 3, 25, 12, tzinfo=UTC), datetime(2026, 4, 1, 12, tzinfo=UTC))),
        ({"since": "2026-03-30T00:00:00Z"}, (MONDAY, MONDAY + WEEK), (datetime(2026, 3, 30, tzinfo=UTC), datetime(2026, 4, 1, 12, tzinfo=UTC))),
        ({"until": "2026-02-10T01:00:00+01:00"}, (MONDAY, MONDAY + WEEK), (datetime(2026, 2, 3, tzinfo=UTC), datetime(2026, 2, 10, tzinfo=UTC))),
    ],
)  # fmt: skip
def test_what_a_run_audits(params: dict[str, str], interval: tuple[Any, Any], expected: tuple[datetime, datetime]) -> None:
    found = interval_of(params, DUE, *interval)
    assert (found.since, found.until) == expected


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"since": "2026-03-02", "until": "2026-03-09T00:00:00Z"}, "say its zone"),
        ({"since": "last week"}, "write a time as"),
        ({"since": "2026-03-09T00:00:00Z", "until": "2026-03-02T00:00:00Z"}, "nothing between"),
        ({"until": "2926-03-02T00:00:00Z"}, "not over yet"),
    ],
)
def test_intervals_that_are_none_are_refused(params: dict[str, str], words: str) -> None:
    with pytest.raises(NoInterval, match=words):
        interval_of(params, DUE, None, None)
