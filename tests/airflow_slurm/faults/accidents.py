"""The accidents. Each is called while a run stands at the cell's point, and opens the gate itself."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from local.process import ProcessStat, descendants
from local.slurm_cluster import PrivateSlurm

from .gates import LONGEST_S, Gates
from .processes import Processes
from .proxy import DELAY_S, DOWN, UP, Budget, Proxy

#: Of the script on sbatch's standard input (see :data:`.matrix.PADDING`), and of a chunk of the job's output.
MIDDLE_OF_INPUT, MIDDLE_OF_OUTPUT = 60_000, 16_000


@dataclass
class Scene:
    """What an accident can get at. Times are seconds since the epoch."""

    slurm: PrivateSlurm
    proxy: Proxy
    gates: Gates
    processes: Processes
    point: str
    began: float = 0.0
    over: float = 0.0


Accident = Callable[[Scene], Awaitable[None]]


async def _cut(scene: Scene) -> None:
    """The connection is reset; the far side goes on after a while."""
    scene.proxy.cut()
    await asyncio.sleep(0.3)
    scene.gates.go()


async def _late(scene: Scene, seconds: float) -> None:
    """The connection is reset, and the command does its work only so much later."""
    scene.proxy.cut()
    await asyncio.sleep(seconds)
    scene.gates.go()


async def _after_a_run(scene: Scene) -> None:
    """The connection is reset, and the command does its work only when the job that was sent in its place has run, and the worker that released
    that one is about to die without having noted it."""
    scene.proxy.cut()
    scene.gates.arm("released:before")
    await scene.gates.reached(LONGEST_S)
    os.kill(scene.processes.process.pid, signal.SIGSTOP)  # it must not pass this gate as the command passes its own
    async with asyncio.timeout(LONGEST_S):
        while not (scene.gates.folder / "done").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        scene.gates.go()
        while sum(command.name == "sbatch" for command in scene.gates.commands()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    scene.processes.kill()


async def _swallow(scene: Scene) -> None:
    """Nothing passes on this connection any more, and nobody says so."""
    scene.proxy.swallow()
    scene.gates.go()


async def _slow(scene: Scene) -> None:
    """Everything takes longer, and arrives."""
    scene.proxy.delay(DELAY_S)
    scene.gates.go()


async def _torn(scene: Scene) -> None:
    """The connection is reset within the answer."""
    scene.proxy.end_after(Budget(DOWN, 24))
    scene.gates.go()


async def _process_killed(scene: Scene) -> None:
    """SIGKILL for the process that asked."""
    scene.processes.kill()
    await asyncio.sleep(0.2)
    scene.gates.go()


async def _daemon(scene: Scene, daemon: str, seconds: float, sig: signal.Signals = signal.SIGKILL) -> None:
    """A daemon ends, and comes back after some time."""
    await asyncio.to_thread(scene.slurm.kill, daemon, sig)
    scene.gates.go()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(scene.slurm.spawn, daemon)


async def _sshd_killed(scene: Scene) -> None:
    """The SSH server and all its sessions, but not what they run."""
    pid = scene.slurm.pid("sshd")
    root = ProcessStat.of(pid) if pid else None
    sessions = [p for p in await asyncio.to_thread(descendants, [root] if root else []) if p.name.startswith("sshd")]
    await asyncio.to_thread(scene.slurm.kill, "sshd")
    for process in sessions:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    scene.gates.go()
    await asyncio.sleep(2.0)
    await asyncio.to_thread(scene.slurm.spawn, "sshd")


ACCIDENTS: dict[str, Accident] = {
    "cut": _cut,
    "sbatch late": partial(_late, seconds=2.0),
    "sbatch later": partial(_late, seconds=7.0),
    "sbatch after a run, worker killed": _after_a_run,
    "swallow": _swallow,
    "slow": _slow,
    "torn": _torn,
    "worker killed": _process_killed,
    "triggerer killed": _process_killed,
    "reconciler killed": _process_killed,
    "slurmctld killed": partial(_daemon, daemon="slurmctld", seconds=1.5),
    "slurmctld restarted": partial(_daemon, daemon="slurmctld", seconds=1.0, sig=signal.SIGTERM),
    "slurmctld away": partial(_daemon, daemon="slurmctld", seconds=11.0),
    "slurmdbd killed": partial(_daemon, daemon="slurmdbd", seconds=3.0),
    "slurmd killed": partial(_daemon, daemon="n1", seconds=2.0),
    "munged killed": partial(_daemon, daemon="munged", seconds=3.0),
    "sshd killed": _sshd_killed,
}


def planned(fault: str, point: str) -> Budget | None:
    """What the next connection, or the connections of now, shall meet at a point without a gate."""
    if (then := {"cut": "cut", "swallow": "swallow", "slow": "delay"}.get(fault)) is None:
        return None
    return {
        "start": Budget(DOWN, 300, then),
        "input": Budget(UP, MIDDLE_OF_INPUT, then),
        "sftp": Budget(DOWN, MIDDLE_OF_OUTPUT, then),
    }.get(point)


async def happen(scene: Scene, fault: str) -> None:
    """Let it happen, and note when it began and when it was over."""
    scene.began = time.time()
    budget = planned(fault, scene.point)
    if budget is None:
        await ACCIDENTS[fault](scene)
    elif scene.point == "sftp":
        scene.proxy.end_after(budget)
        scene.gates.go()
    else:
        scene.proxy.plan(budget)
    scene.over = time.time()
