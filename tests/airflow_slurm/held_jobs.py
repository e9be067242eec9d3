"""Stand-ins for a site whose controller lost runs or brought jobs back: its node, its files, and a follower that looks at it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.remote.client import Answer
from airflow_slurm.watch.following import follower_of
from airflow_slurm.watch.poller import Hub, take_snapshot
from airflow_slurm.watch.waiting import Wait

from .login_node import LoginNode
from .tasks import OWNER

#: What sacct 22.05 says, with steps, of a job that ran and that the controller has in its first hold again (seen on a private Slurm).
RAN = "7|7|PENDING|0:0|50|Unknown|Unknown|0|1|None assigned|a\n7.batch|7.batch|RUNNING|0:0|50|51|Unknown|9|1|n1|batch\n"
NEVER = "7|7|PENDING|0:0|50|Unknown|Unknown|0|1|None assigned|a\n"
DOWN = Answer("", "sacct: error: Problem talking to the database: Connection refused\n", 1)
NONE_KEPT = Answer("", "Slurm accounting storage is disabled\n", 1)


@dataclass
class Site:
    """Jobs of one node as squeue shows them: id, state, reason, time of eligibility, dependency."""

    rows: dict[str, list[str]] = field(default_factory=lambda: {"7": ["PENDING", "JobHeldUser", "N/A", "(null)"]})
    sacct: Answer = field(default_factory=lambda: Answer(NEVER, "", 0))

    def show(self, argv: Sequence[str]) -> str:
        more = any("EligibleTime" in word for word in argv)
        shown = ""
        for job_id, (state, reason, eligible, dependency) in self.rows.items():
            head, nodes = job_id.partition("_")[0], "" if state == "PENDING" or eligible == "N/A" else "n1"
            shown += f"{head}|{job_id}|{state}|0|0|50|N/A|N/A|1|{nodes}|{reason}|{f'{eligible}|{dependency}|' if more else ''}a\n"
        return shown


class Node(LoginNode):
    """At the process edge: a login node whose squeue shows what is there, and whose scancel and scontrol change it."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site
        self.config = ""
        self.drained = "Duplicate jobid [root@2026-11-30T09:58:01]"

    async def _run(self, argv: Sequence[str], *, stdin: str = "", then: Sequence[str] | None = None) -> Answer:
        self.asked.append(argv)
        rows = self.site.rows
        if argv[0] == "squeue":
            return Answer(self.site.show(argv), "", 0)
        if argv[0] == "sacct":
            return self.site.sacct
        if argv[:3] == ["scontrol", "show", "config"]:
            return Answer(self.config, "", 0)
        if argv[:4] == ["scontrol", "--oneliner", "show", "node"]:
            return Answer(f"NodeName={argv[-1]} State=IDLE+DRAIN Reason={self.drained}\n", "", 0)
        if argv[0] == "scancel":
            rows |= {word: ["CANCELLED", "None", "N/A", "(null)"] for word in argv[1:] if word[0].isdigit()}
        elif argv[:2] == ["scontrol", "release"]:
            for job_id in [i for i, row in rows.items() if i.partition("_")[0] == argv[-1] and row[1] == "JobHeldUser"]:
                rows[job_id] = ["PENDING", "Priority", "60", "(null)"]
        return Answer("", "", 0)


class Watch:
    """A follower and its looks, one every minute, from the epoch's hundredth second on."""

    def __init__(self, store: FileReceipts, node: Node, array: str | None = None) -> None:
        wait = Wait(
            "k",
            1,
            "7",
            "a",
            40.0,
            OWNER,
            "airflow_slurm.file_receipts.FileReceipts",
            {"root": str(store.root)},
            queued_at=50.0,
            array=array,
        )
        self.hub = Hub(client=node)
        self.follower = follower_of(wait, self.hub, structlog.get_logger())
        self.node, self.at = node, 100.0

    async def look(self) -> dict[str, Any] | None:
        snapshot = await take_snapshot(self.node, [self.follower.watched])
        self.at += 60.0
        return await self.follower.look(replace(snapshot, at=self.at))

    async def looks(self, count: int) -> dict[str, Any] | None:
        for _ in range(count):
            if (event := await self.look()) is not None:
                return event
        return None

    def done(self) -> list[str]:
        """What was changed."""
        return [" ".join(argv) for argv in self.node.asked if argv[0] in ("scontrol", "scancel")]


class Files(set[str]):
    """What is there; of `earlier` ones, what was last written before this submission."""

    def __init__(self) -> None:
        super().__init__()
        self.earlier: set[str] = set()

    def missing(self, paths: Collection[str], deadline_s: float, written_since: float | None = None) -> set[str]:
        return {path for path in paths if path not in self or (written_since is not None and path in self.earlier)}
