"""Waiting for many jobs of a real Slurm: one loop for all of them, against a trigger a job.

    python -m benchmarks.slurm.watching --jobs 100
    python -m benchmarks.slurm.watching --jobs 1000 --seconds 300

All jobs but four wait for tomorrow: the queue is as long as it would be, and one machine can bear it. They end by being cancelled at random moments, which gives an exact time of
their end. The delay is from there to the event that resumes the task.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.slurm.site import CONN_ID, Site, load, markdown, percentile, private_site, ratio
from benchmarks.slurm.watched import Watcher

RUNNING = 4
KINDS = {
    "ours": "one loop for all (this provider)",
    "peers": "a trigger a job, every 5 s",
    "ssh": "SSHRemoteJobTrigger (Airflow's SSH provider)",
}
HEAD = [
    "way", "jobs", "commands/h", "of them squeue", "CPU s/h", "slurmctld CPU s/h", "peak MiB", "delay p50 s", "delay p95 s",
    "ends seen", "not seen",
]  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One way to wait. Counts and CPU for an hour."""

    kind: str
    jobs: int
    commands: float
    squeues: float
    cpu_s: float
    controller_cpu_s: float
    peak_mib: float
    delays_s: list[float]
    missed: int
    failed: int

    def row(self) -> list[str]:
        """Its line of the table."""
        return [
            KINDS[self.kind], str(self.jobs), f"{self.commands:.0f}", "–" if self.kind == "ssh" else f"{self.squeues:.0f}",
            f"{self.cpu_s:.0f}", f"{self.controller_cpu_s:.0f}", f"{self.peak_mib:.0f}",
            f"{percentile(self.delays_s, 0.5):.1f}", f"{percentile(self.delays_s, 0.95):.1f}", f"{len(self.delays_s)}", f"{self.missed + self.failed}",
        ]  # fmt: skip


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100, help="live jobs (default 100)")
    parser.add_argument(
        "--ssh-jobs", type=int, default=40, help="of them for Airflow's SSH trigger, which holds a connection each (default 40)"
    )
    parser.add_argument("--seconds", type=float, default=190.0, help="to measure each way (default 190)")
    parser.add_argument("--interval", type=float, default=60.0, help="of our loop (default 60, as the provider's)")
    parser.add_argument("--peer-interval", type=float, default=5.0, help="of the others (default 5)")
    parser.add_argument("--ends", type=float, default=0.5, help="share of the jobs that end meanwhile (default 0.5)")
    parser.add_argument("--only", choices=KINDS, action="append", help="only these ways")
    options = parser.parse_args()
    with private_site() as site:
        measured = [measure(site, kind, options) for kind in options.only or KINDS]
    print(markdown(HEAD, [m.row() for m in measured]))
    print(f"\n{RUNNING} of the jobs of the first two ways run, the others are pending. {load()}")
    first = measured[0]
    for other in measured[1:]:
        share = other.jobs / first.jobs
        print(f"\n{KINDS[other.kind]} over {KINDS[first.kind]}, a job:")
        print(f"  commands {ratio(first.commands * share, other.commands)}, CPU {ratio(first.cpu_s * share, other.cpu_s)}")


def measure(site: Site, kind: str, options: argparse.Namespace) -> Measured:
    """One way to wait, over the whole time."""
    count = min(options.jobs, options.ssh_jobs) if kind == "ssh" else options.jobs
    folder = site.folder / kind
    jobs = _jobs(site, kind, count)
    for job in jobs:
        (folder / job["id"]).mkdir(parents=True)
        (folder / job["id"] / "log").touch()
    spec = {
        "jobs": jobs, "since": time.time(), "receipts": str(folder / "receipts"), "bin": str(site.bin), "slurm_conf": str(site.slurm.slurm_conf),
        "files": str(folder), "counter": str(site.folder / "commands"), "peer_interval_s": options.peer_interval,
        "warm_up_s": 5.0 + (count * 0.1 if kind == "ssh" else 0.0),
    }  # fmt: skip
    connections = {
        f"AIRFLOW_CONN_{CONN_ID.upper()}": site.connection(poll_interval_s=options.interval), "AIRFLOW_CONN_BENCH_SSH": site.connection("ssh"),
    }  # fmt: skip
    watcher = Watcher(kind, folder, spec, connections)
    try:
        return _watched(site, kind, jobs, watcher, options)
    finally:
        watcher.kill()
        site.slurm.run("scancel", "--user", site.slurm.user, check=False)


def _watched(site: Site, kind: str, jobs: list[dict[str, Any]], watcher: Watcher, options: argparse.Namespace) -> Measured:
    watcher.ready()
    commands, squeues, controller_s, began = site.commands(), site.commands("squeue"), site.controller_cpu_s(), time.time()
    ended = _end_some(site, kind, jobs, began, options)
    time.sleep(max(0.0, began + options.seconds - time.time()))
    commands, squeues = site.commands() - commands, site.commands("squeue") - squeues
    controller_s, wall_s = site.controller_cpu_s() - controller_s, time.time() - began
    usage, seen = watcher.stop()
    if usage["first_failure"]:
        print(f"{KINDS[kind]}: {usage['failed']} triggers failed, such as {usage['first_failure'][0][:200]}", file=sys.stderr)
    return Measured(
        kind,
        len(jobs),
        commands=commands / wall_s * 3600,
        squeues=squeues / wall_s * 3600,
        cpu_s=usage["cpu_s"] / usage["wall_s"] * 3600,
        controller_cpu_s=controller_s / wall_s * 3600,
        peak_mib=usage["peak_mib"],
        delays_s=[seen[job_id] - at for job_id, at in ended.items() if job_id in seen],
        missed=sum(1 for job_id in ended if job_id not in seen),
        failed=usage["failed"],
    )


def _jobs(site: Site, kind: str, count: int) -> list[dict[str, Any]]:
    if kind == "ssh":
        return [{"id": f"j{i}", "name": f"ssh-{i}"} for i in range(count)]
    names = [f"{kind}-{i}" for i in range(count)]
    running, waiting = names[:RUNNING], names[RUNNING:]
    ids = site.submit(running, "--mem=1") + site.submit(waiting, "--begin=now+1day", "--mem=1")
    return [{"id": job_id, "name": name} for job_id, name in zip(ids, names, strict=True)]


def _end_some(site: Site, kind: str, jobs: list[dict[str, Any]], began: float, options: argparse.Namespace) -> dict[str, float]:
    """End a share of the jobs at random moments, but none so late that it could not be seen in the time; when each ended."""
    last = options.seconds - (options.interval * 1.1 if kind == "ours" else options.peer_interval) - 5
    if last <= 0:
        raise SystemExit(
            f"--seconds {options.seconds:.0f} is too short for an interval of {options.interval:.0f} s: give at least twice as much."
        )
    chosen = random.sample(jobs[RUNNING:], max(1, int(len(jobs[RUNNING:]) * options.ends)))
    ended: dict[str, float] = {}
    moments = sorted(random.uniform(0, last) for _ in chosen)  # noqa: S311
    for at, job in zip(moments, chosen, strict=True):
        time.sleep(max(0.0, began + at - time.time()))
        if kind == "ssh":
            (site.folder / kind / job["id"] / "exit_code").write_text("0\n")
        else:
            site.slurm.run("scancel", job["id"])
        ended[job["id"]] = time.time()
    return ended


if __name__ == "__main__":
    main()
