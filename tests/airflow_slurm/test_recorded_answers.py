"""What real Slurms answered, moment by moment, to the very lines that this package sends: how each is read, and what follows from it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm.errors import AnswerLost, CommandRefused, ControllerUnreachable
from airflow_slurm.remote import client as remote
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.parse import AccountingRow, QueueRow
from airflow_slurm.slurm.reasons import Clears, explain
from airflow_slurm.slurm.states import Phase
from airflow_slurm.spec import JobSpec
from airflow_slurm.truth.arrays import by_id
from airflow_slurm.truth.holds import as_doubted
from airflow_slurm.truth.reconcile import FORGOTTEN, LAUNCH_FAILED_HELD, Observation, forgotten, judge, may_be_forgotten
from airflow_slurm.truth.view import JobView

from .record_answers import IDS, KEY_BODY, MARK, NAME, NOBODY, lines
from .sites import VERSIONS

RECORDED = Path(__file__).parent / "recorded"


@cache
def told(version: str, moment: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"answers_{version}" / f"{moment}.json").read_text("utf-8"))
    return found


class Transport:
    """At the process edge: gives what was recorded of one moment, to exactly the lines that were recorded."""

    conn_id = "recorded"

    def __init__(self, version: str, moment: str) -> None:
        self._names = {line: name for name, line in told(version, "lines").items()}
        self._told = told(version, moment)

    async def run(self, line: str, stdin: str, name: str) -> tuple[str, str]:
        said = self._told[self._names[line]]
        return "".join(said["stdout"]), said["stderr"]


def at(version: str, moment: str, monkeypatch: pytest.MonkeyPatch) -> SlurmClient:
    """A client of the cluster as it was at that moment."""
    monkeypatch.setattr(remote.secrets, "token_hex", lambda size: MARK)
    client = SlurmClient(None)  # type: ignore[arg-type]
    client._transport = Transport(version, moment)  # type: ignore[assignment]
    return client


async def rows(client: SlurmClient) -> tuple[dict[str, QueueRow], dict[str, list[AccountingRow]]]:
    """Of the queue and of accounting, by name."""
    recorded: dict[str, list[AccountingRow]] = {}
    for row in await client.accounting(0, ids=IDS):
        recorded.setdefault(row.name, []).append(row)
    return {row.name: row for row in await client.queue()}, recorded


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_asked_is_what_is_asked_today(version: str) -> None:
    assert told(version, "lines") == {name: one["line"] for name, one in lines().items()}


#: Name → phase, cause, exit code, signal: as queue and accounting together tell it, once all has ended.
ENDS: dict[str, tuple[Phase, str, int | None, int | None]] = {
    "done": (Phase.SUCCEEDED, "", 0, 0),
    "bars|and\nlines": (Phase.SUCCEEDED, "", 0, 0),
    "requeued": (Phase.SUCCEEDED, "", 0, 0),
    "het_done": (Phase.SUCCEEDED, "", 0, 0),
    "exit7": (Phase.FAILED, "failed", 7, 0),
    "killed": (Phase.FAILED, "failed", 0, 9),
    "segmentation": (Phase.FAILED, "failed", 0, 11),
    "memory": (Phase.FAILED, "out_of_memory", 0, 125),
    "over": (Phase.FAILED, "time_limit", None, None),
    "deadline": (Phase.FAILED, "deadline", None, None),
    "cancelled": (Phase.FAILED, "cancelled", None, None),
    "cancelled_waiting": (Phase.FAILED, "cancelled", None, None),
}


@pytest.mark.parametrize("queued", [True, False])
@pytest.mark.parametrize("version", VERSIONS)
async def test_each_end_is_judged_alike_by_the_queue_and_by_accounting(version: str, queued: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, recorded = await rows(at(version, "ended", monkeypatch))
    for name, (phase, cause, code, signal) in ENDS.items():
        if (name, version) == ("deadline", "22.05"):
            continue  # it does not look at the deadline of a job that waits for another one
        view = judge(JobView(queue[name].job_id), Observation(100.0, queue[name] if queued else None, True, recorded[name]))
        assert (view.phase, view.cause) == (phase, cause), name
        assert (code, signal) in ((None, None), (view.exit_code, view.signal)), name
        assert view.end_time is not None, name
    cancelled = judge(JobView("9"), Observation(100.0, queue["cancelled"], True, recorded["cancelled"]))
    assert (cancelled.cancelled_by_uid, cancelled.node_list != "") == (0, True)
    again = judge(JobView("13"), Observation(100.0, queue["requeued"] if queued else None, True, recorded["requeued"]))
    assert [(run.state, run.gpus) for run in again.incarnations] == [("REQUEUED", 2), ("COMPLETED", 2)]
    assert recorded["done"][0].gpus == 1
    assert recorded["exit7"][0].gpus == 0


#: Name → reason, and what has to happen.
WAITS = {
    "held": ("JobHeldUser", Clears.OPERATOR),
    "held_by_admin": ("JobHeldAdmin", Clears.OPERATOR),
    "requeued_held": ("job requeued in held state", Clears.OPERATOR),
    "later": ("BeginTime", Clears.ITSELF),
    "after": ("Dependency", Clears.ITSELF),
    "licence_2": ("Licenses", Clears.ITSELF),
    "never": ("DependencyNeverSatisfied", Clears.NEVER),
    "too_long": ("PartitionTimeLimit", Clears.NEVER),
}


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_reason_to_wait_is_read(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = at(version, "ended", monkeypatch)
    queue, _ = await rows(client)
    for name, (reason, clears) in WAITS.items():
        assert (queue[name].state.info.phase, queue[name].reason) == (Phase.WAITING, reason)
        assert explain(reason).clears is clears
    assert (queue["held"].held_by_us, queue["requeued_held"].held_by_us, queue["held_by_admin"].held_by_us) == (True, False, False)
    assert (queue["special_exit"].state.name, queue["special_exit"].state.info.phase) == ("SPECIAL_EXIT", Phase.WAITING)
    assert (queue["suspended"].state.name, queue["suspended"].state.info.phase) == ("SUSPENDED", Phase.RUNNING)
    holds = {row.name: row.first_hold for row in await client.queue(holds=True)}
    assert (holds["held"], holds["held_by_admin"], holds["later"], holds["after"]) == (True, False, False, False)
    behind = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    pushed = (await rows(at(version, "put_back", monkeypatch)))[0]
    assert behind in {row.reason for row in pushed.values()}
    assert explain(behind).clears is Clears.ITSELF


@pytest.mark.parametrize("version", VERSIONS)
async def test_tasks_of_arrays_are_found_in_every_form(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``16_[6,8,11%2]`` while they wait, ``16_2`` with an id of their own, the last one with the array's; and those that were taken out."""
    first = by_id(await at(version, "running", monkeypatch).queue())
    assert first["16_2"][0].state.name == "RUNNING"
    assert [first[f"16_{i}"][0].array_id.startswith("16_[") for i in (6, 8, 11)] == [True] * 3
    assert [first[f"17_{i}"][0].held_by_us for i in (0, 1, 2, 3, 7, 8, 9)] == [True] * 7
    ended = at(version, "ended", monkeypatch)
    queue, recorded = by_id(await ended.queue()), by_id(await ended.accounting(0, ids=IDS))
    for known in (queue, recorded):
        assert [known[f"16_{i}"][0].state.name for i in (2, 4, 6, 11)] == ["COMPLETED", "COMPLETED", "RUNNING", "RUNNING"]
        assert (known["16_11"][0].job_id, known["16_11"][0].array_id) == ("16", "16_11")
        assert "16_8" not in known  # cancelled while it waited: struck from the list
        assert sorted(int(i.partition("_")[2]) for i in known if i.startswith("17_")) == [0, 3, 7, 8, 9]
    # All that wait are cancelled: the queue has one row left, under the array's own id, and only accounting says which tasks that was.
    over = at(version, "put_back", monkeypatch)
    queue, recorded = by_id(await over.queue()), by_id(await over.accounting(0, ids=IDS))
    assert "17_7" not in queue
    assert [recorded[f"17_{i}"][0].state.name for i in (0, 3, 7, 8, 9)] == ["CANCELLED"] * 5


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_heterogeneous_job_is_one(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for moment, state in (("running", "PENDING"), ("ended", "RUNNING"), ("put_back", "CANCELLED")):
        queue, recorded = await rows(at(version, moment, monkeypatch))
        assert (queue["het"].job_id, queue["het"].state.name) == ("18", state)
        # Accounting tells components of a job that waits from two jobs of one name only when it has started.
        # That it waits, accounting hears some seconds late.
        known = recorded.get("het", []) if state == "PENDING" else recorded["het"]
        assert [row.state.name for row in known] in ([], [state] * (2 if state == "PENDING" else 1))
        assert all(row.job_id == "18" for row in known[:1])


@pytest.mark.parametrize("version", VERSIONS)
async def test_of_jobs_that_are_pushed_out_one_waits_again_in_the_same_moment_and_two_end(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed, recorded = await rows(at(version, "pushed_out", monkeypatch))
    assert (pushed["put_back"].state.name, pushed["put_back"].restarts) == ("PENDING", 1)
    assert (pushed["pushed_out"].state.name, pushed["pushed_out"].restarts) == ("PREEMPTED", 0)
    view = judge(JobView(pushed["put_back"].job_id), Observation(100.0, pushed["put_back"], True, recorded["put_back"]))
    assert (view.phase, view.put_back_at) == (Phase.WAITING, pushed["put_back"].submit_time)
    assert (view.put_back_at or 0.0) > (recorded["put_back"][0].submit_time or 0.0)
    later, _ = await rows(at(version, "put_back", monkeypatch))
    assert later["ended_there"].state.name == "PREEMPTED"  # with --requeue, in a partition whose PreemptMode is CANCEL
    queue, recorded = await rows(at(version, "ran_again", monkeypatch))
    for row in (queue["put_back"], None):
        ran = judge(view, Observation(200.0, row, True, recorded["put_back"]))
        assert [(run.restart, run.state, run.gpus) for run in ran.incarnations] == [(0, "PREEMPTED", 1), (1, "COMPLETED", 1)]
        assert ran.lost_gpu_seconds == recorded["put_back"][0].elapsed_s


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_failed_node_loses_one_job_and_gives_the_other_back(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, recorded = await rows(at(version, "node_failed", monkeypatch))
    assert [(queue[name].state.name, queue[name].restarts) for name in ("node_fails", "node_fails_again")] == [
        ("NODE_FAIL", 0),
        ("PENDING", 1),
    ]
    assert [row.state.name for row in recorded["node_fails_again"]] == ["NODE_FAIL", "PENDING"]
    view = judge(JobView("40"), Observation(100.0, queue["node_fails"], True, recorded["node_fails"]))
    assert (view.phase, view.cause) == (Phase.ENDING, "node_fail")


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_a_killed_controller_forgot_and_what_it_starts_beside_itself(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = at(version, "twice_started", monkeypatch)
    queue, recorded = await rows(client)
    controller, reasons = await client.controller(), await client.node_reasons("n[1-4]")
    assert "Duplicate jobid" in reasons
    submitted = recorded["twice"][0].submit_time
    seen = Observation(0.0, None, True, recorded["forgotten"])
    late = Observation(500.0, None, True, recorded["forgotten"])
    gone = judge(judge(JobView(recorded["forgotten"][0].job_id), seen), late)
    assert "forgotten" not in queue
    assert may_be_forgotten(gone, late)
    assert forgotten(gone, controller.booted_at, recorded["forgotten"][0].submit_time).cause == FORGOTTEN
    # Without --requeue Slurm cancels the job beside its own run; with it, the job is put back, and held.
    twice = judge(JobView(queue["twice"].job_id), Observation(100.0, queue["twice"], True, recorded["twice"]))
    doubted = as_doubted(twice, controller, submitted, reasons, ended_by_us=False)
    assert (twice.state, doubted.doubtful, doubted.cause) == ("CANCELLED", True, "launch_failed")
    again = queue["twice_again"]
    assert (again.state.name, again.reason, again.restarts, again.held_by_us) == ("PENDING", LAUNCH_FAILED_HELD, 1, False)
    assert [row.state.name for row in recorded["twice_again"]] == ["REQUEUED", "PENDING"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_submission_is_read_whole(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = at(version, "waiting", monkeypatch)
    queued = await client.submit_and_look(JobSpec(body=KEY_BODY, output="/dev/null", gpus_per_node=1, mem="50M"), NAME)
    assert [row.job_id for row in queued.of_its_name or ()] == [queued.receipt.job_id]
    assert queued.receipt.queued_at is not None
    assert queued.receipt.queued_at < time.time()
    assert queued.receipt.requeue is False
    assert (await client.version()).startswith(version)


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_not_there_any_more_is_no_error_to_cancel_and_one_to_release(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = at(version, "waiting", monkeypatch)
    assert await client.queue_of_all(ids=[NOBODY]) == []
    await client.cancel(NOBODY)
    await client.cancel("1", signal="USR1")  # it has ended
    await client.cancel(["1", NOBODY, "2"])
    with pytest.raises(CommandRefused, match="Invalid job id"):
        await client.release(NOBODY)


@pytest.mark.parametrize("version", VERSIONS)
async def test_of_a_dead_controller_nobody_knows_and_accounting_still_tells(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = at(version, "controller_down", monkeypatch)
    for question in (client.queue(), client.cancel("1"), client.release("1")):
        with pytest.raises(ControllerUnreachable):
            await question
    with pytest.raises(AnswerLost):
        await client.submit_and_look(JobSpec(body=KEY_BODY, output="/dev/null", gpus_per_node=1, mem="50M"), NAME)
    known: Sequence[AccountingRow] = await client.accounting(0, ids=IDS)
    assert {row.name: row.state.name for row in known}["twice"] == "RUNNING"
