"""Steps that end early with a named reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from include.flows import skipping
from include.flows.champion_evaluation import champion_then, release_evaluation
from include.flows.skipping import skip_if_rejected, skip_unless_new
from tests.flows.conftest import Plane
from tests.stores.things import some_digest


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """XComs that the task pushed."""
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(xcom_push=lambda key, value: pushed.update({key: value}))
    monkeypatch.setattr(skipping, "get_current_context", lambda: {"ti": ti})
    return pushed


def test_what_is_champion_already_is_not_judged_again(said: dict[str, Any]) -> None:
    with pytest.raises(AirflowSkipException):
        skip_unless_new({"status": "already released"})
    assert said == {"status": "already released"}
    assert skip_unless_new({"status": "new", "deployment": "d"}) == {"status": "new", "deployment": "d"}


def test_a_no_stands_until_a_run_asks_anew(said: dict[str, Any]) -> None:
    with pytest.raises(AirflowSkipException):
        skip_if_rejected({"status": "already rejected"})
    assert said == {"status": "already rejected"}
    assert skip_if_rejected({"status": "open"}) == {"status": "open"}


def test_an_evaluation_without_a_date_asks_for_the_champion_of_now_and_says_when_there_is_none(plane: Plane, said: dict[str, Any]) -> None:
    with pytest.raises(AirflowSkipException, match="no champion: demo-tiny had none at 20"):
        champion_then({"recipe": "tiny", "suite": "then"}, SimpleNamespace(run_id="manual__1", dag_id="evaluate_policy"), None)
    assert said["status"].startswith("no champion")


def test_a_champion_whose_evaluation_is_not_on_record_is_not_evaluable(plane: Plane, said: dict[str, Any]) -> None:
    with pytest.raises(AirflowSkipException, match="not evaluable: no evaluation of sha256:"):
        release_evaluation(some_digest("deployment"))
    assert said["status"].startswith("not evaluable: ")
