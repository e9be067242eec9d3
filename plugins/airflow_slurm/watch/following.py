"""Follows one job, or all tasks of one array, from look to look, and tells the task's log and the store what changed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_slurm.errors import SlurmError
from airflow_slurm.receipts import history_of
from airflow_slurm.remote.tail import LogTail
from airflow_slurm.slurm.parse import AccountingRow, QueueRow
from airflow_slurm.slurm.states import Phase
from airflow_slurm.spec import task_path
from airflow_slurm.truth.arrays import as_removed, compact, forgotten_whole, indices_of, ran_by, removed_before_start, summarise, task_id
from airflow_slurm.truth.holds import ROLLED_BACK, FirstHold, Step, as_gone, has_run, known_to_run, may_be_gone, seen_running
from airflow_slurm.truth.reconcile import Observation, judge, may_be_forgotten
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch.brought_back import BroughtBack
from airflow_slurm.watch.doubts import Doubts
from airflow_slurm.watch.lines import LineFollower
from airflow_slurm.watch.output import Output
from airflow_slurm.watch.poller import Hub, Snapshot, Watched
from airflow_slurm.watch.waiting import HELD_AGAIN, Wait, due, due_of_tasks

#: So often is kept how far an output has been copied, and that somebody still looks for a missing job, beside every change of state: what a
#: restarted triggerer copies twice, or does not count as waited for, is no more than that.
KEEP_OFFSET_EVERY_S = 300.0
#: Running tasks of an array whose output is copied at a time, failed ones whose last output is shown, and bytes of that.
FOLLOWED_TASKS, SHOWN_FAILURES, FAILURE_BYTES = 4, 20, 4096


class _Follower:
    """What both kinds share.

    :ivar watched: what the loop has to look for.
    """

    def __init__(self, wait: Wait, hub: Hub, log: Any) -> None:
        self.watched = Watched(wait.job_id, wait.job_name, wait.since, foreign=wait.foreign)
        self.view = JobView(wait.job_id, wait.cluster, submit_time=wait.queued_at)
        self._wait, self._hub, self._log = wait, hub, log
        self._known = False
        self._before = self._told = self.view
        self._noted_at = 0.0
        self._hold = FirstHold(wait.hold_grace_s)
        self._output = Output(wait, hub, log)
        self._doubts = Doubts(wait, hub, log)
        self._held = BroughtBack(wait, hub, log, self._doubts)

    async def _tell(self, view: JobView, at: float) -> None:
        """Log and keep a view that differs from the last; keep one that is in doubt now and then, so that the looks for it count."""
        self.view = replace(view, looked_at=at).remembering(self.view)
        changed = view.differs(self._told)
        in_doubt = view.missing_since is not None or view.unknown_since is not None
        if changed:
            self._told = view
            self._log.info("Slurm: %s", view.explained())
        if changed or (in_doubt and at - self._noted_at >= KEEP_OFFSET_EVERY_S):
            self._noted_at = at
            await self._observe(self.view)

    async def _recall(self, at: float) -> None:
        """Take up, once, what an earlier process saw and did last about this submission."""
        if self._known:
            return
        self._known = True
        self._before = await self._earlier()
        self.view = self.view.taking_up(self._before, at)
        self._go_on()

    def _go_on(self) -> None:
        """What else follows from what an earlier process saw."""

    async def _earlier(self) -> JobView:
        if not self._wait.receipts:
            return self._before

        def read() -> JobView:
            mine = [r for r in history_of(self._wait.store(), self._wait.key) if r.n == self._wait.n]
            self._held.recall([note for record in mine for note in record.incidents])
            return next((r.view for r in mine if r.view is not None), self._before)

        try:
            return await asyncio.to_thread(read)
        except Exception as error:  # noqa: BLE001
            # As below: the store is the application's, and a history that can't be read must not end the wait.
            self._log.warning("The receipt store could not say what was seen before: %s", error)
            return self._before

    async def _observe(self, view: JobView) -> None:
        if not self._wait.receipts:
            return
        try:
            await asyncio.to_thread(lambda: self._wait.store().observe(self._wait.key, self._wait.n, view))
        except Exception as error:  # noqa: BLE001
            # The application's store may raise anything; what people read there must not end the wait for the job.
            self._log.warning("The receipt store could not keep what was seen: %s", error)

    async def _cancel_doubles(self, snapshot: Snapshot) -> None:
        """A submission whose answer was lost may be queued long after it was given up and sent again: held, so it did not start."""
        if self._hub.client is None or not self._wait.receipts:
            return
        for job_id in snapshot.doubles.get(self._wait.job_name, ()):
            try:
                await self._hub.client.cancel(job_id, cluster=self._wait.cluster)
                await asyncio.to_thread(self._note_doubles, job_id)
                self._log.error("Slurm: another job of this submission, %s, was queued late; cancelled while it was held.", job_id)
            except Exception as error:  # noqa: BLE001
                # As above; what is still there is seen again with the next look.
                self._log.warning("Job %s, a double of this one, could not be cancelled now: %s", job_id, error)

    def _note_doubles(self, job_id: str) -> None:
        detail = {"kept": self._wait.job_id, "cancelled": [job_id]}
        self._wait.store().incident(self._wait.key, self._wait.n, "several_jobs_of_one_name", detail)

    async def _settle_hold(self, row: QueueRow | None, ran: bool | None, at: float) -> Step:
        """See :mod:`airflow_slurm.truth.holds`: the hold is lifted here, what else has to be done is given back."""
        if self._hub.client is None or not self._wait.receipts:
            return Step.NOTHING
        step = self._hold.step(row, ran, at)
        self.watched = replace(self.watched, asks_hold=self._hold.asks_hold, asks_run=self._hold.asks_run)
        if step is Step.LIFT:
            try:
                await self._hub.client.release(self._wait.job_id, self._wait.cluster)
                self._log.warning("Slurm: the controller had forgotten that job %s was released; released again.", self._wait.job_id)
            except SlurmError as error:
                self._log.warning("The first hold of job %s could not be lifted now: %s", self._wait.job_id, error)
        return step

    def _named(self, view: JobView) -> JobView:
        """The cause, of a job whose script ended before its program had begun: the same would end the same."""
        cause = self._wait.exits.get(str(view.exit_code)) if view.state == "FAILED" and view.ended and not view.signal else None
        return view if cause is None else replace(view, cause=cause, retryable=False)


class JobFollower(_Follower):
    """Of one job."""

    def __init__(self, wait: Wait, hub: Hub, log: Any) -> None:
        super().__init__(wait, hub, log)
        self._tail = LogTail(wait.log_path) if wait.follow_log and wait.log_path else None
        self._kept_at = 0.0
        self._lines = LineFollower(wait.lines, wait.n, hub, log)

    async def look(self, snapshot: Snapshot) -> dict[str, Any] | None:
        """Take in one look of the loop; the event, if there is something to say."""
        seen = snapshot.of(self.watched)
        if seen is None:
            return None
        await self._recall(snapshot.at)
        views = await self._doubts.ends({0: self.view}, {0: self._named(judge(self.view, seen, self._wait.graces))})
        if may_be_forgotten(views[0], seen):  # lost, instead of unknown, if the controller died and has not got it any more
            views = await self._doubts.forgotten(views, snapshot.at)
        elif may_be_gone(views[0], seen) and await self._doubts.started_anew(views.values(), snapshot.at):
            views = {0: as_gone(views[0])}
        await self._tell(self._held.judged(views[0]), snapshot.at)
        ran = True if seen_running(self.view) else known_to_run(seen.accounting, seen.accounting_kept)
        step = await self._settle_hold(seen.queue, ran, snapshot.at) if seen.queue_read else Step.NOTHING
        await self._cancel_doubles(snapshot)
        asks = await self._held.asks_task(self.view, seen.queue, snapshot.at)
        status = ROLLED_BACK if step is Step.DECIDE else HELD_AGAIN if asks else due(self.view, self._wait, snapshot.at)
        self._output.say_where(self.view)
        if self._tail is not None and self.view.phase is not Phase.WAITING and self.view.unknown_since is None:
            await self._follow(self._tail, snapshot.at, final=status is not None)
        await self._lines.look(self.view)
        return None if status is None else {"status": status, "view": self.view.to_json()}

    def _go_on(self) -> None:
        if self._tail is not None and self._before.log_offset:
            self._tail = LogTail(self._tail.path, offset=self._before.log_offset)

    async def _follow(self, tail: LogTail, at: float, *, final: bool) -> None:
        name = f"job {self._wait.job_id}"
        await (self._output.copy_rest({name: tail}) if final else self._output.copy(name, tail))
        if tail.told == self.view.log_offset:
            return
        self.view = replace(self.view, log_offset=tail.told)
        if final or at - self._kept_at >= KEEP_OFFSET_EVERY_S:
            self._kept_at = at
            await self._observe(self.view)


class ArrayFollower(_Follower):
    """Of all tasks of an array, each judged by itself."""

    def __init__(self, wait: Wait, hub: Hub, log: Any) -> None:
        super().__init__(wait, hub, log)
        indices = indices_of(wait.array or "")
        self.watched = replace(self.watched, tasks=tuple(indices))
        self._views = {i: JobView(task_id(wait.job_id, i), wait.cluster, submit_time=wait.queued_at) for i in indices}
        self._tails: dict[int, LogTail] = {}
        self._shown = 0
        self._ran: set[int] = set()

    def _go_on(self) -> None:
        """Tasks of which nothing was known have been unknown since then."""
        since, unknown = self.view.unknown_since, self._before.tasks.get("UNKNOWN")
        for index in indices_of(unknown) if unknown and since is not None else ():
            if index in self._views:
                self._views[index] = replace(self._views[index], missing_since=since, unknown_since=since)

    async def look(self, snapshot: Snapshot) -> dict[str, Any] | None:
        """Take in one look of the loop; the event, if there is something to say."""
        seen = snapshot.of_tasks(self.watched)
        if seen is None:
            return None
        last = (snapshot.accounting or {}).get(self._wait.job_id, ())
        await self._recall(snapshot.at)
        now = {index: self._named(judge(self._views[index], observation, self._wait.graces)) for index, observation in seen.items()}
        now = {index: as_removed(view) if removed_before_start(view, last) else self._held.judged(view) for index, view in now.items()}
        self._views |= await self._doubts.ends(self._views, now)
        self._ran |= {index for index, view in self._views.items() if has_run(view)}
        await self._find_forgotten(seen, last, snapshot.at)
        ended = {index for index in seen if self._views[index].ended}
        # Accounting is asked about what looks ended: a task whose end is known is not looked for again.
        self.watched = replace(self.watched, tasks=tuple(i for i in self.watched.tasks if i not in ended) or self.watched.tasks[:1])
        await self._tell(summarise(self._wait.job_id, self._wait.cluster, self._views), snapshot.at)
        if snapshot.queue is not None:
            await self._settle_holds(seen, snapshot.at)
            await self._held.end_unlaunched(self._views, {index: o.queue for index, o in seen.items()}, snapshot.at)
        await self._cancel_doubles(snapshot)
        self._output.say_where(self.view)
        await self._read_logs(ended)
        status = due_of_tasks(self._views.values(), self._wait, snapshot.at)
        if status is None:
            return None
        return {"status": status, "view": self.view.to_json(), "tasks": {str(i): compact(view) for i, view in self._views.items()}}

    async def _settle_holds(self, seen: Mapping[int, Observation], at: float) -> None:
        """Of the tasks in a first hold, those that ran are ended; when there are none, the hold of all the others is lifted."""
        held = {index: o for index, o in seen.items() if o.queue is not None and o.queue.held_by_us}
        before = self._ran | ran_by(self._before.tasks)
        known = {i: True if i in before else known_to_run(o.accounting, o.accounting_kept) for i, o in held.items()}
        ran = [i for i, whether in known.items() if whether]
        unsure = [i for i, whether in known.items() if whether is None]
        row = next((o.queue for o in held.values()), None)
        if await self._settle_hold(row, True if ran else None if unsure else False, at) is Step.DECIDE:
            await self._held.end([task_id(self._wait.job_id, index) for index in ran or unsure])

    async def _find_forgotten(self, seen: Mapping[int, Observation], last: Sequence[AccountingRow], at: float) -> None:
        """Tasks that the controller lost before they ran; each by itself, as others may have run, which are gone."""
        if not forgotten_whole(seen.values(), last):
            return
        ran = ran_by(self._before.tasks)
        found = {i: self._views[i] for i, o in seen.items() if i not in ran and may_be_forgotten(self._views[i], o)}
        gone = {i: self._views[i] for i, o in seen.items() if i not in found and may_be_gone(self._views[i], o)}
        if (found or gone) and await self._doubts.started_anew([*found.values(), *gone.values()], at):
            self._views |= await self._doubts.forgotten(found, at)
            self._views |= {index: as_gone(view) for index, view in gone.items()}

    async def _read_logs(self, ended: set[int]) -> None:
        for index in sorted(ended):
            view = self._views[index]
            if not view.succeeded:
                self._log.error("Slurm: task %s", view.describe())
                if index not in self._tails and self._wait.log_path and self._shown < SHOWN_FAILURES:
                    self._shown += 1
                    self._tails[index] = LogTail(task_path(self._wait.log_path, index), FAILURE_BYTES)
        if self._wait.follow_log and self._wait.log_path:
            for index, view in self._views.items():
                if len(self._tails) >= FOLLOWED_TASKS:
                    break
                if view.phase is Phase.RUNNING and index not in self._tails:
                    self._tails[index] = LogTail(task_path(self._wait.log_path, index))
        names = {index: f"task {task_id(self._wait.job_id, index)}" for index in self._tails}
        for index in self._tails.keys() - ended:
            await self._output.copy(names[index], self._tails[index])
        if last := {index: self._tails.pop(index) for index in sorted(self._tails.keys() & ended)}:
            await self._output.copy_rest({names[index]: tail for index, tail in last.items()})


def follower_of(wait: Wait, hub: Hub, log: Any) -> JobFollower | ArrayFollower:
    """The one that fits."""
    return ArrayFollower(wait, hub, log) if wait.array else JobFollower(wait, hub, log)
