"""The demonstration at its human steps, against an Airflow that plays a run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.flows import approval
from local import job_progress, watch
from local.demo import Wish, registered_name
from local.layout import Layout
from local.watch import NOT_COUNTED, Watch

HITL = {
    "task_instance": {"task_id": "release.approve", "map_index": 0},
    "subject": "Release quickstart?",
    "options": ["Approve", "Reject"],
    "assigned_users": [{"id": "approver", "name": "approver"}, {"id": "demo-approver", "name": "demo-approver"}],
    "created_at": "2026-03-01T12:00:00Z",
}
APPROVE = {"task_id": "release.approve", "map_index": 0, "try_number": 1, "start_date": "2026-03-01T12:00:00Z", "end_date": None}
LABELS = {
    "task_id": "preferences.wait_for_labels",
    "map_index": -1,
    "try_number": 1,
    "start_date": "2026-03-01T11:00:00Z",
    "end_date": None,
}


class Airflow:
    """A run that asks for labels, then for an approval, and ends once that is given; `patience` looks later it fails."""

    def __init__(self, people: list[str] | None = None, patience: int = 4) -> None:
        self.answers: list[tuple[str, dict[str, Any]]] = []
        self.people, self.patience, self.looks = people, patience, 0
        self.refusals: list[str] = []

    def as_user(self, user: str) -> Api:
        return Api(self, user)

    @property
    def state(self) -> str:
        if any(body["chosen_options"] == ["Approve"] for _, body in self.answers):
            return "success"
        return "failed" if self.looks > self.patience else "running"

    @property
    def not_counted(self) -> str | None:
        """From the fourth look on, what the task said of an answer."""
        return self.refusals[-1] if self.refusals and self.looks > 3 else None

    def instances(self) -> list[dict[str, Any]]:
        labels = {**LABELS, "state": "deferred" if self.looks < 2 else "success"}
        states = {"running": "awaiting_input", "success": "success", "failed": "failed"}
        return [labels] if self.looks < 2 else [labels, {**APPROVE, "state": states[self.state], "end_date": "2026-03-01T12:01:00Z"}]

    def detail(self) -> dict[str, Any]:
        return HITL if self.people is None else {**HITL, "assigned_users": [{"id": p, "name": p} for p in self.people]}


class Api:
    def __init__(self, airflow: Airflow, user: str) -> None:
        self.airflow, self.user = airflow, user

    def get(self, path: str, **_: Any) -> Any:
        if path.endswith("/taskInstances"):
            return {"task_instances": self.airflow.instances()}
        if path.endswith("/hitlDetails"):
            return {"hitl_details": [] if self.airflow.answers else [self.airflow.detail()]}
        self.airflow.looks += 1
        return {"state": self.airflow.state}

    def request(self, method: str, path: str, body: Any = None, accept: tuple[int, ...] = ()) -> Any:
        if method == "PATCH":
            assert path.endswith("/taskInstances/release.approve/0/hitlDetails")
            self.airflow.answers.append((self.user, body))
            return body
        if NOT_COUNTED in path:
            assert path.endswith("?map_index=0")
            return {"value": self.airflow.not_counted}
        if path.startswith("/pools/"):
            assert (method, self.user, accept) == ("GET", "admin", (404,))
            return {"detail": "no such pool"} if path == "/pools/slurm%2Fgone" else {"name": "there", "slots": 4}
        if "xcomEntries" in path:
            return {"value": {"human": 8, "url": "http://127.0.0.1:7"}}
        return {"content": [{"event": "the last word"}]}


class Stack:
    def __init__(self, airflow: Airflow, store: Path = Path("/nonexistent")) -> None:
        self.airflow = airflow
        self.layout = SimpleNamespace(store=store)

    def api(self, user: str) -> Api:
        return self.airflow.as_user(user)

    def description(self) -> dict[str, Any]:
        return {"airflow": {"url": "http://127.0.0.1:1"}}

    def down_services(self) -> list[str]:
        return ["Airflow triggerer"] if self.airflow.looks == 1 else []


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_S", 0)


def follow(airflow: Airflow, auto: bool) -> tuple[str, Watch]:
    made = Watch(Stack(airflow), "alignment_refresh", "demo-1", auto)  # type: ignore[arg-type]
    return made.follow(), made


def test_unattended_the_demonstration_account_approves_and_says_what_it_is() -> None:
    airflow = Airflow()
    assert follow(airflow, auto=True)[0] == "success"
    [(user, body)] = airflow.answers
    assert user == "demo-approver"
    assert re.search("demonstration account", body["params_input"]["comment"])


def test_attended_nobody_answers_for_a_person_and_each_is_asked_once(capsys: pytest.CaptureFixture[str]) -> None:
    airflow = Airflow()
    assert follow(airflow, auto=False)[0] == "failed"
    assert airflow.answers == []
    said = capsys.readouterr().out
    assert said.count("asked to compare 8 pairs of answers") == 1
    assert "http://127.0.0.1:7/annotate" in said
    assert said.count("approver is asked: Release quickstart? (Approve / Reject, with a comment)") == 1
    assert "http://127.0.0.1:1/dags/alignment_refresh/runs/demo-1/tasks/release.approve/mapped/0/required_actions" in said


def test_an_answer_that_did_not_count_is_said_with_why_and_the_question_stands(capsys: pytest.CaptureFixture[str]) -> None:
    assert NOT_COUNTED == approval.NOT_COUNTED
    airflow = Airflow(patience=7)
    airflow.refusals.append("the answer of approver does not count: a comment is required")
    follow(airflow, auto=False)
    said = capsys.readouterr().out
    assert said.count("the answer of approver does not count: a comment is required; the question stands") == 1
    assert said.count("approver is asked: Release quickstart?") == 2
    assert "`python -m local secret approver` shows the password" in said


def test_unattended_it_never_answers_what_it_was_not_asked() -> None:
    airflow = Airflow(people=["approver"])
    assert follow(airflow, auto=True)[0] == "failed"
    assert airflow.answers == []


def test_a_service_that_died_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    follow(Airflow(), auto=True)
    assert capsys.readouterr().out.count("Airflow triggerer is down") == 1


@pytest.mark.parametrize(
    ("state", "pool", "said"), [("scheduled", "slurm/gone", 1), ("scheduled", "there", 0), ("running", "slurm/gone", 0)]
)
def test_a_pool_that_does_not_exist_is_named_once(state: str, pool: str, said: int, capsys: pytest.CaptureFixture[str]) -> None:
    class Waits(Airflow):
        def instances(self) -> list[dict[str, Any]]:
            return [{**LABELS, "task_id": "sft.train", "state": state, "pool": pool}]

    follow(Waits(), auto=False)
    shown = capsys.readouterr().out
    assert shown.count("Airflow has no pool slurm/gone") == said
    assert shown.count("airflow pools set slurm/gone") == said


def test_a_failed_run_is_explained_with_its_last_words_and_a_link(capsys: pytest.CaptureFixture[str]) -> None:
    _, made = follow(Airflow(), auto=False)
    made.explain()
    said = capsys.readouterr().out
    assert "release.approve failed (try 1)" in said
    assert "the last word" in said
    assert "/tasks/release.approve/mapped/0" in said


def test_the_wish_leaves_the_method_to_the_recipe_unless_given() -> None:
    assert Wish("tiny", None, True).conf == {"recipe": "tiny", "auto": True}
    assert Wish("tiny", "ppo", False).conf == {"recipe": "tiny", "auto": False, "method": "ppo"}


def test_the_name_of_a_recipes_models_is_read_from_it() -> None:
    assert registered_name(Layout.find(), "tiny") == "demo-tiny"


def written(store: Path, run: str, text: str) -> Path:
    folder = store / "runs" / run / "attempts" / "1-1.0"
    folder.mkdir(parents=True)
    (folder / "progress.json").write_text(text)
    return folder / "progress.json"


def test_how_far_the_job_is_stands_in_a_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "PROGRESS_EVERY_S", 0)
    written(tmp_path, "a", json.dumps({"step": 12, "asked_steps": 36, "eta_s": 130.2}))
    Watch(Stack(Airflow(), tmp_path), "alignment_refresh", "demo-1", True).follow()  # type: ignore[arg-type]
    assert re.findall(r"^preferences +step.*$", capsys.readouterr().out, re.MULTILINE) == ["preferences    step 12 of 36, 2:10 min to go"]


def test_progress_is_of_the_newest_job_and_of_none_where_nobody_wrote_lately_or_rightly(tmp_path: Path) -> None:
    first = written(tmp_path, "a", json.dumps({"step": 3, "asked_steps": 3, "eta_s": 0.0}))
    now = first.stat().st_mtime
    assert job_progress.said(tmp_path, now + 1) == "step 3 of 3"
    os.utime(written(tmp_path, "b", json.dumps({"step": 0, "asked_steps": 9, "eta_s": None})), (now + 5, now + 5))
    assert job_progress.said(tmp_path, now + 6) == "step 0 of 9"
    os.utime(written(tmp_path, "c", '{"step": 1, "asked'), (now + 7, now + 7))
    assert job_progress.said(tmp_path, now + 8) == "step 0 of 9"
    os.utime(written(tmp_path, "d", '["step"]'), (now + 9, now + 9))
    assert job_progress.said(tmp_path, now + 10) == ""
    assert job_progress.said(tmp_path, now + 1000) == ""
    assert job_progress.said(tmp_path / "none", now) == ""
