"""Submission against a login node that says exactly what a test wants: what is asked, how often, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from airflow_slurm.errors import ControllerUnreachable, InvalidSpec, SubmissionUncertain
from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.receipts import JobEnd, Receipt
from airflow_slurm.remote.client import Answer
from airflow_slurm.slurm.commands import ClientSite
from airflow_slurm.spec import JobSpec
from airflow_slurm.watch.following import JobFollower
from airflow_slurm.watch.poller import Hub, take_snapshot
from airflow_slurm.watch.waiting import Wait
from airflow_slurm.work.stop import StopPolicy, end_job
from airflow_slurm.work.submit import LookUp, Submitted, Work, submit

from .conftest import OWNER, recorded
from .login_node import NOTHING, LoginNode

TIMED_OUT = Answer("", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n", 1)
DOWN = Answer("", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", 1)
SEVERAL_LOOKS = LookUp(total_s=0.2, pause_s=0.01, sends=3)


def queued(job_id: str, state: str = "PENDING", reason: str = "JobHeldUser", name: str = "sft-1") -> Answer:
    """squeue with one job."""
    return Answer(f"{job_id}|{job_id}|{state}|0|0|100|N/A|N/A|1|None|{reason}|{name}\n", "", 0)


@pytest.fixture
def sent(store: FileReceipts) -> Callable[[LoginNode], object]:
    """Submits one piece of work."""

    async def once(client: LoginNode, look_up: LookUp = SEVERAL_LOOKS) -> Submitted:
        work = Work("k", lambda n: JobSpec(command=("train",)), lambda n: f"sft-{n}")
        return await submit(client, store, work, OWNER, look_up=look_up)

    return once


async def test_a_job_that_shows_up_at_a_later_look_is_taken_and_nothing_is_sent_again(sent: Callable, store: FileReceipts) -> None:
    node = LoginNode(sbatch=[TIMED_OUT], squeue=[NOTHING, NOTHING, queued("31007")])
    done = await sent(node, replace(SEVERAL_LOOKS, total_s=60.0))
    assert done.receipt.job_id == "31007"
    assert node.names().count("sbatch") == 1
    assert node.names().index("scontrol") > node.names().index("squeue")
    live = store.get("k")
    assert live is not None
    assert live.receipt is not None
    assert live.receipt.job_id == "31007"


async def test_only_after_looking_for_a_while_it_is_sent_again(sent: Callable) -> None:
    node = LoginNode(sbatch=[TIMED_OUT, Answer("31008\n", "", 0)], squeue=[NOTHING])
    done = await sent(node)
    assert done.receipt.job_id == "31008"
    between = node.names()[1 : node.names().index("sbatch", 1)]
    assert between.count("squeue") >= 3
    assert between.count("sacct") == between.count("squeue")


@pytest.mark.parametrize("command", ["squeue", "sacct"])
async def test_while_either_half_of_the_look_fails_nothing_is_sent_again(sent: Callable, command: str) -> None:
    database = Answer("", "sacct: error: Problem talking to the database: Connection refused\n", 1)
    node = LoginNode(sbatch=[TIMED_OUT], **{command: [DOWN if command == "squeue" else database]})
    with pytest.raises(SubmissionUncertain, match="nothing is sent"):
        await sent(node)
    assert node.names().count("sbatch") == 1


async def test_a_job_that_is_found_in_accounting_alone_is_taken(sent: Callable) -> None:
    row = Answer("31009|31009|COMPLETED|0:0|100|200|300|100|1|n1|sft-1\n", "", 0)
    node = LoginNode(sbatch=[TIMED_OUT], squeue=[NOTHING], sacct=[row])
    assert (await sent(node)).receipt.job_id == "31009"
    assert node.names().count("sbatch") == 1


async def test_a_queue_that_is_empty_because_its_controller_is_down_is_no_proof(sent: Callable) -> None:
    empty = Answer("", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", 0)
    node = LoginNode(sbatch=[TIMED_OUT], squeue=[empty])
    with pytest.raises(SubmissionUncertain):
        await sent(node)
    assert node.names().count("sbatch") == 1


async def test_an_error_of_the_users_own_shell_is_no_word_of_slurms(sent: Callable) -> None:
    shell = "bash: module: error: no such module\nerror: conda: command not found\n"
    node = LoginNode(sbatch=[Answer("70\n", shell, 0)], squeue=[replace(queued("70"), stderr=shell)])
    assert (await sent(node)).receipt.job_id == "70"
    assert node.names() == ["sbatch", "squeue", "scontrol"]
    assert [row.job_id for row in await node.queue()] == ["70"]


@pytest.mark.parametrize(
    "said", [recorded("squeue_controller_down.stderr.txt"), "squeue: error: Invalid user\n", "squeue: fatal: no memory\n"]
)
@pytest.mark.parametrize("before", ["", "Maintenance on Friday\n", "no end of line"])
async def test_an_error_of_slurms_is_one_whatever_the_shell_said_before(before: str, said: str) -> None:
    with pytest.raises(ControllerUnreachable):
        await LoginNode(squeue=[Answer("", before + said, 0)]).queue()


async def test_every_command_for_a_job_of_another_cluster_names_it(sent: Callable, tmp_path: Path) -> None:
    site = ClientSite(cluster="borealis")
    node = LoginNode(site, sbatch=[Answer("771203;borealis\n", "", 0)], squeue=[queued("771203"), queued("771203", "CANCELLED", "None")])
    done = await sent(node)
    assert (done.receipt.job_id, done.receipt.cluster) == ("771203", "borealis")
    view = await end_job(node, done.receipt, done.since, StopPolicy(grace_s=0.0, cancel_wait_s=0.0))
    assert view.state == "CANCELLED"
    assert {"sbatch", "squeue", "scontrol"} <= set(node.names())
    assert all("--clusters=borealis" in argv for argv in node.asked)


async def test_a_submission_is_two_command_lines_and_a_look_that_failed_is_made_again(sent: Callable, store: FileReceipts) -> None:
    node = LoginNode(sbatch=[Answer("70\n", "", 0)], squeue=[queued("70")])
    await sent(node)
    assert node.names() == ["sbatch", "squeue", "scontrol"]
    for no_look in (DOWN, Answer("", "slurm_load_jobs error: Unable to contact slurm controller\n", 0), Answer("7|7\n", "", 0)):
        store.close("k", store._last("k"), JobEnd("succeeded"))
        node = LoginNode(sbatch=[Answer("71\n", "", 0)], squeue=[no_look, queued("71", name=f"sft-{store._last('k') + 1}")])
        await sent(node)
        assert node.names() == ["sbatch", "squeue", "squeue", "scontrol"]


async def test_an_older_job_of_the_name_that_was_seen_with_the_submission_stays(sent: Callable, store: FileReceipts) -> None:
    both = Answer(queued("69").stdout + queued("70").stdout, "", 0)
    node = LoginNode(sbatch=[Answer("70\n", "", 0)], squeue=[both])
    assert (await sent(node)).receipt.job_id == "69"
    assert [argv[-1] for argv in node.asked if argv[0] == "scancel"] == ["70"]
    assert [incident["what"] for incident in store.incidents("k", 1)] == ["several_jobs_of_one_name"]


def shown(*rows: str) -> Answer:
    """squeue with several jobs: ``70 RUNNING n1``, or ``70 held``; of an array ``70_[0-1] held``."""
    lines = []
    for row in rows:
        array, state, *node = row.split()
        said = ("PENDING", "JobHeldUser") if state == "held" else (state, "None")
        lines.append(f"{array.partition('_')[0]}|{array}|{said[0]}|0|0|100|N/A|N/A|1|{''.join(node)}|{said[1]}|sft-1\n")
    return Answer("".join(lines), "", 0)


def recorded(*rows: str) -> Answer:
    """sacct with several jobs: ``70 COMPLETED n1``, or ``70 CANCELLED``."""
    told = [row.split() for row in rows]
    lines = [
        f"{i.partition('_')[0]}|{i}|{state}|0:0|100|200|300|100|1|{node[0] if node else 'None assigned'}|sft-1\n"
        for i, state, *node in told
    ]
    return Answer("".join(lines), "", 0)


async def stays(sent: Callable, store: FileReceipts, node: LoginNode, receipt: str | None) -> tuple[str, list[str], bool]:
    """Of a submission whose worker died: which job stays, which are cancelled, and whether its hold is lifted."""
    store.claim("k", OWNER)
    if receipt is not None:
        store.record("k", 1, Receipt(receipt, "sft-1", "c1", submitted_at=100.0, queued_at=100.0))
    done = await sent(node)
    live = store.get("k")
    assert live is not None
    assert live.receipt == done.receipt
    cancelled = [argv[-1] for argv in node.asked if argv[0] == "scancel"]
    noted = [note["detail"] for note in store.incidents("k", 1)]
    assert noted == ([{"kept": done.receipt.job_id, "cancelled": cancelled}] if cancelled else [])
    assert "sbatch" not in node.names()
    return done.receipt.job_id, cancelled, "scontrol" in node.names()


@pytest.mark.parametrize("ended", ["COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED"])
async def test_a_job_that_was_queued_late_never_takes_the_place_of_one_that_ran(sent: Callable, store: FileReceipts, ended: str) -> None:
    node = LoginNode(squeue=[shown(f"71 {ended} n1", "72 held")])
    assert await stays(sent, store, node, "71") == ("71", ["72"], False)


@pytest.mark.parametrize("said", [recorded("71 COMPLETED n1"), recorded("71 RUNNING n1"), recorded("71 PENDING"), NOTHING])
async def test_nor_of_one_that_has_left_the_queue_and_may_have_run(sent: Callable, store: FileReceipts, said: Answer) -> None:
    node = LoginNode(squeue=[shown("72 held")], sacct=[said], scontrol=[NO_SUCH_JOB])
    job_id, cancelled, _ = await stays(sent, store, node, "71")
    assert (job_id, cancelled) == ("71", ["72"])


async def test_nor_of_one_that_nobody_wrote_down_and_that_runs(sent: Callable, store: FileReceipts) -> None:
    node = LoginNode(squeue=[shown("69 held", "70 RUNNING n1")])
    assert await stays(sent, store, node, None) == ("70", ["69"], False)


async def test_nor_of_one_that_only_accounting_knew_before_it_came(sent: Callable, store: FileReceipts) -> None:
    node = LoginNode(squeue=[NOTHING, shown("72 held")], sacct=[recorded("71 COMPLETED n1")])
    assert await stays(sent, store, node, None) == ("71", ["72"], False)


@pytest.mark.parametrize(
    ("receipt", "other"), [("69", "70 RUNNING n1"), ("69", "70 COMPLETED n1"), ("69", "70 PENDING"), ("70", "69 RUNNING n1")]
)
async def test_of_two_workers_jobs_the_released_one_stays_though_the_held_one_was_recorded_last(
    sent: Callable, store: FileReceipts, receipt: str, other: str
) -> None:
    node = LoginNode(squeue=[shown(f"{receipt} held", other)])
    assert await stays(sent, store, node, receipt) == (other.split()[0], [receipt], False)


async def test_a_job_that_was_cancelled_as_a_double_and_recorded_late_does_not_stay(sent: Callable, store: FileReceipts) -> None:
    for node in (
        LoginNode(squeue=[shown("69 held", "70 CANCELLED")]),
        LoginNode(squeue=[shown("69 held")], sacct=[recorded("70 CANCELLED")]),
    ):
        assert await stays(sent, store, node, "70") == ("69", [], True)
        store.close("k", 1, JobEnd("succeeded"))
        store.root = store.root / "second"
        store.root.mkdir()


async def test_of_jobs_that_all_wait_in_our_hold_the_oldest_stays_whichever_was_recorded(sent: Callable, store: FileReceipts) -> None:
    assert await stays(sent, store, LoginNode(squeue=[shown("69 held", "70 held")]), "70") == ("69", ["70"], True)


async def test_an_array_of_which_one_task_ran_stays(sent: Callable, store: FileReceipts) -> None:
    node = LoginNode(squeue=[shown("71_[1-2] CANCELLED", "72_[0-2] held")], sacct=[recorded("71_0 COMPLETED n1", "71_[1-2] CANCELLED")])
    store.claim("k", OWNER)
    assert await stays(sent, store, node, None) == ("71", ["72"], False)


async def test_a_worker_that_comes_late_with_its_own_job_leaves_the_one_that_another_released(sent: Callable, store: FileReceipts) -> None:
    """That one has run and left the queue meanwhile: only the store tells of it."""
    released = Receipt("69", "sft-1", "c1", submitted_at=100.0, released_at=101.0)

    class Late(LoginNode):
        async def _run(self, argv: Sequence[str], **kwargs: Any) -> Answer:
            if argv[0] == "sbatch":
                store.record("k", 1, released)
            return await super()._run(argv, **kwargs)

    node = Late(sbatch=[Answer("70\n", "", 0)], squeue=[shown("70 held")])
    assert (await sent(node)).receipt == released
    assert [argv[-1] for argv in node.asked if argv[0] == "scancel"] == ["70"]
    live = store.get("k")
    assert live is not None
    assert live.receipt == released


NO_SUCH_JOB = Answer("", "slurm_suspend error: Invalid job id specified\n", 1)


async def test_a_held_job_that_the_controller_forgot_when_it_died_is_sent_again(sent: Callable, store: FileReceipts) -> None:
    phantom = Answer("70|70|PENDING|0:0|100|Unknown|Unknown|0|1|None assigned|sft-1\n", "", 0)
    node = LoginNode(sbatch=[Answer("70\n", "", 0), Answer("71\n", "", 0)], sacct=[phantom], scontrol=[NO_SUCH_JOB, NOTHING])
    done = await sent(node)
    assert done.receipt.job_id == "71"
    assert [incident["what"] for incident in store.incidents("k", 1)] == ["forgotten_by_the_controller"]
    live = store.get("k")
    assert live is not None
    assert live.receipt == done.receipt


async def test_a_job_that_may_have_been_released_before_its_worker_died_is_not_sent_again(sent: Callable, store: FileReceipts) -> None:
    """It has run and left the queue (MinJobAge), and slurmdbd lags behind: neither no row nor one that waits proves that it never ran."""
    for said in (NOTHING, Answer("70|70|PENDING|0:0|100|Unknown|Unknown|0|1|None assigned|sft-1\n", "", 0)):
        claim = store.claim("k", OWNER)
        name = f"sft-{claim.n}"
        store.record("k", claim.n, Receipt("70", name, "c1", submitted_at=100.0, queued_at=100.0))
        node = LoginNode(sbatch=[Answer("71\n", "", 0)], sacct=[said], scontrol=[NO_SUCH_JOB])
        done = await sent(node)
        assert (done.receipt.job_id, "sbatch" in node.names()) == ("70", False)
        assert done.receipt.released_at is not None  # whoever waits for it finds out, as of any released job that is gone
        store.close("k", claim.n, JobEnd("lost"))


async def test_when_a_job_was_queued_is_said_by_the_clocks_of_the_cluster_only(sent: Callable, store: FileReceipts) -> None:
    done = await sent(LoginNode(sbatch=[Answer("70\n", "", 0)], squeue=[queued("70")]))
    assert (done.receipt.queued_at, (done.receipt.submitted_at or 0) > 1e9) == (100.0, True)
    store.close("k", 1, JobEnd("succeeded"))
    node = LoginNode(sbatch=[Answer("71\n", "", 0, clock=103.0)], squeue=[DOWN, NOTHING])
    assert (await sent(node)).receipt.queued_at == 103.0
    store.close("k", 2, JobEnd("succeeded"))
    assert (await sent(LoginNode(sbatch=[Answer("72\n", "", 0)], squeue=[DOWN, NOTHING]))).receipt.queued_at is None


async def test_a_job_that_ended_in_its_hold_is_not_sent_again(sent: Callable) -> None:
    cancelled = Answer("70|70|CANCELLED by 0|0:0|100|Unknown|200|0|1|None assigned|sft-1\n", "", 0)
    node = LoginNode(sbatch=[Answer("70\n", "", 0)], sacct=[cancelled], scontrol=[NO_SUCH_JOB])
    assert (await sent(node)).receipt.job_id == "70"
    assert node.names().count("sbatch") == 1


async def test_without_accounting_nobody_can_say_that_a_job_never_ran(sent: Callable) -> None:
    off = Answer("", "Slurm accounting storage is disabled\n", 1)
    node = LoginNode(sbatch=[Answer("70\n", "", 0)], sacct=[off], scontrol=[NO_SUCH_JOB])
    assert (await sent(node)).receipt.job_id == "70"
    assert node.names().count("sbatch") == 1


async def test_a_job_that_another_controller_of_a_federation_took_is_not_sent_again(sent: Callable) -> None:
    node = LoginNode(sbatch=[Answer("70;borealis\n", "", 0)], scontrol=[NO_SUCH_JOB])
    assert (await sent(node)).receipt.job_id == "70"
    assert node.names().count("sbatch") == 1


async def test_a_job_that_its_controller_forgot_is_named_lost_once_the_controller_says_so(store: FileReceipts) -> None:
    node = LoginNode(scontrol=[Answer("Configuration data as of 999\nBOOT_TIME               = 200\n", "", 0)])
    store.claim("k", OWNER)
    wait = Wait(
        "k", 1, "9", "sft-1", 90.0, OWNER, "airflow_slurm.file_receipts.FileReceipts", {"root": str(store.root)}, submitted_at=100.0,
        queued_at=100.0,
    )  # fmt: skip
    follower = JobFollower(wait, Hub(client=node), structlog.get_logger())
    look = await take_snapshot(node, [follower.watched])
    assert await follower.look(look) is None
    event = await follower.look(replace(look, at=look.at + 500))
    assert event is not None
    assert (event["status"], event["view"]["phase"], event["view"]["cause"]) == ("ended", "lost", "forgotten")


async def test_a_living_job_is_waited_for_although_its_description_would_not_be_sent_any_more(store: FileReceipts) -> None:
    node = LoginNode()
    work = Work("k", lambda n: JobSpec(body="python train.py", signal_lead_s=60), lambda n: f"sft-{n}")
    store.claim("k", OWNER)
    store.record("k", 1, Receipt("31007", "sft-1", "c1", released_at=1.0))
    assert (await submit(node, store, work, OWNER)).receipt.job_id == "31007"
    store.close("k", 1, JobEnd("succeeded"))
    with pytest.raises(InvalidSpec, match="signal_lead_s"):
        await submit(node, store, work, OWNER)
    end = store.end_of("k", 2)
    assert end is not None
    assert (end.outcome, end.cause, "sbatch" in node.names()) == ("failed", "invalid", False)
