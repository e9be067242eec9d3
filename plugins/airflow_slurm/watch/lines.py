"""A file of lines that a job writes while it runs, such as its figures, handed to the application as it grows.

The application names a *taker*: where the lines go is its own matter, and so is how far they have come. Nothing here can hold up the watch:
files are read and takers called beside it, one at a time for each job, each within a time limit, and a taker in trouble is left alone for
a while. What could not be brought now comes with a later look, or stays in the file.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self

from airflow_slurm.errors import FileUnreadable, SlurmError
from airflow_slurm.slurm.states import Phase
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch.poller import Hub

#: Bytes that are read at a time, and how many such pieces at one look.
PIECE, PIECES_A_LOOK = 128 * 1024, 4
#: Seconds that reading a piece, or handing it over, may take before the look is given up, and that the end of a job may wait for its last lines.
PIECE_TIMEOUT_S, LAST_LINES_S = 30.0, 8.0
#: How long a taker that failed is left alone, in seconds: at first, and at most.
FIRST_REST_S, LONGEST_REST_S = 30.0, 600.0
#: Takers are called here and not in the loop's own threads, which the receipts need: what hangs, hangs alone.
_THREADS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="airflow-slurm-lines")
#: The loop keeps weak references only.
_RUNNING: set[asyncio.Task[None]] = set()


class Taker(Protocol):
    """What the application does with the lines. Every call may block, fail, or come twice with the same lines."""

    def begin(self, file: str) -> int | None:
        """From which byte of a file on it wants the lines; None for none at all."""

    def take(self, file: str, lines: Sequence[str], end: int) -> None:
        """The next lines, and the byte behind them; lines that are no text have replacement characters."""

    def ended(self, file: str, view: JobView, given_up: bool) -> None:
        """The job has ended; ``given_up``: because nobody wanted it any more. It may come without ``begin``, and for a file that never was."""


@dataclass(frozen=True)
class Lines:
    """Which file, and who takes it; travels as JSON.

    :ivar path: on the cluster; ``{n}``, ``{job_id}`` and ``{restarts}`` stand for the submission, the job and how often Slurm requeued it.
    :ivar taker: dotted path of the taker's class. :ivar config: its keyword arguments, JSON.
    """

    path: str
    taker: str
    config: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :meth:`from_json` takes back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The value that was written."""
        return cls(value["path"], value["taker"], dict(value.get("config", {})))

    def file(self, n: int, view: JobView) -> str:
        """The path for one run of a job."""
        return self.path.replace("{n}", str(n)).replace("{job_id}", view.job_id).replace("{restarts}", str(view.restarts))

    def load(self) -> Taker:
        """The taker, made anew in this process."""
        module, _, name = self.taker.rpartition(".")
        made: Taker = getattr(importlib.import_module(module), name)(**self.config)
        return made


@dataclass
class _Rest:
    """Of one kind of taker in this process: how often it failed in a row, and until when it is left alone (monotonic clock)."""

    failures: int = 0
    until: float = 0.0

    def failed(self) -> bool:
        """Whether it is the first time in a row. Calls of other jobs that were under way as it began to rest fail with it, and count no more."""
        now = time.monotonic()
        if now < self.until:
            return False
        self.until = now + min(LONGEST_REST_S, FIRST_REST_S * 2 ** min(self.failures, 10))
        self.failures += 1
        return self.failures == 1


_RESTS: dict[str, _Rest] = {}


class LineFollower:
    """Of one job. ``lines``: as :class:`Lines` in JSON, or empty: then it does nothing."""

    def __init__(self, lines: Mapping[str, Any], n: int, hub: Hub, log: Any) -> None:
        self._asked = bool(lines)
        self._lines = Lines.from_json(lines) if lines else Lines("", "")
        self._n, self._hub, self._log = n, hub, log
        self._rest = _RESTS.setdefault(self._lines.taker, _Rest())
        self._taker: Taker | None = None
        self._file = ""
        self._offset: int | None = None
        self._task: asyncio.Task[None] | None = None

    async def look(self, view: JobView) -> None:
        """Begin to bring what is new, unless the last look is still at it, or its taker rests. Only of a job that ended the last lines are waited
        for, and for a moment: what takes longer goes on by itself."""
        if not self._asked:
            return
        if view.ended:
            await self._finish(view)
            return
        busy = self._task is not None and not self._task.done()
        if view.phase is Phase.RUNNING and not busy and time.monotonic() >= self._rest.until:
            self._start(self._bring(view))

    async def _finish(self, view: JobView) -> None:
        before = self._task
        self._start(self._last(view, before))
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=LAST_LINES_S)

    def _start(self, work: Any) -> None:
        self._task = asyncio.create_task(work)
        _RUNNING.add(self._task)
        self._task.add_done_callback(_RUNNING.discard)

    async def _last(self, view: JobView, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before}, timeout=PIECE_TIMEOUT_S)
        if time.monotonic() < self._rest.until:
            return
        await self._bring(view)
        await self._safely(lambda: self._made().ended(self._lines.file(self._n, view), view, False))

    async def _bring(self, view: JobView) -> None:
        """A new file, of a job that was requeued, begins where its taker says."""
        if (file := self._lines.file(self._n, view)) != self._file:
            self._file, self._offset = file, None
            if not await self._safely(lambda: self._begin(file)):
                self._file = ""
        if self._offset is None or not self._file:
            return
        for _ in range(PIECES_A_LOOK):
            if not await self._piece(file):
                return

    def _begin(self, file: str) -> None:
        self._offset = self._made().begin(file)

    async def _piece(self, file: str) -> bool:
        """Whether there was one, and it was taken: a whole number of lines; a line longer than a piece is passed over."""
        client, offset = self._hub.client, self._offset
        if client is None or offset is None:
            return False
        try:
            async with asyncio.timeout(PIECE_TIMEOUT_S):
                size = await client.size_of(file)
                data = b"" if size is None or size <= offset else await client.read_from(file, offset, PIECE)
        except (SlurmError, FileUnreadable, TimeoutError) as error:
            self._log.debug("%s could not be read now: %s", file, error)
            return False
        whole = data[: data.rfind(b"\n") + 1]
        end = offset + (len(whole) or (len(data) if len(data) >= PIECE else 0))
        if end == offset:
            return False
        # Not splitlines(): a line of JSON may hold what that takes for the end of one.
        lines = whole.decode("utf-8", "replace").split("\n")[:-1]
        if await self._safely(lambda: self._made().take(file, lines, end)):
            self._offset = end
            return len(data) >= PIECE
        return False

    def _made(self) -> Taker:
        if self._taker is None:
            self._taker = self._lines.load()
        return self._taker

    async def _safely(self, call: Callable[[], None]) -> bool:
        """Whether the taker did it, in time. One that hangs keeps its thread, and nothing else."""
        try:
            async with asyncio.timeout(PIECE_TIMEOUT_S):
                await asyncio.get_running_loop().run_in_executor(_THREADS, call)
        except Exception as error:  # noqa: BLE001 - the taker is the application's and may raise anything; the job is watched all the same
            said = self._log.warning if self._rest.failed() else self._log.debug
            words = str(error) or type(error).__name__
            said("What the job writes to %s is not shown elsewhere now (it is tried again): %s", self._lines.path, words)
            return False
        self._rest.failures, self._rest.until = 0, 0.0
        return True


async def say_given_up(lines: Mapping[str, Any], n: int, view: JobView, log: Any) -> None:
    """Tell the taker that a job was ended because nobody wanted it any more. Never raises."""
    if not lines:
        return
    asked = Lines.from_json(lines)
    try:
        async with asyncio.timeout(PIECE_TIMEOUT_S):
            call = asyncio.get_running_loop().run_in_executor(_THREADS, lambda: asked.load().ended(asked.file(n, view), view, True))
            await call
    except Exception as error:  # noqa: BLE001 - as above
        log.warning("That job %s was given up could not be told to %s: %s", view.job_id, asked.taker, str(error) or type(error).__name__)
