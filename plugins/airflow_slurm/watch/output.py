"""What jobs write, copied into the task's log while they run, and where all of it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_slurm.errors import FileUnreadable, SlurmError
from airflow_slurm.remote.tail import LogTail
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch.poller import Hub
from airflow_slurm.watch.waiting import Wait

TAIL_TIMEOUT_S = 20.0
#: Seconds after which the rest of an output is looked for once more: an NFS client believes what it knows of a file for three by default.
LATE_LINES_S = 3.0


class Output:
    """Of one follower. Trouble costs nothing: the next look, or the file itself, has what could not be read now."""

    def __init__(self, wait: Wait, hub: Hub, log: Any) -> None:
        self._wait, self._hub, self._log = wait, hub, log
        self._unreadable: set[str] = set()
        self._said_of_ended: bool | None = None

    def say_where(self, view: JobView) -> None:
        """Where all of it is: once when the job has started, and once when it has ended."""
        if not self._wait.log_path or self._said_of_ended is view.ended or not (view.ended or view.phase is Phase.RUNNING):
            return
        self._said_of_ended = view.ended
        self._log.info("Its output is in %s%s", self._wait.log_path, f" (all of it: {self._wait.page})" if self._wait.page else "")

    async def copy(self, name: str, tail: LogTail) -> None:
        """What came since the last time. ``name``: what to call the job or task in each line."""
        self._say(name, await self._lines(tail, final=False))

    async def copy_rest(self, tails: Mapping[str, LogTail]) -> None:
        """What jobs or tasks that have ended wrote last, by their names. A shared file system shows the last lines late."""
        for name, tail in tails.items():
            self._say(name, await self._lines(tail, final=True))
        if self._hub.client is not None:
            await asyncio.sleep(LATE_LINES_S)
        for name, tail in tails.items():
            self._say(name, await self._lines(tail, final=True) + tail.close())

    def _say(self, name: str, lines: Sequence[str]) -> None:
        for line in lines:
            self._log.info("[%s] %s", name, line)

    async def _lines(self, tail: LogTail, *, final: bool) -> list[str]:
        if self._hub.client is None:
            return []
        try:
            async with asyncio.timeout(TAIL_TIMEOUT_S):
                return await tail.read(self._hub.client, final=final)
        except FileUnreadable as error:
            said = self._log.debug if tail.path in self._unreadable else self._log.warning
            said("The job's output is not copied here: %s", error)
            self._unreadable.add(tail.path)
        except (SlurmError, TimeoutError) as error:
            said = self._log.warning if final else self._log.debug
            said("The output in %s could not be read now: %s", tail.path, error)
        return []
