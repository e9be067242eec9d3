"""What a follower does about a job, or tasks of an array, that a hold stops which is no person's: it is ended there, so that its task may judge it.

Known from before the command on, by an incident: whoever finds it cancelled, after this process has died, has to know that no person did that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.slurm.parse import QueueRow
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.holds import ROLLED_BACK, has_stood
from airflow_slurm.truth.reconcile import FORGOTTEN, LAUNCH_FAILED, LAUNCH_FAILED_HELD
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch.doubts import Doubts
from airflow_slurm.watch.poller import Hub
from airflow_slurm.watch.waiting import HELD_AGAIN, Wait


class BroughtBack:
    """Of one follower."""

    def __init__(self, wait: Wait, hub: Hub, log: Any, doubts: Doubts) -> None:
        self._wait, self._hub, self._log, self._doubts = wait, hub, log, doubts
        #: Jobs or tasks that were ended in their hold, and why.
        self._ended: dict[str, str] = {}
        #: Of which run's hold its task has been asked already.
        self._asked: set[int] = set()

    def recall(self, incidents: Sequence[Mapping[str, Any]]) -> None:
        """Take up what an earlier process noted."""
        for note in incidents:
            if note.get("what") == ROLLED_BACK:
                self._ended |= dict.fromkeys(note["detail"]["ended"], note["detail"].get("cause", FORGOTTEN))
            elif note.get("what") == HELD_AGAIN:
                self._asked.add(int(note["detail"]["restarts"]))

    async def asks_task(self, view: JobView, row: QueueRow | None, at: float) -> bool:
        """About a job that waits in a hold once more. One that Slurm could not launch is ended here, and lost with that.

        :returns: whether its task has to look at what it made: somebody holds it, and its controller was started anew since the submission.
        """
        if self._hub.client is None or not self._wait.receipts or row is None or not has_stood(view, row, at, self._wait.hold_grace_s):
            return False
        if view.restarts in self._asked or (lost := await self._doubts.lost_a_run(view)) is None:
            return False
        if row.reason == LAUNCH_FAILED_HELD:
            await self.end([view.job_id], FORGOTTEN if lost else LAUNCH_FAILED)
            return False
        # While it is held, no later start of the controller can cost it a run.
        self._asked.add(view.restarts)
        return lost

    async def end_unlaunched(self, views: Mapping[int, JobView], rows: Mapping[int, QueueRow | None], at: float) -> None:
        """The same of an array's tasks."""
        held = [v.job_id for i, v in views.items() if _unlaunched(rows.get(i)) and has_stood(v, rows[i], at, self._wait.hold_grace_s)]
        if held and self._hub.client is not None and self._wait.receipts:
            await self.end(held, FORGOTTEN)

    async def end(self, ids: Sequence[str], cause: str = FORGOTTEN) -> None:
        """Cancel them in their hold."""
        if self._hub.client is None:
            return
        try:
            await self._cancel_noted(self._hub.client, ids, cause)
        except Exception as error:  # noqa: BLE001
            # The application's store may raise anything; the next look comes by here again.
            self._log.warning("%s could not be cancelled now: %s", ", ".join(ids[:20]), error)

    async def _cancel_noted(self, client: SlurmClient, ids: Sequence[str], cause: str) -> None:
        if not self._ended.keys() >= set(ids):
            note = {"job_id": self._wait.job_id, "ended": list(ids), "cause": cause}
            await asyncio.to_thread(lambda: self._wait.store().incident(self._wait.key, self._wait.n, ROLLED_BACK, note))
            self._ended |= dict.fromkeys(ids, cause)
        # Only while they wait: somebody may have lifted the hold since the look.
        await client.cancel(ids, cluster=self._wait.cluster, waiting_only=True)
        words = (
            "Slurm could not launch %s and held it" if cause == LAUNCH_FAILED else "Slurm: the controller came back without the run of %s"
        )
        self._log.error(words + "; cancelled.", ", ".join(ids[:20]))

    def judged(self, view: JobView) -> JobView:
        """The view; lost, of one that was ended here."""
        if view.job_id not in self._ended or view.state != "CANCELLED" or not view.ended:
            return view
        return replace(view, phase=Phase.LOST, cause=self._ended[view.job_id], retryable=True, doubtful=False)


def _unlaunched(row: QueueRow | None) -> bool:
    return row is not None and row.reason == LAUNCH_FAILED_HELD
