"""What a task asked for in an earlier try: given up if it asks for other work now, closed if that very work turns out to be done."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog

from airflow_slurm.errors import CommandRefused, JobFailed, JobFailedForGood, SlurmError
from airflow_slurm.hook import SlurmHook
from airflow_slurm.receipts import JobEnd, Owner, Receipt, load_store, token_of
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.requests import Done, JobRequest, is_other_work, who
from airflow_slurm.slurm.reasons import in_words
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.view import JobView
from airflow_slurm.work.elsewhere import place_of, reach
from airflow_slurm.work.looking import look
from airflow_slurm.work.stop import StopPolicy, give_up

log = structlog.get_logger(__name__)


def leave_earlier(previous: Mapping[str, Any], request: JobRequest | Done, owner: Owner) -> None:
    """What a task asked for before stays its own if it is the same work; else it is given up.

    :param previous: what it asked for, as :func:`pointer_to`. :raises NotEnded: and Unreachable, as :func:`let_go`.
    """
    if not is_other_work(previous, request):
        if isinstance(request, Done):
            close_what_is_done(previous, owner)
        return
    asks = "no job" if isinstance(request, Done) else "other work"
    log.info(f"this task asked for {previous['key']} before and asks for {asks} now; giving that up first")
    let_go({**previous, "owner": owner})


def let_go(state: Mapping[str, Any]) -> JobView | None:
    """Give up the work that a task asked for; its job is ended, and confirmed, unless somebody else waits for it.

    :param state: as :meth:`JobRequest.state`, or :func:`pointer_to` with an ``owner``; with a ``token`` if it was read before that was decided.
    :raises NotEnded: if the job resists. :raises Unreachable: if nobody could be asked.
    :raises ConnectionGone: if Airflow no longer has the connection that it was submitted over.
    """
    store = load_store(state["receipts"], state["receipts_config"])
    live = store.get(state["key"])
    if live is None:
        return None
    token = state.get("token") or token_of(store, live.key, state["owner"])
    place = place_of(store, live.key, live) or state["conn_id"]

    async def once() -> JobView | None:
        async with reach(store, live.key, live, place) as client:
            policy = StopPolicy(**state["stop"])
            by = who(state["owner"])
            return await give_up(client, store, state["key"], state["owner"], state["job_name"], policy, by=by, token=token)

    return asyncio.run(once())


def settle_hold(state: Mapping[str, Any], *, lift: bool) -> None:
    """Lift the hold of a job that a controller brought back (see :mod:`airflow_slurm.truth.holds`), or cancel it in there. Either may be done again.

    :raises Unreachable: if nobody could be asked.
    """
    job_id, cluster = state["job_id"], state["cluster"]

    async def once(client: SlurmClient) -> None:
        if not lift:
            await client.cancel(job_id, cluster=cluster, waiting_only=True)
            return
        try:
            await client.release(job_id, cluster)
        except CommandRefused as error:
            # Somebody cancelled it, say: whoever waits for it is told how it ended.
            log.warning("the job's hold could not be lifted", job_id=job_id, slurm=error.words)

    SlurmHook(state["conn_id"]).run(once)


def look_again(state: Mapping[str, Any]) -> JobView:
    """What the cluster says of a job at this moment: since the trigger's last look it may have started, or ended.

    :raises Unreachable: if nobody could be asked.
    """
    receipt = Receipt(state["job_id"], state["job_name"], state["conn_id"], state["cluster"])
    return SlurmHook(state["conn_id"]).run(lambda client: look(client, receipt, float(state["since"])))


def left_a_log(state: Mapping[str, Any], view: JobView) -> bool:
    """Whether a job that nobody saw run has begun all the same: slurmd opens its log as it starts it.

    Of arrays each task is tried again by itself; a job that its node refused has not begun. One that Slurm had put back was to begin anyway, and
    its log is there from the run before.
    """
    path, refused = state["log_path"], view.state not in ("", "PENDING")
    if not path or refused or view.restarts or view.incarnations or state.get("array"):
        return False
    return not SlurmHook(state["conn_id"]).missing([path], 0.0, float(state["since"]))


def goes_on(state: Mapping[str, Any], view: JobView, why: str) -> str:
    """What is said of a job that should be given up (``why``: the event of its trigger) and is waited for all the same; else nothing.

    It has started or ended by now. Or it is an array whose time to wait for a start is over and some of whose tasks have ended: only those that
    wait are cancelled, so that what the others did is taken.
    """
    seen = look_again(state)
    ends = seen.ended or (seen.phase is Phase.ENDING and view.phase is not Phase.ENDING)
    if ends if why == "timed_out" else seen.phase is not Phase.WAITING:
        return seen.describe()
    if why != "waited_too_long" or not any(Phase(task["phase"]).ended for task in state["tasks"].values()):
        return ""
    SlurmHook(state["conn_id"]).run(lambda client: client.cancel(state["job_id"], cluster=state["cluster"], waiting_only=True))
    return f"{view.explained()}: no other task has started within max_wait_s, and those that wait are cancelled"


def gives_up(event: dict[str, Any], state: Mapping[str, Any], view: JobView) -> str:
    """Let go of a job as its trigger's event says, unless it :func:`goes_on`: then what is said of it.

    :param event: is marked once that has begun: another try of it does not take the job's end for a reason to go on.
    :raises NotEnded: and Unreachable, as :func:`let_go`.
    """
    token = token_of(load_store(state["receipts"], state["receipts_config"]), state["key"], state["owner"])
    if not event.get("giving_up") and (said := goes_on(state, view, event["status"])):
        return said
    event["giving_up"] = True
    let_go({**state, "token": token})
    return ""


def given_up(view: JobView, why: str) -> JobFailed:
    """The error of a task that does not wait for its job any more; ``why`` is the event of its trigger."""
    if why == "timed_out":
        return JobFailed(f"{view.describe()}: the task's execution_timeout is over, and the job was given up.", cause=why)
    said = "it waited longer for its start than it may (max_wait_s) and was given up"
    if view.reason_in_words:
        said += f" ({view.reason}: {view.reason_in_words})"
    if why == "never_starts":
        said = f"it would never have started, and was given up ({in_words(view.reason)}). Change the request, or choose another cluster"
    return JobFailedForGood(f"{view.describe()}: {said}.", retryable=False, cause=why)


def close_what_is_done(previous: Mapping[str, Any], owner: Owner) -> None:
    """Close the submission of work that is done, if a worker died between accepting and closing it.

    Ends nothing: a job of that key that has not ended, or of which nobody can say it now, is left to the reconciler.

    :param previous: what the task asked for, as :func:`pointer_to`.
    """
    store = load_store(previous["receipts"], previous["receipts_config"])
    live = store.get(previous["key"])
    if live is None or live.receipt is None:
        return
    receipt, since = live.receipt, live.since
    try:
        view = SlurmHook(receipt.conn_id).run(lambda client: look(client, receipt, since))
    except SlurmError as error:
        log.warning("the submission of work that is done stays open; the reconciler closes it", job_id=receipt.job_id, error=str(error))
        return
    if not view.ended:
        log.warning("the work is done, and its job has not ended yet; the reconciler ends what nobody waits for", job=view.describe())
        return
    outcome = "succeeded" if view.succeeded else "ended"
    store.close(live.key, live.n, JobEnd(outcome, "done_before", "the result was there already", view, who(owner)))
    log.info("closed the submission of work that is done", job_id=receipt.job_id, outcome=outcome)
