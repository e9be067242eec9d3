"""Runs one cell: hold, receipt, release, wait, end – with one accident – and compares what was said with what is true.

What is true is what the job itself left in its folder and what Slurm's own commands say past the code under test.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_slurm.slurm.names import job_name_for
from airflow_slurm.slurm.states import parse_state
from local.slurm_cluster import PrivateSlurm

from .accidents import Scene, happen
from .cells import ARRAY, CHANGED, FAILS, PUSHED_OUT, PUT_BACK, SAVES, STUBBORN, WORKS, Cell
from .gates import Gates
from .processes import Processes, Task, killed, reconciler, triggerer, worker
from .proxy import Proxy

#: A run that has come to no end by then has lost its job, in seconds.
DEADLINE_S = 200.0
#: Bytes of the script and of the output, so that there is a middle in which a connection can break.
PADDING = 90_000
POINT_TIMEOUT_S = 90.0
#: Tasks of the array.
SHARDS = 3
_WORK = "for i in 1 2; do head -c 40000 /dev/zero | tr '\\0' x; echo; sleep 0.8; done; echo $SLURM_JOB_ID >> {folder}/done"
_BODIES = {
    WORKS: _WORK,
    FAILS: "sleep 1; exit 7",
    SAVES: "sleep 600 & wait",
    STUBBORN: "sleep 600",
    ARRAY: "echo $SLURM_ARRAY_TASK_ID >> {folder}/shards; sleep 1; echo x > {folder}/done-$SLURM_ARRAY_TASK_ID",
    # The first run lasts until it is pushed out.
    PUT_BACK: "[ $(wc -l < {folder}/ran) -gt 1 ] || sleep 120; " + _WORK,
    PUSHED_OUT: "[ $(wc -l < {folder}/ran) -gt 1 ] || sleep 120; " + _WORK,
    # The job that the task had asked for before has to be over.
    CHANGED: "[ -e {folder}/saved ] || echo x >> {folder}/overlap; " + _WORK,
}
_TRAPS = {SAVES: "trap 'echo saved >> {folder}/saved; exit 0' USR1; ", STUBBORN: "trap '' USR1; "}
"""Set before the job says that it runs."""
_OPTIONS: dict[str, dict[str, Any]] = {
    PUT_BACK: {"partition": "scavenge", "requeue": True},
    PUSHED_OUT: {"partition": "scavenge"},
    ARRAY: {"mem": "50M"},
}
#: Of the work that a task asked for before.
BEFORE = "/before"


@dataclass(frozen=True)
class Result:
    """What came of a cell. All counts but ``submitted`` have to be 0.

    :ivar submitted: jobs that were queued. :ivar doubled: jobs beyond the first that ran, or are still queued at the end; shards that
        ran twice; and work that ran beside the one that the same task had given up.
    :ivar lost: 1 if the job never ran, or nobody came to know its end, or what it had in hand is lost: it was ended without having been told to save.
    :ivar false_success, false_failure: 1 if the task's end is not the job's.
    :ivar answered_s: from the accident to the end of the first command that began after it and that the cluster answered.
    :ivar settled_s: from the accident to the task's end; what the job does meanwhile, up to two seconds, is part of it.
    """

    cell: Cell
    verdict: str
    submitted: int
    doubled: int
    lost: int
    false_success: int
    false_failure: int
    answered_s: float | None
    settled_s: float
    total_s: float
    detail: str = ""

    @property
    def clean(self) -> bool:
        """Whether nothing went wrong."""
        return not (self.doubled or self.lost or self.false_success or self.false_failure)


async def run_cell(cell: Cell, slurm: PrivateSlurm, folder: Path, key: str) -> Result:
    """One run with its accident.

    :param folder: empty, for this cell alone. :param key: no other cell's.
    """
    started = time.monotonic()
    async with Proxy(slurm.ssh_port) as proxy:
        gates = Gates(folder)
        shards = SHARDS if cell.job == ARRAY else 0
        task = Task(str(folder), _connection(slurm, proxy.port, gates, cell), key, _spec(cell, folder), shards, cell.deferrable)
        processes = Processes(task)
        scene = Scene(slurm, proxy, gates, processes, cell.point)
        living = asyncio.create_task(_cancelled(cell, slurm, task, processes) if cell.cancels else _lived(cell, task, processes))
        pushing = asyncio.create_task(_pushed(slurm, folder)) if cell.job in (PUT_BACK, PUSHED_OUT) else None
        try:
            async with asyncio.timeout(DEADLINE_S):
                await _accident(scene, cell, living)
                verdict = await living
        except TimeoutError:
            verdict = "none"
        finally:
            ended = time.time()
            running = [one for one in (living, pushing) if one is not None]
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            gates.go()
        if verdict.partition(":")[0] in ("success", "failure") and await asyncio.to_thread(_alive, slurm, key):
            await processes(
                reconciler, task
            )  # as its DAG does every few minutes: it cancels what was queued late, or came back, and is held
        return await asyncio.to_thread(_judged, cell, scene, task, verdict, (ended - scene.began, time.monotonic() - started))


async def _accident(scene: Scene, cell: Cell, living: asyncio.Task[str]) -> None:
    if cell.point in ("start", "input"):
        await happen(scene, cell.fault)
        return
    for passage in range(cell.nth):
        scene.gates.arm("poll:after" if cell.point == "sftp" else cell.point)
        try:
            await scene.gates.reached(POINT_TIMEOUT_S)
        except TimeoutError:
            said = repr(living.result()) if living.done() else "it still runs"
            raise AssertionError(f"The run never came by {cell.point} for the {passage + 1}. time: {said}") from None
        if passage + 1 < cell.nth:
            scene.gates.go()
            while (scene.gates.folder / "go").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    await happen(scene, cell.fault)


async def _lived(cell: Cell, task: Task, processes: Processes) -> str:
    """The task's life; before it, of one that asks for other work now, that of the work it had asked for."""
    if cell.job == CHANGED:
        folder = Path(task.folder)
        body = _body(SAVES, folder, "echo $SLURM_JOB_ID >> {folder}/ran-before; ")
        await processes(worker, replace(task, key=task.key + BEFORE, spec=task.spec | {"body": body}), "execute", None, {})
        while not (folder / "ran-before").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return await _life(task, processes)


async def _pushed(slurm: PrivateSlurm, folder: Path) -> None:
    """Once the job runs, somebody's urgent one needs all nodes for a moment."""
    while not (folder / "ran").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    argv = ("--partition=urgent", f"--nodes={slurm.settings.nodes}", "--exclusive", "--mem=20M", "--output=/dev/null", "--wrap=sleep 1")
    while (await asyncio.to_thread(slurm.run, "sbatch", *argv, check=False)).returncode:  # noqa: ASYNC110
        await asyncio.sleep(0.5)  # the accident may have taken the controller


async def _life(task: Task, processes: Processes) -> str:
    """The task from its first try to its end, whatever dies meanwhile: ``success``, or the failure in words."""
    method, event, kwargs = "execute", None, {}
    while True:
        said = await processes(worker, task, method, event, kwargs)
        if said is None:
            method, event, kwargs = "execute", None, {}  # the worker died: Airflow tries the task again
        elif "error" in said:
            return f"failure: {said['error']}"
        elif "result" in said:
            return "success"
        else:
            method, kwargs = said["deferred"], said["kwargs"]
            event = await _event(said, processes)


async def _event(said: dict[str, Any], processes: Processes) -> dict[str, Any]:
    if not said["trigger"].endswith("SlurmJobTrigger"):
        await asyncio.sleep(0.5)  # SubmitLaterTrigger means ten seconds and more; nothing hangs on their number
        return {"status": "now"}
    while (heard := await processes(triggerer, said["trigger_kwargs"])) is None:
        pass  # the triggerer died: another one takes its triggers over
    if "error" in heard:
        raise AssertionError(f"A trigger must never end by an error: {heard['error']}")
    event: dict[str, Any] = heard["event"]
    return event


async def _cancelled(cell: Cell, slurm: PrivateSlurm, task: Task, processes: Processes) -> str:
    """The task is submitted and then failed by a person; on_kill, if it comes, and the reconciler do the rest: ``cancelled``."""
    said = await processes(worker, task, "execute", None, {})
    while said is None or "deferred" not in said or not said["trigger"].endswith("SlurmJobTrigger"):
        said = await processes(worker, task, "execute", None, {})
    while not (Path(task.folder) / "ran").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    if cell.fault.startswith("slurmctld"):
        await _written_down(slurm, Path(task.folder) / "ran")
    if cell.on_kill:
        await processes(killed, said["trigger_kwargs"])
    store = task.store()
    while store.get(task.key) is not None:
        await asyncio.sleep(0.5)
        await processes(reconciler, task)
    return "cancelled"


async def _written_down(slurm: PrivateSlurm, ran: Path) -> None:
    """The controller has saved that the job runs, as it does some seconds after each change. One that is killed before comes back with a job that it
    still holds, and the node ends the run by itself, without a signal: nothing that a client could ask reaches the program."""
    state, began, (job_id, *_) = slurm.base / "state/job_state", time.time(), _lines(ran)
    await asyncio.to_thread(slurm.run, "scontrol", "update", f"JobId={job_id}", "Comment=running")  # a change after the start
    async with asyncio.timeout(POINT_TIMEOUT_S):
        while not state.exists() or state.stat().st_mtime <= began:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def _spec(cell: Cell, folder: Path) -> dict[str, Any]:
    body = _body(cell.job, folder, "echo ${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}} >> {folder}/ran; ")
    output = f"{folder}/output-%A_%a.txt" if cell.job == ARRAY else f"{folder}/output-%j.txt"
    return {"body": f"# {'x' * PADDING}\n{body}", "output": output, "time_limit": 5} | _OPTIONS.get(cell.job, {})


def _body(job: str, folder: Path, says: str) -> str:
    return (_TRAPS.get(job, "") + says + _BODIES[job]).format(folder=folder)


def _connection(slurm: PrivateSlurm, port: int, gates: Gates, cell: Cell) -> str:
    # What the site offers is not asked: a new port is a new site, and the bytes counted here are those of the submission.
    extra = {
        "check_requests": False,
        "private_key": slurm.private_key.read_text(), "host_key": slurm.host_key, "poll_interval_s": 0.6,
        "slurm_bin": str(gates.bin), "command_timeout_s": cell.timeout_s,
    }  # fmt: skip
    return json.dumps({"conn_type": "slurm", "host": "127.0.0.1", "port": port, "login": slurm.user, "extra": extra})


def _judged(cell: Cell, scene: Scene, task: Task, verdict: str, times_s: tuple[float, float]) -> Result:
    folder = scene.gates.folder
    jobs = _jobs(scene.slurm, task.key)
    ran, shards = _lines(folder / "ran"), _lines(folder / "shards")
    outputs = [folder / f"done-{index}" for index in range(SHARDS)] if cell.job == ARRAY else [folder / "done"]
    done = all(_lines(path) for path in outputs)
    alive = _alive(scene.slurm, task.key)
    # Of one that Slurm ends and does not put back, or has put back and forgets, the second is the remedy, and does the work alone; no shard runs
    # twice; no two works of one task at a time.
    remedy = int(cell.job == PUSHED_OUT or (cell.job == PUT_BACK and cell.fault == "slurmctld killed"))
    twice = len(shards) - len(set(shards)) + len(_lines(folder / "overlap")) + len(_alive(scene.slurm, task.key + BEFORE))
    # A killed controller may start a job once more under its own number; that is Slurm's.
    twice += max(0, len(set(_lines(folder / "done"))) - 1)
    # A node whose slurmd is gone passes no signal on; whatever else happens, the program hears USR1 before its job is cancelled.
    unsaved = cell.job == SAVES and cell.fault != "slurmd killed" and not _lines(folder / "saved")
    good = {FAILS: "failure", SAVES: "cancelled", STUBBORN: "cancelled"}.get(cell.job, "success")
    word = verdict.partition(":")[0]
    after = [c for c in scene.gates.commands() if c.begin >= scene.began and c.code == 0]
    return Result(
        cell,
        verdict,
        submitted=len(jobs) + len(_jobs(scene.slurm, task.key + BEFORE)),
        doubled=max(0, len(set(ran) | alive) - 1 - remedy) + twice,
        lost=int(not ran or word == "none" or unsaved),
        false_success=int((word == "success" and not done) or (word == "cancelled" and bool(alive))),
        false_failure=int(word == "failure" and good != "failure"),
        answered_s=min(c.end for c in after) - scene.began if after else None,
        settled_s=times_s[0],
        total_s=times_s[1],
        detail=f"jobs {jobs}, ran {ran}, done {done}, saved {_lines(folder / 'saved')}",
    )


def _jobs(slurm: PrivateSlurm, key: str) -> dict[str, str]:
    """Id and state of every job of a key, as Slurm itself says; of an array a state that has not ended, if there is one."""
    prefix = job_name_for(key, 1).rpartition("-")[0]
    out = slurm.run("squeue", "--noheader", "--states=all", "--format=%F %T %j").stdout
    rows = [line.split() for line in out.splitlines() if line.strip()]
    mine = [(job_id, state) for job_id, state, name in rows if name.startswith(prefix)]
    return dict(sorted(mine, key=lambda row: not parse_state(row[1]).info.phase.ended))


def _alive(slurm: PrivateSlurm, key: str) -> set[str]:
    return {job_id for job_id, state in _jobs(slurm, key).items() if not parse_state(state).info.phase.ended}


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []
