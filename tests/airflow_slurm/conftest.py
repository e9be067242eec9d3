"""One private Slurm for all tests of this folder that need one, and clients and stores to use it with."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm.file_receipts import FileReceipts
from airflow_slurm.hook import SlurmHook
from airflow_slurm.operators import SlurmJobOperator
from airflow_slurm.receipts import Receipt
from airflow_slurm.remote.client import SlurmClient
from airflow_slurm.work import steps
from airflow_slurm.work.stop import StopPolicy
from airflow_slurm.work.submit import LookUp, Submitted
from local.process import send
from local.slurm_cluster import PrivateSlurm

from .held_jobs import Files
from .tasks import OWNER, Make, Task

CONN_ID = "slurm_test"
QUICK = LookUp(total_s=3.0, pause_s=0.5)
HASTY = StopPolicy(signal="USR1", grace_s=3.0, cancel_wait_s=20.0, pause_s=0.5)


@pytest.fixture(scope="session")
def cluster() -> Iterator[PrivateSlurm]:
    """A running cluster with accounting; two nodes. ``SLURM_TEST_BASE`` names the folder of one that runs already."""
    if running := os.environ.get("SLURM_TEST_BASE"):
        yield PrivateSlurm.attach(Path(running))
        return
    base = Path(tempfile.mkdtemp(prefix="as-", dir="/tmp"))
    slurm = PrivateSlurm(base / "c", nodes=2, gpus=2, accounting=True, name="c1", preemption=True)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def slurm(cluster: PrivateSlurm) -> Iterator[PrivateSlurm]:
    """The cluster with all its daemons up and no job of an earlier test."""
    yield cluster
    for daemon in cluster.daemons:
        cluster.spawn(daemon)
    cluster.run("scancel", "--user", cluster.user, check=False)
    take_back_nodes(cluster)


def take_back_nodes(cluster: PrivateSlurm) -> None:
    """Slurm drains a node that is asked to start a job which it runs already, as a killed controller does."""
    out = cluster.run("sinfo", "--noheader", "--Node", "--states=drain,down", "--format=%N", check=False).stdout
    for node in set(out.split()):
        cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)


@contextmanager
def unreported(cluster: PrivateSlurm) -> Iterator[None]:
    """What runs is not reported by its node: slurmd asks each step's daemon before it says what it runs, and before it starts a job; these stand still.

    A controller asks its nodes within seconds of its start. What it has as waiting, or does not know, it ends there, and its next start of the job
    then meets no other. (In the very second of that end, the start fails with exit 1: "Killing non-startable batch JobId=…: Job credential revoked".)
    """
    steps = cluster.steps()
    for step in steps:
        send(step, signal.SIGSTOP)
    try:
        yield
    finally:
        for step in steps:
            send(step, signal.SIGCONT)


def connection_uri(slurm: PrivateSlurm, **extra: object) -> str:
    """An Airflow connection of type slurm to the cluster."""
    values: dict[str, object] = {"private_key": slurm.private_key.read_text(), "host_key": slurm.host_key, "poll_interval_s": 1, **extra}
    values = {name: value for name, value in values.items() if value is not None}
    conn = {"conn_type": "slurm", "host": "127.0.0.1", "port": slurm.ssh_port, "login": slurm.user, "extra": values}
    return json.dumps(conn)


@pytest.fixture
def connection(slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a connection to the cluster."""
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", connection_uri(slurm))
    return CONN_ID


@pytest.fixture
async def client(connection: str) -> AsyncIterator[SlurmClient]:
    """A client of the cluster over SSH."""
    async with SlurmHook(connection).get_client() as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> FileReceipts:
    """An empty receipt store."""
    return FileReceipts(str(tmp_path / "receipts"))


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that jobs can write into, whoever they run as."""
    folder = tmp_path_factory.mktemp("shared")
    folder.chmod(0o755)
    return folder


_NUMBERS = itertools.count(1)


@pytest.fixture
def key() -> str:
    """A key that no other test uses."""
    return f"test/{os.getpid()}/{next(_NUMBERS)}"


OTHER = {"dag_id": "d", "run_id": "r2", "task_id": "t", "map_index": -1}


def recorded(name: str) -> str:
    """An output of a real Slurm, recorded with the commands this package builds."""
    return (Path(__file__).parent / "recorded" / name).read_text("utf-8")


@pytest.fixture
def jobs_named(slurm: PrivateSlurm) -> Callable[[str], list[tuple[str, str]]]:
    """Asks the cluster itself, past the code under test: id and state of all jobs of a name."""

    def ask(name: str) -> list[tuple[str, str]]:
        out = slurm.run("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%i %T").stdout
        return [(line.split()[0], line.split()[1]) for line in out.splitlines() if line.strip()]

    return ask


@pytest.fixture
def make(store: FileReceipts, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Tasks at a site where every job completes: submitting claims and writes the receipt, as the real protocol does."""
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", '{"conn_type": "slurm", "host": "login", "login": "me"}')

    async def submit(client: Any, store: Any, work: Any, owner: Any, **_: Any) -> Submitted:
        claim = store.claim(work.key, owner)
        work.on_claim(claim, "nowhere")
        spec, job_id = work.spec_for(claim.n), str(6 + claim.n)
        receipt = Receipt(job_id, work.name_for(claim.n), "nowhere", log_path=spec.log_path(job_id), array=spec.array)
        store.record(work.key, claim.n, receipt)
        return Submitted(claim.n, receipt, claim.since, claim.adopted)

    class Client:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None: ...

    monkeypatch.setattr(steps, "submit", submit)
    monkeypatch.setattr(steps.SlurmHook, "get_client", lambda self: Client())

    def task(cls: type[SlurmJobOperator] = SlurmJobOperator, run_id: str = "r1", output: str | None = None, **kwargs: Any) -> Task:
        values = {"task_id": "t", "slurm_conn_id": "nowhere", "key": "work", "receipts_config": {"root": str(store.root)}}
        return Task(lambda: cls(spec={"command": ["true"], "output": output}, **values, **kwargs), run_id)

    return task


@pytest.fixture
def operator(connection: str, tmp_path: Path, key: str) -> Callable[..., Callable[[], SlurmJobOperator]]:
    """Makes makers of operators."""

    def maker(spec: dict[str, Any], cls: type[SlurmJobOperator] = SlurmJobOperator, **kwargs: Any) -> Callable[[], SlurmJobOperator]:
        values = (
            {"task_id": "t", "slurm_conn_id": connection, "key": key, "receipts_config": {"root": str(tmp_path / "receipts")}}
            | {"stop_grace_s": 3.0}
            | kwargs
        )
        return lambda: cls(spec={"output": "/dev/null", **spec}, **values)

    return maker


@pytest.fixture(autouse=True)
def _local_files_are_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_slurm.watch.output.LATE_LINES_S", 0.05)


@pytest.fixture
def kept(tmp_path: Path) -> FileReceipts:
    store = FileReceipts(str(tmp_path / "kept"))
    store.claim("k", OWNER)
    return store


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Files:
    """At the process edge: the files on the cluster."""
    files = Files()
    monkeypatch.setattr(SlurmHook, "missing", lambda self, *asked: files.missing(*asked))
    return files
