"""The Airflow connection of type *Slurm*: where a cluster's login node is, and how it is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_slurm import pools
from airflow_slurm.errors import BadConnection, FileUnreadable, NoConnection, OutputUnreadable, SlurmError, SshUnreachable
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.site.preemptible import Preemptible
from airflow_slurm.site.probe import probe
from airflow_slurm.site.record import SiteRecords
from airflow_slurm.slurm.commands import ClientSite

if TYPE_CHECKING:
    import asyncssh
    from airflow.sdk import Connection

TEST_TIMEOUT_S = 20.0
T = TypeVar("T")


@dataclass(frozen=True)
class ClusterConfig:
    """The part of a connection's *extra* that is Slurm's. Times are seconds.

    :ivar ssh_conn_id: an existing SSH connection that holds host, user and keys; None if this one does.
    :ivar root: remote folder below which jobs may write, where that is to be enforced.
    :ivar pool: the Airflow pool that limits submissions to this cluster; *Test* says whether it is there.
    :ivar job_url: link to a job elsewhere, with ``{job_id}`` and ``{cluster}`` to be filled in.
    :ivar metrics_url: link to a job's figures (use of its GPUs, say), with ``{job_id}``, ``{cluster}`` and ``{nodes}`` to be filled in.
    :ivar check_requests: whether jobs are held against what the site offers before they are sent.
    :ivar site_max_age_s: from which age on the record of what the site offers is made anew.
    :ivar preemptible_partition: where jobs go that may be preempted, and likewise the QOS they take and whether Slurm
        itself puts them back.
    """

    ssh_conn_id: str | None = None
    poll_interval_s: float = 60.0
    root: str | None = None
    slurm_conf: str | None = None
    slurm_bin: str | None = None
    cluster: str | None = None
    command_timeout_s: float = 60.0
    pool: str | None = None
    job_url: str | None = None
    metrics_url: str | None = None
    check_requests: bool = True
    site_max_age_s: float = 3600.0
    preemptible_partition: str | None = None
    preemptible_qos: str | None = None
    preemptible_requeue: bool = False

    @classmethod
    def from_extra(cls, extra: dict[str, Any]) -> ClusterConfig:
        """Read it; empty fields of the connection form count as not given.

        :raises BadConnection: for a time that isn't a positive number, or a switch that is neither on nor off.
        """
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in extra.items() if name in known and value not in (None, "")}
        for name in ("poll_interval_s", "command_timeout_s", "site_max_age_s"):
            if name in values:
                values[name] = _positive(name, values[name])
        for name in ("check_requests", "preemptible_requeue"):
            if name in values:
                values[name] = _switch(name, values[name])
        return cls(**values)

    @property
    def preemptible(self) -> Preemptible:
        """What this site does with jobs that may be preempted."""
        return Preemptible(self.preemptible_partition, self.preemptible_qos, self.preemptible_requeue)


class SlurmHook(BaseHook):
    """Reaches one cluster through its login node. See the package's README for the fields of the connection.

    :param slurm_conn_id: an Airflow connection of type ``slurm``.
    """

    conn_name_attr = "slurm_conn_id"
    default_conn_name = "slurm_default"
    conn_type = "slurm"
    hook_name = "Slurm"

    def __init__(self, slurm_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.slurm_conn_id = slurm_conn_id
        self._target = ""

    def get_conn(self) -> SlurmClient:
        """A client that opens its SSH connection with the first question; whoever takes it closes it."""
        return self._client(self.config())

    def config(self) -> ClusterConfig:
        """The cluster's part of the connection."""
        return self._config_of(self.get_connection(self.slurm_conn_id))

    async def aconfig(self) -> ClusterConfig:
        """The same, inside an event loop."""
        try:
            connection = await self.aget_connection(self.slurm_conn_id)
        except AirflowNotFoundException as error:
            raise NoConnection(f"There is no connection {self.slurm_conn_id!r}: {error}") from error
        return self._config_of(connection)

    @asynccontextmanager
    async def get_client(self) -> AsyncIterator[SlurmClient]:
        """A client whose SSH connection is opened by the first question and closed at the end."""
        async with self._client(await self.aconfig()) as client:
            yield client

    def run(self, ask: Callable[[SlurmClient], Awaitable[T]]) -> T:
        """Ask the cluster from code that is not asynchronous: ``hook.run(lambda client: client.queue())``."""

        async def once() -> T:
            async with self.get_client() as client:
                return await ask(client)

        return asyncio.run(once())

    def missing(self, paths: Collection[str], within_s: float, written_since: float | None = None) -> set[str]:
        """Remote paths that are not there, looked for until all are or the time is over: shared file systems show files late.

        :param written_since: what was last written before that time (seconds since the epoch) is of an earlier run, and counts as not there.
        :raises OutputUnreadable: if this login is not let near one of them until the time is over.
        :raises SshUnreachable: if one can't be looked at until then for another reason: its file system is in trouble.
        """

        async def look(client: SlurmClient) -> set[str]:
            deadline, left = time.monotonic() + within_s, set(paths)
            while True:
                unread: list[FileUnreadable] = []
                for path in sorted(left):
                    try:
                        left -= {path} if await client.exists(path, written_since) else set()
                    except FileUnreadable as error:
                        unread.append(error)
                if not left or time.monotonic() >= deadline:
                    for why in sorted(unread, key=lambda why: not why.refused):
                        raise OutputUnreadable(why) if why.refused else SshUnreachable(str(why)) from why
                    return left
                await asyncio.sleep(2.0)

        return self.run(look)

    def test_connection(self) -> tuple[bool, str]:
        """What the *Test* button does, in the API server: what the site offers, within 20 seconds."""
        import asyncssh

        config = self.config()

        async def report() -> str:
            async with asyncio.timeout(TEST_TIMEOUT_S):
                async with self._client(config) as client:
                    record = await probe(client)
            with suppress(OSError):
                self._records(config).save(record)
            return record.summary()

        try:
            said = asyncio.run(report())
            fine, of_pools = pools.report(config.pool)
            return fine, "; ".join(filter(None, (said, of_pools)))
        except TimeoutError:
            return False, f"The cluster did not answer within {TEST_TIMEOUT_S:.0f} seconds."
        except (SlurmError, asyncssh.Error, OSError, ValueError) as error:
            return False, str(error) or type(error).__name__

    def _config_of(self, connection: Connection) -> ClusterConfig:
        config = ClusterConfig.from_extra(connection.extra_dejson)
        # What the site's record is about: a connection that is pointed elsewhere has another.
        self._target = f"{connection.login}@{connection.host}:{connection.port} {config.ssh_conn_id} {config.cluster} {config.slurm_conf}"
        return config

    def _records(self, config: ClusterConfig) -> SiteRecords:
        return SiteRecords.of(self._target, config.site_max_age_s)

    def _client(self, config: ClusterConfig) -> SlurmClient:
        from airflow_slurm.remote.ssh import StrictSSH

        # Keepalive: a poll a minute would else let firewalls drop the idle connection without a word.
        ssh = StrictSSH(ssh_conn_id=config.ssh_conn_id or self.slurm_conn_id, keepalive_interval=15)
        site = ClientSite(config.slurm_bin, config.slurm_conf, config.cluster)

        async def connect() -> asyncssh.SSHClientConnection:
            try:
                return await ssh.get_conn()
            except AirflowNotFoundException as error:
                raise NoConnection(f"There is no connection {ssh.ssh_conn_id!r}: {error}") from error
            except ValueError as error:
                # The ssh provider says so about host keys and ports it can't use.
                raise BadConnection(f"Connection {ssh.ssh_conn_id!r} can't be used: {error}") from error

        records = self._records(config) if config.check_requests else None
        return SlurmClient(connect, conn_id=self.slurm_conn_id, site=site, command_timeout_s=config.command_timeout_s, records=records)


def _positive(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not number > 0 or number == float("inf"):
        raise BadConnection(f"The connection's {name} is {value!r}; give a positive number of seconds.")
    return number


def _switch(name: str, value: Any) -> bool:
    word = str(value).strip().lower()
    if word not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        raise BadConnection(f"The connection's {name} is {value!r}; give true or false.")
    return word in ("true", "1", "yes", "on")
