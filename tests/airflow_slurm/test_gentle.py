"""How often a cluster is asked: hours of looking in a simulated time, with a simulated login node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import asyncssh
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_slurm.errors import SshUnreachable
from airflow_slurm.hook import ClusterConfig
from airflow_slurm.remote.client import IDS_A_COMMAND, NAMES_A_COMMAND, Answer, SlurmClient
from airflow_slurm.remote.transport import SshTransport
from airflow_slurm.watch import poller
from airflow_slurm.watch import snapshot as snapshot_module
from airflow_slurm.watch.pace import LONGEST_PAUSE_S, LONGEST_REST, RECONNECTS, Pace
from airflow_slurm.watch.poller import NAMES_EVERY, Hub, Snapshot, Watched, snapshots, take_snapshot
from airflow_slurm.watch.seeking import Found, Sought

from .crowd import asked_for

DEFAULT_S = ClusterConfig().poll_interval_s


@dataclass
class Cluster:
    """At the process edge: what a login node answers, and what it was asked, by a clock that sleeping moves on."""

    jobs: dict[str, str] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    now: float = 1_800_000_000.0
    look_takes_s: float = 0.0
    queue_down: bool = False
    accounting_down: bool = False
    asked: list[tuple[float, str]] = field(default_factory=list)
    lines: list[Sequence[str]] = field(default_factory=list)

    async def answer(self, argv: Sequence[str]) -> Answer:
        self.asked.append((self.now, argv[0]))
        self.lines.append(argv)
        self.now += self.look_takes_s
        if argv[0] == "squeue":
            if self.queue_down:
                return Answer("", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", 1)
            shown = {i: name for i, name in self.jobs.items() if asked_for(argv, i, name)}
            return Answer("".join(f"{i}|{i}|RUNNING|0|0|1|1|1|1|n1|None|{name}\n" for i, name in shown.items()), "", 0)
        if self.accounting_down:
            return Answer("", "sacct: error: Problem talking to the database: Connection refused\n", 1)
        rows = [f"{i}|{i}|COMPLETED|0:0|1|1|2|1|1|n1|{name}\n" for i, name in self.ended.items() if asked_for(argv, i, name)]
        return Answer("".join(rows), "", 0)

    def count(self, command: str, since: float, seconds: float = 3600.0) -> int:
        return sum(1 for at, name in self.asked if name == command and since <= at < since + seconds)

    def end(self, job_id: str) -> None:
        self.ended[job_id] = self.jobs.pop(job_id)


class Client(SlurmClient):
    """The real client over a simulated login node."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(self._never, conn_id="c1")
        self.simulated = cluster

    async def _never(self) -> asyncssh.SSHClientConnection:
        raise AssertionError("no SSH here")

    async def _run(self, argv: Sequence[str], *, stdin: str = "") -> Answer:
        return await self.simulated.answer(argv)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster of 20 running jobs; the loop's clock and its sleep are the cluster's."""
    made = Cluster({str(i): f"job-{i}" for i in range(1, 21)})

    class Hook:
        def __init__(self, slurm_conn_id: str) -> None:
            self.slurm_conn_id = slurm_conn_id

        async def aconfig(self) -> ClusterConfig:
            return ClusterConfig()

        @asynccontextmanager
        async def get_client(self) -> AsyncIterator[SlurmClient]:
            yield Client(made)

    async def sleep(seconds: float) -> None:
        made.now += seconds

    monkeypatch.setattr(poller, "SlurmHook", Hook)
    monkeypatch.setattr(poller, "asyncio", SimpleNamespace(sleep=sleep))
    for module in (poller, snapshot_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: made.now, monotonic=lambda: made.now))
    return made


def watch(hub: Hub, cluster: Cluster) -> None:
    hub.jobs = {i: Watched(i, name, cluster.now) for i, name in cluster.jobs.items()}


async def looked(hub: Hub, cluster: Cluster, seconds: float) -> list[Snapshot]:
    """What a loop saw in that time."""
    end, seen = cluster.now + seconds, []
    stream = snapshots("c1", hub)
    async for snapshot in stream:
        seen.append(snapshot)
        if cluster.now >= end:
            break
    await stream.aclose()
    return seen


async def test_a_look_that_failed_leaves_no_closed_client_behind(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> Snapshot:
        raise RuntimeError("a fault of its own")

    monkeypatch.setattr(poller, "take_snapshot", fails)
    hub = Hub()
    watch(hub, cluster)
    stream = snapshots("c1", hub)
    assert (await anext(stream)).trouble == "a fault of its own"
    assert hub.client is None
    await stream.aclose()


@pytest.mark.parametrize("jobs", [1, 800])
async def test_an_hour_costs_at_most_sixty_questions_with_any_number_of_jobs(cluster: Cluster, jobs: int) -> None:
    cluster.jobs = {str(i): f"job-{i}" for i in range(1, jobs + 1)}
    hub = Hub()
    watch(hub, cluster)
    began = cluster.now
    await looked(hub, cluster, 3600)
    assert 55 <= cluster.count("squeue", began) <= 60
    assert cluster.count("sacct", began) == 0


@pytest.mark.parametrize(("sensors", "looks"), [(10, 60), (41, 30)])
async def test_more_ids_than_one_command_takes_are_asked_for_half_as_often(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, sensors: int, looks: int
) -> None:
    """A sensor's job may be another user's: beyond what fits into one command beside the watched ones it is a second question."""
    monkeypatch.setattr(snapshot_module, "IDS_A_COMMAND", 60)
    cluster.jobs |= {str(900_000 + i): f"theirs-{i}" for i in range(sensors)}
    hub = Hub()
    hub.jobs = {i: Watched(i, name, cluster.now, foreign=int(i) >= 900_000) for i, name in cluster.jobs.items()}
    began = cluster.now
    seen = await looked(hub, cluster, 3600)
    assert looks - 3 <= len([look for look in seen if look.at < began + 3600]) <= looks
    assert 55 <= cluster.count("squeue", began) <= 60


def seek(hub: Hub, cluster: Cluster, *, ids: int = 0, names: int = 0) -> list[Sought]:
    """So many sensors, none of whose jobs is there."""
    made = [Sought(str(900_000 + i), None, cluster.now) for i in range(ids)] + [
        Sought(None, f"not-there-{i}", cluster.now) for i in range(names)
    ]
    hub.seekers |= {each: each for each in made}
    return made


@pytest.mark.parametrize(
    ("jobs", "ids", "names"), [(0, 1, 0), (0, 50, 0), (0, 0, 50), (800, 50, 0), (800, 0, 50), (800, 50, 50), (0, 50, 50)]
)
async def test_sensors_whose_jobs_are_not_there_cost_no_more(cluster: Cluster, jobs: int, ids: int, names: int) -> None:
    cluster.jobs = {str(i): f"job-{i}" for i in range(1, jobs + 1)}
    hub = Hub()
    watch(hub, cluster)
    seek(hub, cluster, ids=ids, names=names)
    began = cluster.now
    await looked(hub, cluster, 3600)
    assert 45 <= cluster.count("squeue", began) <= 60
    assert cluster.count("sacct", began) <= 60


async def test_sensors_that_come_one_after_another_cost_no_more(cluster: Cluster) -> None:
    hub = Hub()
    watch(hub, cluster)
    began, number = cluster.now, 0
    while cluster.now < began + 3600:
        number += 1
        job = Sought(None, f"not-there-{number}", began)
        hub.seekers[job] = job
        stream = snapshots("c1", hub)
        await anext(stream)
        await stream.aclose()
        cluster.now += 5
    assert cluster.count("squeue", began) <= 60


async def test_a_job_that_is_sought_is_found_by_the_loop_whether_it_waits_runs_or_has_ended(cluster: Cluster) -> None:
    hub = Hub()
    watch(hub, cluster)
    ended = Sought("2", None, cluster.now)
    named, by_id_, later = Sought(None, "job-7", cluster.now), Sought("5", None, cluster.now), Sought(None, "job-77", cluster.now)
    cluster.end("2")
    hub.jobs.pop("2")
    hub.seekers |= {each: each for each in (named, by_id_, later, ended)}
    stream = snapshots("c1", hub)
    first = await anext(stream)
    assert first.found == {
        named: Found("7", "job-7", None, 1.0),
        by_id_: Found("5", "job-5", None, 1.0),
        ended: Found("2", "job-2", None, 1.0),
    }
    for each in first.found:
        del hub.seekers[each]
    cluster.jobs["77"] = "job-77"
    looks = [await anext(stream) for _ in range(NAMES_EVERY)]
    assert [later in look.found for look in looks] == [False] * (NAMES_EVERY - 1) + [True]
    await stream.aclose()


async def test_of_more_names_than_one_command_takes_each_has_its_turn(cluster: Cluster) -> None:
    hub = Hub()
    watch(hub, cluster)
    seek(hub, cluster, names=2 * NAMES_A_COMMAND + 10)
    last = Sought(None, "job-20", cluster.now)
    hub.seekers[last] = last
    stream = snapshots("c1", hub)
    looks = [await anext(stream) for _ in range(3)]
    assert [last in look.found for look in looks] == [False, False, True]
    assert max(len(",".join(argv)) for argv in cluster.lines) < 2**17
    began = cluster.now
    cluster.asked.clear()
    await stream.aclose()
    await looked(hub, cluster, 3600)
    assert cluster.count("squeue", began) <= 60


async def test_while_accounting_does_not_answer_a_job_that_left_the_queue_is_not_taken_for_one_that_never_was(cluster: Cluster) -> None:
    hub = Hub()
    cluster.end("2")
    cluster.accounting_down = True
    sought = Sought("2", None, cluster.now)
    hub.seekers[sought] = sought
    stream = snapshots("c1", hub)
    assert (await anext(stream)).found == {}
    cluster.accounting_down = False
    assert (await anext(stream)).found == {sought: Found("2", "job-2", None, 1.0)}
    await stream.aclose()


async def test_triggers_that_come_and_go_cost_no_more(cluster: Cluster) -> None:
    hub = Hub()
    watch(hub, cluster)
    began = cluster.now
    while cluster.now < began + 3600:
        stream = snapshots("c1", hub)
        await anext(stream)
        await stream.aclose()
        cluster.now += 5
    assert cluster.count("squeue", began) <= 60


async def test_nobody_is_asked_while_nobody_waits(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert cluster.asked == []
        if len(slept) == 5:
            watch(hub, cluster)

    monkeypatch.setattr(poller, "asyncio", SimpleNamespace(sleep=sleep))
    stream = snapshots("c1", hub)
    snapshot = await anext(stream)
    assert snapshot.asked == set(cluster.jobs)
    assert [name for _, name in cluster.asked] == ["squeue"]
    await stream.aclose()


async def test_accounting_is_asked_once_in_an_interval_in_which_jobs_left(cluster: Cluster) -> None:
    hub = Hub()
    watch(hub, cluster)
    stream = snapshots("c1", hub)
    await anext(stream)
    for job_id in ("3", "4", "9"):
        cluster.end(job_id)
    snapshot = await anext(stream)
    assert [name for _, name in cluster.asked] == ["squeue", "squeue", "sacct"]
    assert snapshot.accounting is not None
    assert sorted(snapshot.accounting) == ["3", "4", "9"]
    await stream.aclose()


async def test_more_jobs_than_one_command_takes_are_asked_over_several_looks(cluster: Cluster) -> None:
    count = IDS_A_COMMAND + 10
    jobs = [Watched(str(i), f"job-{i}", cluster.now) for i in range(1, count + 1)]
    cluster.jobs, cluster.ended = {}, {job.job_id: job.job_name for job in jobs}
    snapshot = await take_snapshot(Client(cluster), jobs)
    assert [name for _, name in cluster.asked] == ["squeue", "sacct"]
    told = [job for job in jobs if snapshot.of(job) is not None]
    assert told == jobs[:IDS_A_COMMAND]
    rest = await take_snapshot(Client(cluster), jobs[IDS_A_COMMAND:])
    assert all(rest.of(job) is not None for job in jobs[IDS_A_COMMAND:])


async def test_a_controller_in_trouble_is_left_alone_more_and_more_and_asked_as_before_when_it_is_well(cluster: Cluster) -> None:
    hub = Hub()
    watch(hub, cluster)
    cluster.queue_down = True
    began = cluster.now
    await looked(hub, cluster, 3600)
    pauses = [after - before for (before, _), (after, _) in zip(cluster.asked, cluster.asked[1:], strict=False)]
    assert cluster.count("squeue", began) <= 10
    assert max(pauses) <= LONGEST_PAUSE_S * 1.05
    cluster.queue_down = False
    cluster.asked.clear()
    await looked(hub, cluster, 600)
    assert 9 <= len(cluster.asked) <= 11


async def test_a_slow_controller_is_asked_less_often(cluster: Cluster) -> None:
    cluster.look_takes_s = 30.0
    hub = Hub()
    watch(hub, cluster)
    began = cluster.now
    await looked(hub, cluster, 3600)
    assert 22 <= cluster.count("squeue", began) <= 26


async def test_accounting_that_does_not_answer_rests_and_slows_nothing_else(cluster: Cluster) -> None:
    hub = Hub()
    watch(hub, cluster)
    cluster.end("5")
    cluster.accounting_down = True
    began = cluster.now
    seen = await looked(hub, cluster, 3600)
    assert 55 <= cluster.count("squeue", began) <= 60
    assert cluster.count("sacct", began) <= 10
    assert all(snapshot.accounting is None for snapshot in seen)
    cluster.accounting_down = False
    seen = await looked(hub, cluster, 60 * (LONGEST_REST + 2))
    assert seen[-1].accounting


async def test_a_loop_outlives_what_nobody_thought_of(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    watch(hub, cluster)

    async def breaks(*args: object) -> Answer:
        raise KeyError("a bug")

    monkeypatch.setattr(cluster, "answer", breaks)
    stream = snapshots("c1", hub)
    broken = await anext(stream)
    assert (broken.queue, broken.trouble) == (None, "'a bug'")
    monkeypatch.undo()
    await stream.aclose()


async def test_a_held_job_beside_a_watched_one_of_its_name_is_a_double(cluster: Cluster) -> None:
    rows = (
        "7|7|RUNNING|0|0|1|1|1|1|n1|None|job-a\n"
        "9|9|PENDING|0|0|1|N/A|N/A|1|None|JobHeldUser|job-a\n"
        "10|10|PENDING|0|0|1|N/A|N/A|1|None|Priority|job-a\n"
        "12|11_[0-3]|PENDING|0|0|1|N/A|N/A|1|None|JobHeldUser|job-b\n"
        "13|13|PENDING|1|0|1|N/A|N/A|1|None|JobHeldUser|job-a\n"
    )

    class Says(Client):
        async def _run(self, argv: Sequence[str], *, stdin: str = "") -> Answer:
            return Answer(rows if argv[0] == "squeue" else "", "", 0)

    snapshot = await take_snapshot(Says(cluster), [Watched("7", "job-a", 1.0), Watched("11", "job-b", 1.0, tasks=(0, 1))])
    assert snapshot.doubles == {"job-a": ["9"]}


async def test_connections_have_a_budget_between_two_good_looks() -> None:
    opened: list[float] = []

    async def refused() -> asyncssh.SSHClientConnection:
        opened.append(time.monotonic())
        raise ConnectionRefusedError("nobody there")

    transport = SshTransport(refused, "c1", 5.0)
    transport.allow_connects(2)
    results = await asyncio.gather(*(transport.run("true", "", "true") for _ in range(50)), return_exceptions=True)
    assert all(isinstance(result, SshUnreachable) for result in results)
    assert len(opened) == 2
    transport.allow_connects(1)
    with pytest.raises(SshUnreachable, match="nobody there"):
        await transport.run("true", "", "true")


def test_the_budget_is_full_again_only_after_a_whole_good_look() -> None:
    pace = Pace(60.0)
    assert pace.connects == RECONNECTS
    pace.note(False, None)
    assert pace.connects == 1
    pace.note(True, False)
    assert pace.connects == 1
    pace.note(True, None)
    assert pace.connects == 1
    pace.note(True, True)
    assert pace.connects == RECONNECTS


@given(
    interval_s=st.floats(1, 3600),
    took_s=st.floats(0, 100),
    history=st.lists(st.tuples(st.booleans(), st.sampled_from([None, True, False]))),
)
def test_a_pause_is_never_shorter_than_the_interval(interval_s: float, took_s: float, history: list[tuple[bool, bool | None]]) -> None:
    pace = Pace(interval_s)
    for queue_read, accounting_read in history:
        pace.note(queue_read, accounting_read)
    assert interval_s <= pace.pause_s(took_s) <= max(2 * interval_s, LONGEST_PAUSE_S) * 1.05
