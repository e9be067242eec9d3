"""Makes the recordings `recorded/answers_<version>/`: what a real Slurm answers, moment by moment, to the very lines that the provider sends.

    PYTHONPATH=.:plugins python -m tests.airflow_slurm.record_answers lines > lines.json
    PYTHONPATH=. python tests/airflow_slurm/record_answers.py run lines.json OUT

The second half needs the standard library and Slurm only, so that it also runs in a chroot of another Debian. What a moment holds is said
with :func:`moments`. Takes about five minutes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from local.slurm_cluster import PrivateSlurm

#: Of the submission that is recorded, and of one that nothing stands for.
NAME, KEY_BODY, NOBODY = "job-00112233445566aa-1", "echo recorded", "999999"
MARK = "5f0c1a2b3d4e6f70"
IDS = tuple(str(n) for n in range(1, 80))
#: What is asked when a controller does not answer; what else only once; and what changes something.
DOWN = ("squeue", "sacct", "scancel", "release", "submit")
ONCE = (
    "version", "config", "nodes", "submit", "squeue_of_all", "squeue_of_names", "sacct_of_name", "squeue_unknown", "release_unknown",
    "scancel_unknown", "scancel_ended", "scancel_several",
)  # fmt: skip
CHANGES = ("scancel", "release")
#: After a controller was started anew.
ANEW = ("squeue", "squeue_holds", "sacct", "sacct_steps", "config", "nodes")


def lines() -> dict[str, dict[str, Any]]:
    """Name → the line as it goes over SSH, with what it gets on standard input."""
    from airflow_slurm.slurm import commands as c
    from airflow_slurm.slurm.script import render
    from airflow_slurm.spec import JobSpec

    asked: dict[str, list[str]] = {
        "version": c.version(),
        "squeue": c.squeue(),
        "squeue_holds": c.squeue(holds=True),
        "squeue_of_all": c.squeue(ids=IDS[:9], all_users=True),
        "squeue_of_names": c.squeue(name=["done", "exit7", "shards"], all_users=True),
        "squeue_unknown": c.squeue(ids=[NOBODY], all_users=True),
        "sacct": c.sacct(0, ids=IDS),
        "sacct_steps": c.sacct(0, ids=IDS, steps=True),
        "sacct_of_name": c.sacct(0, name=["done", "exit7", "shards"], all_users=True),
        "config": c.scontrol_show_config(),
        "nodes": c.scontrol_show_nodes("n[1-4]"),
        "release": c.scontrol_release("1"),
        "release_unknown": c.scontrol_release(NOBODY),
        "scancel": c.scancel("1"),
        "scancel_unknown": c.scancel(NOBODY),
        "scancel_ended": c.scancel("1", signal="USR1"),
        "scancel_several": c.scancel(["1", NOBODY, "2"]),
    }
    found: dict[str, dict[str, Any]] = {name: {"line": c.remote_line(argv, c.ANY_SITE, MARK), "stdin": ""} for name, argv in asked.items()}
    script = render(JobSpec(body=KEY_BODY, output="/dev/null", gpus_per_node=1, mem="50M"))
    line = c.remote_line(c.sbatch_held(NAME), c.ANY_SITE, MARK, len(script.encode()), c.squeue(name=NAME))
    return found | {"submit": {"line": line, "stdin": script}}


#: Name of a job → its options. Each ends, or waits, in a way of its own.
JOBS: dict[str, tuple[str, ...]] = {
    "done": ("--wrap=true", "--gpus=1"),
    "exit7": ("--wrap=exit 7",),
    "killed": ("--wrap=kill -9 $$",),
    "segmentation": ("--wrap=kill -SEGV $$",),
    "bars|and\nlines": ("--wrap=true",),
    "no_folder": ("--wrap=true", "--chdir=/nowhere/at/all"),
    "memory": ("--wrap=python3 -c 'x = bytearray(400 * 2**20); print(len(x))'", "--mem=60M"),
    "over": ("--wrap=sleep 300", "--time=1"),
    "cancelled": ("--wrap=sleep 300", "--gpus=1"),
    "cancelled_waiting": ("--wrap=true", "--hold"),
    "suspended": ("--wrap=sleep 300",),
    "deadline": ("--wrap=true", "--time=1", "--deadline=now+100", "--dependency=afterany:{suspended}"),
    "requeued": ("--wrap=[ $SLURM_RESTART_COUNT ] || sleep 300", "--requeue", "--gpus=2"),
    "requeued_held": ("--wrap=sleep 300", "--requeue"),
    "special_exit": ("--wrap=sleep 300", "--requeue"),
    "shards": ("--wrap=[ $SLURM_ARRAY_TASK_ID -lt 5 ] && sleep 2 || sleep 300", "--array=2-9:2,11%2"),
    "shards_waiting": ("--wrap=true", "--array=0-3,7-9", "--hold"),
    "het": ("--wrap=sleep 300", ":", "--gpus=1"),
    "het_done": ("--wrap=true", ":", "--mem=20M"),
    "held": ("--wrap=true", "--hold"),
    "held_by_admin": ("--wrap=true", "--begin=now+1hour"),
    "later": ("--wrap=true", "--begin=now+1hour"),
    "licence_1": ("--wrap=sleep 300", "--licenses=heavy:1"),
    "licence_2": ("--wrap=sleep 300", "--licenses=heavy:1"),
    "never": ("--wrap=true", "--dependency=afterok:{exit7}"),
    "after": ("--wrap=true", "--dependency=afterok:{suspended}"),
    "too_wide": ("--wrap=true", "--nodes=9"),
    "too_long": ("--wrap=true", "--time=9-0"),
}
#: The same, of the second moment: all nodes are somebody's urgent ones for a while.
PUSHED: dict[str, tuple[str, ...]] = {
    "put_back": ("--wrap=[ $SLURM_RESTART_COUNT ] || sleep 300", "--partition=scavenge", "--requeue", "--nodelist=n1", "--gpus=1"),
    "pushed_out": ("--wrap=sleep 300", "--partition=scavenge", "--no-requeue", "--nodelist=n2", "--gpus=1"),
    "ended_there": ("--wrap=sleep 300", "--partition=spot", "--requeue", "--nodelist=n3"),
    "urgent": ("--wrap=sleep 5", "--partition=urgent", "--nodes=4", "--exclusive"),
    "behind": ("--wrap=true", "--nodes=4", "--exclusive"),
}


class Recording:
    """Of one cluster."""

    def __init__(self, slurm: PrivateSlurm, asked: dict[str, dict[str, Any]], out: Path) -> None:
        self.slurm, self.asked, self.out = slurm, asked, out
        self.ids: dict[str, str] = {}

    def submit(self, jobs: dict[str, tuple[str, ...]]) -> None:
        for name, options in jobs.items():
            given = [o.format(**self.ids) if o.startswith("--dep") else o for o in options]
            small = () if any(o.startswith("--mem") for o in given) else ("--mem=20M",)
            done = self.slurm.run("sbatch", "--parsable", "--output=/dev/null", f"--job-name={name}", *small, *given, check=False)
            self.ids[name] = done.stdout.strip().partition(";")[0]
            if done.returncode:
                print(name, done.stderr, file=sys.stderr)

    def do(self, *argv: str) -> None:
        done = self.slurm.run(*(self.ids.get(word, word) for word in argv), check=False)
        if done.returncode:
            print(argv, done.stderr, file=sys.stderr)

    def wait(self, name: str, *states: str, seconds: float = 150.0) -> None:
        """Until a job is in one of these states."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            said = self.slurm.run("squeue", "--noheader", "--states=all", f"--jobs={self.ids[name]}", "--format=%T %r", check=False).stdout
            if any(state in said for state in states):
                return
            time.sleep(0.3)
        print(f"{name} was never {states}: {said}", file=sys.stderr)

    def take(self, moment: str, names: tuple[str, ...] = ()) -> None:
        """Ask everything, and keep what was printed."""
        kept = {}
        for name in names or [name for name in self.asked if name not in (*ONCE, *CHANGES)]:
            one = self.asked[name]
            environment = {
                **os.environ,
                "SLURM_CONF": str(self.slurm.slurm_conf),
                "SQUEUE_FORMAT": "%i",
                "SACCT_FORMAT": "JobName",
                "TZ": "CET",
            }
            done = subprocess.run(one["line"], shell=True, input=one["stdin"], text=True, capture_output=True, env=environment, timeout=120)
            kept[name] = {
                "stdout": self._plain(done.stdout).splitlines(keepends=True),
                "stderr": self._plain(done.stderr),
                "code": done.returncode,
            }
        (self.out / f"{moment}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")

    def _plain(self, text: str) -> str:
        text = text.replace(str(self.slurm.base), "/srv/c1").replace(self.slurm.settings.host, "login1")
        return re.sub(r"OS=Linux .*?(?= +RealMemory=)", "OS=Linux", text)


def moments(r: Recording) -> None:
    """One after the other: all kinds of ends and waits, jobs that are pushed out, a node that fails, a controller that dies."""
    slurm = r.slurm
    r.submit(JOBS)
    r.wait("shards", "RUNNING")
    for name in ("requeued", "requeued_held", "special_exit", "suspended", "cancelled"):
        r.wait(name, "RUNNING", seconds=30)
    r.take("running")
    r.do("scancel", "cancelled")
    r.do("scancel", "cancelled_waiting")
    r.do("scancel", f"{r.ids['shards']}_8")
    r.do("scancel", f"{r.ids['shards_waiting']}_[1-2]")
    r.do("scontrol", "suspend", "suspended")
    r.do("scontrol", "hold", "held_by_admin")
    r.do("scontrol", "requeue", "requeued")
    r.do("scontrol", "requeuehold", "requeued_held")
    r.do("scontrol", "requeuehold", "State=SpecialExit", "special_exit")
    r.take("ending")
    time.sleep(3)
    r.take("waiting", tuple(name for name in r.asked if name not in CHANGES))
    r.wait("over", "TIMEOUT", "COMPLETING")
    r.wait("deadline", "DEADLINE")
    time.sleep(6)
    r.take("ended")
    r.do("scancel", f"--user={slurm.user}")
    time.sleep(6)
    _pushed_out(r)
    _node_fails(r)
    _controller_dies(r)


def _pushed_out(r: Recording) -> None:
    names = list(PUSHED)
    r.submit({name: PUSHED[name] for name in names[:3]})
    for name in names[:3]:
        r.wait(name, "RUNNING", seconds=30)
    r.submit({name: PUSHED[name] for name in names[3:]})
    r.wait("put_back", "PENDING", seconds=60)
    r.take("pushed_out")
    r.wait("ended_there", "PREEMPTED", seconds=60)
    time.sleep(1)
    r.take("put_back")
    r.wait("put_back", "COMPLETED", seconds=60)
    time.sleep(3)
    r.take("ran_again")


def _node_fails(r: Recording) -> None:
    r.submit(
        {
            "node_fails": ("--wrap=sleep 300", "--no-requeue", "--nodelist=n4"),
            "node_fails_again": ("--wrap=sleep 300", "--requeue", "--nodelist=n4"),
        }
    )
    r.wait("node_fails_again", "RUNNING", seconds=30)
    time.sleep(6)
    r.slurm.kill("n4")
    r.wait("node_fails", "NODE_FAIL", seconds=90)
    time.sleep(3)
    r.take("node_failed", ANEW)
    r.do("scancel", f"--user={r.slurm.user}")
    r.slurm.spawn("n4")
    r.do("scontrol", "update", "NodeName=n4", "State=RESUME")


def _controller_dies(r: Recording) -> None:
    """It comes back with what it had before two jobs started, and starts them beside themselves; and without a third one."""
    slurm, state = r.slurm, r.slurm.base / "state"
    busy = ("--exclusive", "--nodelist=n1,n2,n3,n4")
    r.submit({"in_the_way": ("--wrap=sleep 300", *busy), "twice": ("--wrap=sleep 300", "--no-requeue", "--nodelist=n1")})
    r.submit({"twice_again": ("--wrap=sleep 300", "--requeue", "--nodelist=n2")})
    r.wait("in_the_way", "RUNNING", seconds=40)
    slurm.kill("slurmctld", signal.SIGTERM)
    saved = state.with_name("saved")
    shutil.copytree(state, saved)
    slurm.spawn("slurmctld")
    r.do("scancel", "in_the_way")
    r.wait("twice_again", "RUNNING", seconds=60)
    r.submit({"forgotten": ("--wrap=true", "--hold")})
    time.sleep(6)
    slurm.kill("slurmctld")
    r.take("controller_down", DOWN)
    shutil.rmtree(state)
    shutil.copytree(saved, state)
    slurm.spawn("slurmctld")
    r.do("scancel", "in_the_way")
    r.take("controller_back", ANEW)
    r.wait("twice_again", "held", "CANCELLED", "FAILED", seconds=120)
    time.sleep(6)
    r.take("twice_started", ANEW)


def _limit_memory(configuration: Any) -> None:
    """Slurm says OUT_OF_MEMORY only of jobs that a cgroup limits, which takes root and cgroups of version 1 (here without systemd)."""
    if not Path("/sys/fs/cgroup/memory").is_dir() or os.getuid():
        return
    plain = configuration.slurm_conf
    configuration.slurm_conf = lambda s: plain(s).replace("TaskPlugin=task/none", "TaskPlugin=task/cgroup")
    chosen = "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes\n"
    configuration.cgroup_conf = lambda version: chosen


def record(asked: dict[str, dict[str, Any]], out: Path) -> None:
    from local import slurm_config
    from local.slurm_cluster import PrivateSlurm

    _limit_memory(slurm_config)
    out.mkdir(parents=True, exist_ok=True)
    (out / "lines.json").write_text(json.dumps({name: one["line"] for name, one in asked.items()}, indent=1) + "\n")
    made = Path(tempfile.mkdtemp(prefix="ra-", dir="/tmp"))
    slurm = PrivateSlurm(made / "c", nodes=4, gpus=2, name="c1", preemption=True)
    stopping: Callable[[], None] = slurm.stop
    try:
        slurm.start()
        moments(Recording(slurm, asked, out))
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{error.cmd}: {error.stderr}") from error
    finally:
        stopping()
        shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["lines"]:
        print(json.dumps(lines(), indent=1))
    else:
        record(json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3]))
