"""A task that comes back with another connection: its job lives where it was submitted, is adopted and ended there, and never doubled."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_slurm.errors import ConnectionGone
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.hook import SlurmHook
from airflow_slurm.operators import SlurmJobOperator
from airflow_slurm.receipts import Receipt
from airflow_slurm.remote.client import Answer
from airflow_slurm.requests import JobRequest
from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.work import reconciler
from airflow_slurm.work.left import left_why
from airflow_slurm.work.reconciler import reconcile
from airflow_slurm.work.stop import NotEnded, StopPolicy, end_submission

from .conftest import OTHER
from .crowd import Crowd
from .tasks import OWNER, Task

FAST = StopPolicy(grace_s=0.3, cancel_wait_s=0.3, pause_s=0.05)
RECEIPTS = "airflow_slurm.file_receipts.FileReceipts"


@dataclass
class Cluster(Crowd):
    """One that takes jobs too, and lifts their holds."""

    reason: str = "JobHeldUser"
    first_id: int = 1

    async def answer(self, argv: Sequence[str]) -> Answer:
        if argv[0] == "sbatch":
            self.asked.append(list(argv))
            job_id = str(self.first_id + len(self.jobs) + len(self.ended))
            name = next(word.removeprefix("--job-name=") for word in argv if word.startswith("--job-name="))
            self.jobs[job_id] = (name, "PENDING")
            return Answer(f"{job_id}\n", "", 0)
        if list(argv[:2]) == ["scontrol", "release"] and argv[-1] in self.jobs:
            self.jobs[argv[-1]] = (self.jobs[argv[-1]][0], "RUNNING")
        return await super().answer(argv)


class Named(SlurmJobOperator):
    """Looks for a lost job for a moment only, and ends jobs in a hurry."""

    def prepare(self, context: Any) -> JobRequest:
        return JobRequest(self.key or "", self.job_spec(), RECEIPTS, self.receipts_config, look_up_s=0.1, stop=FAST)


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Cluster]:
    """Two clusters, *a* and *b*, that know nothing of each other's jobs, each with a connection of its name."""
    both = {"a": Cluster(first_id=17), "b": Cluster(first_id=170)}
    for name in both:
        monkeypatch.setenv(
            f"AIRFLOW_CONN_{name.upper()}",
            json.dumps({"conn_type": "slurm", "host": name, "login": "me", "extra": {"poll_interval_s": 0.2}}),
        )

    @asynccontextmanager
    async def get_client(hook: SlurmHook) -> AsyncIterator[Any]:
        await hook.aconfig()
        async with both[hook.slurm_conn_id].get_client(hook.slurm_conn_id) as client:
            yield client

    monkeypatch.setattr(SlurmHook, "get_client", get_client)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    return both


@pytest.fixture
def task(store: FileReceipts) -> Callable[..., Task]:
    """Makes tasks that ask for the work *k* over *a*, until they are told to name another connection."""

    def made(**kwargs: Any) -> Task:
        values = {
            "task_id": "t",
            "slurm_conn_id": "a",
            "key": "k",
            "follow_log": False,
            "receipts_config": {"root": str(store.root)},
        } | kwargs
        return Task(lambda: Named(spec={"command": ["true"], "output": "/dev/null"}, **values))

    return made


def over(task: Task, conn_id: str, **changed: Any) -> Task:
    """The same task instance after its DAG was changed."""
    made = task.make

    def make() -> SlurmJobOperator:
        operator = made()
        operator.slurm_conn_id = conn_id
        for name, value in changed.items():
            setattr(operator, name, value)
        return operator

    task.make = make
    return task


def sent(clusters: dict[str, Cluster]) -> tuple[int, int]:
    return clusters["a"].count("sbatch"), clusters["b"].count("sbatch")


def test_the_living_job_is_adopted_where_it_lives(
    clusters: dict[str, Cluster], task: Callable[..., Task], capsys: pytest.CaptureFixture[str]
) -> None:
    mine = task()
    assert mine.execute().trigger.slurm_conn_id == "a"
    deferred = over(mine, "b").execute()
    assert deferred.trigger.slurm_conn_id == "a"
    assert deferred.kwargs["request_state"]["conn_id"] == "a"
    assert mine.state["slurm_submission"]["conn_id"] == "a"
    assert mine.xcoms["slurm_submission"]["conn_id"] == "a"
    assert sent(clusters) == (1, 0)
    assert "lives at connection a" in capsys.readouterr().out
    clusters["a"].end("17")
    assert mine.resume(deferred, mine.wait(deferred))["job_id"] == "17"
    assert clusters["b"].asked == []


def test_another_task_of_the_key_adopts_it_there_too(clusters: dict[str, Cluster], task: Callable[..., Task]) -> None:
    task().execute()
    other = over(task(), "b")
    other.ti.run_id = "r2"
    assert other.execute().trigger.slurm_conn_id == "a"
    assert sent(clusters) == (1, 0)


def test_a_job_whose_answer_got_lost_is_looked_up_where_it_was_sent(
    clusters: dict[str, Cluster], task: Callable[..., Task], store: FileReceipts
) -> None:
    store.claim("k", OTHER)
    assert store.sent_over("k", 1, "a") == "a"
    clusters["a"].jobs["17"] = (job_name_for("k", 1), "PENDING")
    deferred = over(task(), "b").execute()
    assert (deferred.trigger.slurm_conn_id, deferred.trigger.wait["job_id"]) == ("a", "17")
    assert clusters["a"].jobs["17"][1] == "RUNNING"
    assert sent(clusters) == (0, 0)


def test_before_stores_kept_it_the_task_itself_knows_where_it_sent_its_job(
    clusters: dict[str, Cluster], task: Callable[..., Task], store: FileReceipts
) -> None:
    mine = task()
    mine.execute()
    folder = store._folder("k") / "1"
    (folder / "receipt.json").unlink()
    (folder / "connection.json").unlink()
    assert over(mine, "b").execute().trigger.slurm_conn_id == "a"
    assert sent(clusters) == (1, 0)


def test_one_that_was_never_queued_there_is_closed_and_the_next_is_sent_here(
    clusters: dict[str, Cluster], task: Callable[..., Task], store: FileReceipts
) -> None:
    store.claim("k", OWNER)
    store.sent_over("k", 1, "a")
    deferred = over(task(), "b").execute()
    assert (deferred.trigger.slurm_conn_id, deferred.kwargs["request_state"]["n"]) == ("b", 2)
    assert sent(clusters) == (0, 1)
    end = store.end_of("k", 1)
    assert end is not None
    assert (end.outcome, end.cause) == ("cancelled", "never_queued")
    assert store.sent_over("k", 2) == "b"


def test_while_another_task_may_be_sending_it_there_nothing_is_sent_here(
    clusters: dict[str, Cluster], task: Callable[..., Task], store: FileReceipts
) -> None:
    store.claim("k", OTHER)
    store.sent_over("k", 1, "a")
    deferred = over(task(), "b").execute()
    assert deferred.method_name == "submit_again"
    assert sent(clusters) == (0, 0)
    live = store.get("k")
    assert live is not None
    assert (live.n, live.owners, live.ending) == (1, (OTHER,), False)


def test_a_job_that_was_given_up_is_ended_where_it_lives_before_the_next_is_sent_here(
    clusters: dict[str, Cluster], task: Callable[..., Task], store: FileReceipts
) -> None:
    mine = task()
    mine.execute()
    assert store.drop_owner("k", OWNER) == 0
    deferred = over(mine, "b").execute()
    assert (deferred.trigger.slurm_conn_id, deferred.kwargs["request_state"]["n"]) == ("b", 2)
    assert clusters["a"].jobs == {}
    assert clusters["b"].count("scancel") == 0
    end = store.end_of("k", 1)
    assert end is not None
    assert end.view is not None
    assert (end.outcome, end.view.job_id, end.view.state) == ("cancelled", "17", "FAILED")


def test_other_work_gives_the_job_up_where_it_lives(clusters: dict[str, Cluster], task: Callable[..., Task]) -> None:
    mine = task()
    mine.execute()
    over(mine, "b").execute()
    assert over(mine, "b", key="other").execute().trigger.slurm_conn_id == "b"
    assert clusters["a"].jobs == {}
    assert [name for name, _ in clusters["b"].jobs.values()] == [job_name_for("other", 1)]
    assert clusters["b"].count("scancel") == 0


@pytest.mark.parametrize("asks_for", ["k", "other"])
def test_a_connection_that_is_no_more_leaves_its_job_to_a_person(
    clusters: dict[str, Cluster], task: Callable[..., Task], store: FileReceipts, monkeypatch: pytest.MonkeyPatch, asks_for: str
) -> None:
    mine = task()
    mine.execute()
    kept = os.environ["AIRFLOW_CONN_A"]
    monkeypatch.delenv("AIRFLOW_CONN_A")
    with pytest.raises(
        ConnectionGone, match=r"Job 17 \(key k, submission 1\) was submitted over connection 'a', which Airflow no longer has"
    ):
        over(mine, "b", key=asks_for).make().execute(mine.context)
    assert sent(clusters) == (1, 0)
    assert "no longer has" in left_why(store, "k", 1)
    monkeypatch.setenv("AIRFLOW_CONN_A", kept)
    over(mine, "b", key="k")
    # The task has failed, and its job is left alone all the same until a person has decided.
    assert [f.kind for f in reconcile(SlurmHook("a"), store, lambda o: False, has_decided=lambda o: False)] == ["left_to_a_person"]
    assert mine.execute().trigger.slurm_conn_id == "a"
    assert left_why(store, "k", 1) == ""
    assert sent(clusters) == (1, 0)


def test_what_ends_while_its_connection_is_gone_is_left_to_a_person(
    clusters: dict[str, Cluster], task: Callable[..., Task], store: FileReceipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = task()
    deferred = mine.execute()
    runs = {"job_id": "17", "cluster": None, "phase": "running", "state": "RUNNING"}
    monkeypatch.delenv("AIRFLOW_CONN_A")
    with pytest.raises(ConnectionGone, match="Job 17 "):
        over(mine, "b").resume(deferred, {"status": "timed_out", "view": runs})
    assert left_why(store, "k", 1)
    assert clusters["a"].jobs["17"][1] == "RUNNING"


def test_what_the_job_is_to_make_is_looked_for_where_it_lives(
    clusters: dict[str, Cluster], task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(SlurmHook, "missing", lambda hook, paths, *_: asked.append(hook.slurm_conn_id) or set())
    mine = task(expected_output="/shared/done")
    mine.execute()
    deferred = over(mine, "b").execute()
    clusters["a"].end("17")
    mine.resume(deferred, mine.wait(deferred))
    assert asked == ["a"]


async def test_over_another_connection_no_living_job_is_closed_as_cancelled(clusters: dict[str, Cluster], store: FileReceipts) -> None:
    clusters["a"].jobs["17"] = (job_name_for("k", 1), "RUNNING")
    store.claim("k", OWNER)
    store.record("k", 1, Receipt("17", job_name_for("k", 1), "a", released_at=1.0))
    store.drop_owner("k", OWNER)
    live = store.get("k")
    assert live is not None
    async with SlurmHook("b").get_client() as client:
        with pytest.raises(NotEnded, match="lives at connection 'a'"):
            await end_submission(client, store, live, job_name_for("k", 1), FAST, by="test")
    assert store.get("k") == live
    assert clusters["b"].asked == []


@pytest.mark.parametrize(("conn_id", "found"), [("a", ["ended"]), ("b", [])])
def test_the_reconciler_of_another_connection_leaves_alone_what_was_sent_here(
    clusters: dict[str, Cluster], store: FileReceipts, monkeypatch: pytest.MonkeyPatch, conn_id: str, found: list[str]
) -> None:
    monkeypatch.setattr(reconciler, "FOR_OTHERS_S", -1.0)
    store.claim("k", OWNER)
    store.sent_over("k", 1, "a")
    assert [f.kind for f in reconcile(SlurmHook(conn_id), store, lambda o: False, policy=FAST)] == found


def test_of_two_connections_the_first_stays(store: FileReceipts) -> None:
    store.claim("k", OWNER)
    assert store.sent_over("k", 1) is None
    assert [store.sent_over("k", 1, name) for name in ("a", "b", None)] == ["a", "a", "a"]
