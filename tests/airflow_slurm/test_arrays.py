"""Arrays: every form of their ids, what all tasks amount to, and which shards still have to run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from airflow_slurm.errors import InvalidSpec, JobFailed, Resubmit
from airflow_slurm.receipts import JobEnd, Record
from airflow_slurm.slurm.commands import ACCOUNTING_COLUMNS, DELIMITER, QUEUE_COLUMNS, ROW_END
from airflow_slurm.slurm.parse import AccountingRow, QueueRow, accounting_rows, queue_rows
from airflow_slurm.slurm.script import render
from airflow_slurm.slurm.states import Phase
from airflow_slurm.spec import JobSpec, task_path
from airflow_slurm.truth.arrays import by_id, compact, expression, indices_of, main_id, summarise, tasks_by_state, whole_jobs
from airflow_slurm.truth.shards import ShardEnd, ends_since, first_of_round, remaining, settle, wanted_shards
from airflow_slurm.truth.view import Incarnation, JobView
from airflow_slurm.watch.following import ArrayFollower
from airflow_slurm.watch.poller import Hub, Snapshot
from airflow_slurm.watch.waiting import Wait, due_of_tasks

INDICES = st.sets(st.integers(min_value=0, max_value=3000), min_size=1, max_size=80)


def queued(**values: Any) -> QueueRow:
    given = dict.fromkeys(QUEUE_COLUMNS, "") | {"JobID": "5501", "State": "PENDING", "NumNodes": "1", "Name": "a"} | values
    return queue_rows("|".join(given[name] for name in QUEUE_COLUMNS))[0]


def recorded(raw: str, shown: str, state: str, **values: str) -> AccountingRow:
    given = dict.fromkeys(ACCOUNTING_COLUMNS, "") | {"JobIDRaw": raw, "JobID": shown, "State": state, "JobName": "a"} | values
    return accounting_rows("".join(given[name] + DELIMITER + ROW_END for name in ACCOUNTING_COLUMNS))[0]


@given(INDICES, st.none() | st.integers(min_value=1, max_value=99))
def test_a_list_of_tasks_comes_back_from_its_expression(indices: set[int], max_parallel: int | None) -> None:
    text = expression(indices, max_parallel)
    assert indices_of(text) == sorted(indices)
    assert JobSpec(command=("true",), array=text).array == text


@given(INDICES)
def test_waiting_tasks_are_found_by_their_own_ids_in_queue_and_accounting(indices: set[int]) -> None:
    row = queued(JobArrayID=f"5501_[{expression(indices)}%3]")
    assert by_id([row]) == {f"5501_{index}": [row] for index in indices}
    gone = recorded("5501", f"5501_[{expression(indices)}%3]", "CANCELLED by 7")
    assert set(by_id([gone])) == {f"5501_{index}" for index in indices}


def test_every_task_of_an_array_has_its_state_under_both_its_ids() -> None:
    rows = [
        recorded("5508", "5501_3", "COMPLETED"),
        recorded("5509", "5501_4", "RUNNING"),
        recorded("5501", "5501_[7-9,12%2]", "PENDING"),
    ]
    found = by_id(rows)
    states = {index: found[f"5501_{index}"][-1].state.name for index in (3, 4, 7, 8, 9, 12)}
    assert states == {3: "COMPLETED", 4: "RUNNING", 7: "PENDING", 8: "PENDING", 9: "PENDING", 12: "PENDING"}
    assert found["5508"] == found["5501_3"]
    assert set(found) == {"5508", "5509", *(f"5501_{index}" for index in states)}


def test_a_tasks_own_row_counts_more_than_the_one_it_waited_in() -> None:
    waited, ran = recorded("5501", "5501_[7-8]", "PENDING"), recorded("5510", "5501_7", "COMPLETED")
    assert by_id([waited, ran])["5501_7"] == [ran]
    assert by_id([waited, ran])["5501_8"] == [waited]


def test_of_an_array_one_row_says_most_about_the_whole() -> None:
    ended, runs, waits = (
        queued(JobID="5508", JobArrayID="5501_3", State="COMPLETED"),
        queued(JobID="5509", JobArrayID="5501_4", State="RUNNING"),
        queued(JobArrayID="5501_[7-9]"),
    )
    other = queued(JobID="77", JobArrayID="77", State="RUNNING")
    assert [(row.job_id, row.state.name) for row in whole_jobs([ended, waits, runs, other])] == [("5501", "RUNNING"), ("77", "RUNNING")]
    assert whole_jobs([ended, waits])[0].state.name == "PENDING"
    assert main_id(runs) == "5501"


def test_a_het_jobs_components_are_one_job() -> None:
    rows = [recorded("36", "36+0", "COMPLETED"), recorded("37", "36+1", "RUNNING")]
    assert [(row.job_id, row.state.name) for row in whole_jobs(rows)] == [("36", "RUNNING")]


def test_an_array_has_ended_when_all_have_and_succeeded_when_all_have() -> None:
    done = JobView("5501_0", phase=Phase.SUCCEEDED, state="COMPLETED", elapsed_s=2.0)
    runs = JobView("5501_1", phase=Phase.RUNNING, state="RUNNING", node_list="n1", nodes=1)
    failed = JobView("5501_2", phase=Phase.FAILED, state="FAILED", cause="failed", exit_code=3, retryable=True)
    assert summarise("5501", None, {0: done, 1: runs, 2: failed}).phase is Phase.RUNNING
    ended = summarise("5501", None, {0: done, 2: failed})
    assert (ended.phase, ended.exit_code, ended.retryable, ended.elapsed_s) == (Phase.FAILED, 3, True, 2.0)
    assert summarise("5501", None, {0: done, 1: done}).succeeded
    early, late = replace(done, observed_at=5.0, node_list="n1", nodes=1), replace(failed, observed_at=9.0, node_list="n[2-3]", nodes=2)
    whole = summarise("5501", None, {0: early, 2: late})
    assert (whole.observed_at, whole.node_list, whole.nodes) == (9.0, "n1,n[2-3]", 3)
    going_on = summarise("5501", None, {0: early, 1: runs, 2: late})
    assert (going_on.node_list, going_on.nodes) == ("n1", 1), "of those that run"
    assert tasks_by_state({0: done, 1: runs, 2: failed, 3: done}) == {"COMPLETED": "0,3", "FAILED": "2", "RUNNING": "1"}
    assert "COMPLETED 0, FAILED 2" in ended.describe()


def test_one_task_of_unknown_outcome_makes_no_success() -> None:
    done = JobView("1_0", phase=Phase.SUCCEEDED, state="COMPLETED")
    lost = JobView("1_1", phase=Phase.UNKNOWN, state="RUNNING", cause="nobody knows", unknown_since=100.0)
    whole = summarise("1", None, {0: done, 1: lost})
    assert (whole.phase, whole.tasks) == (Phase.UNKNOWN, {"COMPLETED": "0", "UNKNOWN": "1"})
    wait = Wait("k", 1, "1", "a", 0.0, {}, "", {}, array="0-1", max_unknown_s=60)
    assert due_of_tasks([done, lost], wait, 120.0) is None
    assert due_of_tasks([done, lost], wait, 170.0) == "unknown"
    assert due_of_tasks([done, done], wait, 170.0) == "ended"
    assert due_of_tasks([lost, JobView("1_2", phase=Phase.RUNNING)], wait, 170.0) is None


def test_an_array_waits_too_long_only_while_none_has_started() -> None:
    wait = Wait("k", 1, "1", "a", 0.0, {}, "", {}, array="0-1", max_wait_s=60)
    waits, runs = JobView("1_0"), JobView("1_1", phase=Phase.RUNNING)
    assert due_of_tasks([waits, waits], wait, 100.0) == "waited_too_long"
    assert due_of_tasks([waits, runs], wait, 100.0) is None


async def test_a_task_that_was_struck_from_the_waiting_list_is_cancelled_and_not_unknown_for_ever() -> None:
    """As seen with 22.05: after `scancel 22_1` before its start, squeue and sacct know of 22_0 alone, under the id 22."""
    wait = Wait("", 1, "22", "a", 0.0, {}, "", {}, array="0-1")
    follower = ArrayFollower(wait, Hub(), structlog.get_logger())
    runs, ended = recorded("22", "22_0", "RUNNING"), recorded("22", "22_0", "COMPLETED", Start="10", End="20", ExitCode="0:0")

    def looked(at: float, *rows: AccountingRow, asked: bool = True) -> Snapshot:
        return Snapshot(at, frozenset({"22"}), {}, by_id(rows) if asked else None)

    assert await follower.look(looked(100.0, runs)) is None
    assert await follower.look(looked(101.0, ended)) is None
    assert await follower.look(looked(300.0, asked=False)) is None
    event = await follower.look(looked(301.0, ended))
    assert event is not None
    assert event["status"] == "ended"
    assert {i: (v["phase"], v["state"], v["cause"]) for i, v in event["tasks"].items() if i == "1"} == {
        "1": ("failed", "CANCELLED", "removed_from_array")
    }
    assert event["tasks"]["0"]["phase"] == "succeeded"


def test_a_compact_view_comes_back_whole() -> None:
    view = JobView("1_0", phase=Phase.FAILED, state="FAILED", exit_code=0, elapsed_s=0.0, tasks={"FAILED": "0"})
    assert JobView.from_json(compact(view)) == view
    assert JobView.from_json(compact(JobView("1_1"))) == JobView("1_1")


@pytest.mark.parametrize("array", ["", "a", "1-", "-1", "0-3;rm", "1,,2", "0-3%0", "0-3\n#SBATCH --uid=0"])
def test_what_is_no_list_of_tasks_is_refused(array: str) -> None:
    with pytest.raises(InvalidSpec, match="array"):
        JobSpec(command=("true",), array=array)


def test_an_array_that_would_write_into_one_file_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="into one file"):
        JobSpec(command=("true",), array="0-3", output="/logs/%A.log")
    spec = JobSpec(command=("true",), array="0-3%2", output="/logs/100%%/%A_%a.log")
    assert '#SBATCH --array="0-3%2"' in render(spec)
    assert spec.log_path("5501") == "/logs/100%%/5501_%a.log"
    assert task_path(spec.log_path("5501") or "", 3) == "/logs/100%/5501_3.log"


@pytest.mark.parametrize(("shards", "indices"), [(3, [0, 1, 2]), ("2", [0, 1]), ("0-1,7", [0, 1, 7]), ([4, 2, 4], [2, 4])])
def test_how_shards_are_asked_for(shards: Any, indices: list[int]) -> None:
    assert wanted_shards(shards) == indices


@pytest.mark.parametrize("shards", [0, -1, True, [], "", "many", [1, "2"], [-1], None, 2.5])
def test_what_is_no_set_of_shards_is_refused(shards: Any) -> None:
    with pytest.raises(InvalidSpec, match="shards"):
        wanted_shards(shards)


def record(n: int, outcome: str, **shards: str) -> Record:
    ends = {name[1:]: ShardEnd(int(name[1:]), n, f"9_{name[1:]}", how).to_json() for name, how in shards.items()}
    return Record("k", n, 0.0, end=JobEnd(outcome, shards=ends))


def test_only_what_failed_in_this_round_runs_again() -> None:
    history = [
        record(1, "succeeded", s0="succeeded", s1="succeeded"),
        record(2, "interrupted", s0="succeeded", s1="failed"),
        record(3, "failed", s1="failed"),
        Record("k", 4, 0.0),
    ]
    assert first_of_round(history) == 2
    ends = ends_since(history, 2)
    assert remaining([0, 1, 2], ends) == [1, 2]
    assert (ends[0].n, ends[1].n) == (2, 3)
    assert remaining([0, 1], ends_since(history, 2, 2)) == [0, 1]


def test_the_end_of_a_shard_keeps_what_its_runs_cost() -> None:
    """As the trigger hands the view of a task over, and as a store gives it back."""
    runs = (
        Incarnation(0, "PREEMPTED", elapsed_s=100.0, gpus=8),
        Incarnation(1, "TIMEOUT", elapsed_s=50.0, gpus=8),
        Incarnation(2, "COMPLETED", elapsed_s=600.0, gpus=8),
    )
    view = JobView.from_json(json.loads(json.dumps(compact(JobView("7_3", phase=Phase.SUCCEEDED, state="COMPLETED", incarnations=runs)))))
    end = ShardEnd.from_json(json.loads(json.dumps(ShardEnd.of(3, 1, view).to_json())))
    assert (end.gpu_seconds, end.lost_gpu_seconds) == (6000.0, 1200.0)
    unsaid = ShardEnd.of(3, 1, replace(view, incarnations=(replace(runs[0], gpus=None),)))
    assert (unsaid.gpu_seconds, unsaid.lost_gpu_seconds) == (None, None)
    assert ShardEnd.from_json({"index": 3, "n": 1, "job_id": "7_3", "outcome": "failed"}).lost_gpu_seconds is None  # of an older version


def test_a_shard_that_succeeded_stays_so() -> None:
    history = [record(1, "interrupted", s0="succeeded"), record(2, "failed", s0="failed")]
    assert ends_since(history, 1)[0].succeeded


def test_a_submission_that_was_given_up_says_nothing_about_its_shards() -> None:
    given_up = replace(record(1, "cancelled"), end=JobEnd("cancelled", "given_up"))
    assert remaining([0, 1], ends_since([given_up], 1)) == [0, 1]


DONE = ShardEnd(0, 1, "7_0", "succeeded")
FORGOTTEN_ONE = ShardEnd(1, 1, "7_1", "failed", cause="forgotten", retryable=True)
PREEMPTED = ShardEnd(2, 1, "7_2", "failed", "PREEMPTED", "preempted", retryable=True)
BROKEN = ShardEnd(3, 1, "7_3", "failed", "FAILED", "failed", "exit 7", retryable=True)
HOPELESS = ShardEnd(4, 1, "7_4", "failed", "OUT_OF_MEMORY", "out_of_memory")


@pytest.mark.parametrize(
    ("ends", "used", "error", "cause", "words"),
    [
        ([DONE, FORGOTTEN_ONE], 9, Resubmit, "forgotten", r"1 of 2 parts are not done \(1\): 7_1 .*Only these are sent again"),
        ([DONE, FORGOTTEN_ONE, PREEMPTED], 9, Resubmit, "parts_interrupted", r"2 of 3 parts are not done \(1-2\)"),
        ([DONE, FORGOTTEN_ONE, BROKEN], 1, Resubmit, "parts_failed", r"1 of 3 parts failed \(3\): 7_3 FAILED: failed exit 7"),
        ([DONE, PREEMPTED, BROKEN], 2, JobFailed, "failed", r"1 of 3 parts failed \(3\)"),
        ([HOPELESS, BROKEN], 0, JobFailed, "out_of_memory", r"2 of 2 parts failed \(3-4\)"),
    ],
)
def test_what_follows_from_the_ends_of_all_tasks(ends: list[ShardEnd], used: int, error: type[Exception], cause: str, words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        settle(ends, "parts", used=used, most=2, blameless=("forgotten", "preempted"))
    assert getattr(caught.value, "cause", None) == cause
    assert getattr(caught.value, "retryable", True) is (cause != "out_of_memory")


def test_nothing_follows_if_each_is_done() -> None:
    settle([DONE, replace(DONE, index=1)], "shards", used=9, most=0)
