"""A stand-in for a cluster with a crowd of jobs: shows and ends them, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import asyncssh

from airflow_slurm.receipts import Receipt, ReceiptStore
from airflow_slurm.remote.client import Answer, SlurmClient
from airflow_slurm.slurm.names import job_name_for

from .tasks import OWNER

#: When all were submitted, in seconds since the epoch.
BEFORE = 1_700_000_000


@dataclass
class Crowd:
    """At the process edge: what the login nodes of a cluster answer. Jobs by id: name and state.

    :ivar saves: whether a job that is told to save ends. :ivar late: how often accounting still lacks the ended ones.
    :ivar others: ids of jobs that may not be ended.
    :ivar silent_looks: which of the questions to the queue, from 1, are not answered.
    :ivar connections: how often a client was made, and ``most`` how many there were at a time.
    """

    jobs: dict[str, tuple[str, str]] = field(default_factory=dict)
    ended: dict[str, tuple[str, str]] = field(default_factory=dict)
    reason: str = "None"
    saves: bool = True
    late: int = 0
    others: tuple[str, ...] = ()
    accounting_down: bool = False
    silent_looks: tuple[int, ...] = ()
    asked: list[list[str]] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    most: int = 0

    def submitted(self, store: ReceiptStore, count: int, conn_id: str = "c1", state: str = "RUNNING") -> list[str]:
        """The keys of so many more jobs that run, each with its receipt and its task."""
        keys = [f"{conn_id}/{len(self.jobs) + i}" for i in range(count)]
        for key in keys:
            job_id, name = str(1000 + len(self.jobs)), job_name_for(key, 1)
            store.claim(key, OWNER | {"task_id": key})
            store.record(key, 1, Receipt(job_id, name, conn_id, released_at=1.0))
            self.jobs[job_id] = (name, state)
        return keys

    def end(self, job_id: str, state: str = "COMPLETED") -> None:
        name, _ = self.jobs.pop(job_id)
        self.ended[job_id] = (name, state)

    def count(self, command: str) -> int:
        return sum(argv[0] == command for argv in self.asked)

    @asynccontextmanager
    async def get_client(self, conn_id: str = "c1") -> AsyncIterator[SlurmClient]:
        """As the hook's."""
        self.connections += 1
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            yield Client(self, conn_id)
        finally:
            self.open -= 1

    async def answer(self, argv: Sequence[str]) -> Answer:
        self.asked.append(list(argv))
        await asyncio.sleep(0)
        if argv[0] == "squeue" and self.count("squeue") in self.silent_looks:
            return Answer("", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", 1)
        if argv[0] == "squeue":
            return Answer("".join(_line(self, job_id) for job_id in self.jobs if asked_for(argv, job_id, self.jobs[job_id][0])), "", 0)
        if argv[0] == "sacct":
            return self._recorded(argv)
        if argv[0] == "scancel":
            return self._cancelled(argv)
        return Answer("", "", 0)

    def _cancelled(self, argv: Sequence[str]) -> Answer:
        ids = [word for word in argv[1:] if word[0].isdigit()]
        refused = [i for i in ids if i in self.others]
        gone = [i for i in ids if i not in self.jobs and i not in refused]
        for job_id in ids:
            if job_id in self.jobs and job_id not in refused:
                self._cancel(argv, job_id)
        said = [f"scancel: error: Kill job error on job id {i}: Access/permission denied\n" for i in refused]
        said += [f"scancel: error: Kill job error on job id {i}: Invalid job id specified\n" for i in gone]
        return Answer("", "".join(said), 1 if said else 0)

    def _recorded(self, argv: Sequence[str]) -> Answer:
        if self.accounting_down:
            return Answer("", "sacct: error: Problem talking to the database: Connection refused\n", 1)
        if self.late:
            self.late -= 1
            return Answer("", "", 0)
        rows = [
            f"{i}|{i}|{state}|0:0|{BEFORE}|{BEFORE}|{int(time.time())}|1|1|n1|{name}\n"
            for i, (name, state) in self.ended.items()
            if asked_for(argv, i, name)
        ]
        return Answer("".join(rows), "", 0)

    def _cancel(self, argv: Sequence[str], job_id: str) -> None:
        state = self.jobs[job_id][1]
        if "--state=PENDING" in argv and state != "PENDING":
            return
        if "--signal=USR1" not in argv:
            self.end(job_id, "CANCELLED by 1000")
        elif self.saves:
            self.end(job_id, "FAILED")


class Client(SlurmClient):
    """The real client over one of its connections."""

    def __init__(self, crowd: Crowd, conn_id: str = "c1") -> None:
        super().__init__(self._never, conn_id=conn_id)
        self.crowd = crowd

    async def _never(self) -> asyncssh.SSHClientConnection:
        raise AssertionError("no SSH here")

    async def _run(self, argv: Sequence[str], *, stdin: str = "", then: Sequence[str] | None = None) -> Answer:
        return await self.crowd.answer(argv)


class Hook:
    """A hook whose cluster is the crowd."""

    def __init__(self, crowd: Crowd, slurm_conn_id: str = "c1") -> None:
        self.slurm_conn_id = slurm_conn_id
        self.get_client = lambda: crowd.get_client(slurm_conn_id)


def _line(crowd: Crowd, job_id: str) -> str:
    name, state = crowd.jobs[job_id]
    return f"{job_id}|{job_id}|{state}|0|0|{BEFORE}|1|1|1|n1|{crowd.reason}|{name}\n"


def asked_for(argv: Sequence[str], job_id: str, name: str) -> bool:
    """Whether a squeue or sacct asks for a job."""
    for option in argv:
        if option.startswith("--name=") and name not in option.removeprefix("--name=").split(","):
            return False
        if option.startswith("--jobs=") and job_id not in option.removeprefix("--jobs=").split(","):
            return False
    return True
