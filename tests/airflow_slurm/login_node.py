"""A stand-in for a login node: answers that are given, questions that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import asyncssh

from airflow_slurm.remote.client import Answer, SlurmClient
from airflow_slurm.slurm.commands import ANY_SITE, ClientSite

NOTHING = Answer("", "", 0)


class LoginNode(SlurmClient):
    """At the process edge: the answers are given, the questions kept. The last answer of a command is its answer for good."""

    def __init__(self, site: ClientSite = ANY_SITE, **answers: list[Answer]) -> None:
        super().__init__(self._never, conn_id="c1", site=site)
        self.answers = {name: list(given) for name, given in answers.items()}
        self.asked: list[Sequence[str]] = []

    async def _never(self) -> asyncssh.SSHClientConnection:
        raise AssertionError("no SSH here")

    async def _run(self, argv: Sequence[str], *, stdin: str = "", then: Sequence[str] | None = None) -> Answer:
        self.asked.append(argv)
        given = self.answers.get(argv[0], [NOTHING])
        answer = given.pop(0) if len(given) > 1 else given[0]
        return answer if then is None or answer.code else replace(answer, then=await self._run(then))

    def names(self) -> list[str]:
        return [argv[0] for argv in self.asked]
