"""Ends that a restarted controller gives runs which it lost: what they made decides, and whoever is named as their end is believed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_slurm.array_operator import SlurmArrayOperator
from airflow_slurm.errors import InvalidSpec, JobFailed, JobFailedForGood, LoginRefused, SshUnreachable, UnknownOutcome
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.hook import SlurmHook
from airflow_slurm.remote.client import Answer
from airflow_slurm.slurm.commands import scontrol_show_nodes
from airflow_slurm.slurm.parse import Controller, controller, node_reasons
from airflow_slurm.slurm.states import TABLE, Phase
from airflow_slurm.truth.holds import GONE, NODES_REPORT_WITHIN_S, QUESTIONS, ROLLED_BACK, as_doubted, asks_nodes, nodes_of, output_decides
from airflow_slurm.truth.reconcile import FORGOTTEN
from airflow_slurm.truth.view import Change, JobView

from .conftest import OWNER, recorded
from .held_jobs import Files, Node, Site, Watch
from .sites import VERSIONS
from .tasks import Make

CANCELLED = JobView("7", phase=Phase.FAILED, state="CANCELLED", cause="cancelled", node_list="n1", cancelled_by_uid=0)
ANEW = Controller(60.0, frozenset({0, 64030}))
DRAINED = ["Duplicate jobid"]
RUNNING = ["RUNNING", "None", "60", "(null)"]


def ends(uid: int | None = 0, state: str = "CANCELLED") -> Answer:
    word = f"{state} by {uid}" if uid is not None else state
    return Answer(f"7|7|{word}|0:0|50|51|60|9|1|n1|a\n", "", 0)


def anew(booted_at: int = 60, more: str = "") -> str:
    return f"BOOT_TIME               = {booted_at}\n{more}"


@pytest.mark.parametrize(
    ("changed", "doubtful"),
    [
        ({}, True),
        ({"cancelled_by_uid": 64030}, True),
        ({"cancelled_by_uid": None}, True),
        ({"cancelled_by_uid": 1000}, False),
        ({"node_list": ""}, False),
        ({"node_list": "", "history": (Change(55.0, "RUNNING"),)}, True),
        ({"phase": Phase.LOST, "state": "NODE_FAIL", "cause": "node_fail", "observed_at": 100.0}, True),
        ({"phase": Phase.LOST, "state": "BOOT_FAIL", "cause": "boot_fail", "observed_at": 100.0}, True),
        ({"phase": Phase.LOST, "state": "LAUNCH_FAILED", "cause": "launch_failed", "observed_at": 100.0}, True),
        ({"phase": Phase.ENDING, "state": "NODE_FAIL", "cause": "node_fail"}, False),
        ({"state": "FAILED", "cause": "failed"}, False),
        ({"state": "TIMEOUT", "cause": "time_limit"}, False),
        ({"state": "OUT_OF_MEMORY", "cause": "out_of_memory"}, False),
        ({"phase": Phase.LOST, "state": "PREEMPTED", "cause": "preempted"}, False),
        ({"phase": Phase.SUCCEEDED, "state": "COMPLETED", "cause": ""}, False),
    ],
)
def test_which_ends_are_no_word_about_the_run(changed: dict[str, Any], doubtful: bool) -> None:
    view = replace(CANCELLED, **changed)
    assert as_doubted(view, ANEW, 50.0, DRAINED, ended_by_us=False) == replace(view, doubtful=doubtful)
    assert output_decides(as_doubted(view, ANEW, 50.0, DRAINED, ended_by_us=False)) is doubtful
    # Neither of one whose controller runs since before it, or does not say, nor of one that we ended.
    assert as_doubted(view, ANEW, 61.0, DRAINED, ended_by_us=False) == view
    assert as_doubted(view, Controller(None), 50.0, DRAINED, ended_by_us=False) == view
    assert as_doubted(view, ANEW, 50.0, DRAINED, ended_by_us=True) == view


@pytest.mark.parametrize("uid", [0, 64030, None])
def test_a_cancel_that_its_node_does_not_explain_is_one(uid: int | None) -> None:
    """squeue names nobody, and accounting may be late: a person's cancel after a restart must not pass for a controller's mistake."""
    view = replace(CANCELLED, cancelled_by_uid=uid)
    for reasons in ([], ["Not responding"], ["Duplicate jobid was here"]):
        assert as_doubted(view, ANEW, 50.0, reasons, ended_by_us=False) == view


@pytest.mark.parametrize(("end_time", "doubtful"), [(59.0, True), (660.0, True), (661.0, False), (60.0 + 3 * 86400, False)])
def test_a_node_that_fails_long_after_the_controller_started_has_failed(end_time: float, doubtful: bool) -> None:
    view = replace(CANCELLED, phase=Phase.LOST, state="NODE_FAIL", cause="node_fail", cancelled_by_uid=None, end_time=end_time)
    assert as_doubted(view, ANEW, 50.0, ended_by_us=False).doubtful is doubtful


@pytest.mark.parametrize(
    ("changed", "booted_at", "asked"),
    [
        ({"elapsed_s": 0.0}, 49.0, True),
        ({"elapsed_s": 2.0}, 49.0, False),
        ({"elapsed_s": None}, 49.0, False),
        ({"elapsed_s": 2.0}, 60.0, True),
        ({"node_list": ""}, 60.0, False),
        ({"node_list": "", "history": (Change(55.0, "RUNNING", node_list="n1"),)}, 60.0, True),
        ({"state": "FAILED"}, 60.0, False),
        ({"state": "NODE_FAIL"}, 60.0, False),
        ({"cancelled_by_uid": 1000}, 60.0, False),
    ],
)
def test_nodes_are_asked_of_unnamed_cancels_at_the_start_or_after_a_restart(changed: dict[str, Any], booted_at: float, asked: bool) -> None:
    view = replace(CANCELLED, **changed)
    assert asks_nodes(view, Controller(booted_at, ANEW.own_uids), 50.0) is asked
    assert not asked or nodes_of(view) == "n1"


def test_who_reads_of_such_an_end_is_told_what_it_is_worth() -> None:
    assert CANCELLED.describe() == "job 7 CANCELLED on n1"
    assert replace(CANCELLED, doubtful=True).describe() == "job 7 CANCELLED on n1 (a restarted controller's word: it had lost the run)"


def test_slurms_word_is_none_of_runs_that_their_controller_lost_and_only_of_those() -> None:
    assert [
        cause for cause in (ROLLED_BACK, GONE, FORGOTTEN, "cancelled", "no_accounting") if output_decides(replace(CANCELLED, cause=cause))
    ] == [
        ROLLED_BACK,
        GONE,
        FORGOTTEN,
    ]
    assert not any(output_decides(JobView("7", phase=info.phase, state=name, cause=info.cause)) for name, info in TABLE.items())


@pytest.mark.parametrize("version", VERSIONS)
def test_whose_daemons_are_read_as_both_versions_print_them(version: str) -> None:
    said = controller(recorded(f"site_{version}/config.txt"))
    assert said.own_uids == {0}
    assert said.said_at is not None
    assert said.booted_at is not None
    other = (
        "BOOT_TIME = N/A\nSlurmUser               = slurm(64030)\nSlurmdUser              = daemon(2)\nSlurmctldParameters     = user(7)\n"
    )
    assert controller(other) == Controller(None, frozenset({0, 2, 64030}))


async def cancelled(watch: Watch) -> dict[str, Any] | None:
    """The job is seen to run, and then to have been cancelled."""
    watch.node.site.rows["7"] = list(RUNNING)
    assert await watch.look() is None
    watch.node.site.rows["7"] = ["CANCELLED", "None", "60", "(null)"]
    return await watch.look()


@pytest.mark.parametrize(
    ("uid", "config", "doubtful"),
    [
        (0, anew(), True),
        (0, anew(49), False),
        (1000, anew(), False),
        (1000, anew(more="SlurmUser               = slurm(1000)\n"), True),
        (None, anew(), True),
    ],
)
async def test_of_a_run_that_its_controller_cancelled_the_task_is_told(
    kept: FileReceipts,
    uid: int | None,
    config: str,
    doubtful: bool,
) -> None:
    watch = Watch(kept, Node(Site(sacct=ends(uid))))
    watch.node.config = config
    event = await cancelled(watch)
    assert event is not None
    assert (event["status"], event["view"]["cause"], event["view"]["doubtful"]) == ("ended", "cancelled", doubtful)
    assert watch.done() == ["scontrol show config", *(["scontrol --oneliner show node n1"] if doubtful else [])]


async def test_what_was_given_up_is_cancelled_and_nothing_else(kept: FileReceipts) -> None:
    watch = Watch(kept, Node(Site(sacct=ends())))
    watch.node.config = anew()
    kept.drop_owner("k", OWNER)
    event = await cancelled(watch)
    assert event is not None
    assert event["view"]["doubtful"] is False


async def test_a_controller_that_does_not_answer_yet_is_asked_again_and_not_for_ever(kept: FileReceipts) -> None:
    class Silent(Node):
        answers_from = 0

        async def _run(self, argv: Any, **more: Any) -> Answer:
            answer = await super()._run(argv, **more)
            asked = sum(line[:3] == ["scontrol", "show", "config"] for line in self.asked)
            late = list(argv[:3]) == ["scontrol", "show", "config"] and asked <= self.answers_from
            return Answer("", "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)\n", 1) if late else answer

    for late, doubtful in ((QUESTIONS, True), (QUESTIONS + 1, False)):
        node = Silent(Site(sacct=ends()))
        node.answers_from, node.config = late, anew()
        watch = Watch(kept, node)
        assert await cancelled(watch) is None
        event = await watch.looks(QUESTIONS)
        assert event is not None
        assert event["view"]["doubtful"] is doubtful
        assert watch.done().count("scontrol show config") == QUESTIONS + 1


async def test_a_connection_that_goes_between_two_questions_ends_nothing(kept: FileReceipts) -> None:
    class Leaving(Node):
        async def _run(self, argv: Any, **more: Any) -> Answer:
            answer = await super()._run(argv, **more)
            if list(argv[:3]) == ["scontrol", "show", "config"]:
                watch.hub.client = None
            return answer

    watch = Watch(kept, Leaving(Site(sacct=ends(0))))
    watch.node.config = anew()
    event = await cancelled(watch)
    assert event is not None
    assert (event["status"], event["view"]["cause"]) == ("ended", "cancelled")
    assert watch.done() == ["scontrol show config"]


async def test_a_node_that_failed_may_give_the_job_back_before_its_end_is_doubted(kept: FileReceipts) -> None:
    watch = Watch(kept, Node(Site(sacct=ends(None, "NODE_FAIL"))))
    watch.node.config = anew()
    watch.node.site.rows["7"] = list(RUNNING)
    assert await watch.look() is None
    watch.node.site.rows["7"] = ["NODE_FAIL", "None", "60", "(null)"]
    assert await watch.looks(5) is None
    assert watch.done() == []
    event = await watch.look()  # 300 s after it was first seen so
    assert event is not None
    assert (event["view"]["phase"], event["view"]["cause"], event["view"]["doubtful"]) == ("lost", "node_fail", True)


async def test_of_an_array_each_task_is_doubted_for_itself_and_the_controller_asked_once(kept: FileReceipts) -> None:
    lines = [
        f"{8 + i}|7_{i}|{state}|0:0|50|51|60|9|1|n1|a\n" for i, state in enumerate(("CANCELLED by 0", "CANCELLED by 1000", "COMPLETED"))
    ]
    node = Node(Site({f"7_{i}": list(RUNNING) for i in range(3)}, Answer("".join(lines), "", 0)))
    node.config = anew()
    watch = Watch(kept, node, "0-2")
    assert await watch.look() is None
    node.site.rows.clear()
    event = await watch.look()
    assert event is not None
    assert {index: view.get("doubtful", False) for index, view in event["tasks"].items()} == {"0": True, "1": False, "2": False}
    assert watch.done() == ["scontrol show config", "scontrol --oneliner show node n1"]


async def test_a_thousand_ends_of_one_look_ask_controller_and_node_once(kept: FileReceipts) -> None:
    node = Node(Site(sacct=ends()))
    node.config = anew()
    watches = [Watch(kept, node) for _ in range(1000)]
    hub = watches[0].follower._hub
    hub.last_look = 1.0
    for watch in watches:
        watch.follower._doubts._hub = hub
    node.site.rows["7"] = list(RUNNING)
    for watch in watches:
        assert await watch.look() is None
    node.site.rows["7"] = ["CANCELLED", "None", "60", "(null)"]
    events = await asyncio.gather(*(watch.look() for watch in watches))
    assert all(event is not None and event["view"]["doubtful"] for event in events)
    assert watches[0].done() == ["scontrol show config", "scontrol --oneliner show node n1"]
    # What was said in one look is not taken for what is so in the next.
    hub.last_look, node.config = 2.0, anew(49)
    assert (await hub.controller(node, None)).booted_at == 49.0
    node.config = anew(48)
    assert (await hub.controller(node, None)).booted_at == 49.0


REFUSED = replace(CANCELLED, cancelled_by_uid=None, elapsed_s=0.0)


def test_a_job_that_its_node_would_not_start_is_lost_and_any_other_reason_says_nothing() -> None:
    of_before = Controller(49.0)  # it had lost the earlier job of that number before this one was submitted
    refused = replace(REFUSED, phase=Phase.LOST, cause=FORGOTTEN, retryable=True)
    assert as_doubted(REFUSED, of_before, 50.0, DRAINED, ended_by_us=False) == refused
    own = replace(refused, cause="launch_failed", doubtful=True)
    assert as_doubted(REFUSED, ANEW, 50.0, DRAINED, ended_by_us=False) == own
    assert as_doubted(REFUSED, of_before, 50.0, ["Not responding"], ended_by_us=False) == REFUSED


def test_why_nodes_are_drained_is_read_as_the_controller_prints_it() -> None:
    well = "NodeName=n2 Arch=x86_64 State=IDLE Comment=Reason\n"
    # As seen with 22.05 after a restart, but for the columns between.
    drained = "NodeName=n1 Arch=x86_64 State=IDLE+DRAIN ThreadsPerCore=1 Reason=Duplicate jobid [root@2026-11-30T09:58:01]\n"
    assert node_reasons(well + drained) == ["Duplicate jobid"]
    assert node_reasons(well) == []


@pytest.mark.parametrize("nodes", ["", "-n", "n1;reboot", "n1 n2", "$(id)", "n1\n"])
def test_what_is_no_list_of_nodes_reaches_no_command(nodes: str) -> None:
    with pytest.raises(InvalidSpec):
        scontrol_show_nodes(nodes)
    assert scontrol_show_nodes("n[1-3,7],gpu-a.b_c", "c1") == [
        "scontrol",
        "--clusters=c1",
        "--oneliner",
        "show",
        "node",
        "n[1-3,7],gpu-a.b_c",
    ]


@pytest.mark.parametrize(
    ("reason", "uid", "cause"),
    [
        ("Duplicate jobid [root@2026-11-30T09:58:01]", None, FORGOTTEN),
        ("bad disk [root@x]", None, "cancelled"),
        ("Duplicate jobid [x]", 1000, "cancelled"),
    ],
)
async def test_a_number_that_was_given_twice_costs_its_second_job_nothing_but_time(
    kept: FileReceipts,
    reason: str,
    uid: int | None,
    cause: str,
) -> None:
    """The controller runs since before the submission: it forgot the earlier job of that number."""

    word = f"CANCELLED by {uid}" if uid is not None else "CANCELLED"
    node = Node(Site({}, Answer(f"7|7|{word}|0:0|50|60|60|0|1|n1|a\n", "", 0)))
    node.config, node.drained = anew(49), reason
    event = await Watch(kept, node).look()
    assert event is not None
    assert (event["status"], event["view"]["cause"], event["view"]["doubtful"]) == ("ended", cause, False)


@pytest.mark.parametrize(("is_there", "ends_as"), [(True, "succeeded"), (False, "interrupted")])
def test_what_nobody_saw_run_is_looked_at_before_it_is_sent_again(
    make: Make,
    store: FileReceipts,
    there: Files,
    is_there: bool,
    ends_as: str,
) -> None:
    there |= {"/out"} if is_there else set()
    task = make(expected_output="/out")
    event = ended(JobView("7", phase=Phase.LOST, cause=FORGOTTEN, retryable=True))
    first = task.execute()
    if is_there:
        assert task.resume(first, event)["job_id"] == "7"
    else:
        with pytest.raises(TaskDeferred) as again:
            task.resume(first, event)
        assert again.value.kwargs["request_state"]["n"] == 2
    end = store.end_of("work", 1)
    assert end is not None
    assert end.outcome == ends_as


def test_what_left_a_log_had_started_and_is_not_sent_again_in_the_same_try(
    make: Make,
    store: FileReceipts,
    there: Files,
) -> None:
    task = make(expected_output="/out", output="/logs/%j.txt")
    first = task.execute()
    there.add("/logs/7.txt")
    with pytest.raises(JobFailed, match="its log /logs/7.txt is there") as lost:
        task.resume(first, ended(JobView("7", phase=Phase.LOST, cause=FORGOTTEN, retryable=True)))
    assert (lost.value.retryable, lost.value.cause) == (True, "lost")
    end = store.end_of("work", 1)
    assert end is not None
    assert (end.outcome, end.cause) == ("failed", "lost")
    with pytest.raises(TaskDeferred) as again:  # Airflow's next try
        task.make().execute(task.context)
    assert again.value.kwargs["request_state"]["n"] == 2


def test_what_slurm_had_put_back_is_sent_again_in_the_same_try_although_its_log_is_there(
    make: Make, store: FileReceipts, there: Files
) -> None:
    task = make(expected_output="/out", output="/logs/%j.txt")
    first = task.execute()
    there.add("/logs/7.txt")
    lost = JobView("7", phase=Phase.LOST, state="PENDING", cause=FORGOTTEN, retryable=True, restarts=1)
    with pytest.raises(TaskDeferred) as again:
        task.resume(first, ended(lost))
    assert again.value.kwargs["request_state"]["n"] == 2
    end = store.end_of("work", 1)
    assert end is not None
    assert (end.outcome, end.cause) == ("interrupted", FORGOTTEN)
    there.add("/out")  # and of the second submission, with its output there, nothing more is sent
    assert task.resume(again.value, ended(replace(lost, job_id="8")))["n"] == 2


def ended(view: JobView) -> dict[str, Any]:
    return {"status": "ended", "view": view.to_json()}


async def test_a_cancel_is_believed_while_accounting_is_late(kept: FileReceipts) -> None:
    node = Node(Site(sacct=Answer("7|7|RUNNING|0:0|50|51|Unknown|9|1|n1|a\n", "", 0)))
    node.config, node.drained = anew(), "none"
    event = await cancelled(Watch(kept, node))
    assert event is not None
    assert (event["status"], event["view"]["state"], event["view"]["doubtful"]) == ("ended", "CANCELLED", False)


async def test_a_job_counts_as_forgotten_only_once_the_nodes_have_reported(kept: FileReceipts) -> None:
    node = Node(Site({}, Answer("", "", 0)))
    node.config = anew(155)
    watch = Watch(kept, node)
    event = await watch.looks(10)
    assert event is not None
    assert event["view"]["cause"] == FORGOTTEN
    assert watch.at - 155 >= NODES_REPORT_WITHIN_S


@pytest.mark.parametrize("ahead_s", [0, 600, -600])
async def test_how_long_a_controller_has_run_is_said_by_its_own_clock(kept: FileReceipts, ahead_s: int) -> None:
    """A triggerer whose clock is minutes ahead must not think that the nodes have reported."""
    node = Node(Site({}, Answer("", "", 0)))
    watch = Watch(kept, node)
    watch.at = 10_000.0
    watch.follower._wait = watch.follower._doubts._wait = replace(watch.follower._wait, queued_at=9_950.0 - ahead_s)
    for look in range(1, 12):
        now, booted_at = int(watch.at) + 60 - ahead_s, 10_155 - ahead_s
        node.config = f"Configuration data as of {now}\nBOOT_TIME               = {booted_at}\n" if look > 2 else ""
        if (event := await watch.look()) is not None:
            break
    assert event is not None
    assert event["view"]["cause"] == FORGOTTEN
    assert NODES_REPORT_WITHIN_S <= watch.at - 10_155 < NODES_REPORT_WITHIN_S + 60


def test_what_an_earlier_submission_made_is_no_sign_of_this_one(make: Make, store: FileReceipts, there: Files) -> None:
    there.add("/out")
    there.earlier.add("/out")
    task = make(expected_output="/out")
    with pytest.raises(TaskDeferred):
        task.resume(task.execute(), ended(JobView("7", phase=Phase.LOST, cause=FORGOTTEN, retryable=True)))
    end = store.end_of("work", 1)
    assert end is not None
    assert end.outcome == "interrupted"


@pytest.mark.parametrize("cause", [FORGOTTEN, "node_fail"])
def test_what_an_earlier_try_of_a_shard_made_is_no_sign_of_this_one(make: Make, there: Files, cause: str) -> None:
    there |= {"/out0", "/out1"}
    there.earlier.add("/out1")  # it was written before its shard failed
    task = make(SlurmArrayOperator, shards=2, expected_output="/out%a", shard_retries=3)
    ok = JobView("7_0", phase=Phase.SUCCEEDED, state="COMPLETED").to_json()
    bad = JobView("7_1", phase=Phase.FAILED, state="FAILED", cause="failed", retryable=True, exit_code=1).to_json()
    with pytest.raises(TaskDeferred) as again:
        task.resume(task.execute(), ended(JobView("7", phase=Phase.FAILED)) | {"tasks": {"0": ok, "1": bad}})
    lost = JobView("8_1", phase=Phase.LOST, cause=cause, retryable=True, doubtful=cause != FORGOTTEN).to_json()
    with pytest.raises(TaskDeferred) as third:
        task.resume(again.value, ended(JobView("8", phase=Phase.LOST, cause=cause)) | {"tasks": {"1": lost}})
    assert (third.value.kwargs["request_state"]["n"], third.value.kwargs["request_state"]["array"]) == (3, "1")


def test_a_log_that_cannot_be_looked_for_now_is_looked_for_later(
    make: Make,
    store: FileReceipts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*_: object) -> set[str]:
        raise SshUnreachable("the login node is started anew")

    monkeypatch.setattr(SlurmHook, "missing", away)
    task = make(output="/logs/%j.txt")
    event = ended(JobView("7", phase=Phase.LOST, cause=FORGOTTEN, retryable=True))
    with pytest.raises(TaskDeferred) as later:
        task.resume(task.execute(), event)
    assert later.value.method_name == "accept_later"
    assert store.end_of("work", 1) is None


def test_a_login_that_is_refused_while_a_log_is_looked_for_fails_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> set[str]:
        raise LoginRefused("the key is not taken any more")

    monkeypatch.setattr(SlurmHook, "missing", refused)
    task = make(output="/logs/%j.txt")
    with pytest.raises(LoginRefused):
        task.resume(task.execute(), ended(JobView("7", phase=Phase.LOST, cause=FORGOTTEN, retryable=True)))


def test_a_log_of_an_earlier_job_of_that_number_is_no_sign_of_this_one(make: Make, there: Files) -> None:
    there.add("/logs/7.txt")
    task = make(output="/logs/%j.txt")
    refused = JobView("7", phase=Phase.LOST, state="CANCELLED", cause=FORGOTTEN, retryable=True, node_list="n1")
    with pytest.raises(TaskDeferred) as again:
        task.resume(task.execute(), ended(refused))
    assert again.value.kwargs["request_state"]["n"] == 2


DOUBTFUL = replace(CANCELLED, doubtful=True)
LOST = JobView("7", phase=Phase.LOST, state="NODE_FAIL", cause="node_fail", retryable=True, node_list="n1", doubtful=True)


@pytest.mark.parametrize("view", [DOUBTFUL, LOST])
def test_with_its_output_there_it_is_a_success(make: Make, store: FileReceipts, there: Files, view: JobView) -> None:
    there.add("/out")
    task = make(expected_output="/out")
    assert task.resume(task.execute(), ended(view))["state"] == view.state
    end = store.end_of("work", 1)
    assert end is not None
    assert end.outcome == "succeeded"
    # A worker that dies now: the retry takes it, as any other that was accepted.
    assert task.make().execute(task.context)["job_id"] == "7"


@pytest.mark.parametrize(("view", "error"), [(DOUBTFUL, JobFailedForGood), (LOST, Exception)])
@pytest.mark.parametrize("expected", [None, "/out"])
def test_without_it_or_with_none_asked_for_the_end_stays_what_slurm_says(
    make: Make,
    store: FileReceipts,
    there: Files,
    view: JobView,
    error: type[Exception],
    expected: str | None,
) -> None:
    task = make(expected_output=expected)
    with pytest.raises(error, match=view.cause):
        task.resume(task.execute(), ended(view))
    end = store.end_of("work", 1)
    assert end is not None
    assert (end.outcome, end.cause) == ("failed", view.cause)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_task_that_does_not_defer_decides_alike(
    make: Make,
    there: Files,
    monkeypatch: pytest.MonkeyPatch,
    is_there: bool,
) -> None:
    async def first_event(trigger: Any) -> dict[str, Any]:
        return ended(DOUBTFUL)

    monkeypatch.setattr("airflow_slurm.work.steps.first_event", first_event)
    task = make(expected_output="/out", deferrable=False)
    if is_there:
        there.add("/out")
        assert task.make().execute(task.context)["state"] == "CANCELLED"
    else:
        with pytest.raises(JobFailedForGood, match="CANCELLED"):
            task.make().execute(task.context)


def test_shards_are_judged_alike(make: Make, store: FileReceipts, there: Files) -> None:
    there |= {"/out0", "/out2", "/out3"}
    task = make(SlurmArrayOperator, shards=4, expected_output="/out%a", shard_retries=0)
    tasks = {
        "0": replace(DOUBTFUL, job_id="7_0"),
        "1": replace(LOST, job_id="7_1"),
        "2": replace(LOST, job_id="7_2", state="CANCELLED", cause=FORGOTTEN),  # ended in its hold, as it had run
        "3": JobView("7_3", phase=Phase.SUCCEEDED, state="COMPLETED"),
    }
    event = ended(JobView("7", phase=Phase.LOST)) | {"tasks": {index: view.to_json() for index, view in tasks.items()}}
    with pytest.raises(Exception, match=r"1 of 4 shards.*\(1\).*node_fail"):
        task.resume(task.execute(), event)
    end = store.end_of("work", 1)
    assert end is not None
    assert {index: (shard["outcome"], shard["cause"]) for index, shard in end.shards.items()} == {
        "0": ("succeeded", ""),
        "1": ("failed", "node_fail"),
        "2": ("succeeded", ""),
        "3": ("succeeded", ""),
    }


@pytest.mark.parametrize(
    ("cause", "files", "sent_again"),
    [(GONE, {"/out0"}, "1"), (GONE, {"/out1"}, None), ("accounting does not answer", {"/out0"}, None)],
)
def test_shards_that_are_gone_and_have_made_their_output_keep_nobody_waiting(
    make: Make,
    store: FileReceipts,
    there: Files,
    cause: str,
    files: set[str],
    sent_again: str | None,
) -> None:
    there |= files
    task = make(SlurmArrayOperator, shards=2, expected_output="/out%a")
    tasks = {
        "0": JobView("7_0", phase=Phase.UNKNOWN, state="RUNNING", cause=cause).to_json(),
        "1": JobView("7_1", phase=Phase.LOST, cause=FORGOTTEN, retryable=True).to_json(),
    }
    event = {"status": "unknown", "view": JobView("7", phase=Phase.UNKNOWN, cause=cause).to_json(), "tasks": tasks}
    first = task.execute()
    with pytest.raises(TaskDeferred if sent_again else UnknownOutcome) as caught:
        task.resume(first, event)
    if sent_again:
        assert isinstance(caught.value, TaskDeferred)
        assert caught.value.kwargs["request_state"]["array"] == sent_again
    else:
        assert store.end_of("work", 1) is None


def test_one_shard_alone_keeps_its_number(make: Make) -> None:
    task = make(SlurmArrayOperator, shards=[3])
    event = ended(JobView("7", phase=Phase.SUCCEEDED)) | {
        "tasks": {"3": JobView("7_3", phase=Phase.SUCCEEDED, state="COMPLETED").to_json()}
    }
    assert [end["index"] for end in task.resume(task.execute(), event)] == [3]


def test_tasks_that_were_ended_in_their_hold_are_looked_at_before_they_run_again(make: Make, there: Files) -> None:
    there.add("/out0")
    task = make(SlurmArrayOperator, shards=1, expected_output="/out%a")
    view = replace(LOST, job_id="7_0", state="CANCELLED", cause=FORGOTTEN)
    event = ended(JobView("7", phase=Phase.LOST, cause=FORGOTTEN)) | {"tasks": {"0": view.to_json()}}
    assert [end["outcome"] for end in task.resume(task.execute(), event)] == ["succeeded"]
