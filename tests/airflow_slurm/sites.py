"""A site made of recorded answers, for tests that need no Slurm."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache

from airflow_slurm.errors import CommandRefused
from airflow_slurm.site import commands as site_commands
from airflow_slurm.site.capability import Capability
from airflow_slurm.site.probe import probe

from .conftest import recorded

VERSIONS = ("22.05", "24.11")


class RecordedSite:
    """Answers what a real Slurm of that version answered; the parts in ``broken`` are refused."""

    conn_id = "recorded"
    cluster = None

    def __init__(self, version: str, broken: Sequence[str] = (), changed: dict[str, str] | None = None) -> None:
        self.release = version
        self.asked: list[str] = []
        self._broken = broken
        self._changed = changed or {}

    async def version(self) -> str:
        self.asked.append("version")
        return self._read("version").strip().removeprefix("slurm-wlm ")

    async def ask(self, argv: Sequence[str]) -> str:
        if list(argv) == site_commands.user():
            return "root\n"
        name = next(name for name, known in COMMANDS.items() if list(argv) == known)
        self.asked.append(name)
        if name in self._broken:
            raise CommandRefused(argv[0], "Access/permission denied", 1)
        return self._read(name)

    def _read(self, name: str) -> str:
        return self._changed.get(name) or recorded(f"site_{self.release}/{name}.txt")


COMMANDS = {
    "config": site_commands.configuration(),
    "partitions": site_commands.partitions(),
    "nodes": site_commands.nodes(),
    "reservations": site_commands.reservations(),
    "licenses": site_commands.licenses(),
    "qos": site_commands.qos(),
    "associations": site_commands.associations("root"),
    "clusters": site_commands.clusters(),
    "json": site_commands.json_ability(),
}


@cache
def record_of(version: str) -> Capability:
    """The record of a recorded site."""
    return asyncio.run(probe(RecordedSite(version)))  # type: ignore[arg-type]
