"""Asks one cluster, over one SSH connection that many questions share.

Every answer is either whole (see the marks in :func:`airflow_slurm.slurm.commands.remote_line`) or an error. An error says
which of three things happened: the question never left, it left and nobody knows whether it was heard, or Slurm said no.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_slurm.errors import AccountingDisabled, AnswerLost, CommandRefused, ControllerUnreachable, SshUnreachable, UnreadableAnswer
from airflow_slurm.receipts import Receipt
from airflow_slurm.slurm import commands, failures, parse
from airflow_slurm.slurm.script import render
from airflow_slurm.slurm.states import Phase
from airflow_slurm.spec import JobSpec
from airflow_slurm.truth.arrays import main_id, whole_jobs
from airflow_slurm.truth.components import as_wholes

if TYPE_CHECKING:
    import asyncssh

    from airflow_slurm.site.record import SiteRecords

#: ESLURM_ALREADY_DONE (2021) as an exit code: scancel 22.05 ends so, without a word, if some task of an array has no process.
ALREADY_DONE = 2021 & 0xFF
#: Ids in one sacct command, and names: its whole line has to stay below the 128 KiB that Linux allows one argument. scancel asks the controller
#: about each of its ids.
IDS_A_COMMAND, NAMES_A_COMMAND, IDS_A_SCANCEL = 5000, 500, 200


@dataclass(frozen=True)
class Answer:
    """What a command wrote and how it ended.

    :ivar then: of the command that was sent along with it; None if that didn't run, or its answer did not arrive whole.
    :ivar clock: the login node's, between the two, in seconds since the epoch; None if it wasn't read.
    """

    stdout: str
    stderr: str
    code: int
    then: Answer | None = None
    clock: float | None = None


@dataclass(frozen=True)
class Queued:
    """A job that was queued, held; and all jobs of its name, as the queue had them right after it (None: not known)."""

    receipt: Receipt
    of_its_name: Sequence[parse.QueueRow] | None = None


class SlurmClient:
    """See the module. Made by :meth:`airflow_slurm.hook.SlurmHook.get_client`; closed by ``async with`` or :meth:`close`.

    :param connect: opens an SSH connection; called again when one broke.
    :param conn_id: the Airflow connection, written into receipts.
    :param command_timeout_s: for one command; Slurm's own clients give up after 9 to 49 s.
    :param records: where the record of what this site offers is kept; without, requests are not checked against one.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[asyncssh.SSHClientConnection]],
        *,
        conn_id: str = "slurm_default",
        site: commands.ClientSite = commands.ANY_SITE,
        command_timeout_s: float = 60.0,
        records: SiteRecords | None = None,
    ) -> None:
        # asyncssh takes half a second to import: not in every parse of a DAG file that names an operator.
        from airflow_slurm.remote.transport import SshTransport

        self._transport = SshTransport(connect, conn_id, command_timeout_s)
        self._site = site
        self._records = records

    @property
    def conn_id(self) -> str:
        """The Airflow connection this client was made from."""
        return self._transport.conn_id

    @property
    def cluster(self) -> str | None:
        """The cluster named in the connection, where one login node serves several."""
        return self._site.cluster

    async def __aenter__(self) -> SlurmClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; the next question opens a new one."""
        await self._transport.close()

    def allow_connects(self, count: int) -> None:
        """Let the connection be opened so often from now on; without a call, as often as it breaks."""
        self._transport.allow_connects(count)

    async def submit_and_look(self, spec: JobSpec, job_name: str) -> Queued:
        """Queue a job, held, and look for others of its name, in one command line.

        :raises AnswerLost: nobody knows whether it was queued; look the name up.
        :raises SubmitRefused: for good. :raises SubmitBusy: for now. :raises SshUnreachable: it was not sent.
        """
        argv = commands.sbatch_held(job_name, self._site.cluster)
        answer = await self._run(argv, stdin=render(spec), then=commands.squeue(self._site.cluster, job_name))
        if answer.code != 0:
            raise failures.submission_failure(answer.stderr, answer.code)
        job_id, cluster = parse.sbatch_receipt(answer.stdout)
        cluster = cluster or self._site.cluster
        rows = _rows_along(answer, job_name)
        own = [row.submit_time for row in whole_jobs(rows or ()) if row.job_id == job_id]
        queued_at, path = next(iter(own), None) or answer.clock, spec.log_path(job_id)
        receipt = Receipt(job_id, job_name, self.conn_id, cluster, None, None, path, spec.array, queued_at, spec.requeue)
        return Queued(receipt, rows)

    async def queue(self, name: str | None = None, *, holds: bool = False) -> list[parse.QueueRow]:
        """All jobs of this user that the controller knows, or those of one name.

        :param holds: with ``first_hold`` of each.
        :raises ControllerUnreachable: also for an answer that looks fine and says on stderr that it isn't.
        """
        answer = await self._ask(commands.squeue(self._site.cluster, name, holds=holds))
        return as_wholes(parse.queue_rows(answer, holds))

    async def queue_of_all(
        self, *, ids: Sequence[str] = (), name: str | Sequence[str] | None = None, holds: bool = False
    ) -> list[parse.QueueRow]:
        """Jobs of any user that the controller still knows and shows: some ids, or some names. Unknown ids are passed over."""
        try:
            answer = await self._ask(commands.squeue(self._site.cluster, name, ids=ids, all_users=True, holds=holds))
        except CommandRefused as error:
            if "Invalid job id" in error.words:
                return []
            raise
        return as_wholes(parse.queue_rows(answer, holds), keep=True)

    async def accounting(
        self,
        since: float,
        *,
        ids: Sequence[str] = (),
        name: str | Sequence[str] | None = None,
        all_users: bool = False,
        steps: bool = False,
    ) -> list[parse.AccountingRow]:
        """All incarnations of some jobs since a time, oldest first for each job.

        :param name: one name, or several. :param steps: a job whose steps accounting knows ``ran``, whatever its own line says.
        :raises AccountingDisabled: the site keeps none. :raises AccountingUnreachable: it does not answer.
        """
        rows: list[parse.AccountingRow] = []
        for first in range(0, max(1, len(ids)), IDS_A_COMMAND):
            chosen = ids[first : first + IDS_A_COMMAND]
            argv = commands.sacct(since, ids=chosen, name=name, cluster=self._site.cluster, all_users=all_users, steps=steps)
            rows += parse.accounting_rows(await self._ask(argv))
        # A component by its own id is nobody's job but that of a sensor, which may ask for anybody's.
        return as_wholes(sorted(rows, key=lambda row: (row.submit_time or 0.0, row.start_time or 0.0)), keep=all_users)

    async def rows_by_name(self, name: str, since: float) -> list[parse.QueueRow | parse.AccountingRow]:
        """All that queue and accounting have of the jobs of one name, of arrays the single tasks.

        A whole answer: both could be read, or the site keeps no accounting.
        """
        queued, recorded = await self._named([name], since)
        return [*queued, *recorded]

    async def find_by_names(self, names: Sequence[str], since: float) -> dict[str, list[parse.QueueRow | parse.AccountingRow]]:
        """One row for each job of some names, by id (an array is one): from the queue, and from accounting those that left it. As whole an answer."""
        found: dict[str, dict[str, parse.QueueRow | parse.AccountingRow]] = {name: {} for name in names}
        queued, recorded = await self._named(names, since)
        for row in whole_jobs(queued):
            found[row.name][row.job_id] = row
        for old in whole_jobs(recorded):
            found[old.name].setdefault(old.job_id, old)
        return {name: sorted(rows.values(), key=lambda row: int(main_id(row))) for name, rows in found.items()}

    async def _named(self, names: Sequence[str], since: float) -> tuple[list[parse.QueueRow], list[parse.AccountingRow]]:
        queued = await self.queue(names[0] if len(names) == 1 else None)
        try:
            # A day of margin: the cluster's clock and ours may differ.
            recorded = await self.accounting(since - 86400, name=names)
        except AccountingDisabled:
            recorded = []
        asked = set(names)
        # What only accounting lets wait the controller lost when it died.
        known = [row for row in recorded if row.name in asked and row.state.info.phase is not Phase.WAITING]
        return [row for row in queued if row.name in asked], known

    async def release(self, job_id: str, cluster: str | None = None) -> None:
        """Lift a hold."""
        await self._ask(commands.scontrol_release(job_id, cluster or self._site.cluster))

    async def controller(self, cluster: str | None = None) -> parse.Controller:
        """When the controller was started, and as whom Slurm's daemons run."""
        return parse.controller(await self._ask(commands.scontrol_show_config(cluster or self._site.cluster)))

    async def node_reasons(self, nodes: str, cluster: str | None = None) -> list[str]:
        """Why some of these nodes (as Slurm lists them) are down or drained."""
        return parse.node_reasons(await self._ask(commands.scontrol_show_nodes(nodes, cluster or self._site.cluster)))

    async def cancel(
        self, job_ids: str | Sequence[str], *, signal: str | None = None, cluster: str | None = None, waiting_only: bool = False
    ) -> None:
        """End a job, or several, or send their processes a signal. One that has ended already, or is unknown, is no error.

        :raises CommandRefused: some were refused, and which is not said; the others were done.
        """
        ids, refused = [job_ids] if isinstance(job_ids, str) else job_ids, None
        for first in range(0, len(ids), IDS_A_SCANCEL):
            some = ids[first : first + IDS_A_SCANCEL]
            argv = commands.scancel(some, signal=signal, cluster=cluster or self._site.cluster, waiting_only=waiting_only)
            try:
                await self._ask(argv)
            except CommandRefused as error:
                if not failures.all_over(error.words, wordless=error.code == ALREADY_DONE):
                    refused = error
        if refused is not None:
            raise refused

    async def version(self) -> str:
        """Slurm's version, such as ``22.05.8``."""
        return (await self._ask(commands.version())).strip().removeprefix("slurm ").removeprefix("slurm-wlm ")

    async def ask(self, argv: Sequence[str]) -> str:
        """What a command that changes nothing prints, from a builder of this package."""
        return await self._ask(argv)

    async def check_possible(self, spec: JobSpec) -> None:
        """Refuse a job that can't run at this site. :raises ImpossibleRequest: naming the nearest that can."""
        if self._records is not None:
            from airflow_slurm.site.record import check_possible

            await check_possible(self, self._records, spec)

    async def size_of(self, path: str) -> int | None:
        """Bytes of a remote file; None if it isn't there."""
        return await self._transport.size_of(path)

    async def read_from(self, path: str, offset: int, limit: int) -> bytes:
        """Up to ``limit`` bytes of a remote file from an offset; nothing of one that isn't there."""
        return await self._transport.read_from(path, offset, limit)

    async def exists(self, path: str, written_since: float | None = None) -> bool:
        """Whether something is at a remote path, and not only left there from before a time (seconds since the epoch, whole ones)."""
        changed_at = await self._transport.changed_at(path)
        return changed_at is not None and (written_since is None or changed_at >= int(written_since))

    async def _ask(self, argv: Sequence[str]) -> str:
        """Standard output of a command that may be repeated."""
        try:
            answer = await self._run(argv)
        except AnswerLost as error:
            raise SshUnreachable(f"{argv[0]}: {error}") from error
        if answer.code != 0:
            raise failures.query_failure(argv[0], answer.stderr, answer.code)
        if argv[0] == "squeue" and failures.says_error(answer.stderr):
            # 22.05's squeue can end with 0 and an empty list while the controller is down.
            raise ControllerUnreachable(f"squeue said: {failures.words_of(answer.stderr)}")
        return answer.stdout

    async def _run(self, argv: Sequence[str], *, stdin: str = "", then: Sequence[str] | None = None) -> Answer:
        """Run one command, and another one if it succeeds.

        :raises SshUnreachable: if it wasn't started. :raises AnswerLost: if nobody knows how the first one ended.
        """
        mark = secrets.token_hex(8)
        line = commands.remote_line(argv, self._site, mark, len(stdin.encode()) if stdin else None, then)
        printed, stderr = await self._transport.run(line, stdin, argv[0])
        try:
            stdout, code = _answered(argv, printed, mark)
        except AnswerLost as error:
            raise AnswerLost(f"{argv[0]} was started over connection {self.conn_id!r}: {error} {stderr[-500:]}") from error
        second = None
        if then is not None:
            with suppress(AnswerLost):
                words, second_code = _answered(then, printed, mark + "T")
                second = Answer(words, stderr, second_code)
        return Answer(stdout, stderr, code, second, parse.clock_behind(printed, mark))


def _answered(argv: Sequence[str], printed: str, mark: str) -> tuple[str, int]:
    stdout, code = parse.between_marks(printed, mark)
    return (parse.with_row_ends(stdout, mark) if any(commands.ROW_END in word for word in argv) else stdout), code


def _rows_along(answer: Answer, name: str) -> list[parse.QueueRow] | None:
    """The jobs of a name from the squeue that went along with an sbatch; None if it can't be trusted and has to be asked for by itself."""
    if answer.then is None or answer.then.code != 0 or failures.says_error(answer.then.stderr):
        return None
    try:
        return as_wholes(row for row in parse.queue_rows(answer.then.stdout) if row.name == name)
    except UnreadableAnswer:
        return None
