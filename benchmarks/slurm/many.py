"""Ten thousand jobs in one triggerer, with a simulated squeue and sacct behind a real sshd.

    python -m benchmarks.slurm.many --jobs 10000

The login node's squeue prints a file of that many rows; each look some jobs have ended. The baseline, in the same run, is a trigger a
job every 5 s for a small share of the jobs, as what it costs is proportional to their number.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

from benchmarks.slurm.site import CONN_ID, Site, markdown, percentile, private_site
from benchmarks.slurm.watched import Watcher

_PRINTS = """#!/bin/sh
echo "${0##*/}" >> "${0%/bin/*}/commands"
case "$*" in
  *-j\\ *) for word; do [ "$last" = -j ] && exec grep "^$word|" "${0%/bin/*}/${0##*/}.txt"; last=$word; done ;;
  *) exec cat "${0%/bin/*}/${0##*/}.txt" ;;
esac
"""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000, help="live jobs (default 10000)")
    parser.add_argument("--running", type=int, default=500, help="of them run, and their output is followed (default 500)")
    parser.add_argument("--looks", type=int, default=8, help="of our loop (default 8)")
    parser.add_argument("--interval", type=float, default=15.0, help="between two looks here (default 15); figures are for one every 60 s")
    parser.add_argument("--ends", type=float, default=0.01, help="share of the jobs that end between two looks (default 0.01)")
    parser.add_argument("--baseline-jobs", type=int, default=100, help="with a trigger of their own (default 100)")
    parser.add_argument("--baseline-seconds", type=float, default=30.0, help="to measure them (default 30)")
    options = parser.parse_args()
    with private_site(accounting=False) as site:
        for name in ("squeue", "sacct"):
            (site.bin / name).write_text(_PRINTS)
        ours, delays = _ours(site, options)
        theirs = _theirs(site, options)
    looks = ours["wall_s"] / options.interval
    cpu_s = ours["cpu_s"] / looks * 60
    baseline_cpu_s = theirs["cpu_s"] / theirs["wall_s"] * 3600 / options.baseline_jobs * options.jobs
    rows = [
        ["one loop for all", str(options.jobs), "60", f"{cpu_s:.0f}", f"{ours['peak_mib']:.0f}", f"{ours['bare_mib']:.0f}", f"{percentile(delays, 0.95):.1f}"],
        ["a trigger a job, every 5 s", f"{options.jobs} (from {options.baseline_jobs})", f"{options.jobs * 720}", f"{baseline_cpu_s:.0f}", "–", "–", "–"],
    ]  # fmt: skip
    print(markdown(["way", "jobs", "squeue/h", "CPU s/h", "peak MiB", "of them imports", f"delay p95 s at {options.interval:.0f} s"], rows))
    print(f"\nCPU {baseline_cpu_s / cpu_s:.0f} ×, commands {options.jobs * 720 // 60} ×; {len(delays)} ends seen, {ours['missed']} not.")


def _ours(site: Site, options: argparse.Namespace) -> tuple[dict[str, Any], list[float]]:
    log = site.folder / "log.txt"
    log.write_text("step 1 loss 2.3\n")
    jobs = [{"id": str(i), "name": f"job-{i}"} | ({"log": str(log)} if i <= options.running else {}) for i in range(1, options.jobs + 1)]
    states = {job["id"]: "RUNNING" if "log" in job else "PENDING" for job in jobs}
    _write(site, states)
    watcher = _start(site, "ours", jobs, options)
    ended: dict[str, float] = {}
    for _ in range(options.looks):
        time.sleep(options.interval)
        alive = [job_id for job_id, state in states.items() if state != "COMPLETED"]
        for job_id in random.sample(alive, max(1, int(options.jobs * options.ends))):
            states[job_id] = "COMPLETED"
            ended[job_id] = time.time()
        _write(site, states)
    time.sleep(options.interval * 1.1 + 2)
    usage, seen = watcher.stop()
    usage["missed"] = len(ended.keys() - seen.keys())
    return usage, [seen[job_id] - at for job_id, at in ended.items() if job_id in seen]


def _theirs(site: Site, options: argparse.Namespace) -> dict[str, Any]:
    jobs = [{"id": str(i), "name": f"job-{i}"} for i in range(options.jobs, options.jobs - options.baseline_jobs, -1)]
    _write(site, {str(i): "RUNNING" for i in range(1, options.jobs + 1)})
    watcher = _start(site, "peers", jobs, options)
    time.sleep(options.baseline_seconds)
    return watcher.stop()[0]


def _write(site: Site, states: dict[str, str]) -> None:
    now = int(time.time())
    queue = "".join(
        f"{i}|{i}|{state}|0|0|{now - 999}|{now - 99 if state != 'PENDING' else 'N/A'}|{now + 9999}|1|{'n1' if state != 'PENDING' else ''}|"
        f"{'None' if state != 'PENDING' else 'Priority'}|job-{i}\n"
        for i, state in states.items()
    )
    ended = "".join(
        f"{i}|{i}|COMPLETED|0:0|{now - 999}|{now - 99}|{now}|99|1|n1|job-{i}\n" for i, state in states.items() if state == "COMPLETED"
    )
    for name, text in (("squeue", queue), ("sacct", ended)):
        (site.folder / f".{name}").write_text(text)
        (site.folder / f".{name}").rename(site.folder / f"{name}.txt")


def _start(site: Site, kind: str, jobs: list[dict[str, Any]], options: argparse.Namespace) -> Watcher:
    folder = site.folder / kind
    spec = {
        "jobs": jobs, "since": time.time(), "receipts": str(folder / "receipts"), "bin": str(site.bin), "slurm_conf": str(site.slurm.slurm_conf),
        "peer_interval_s": 5.0, "warm_up_s": options.jobs / 250 + options.interval * 1.5 if kind == "ours" else 6.0,
    }  # fmt: skip
    watcher = Watcher(kind, folder, spec, {f"AIRFLOW_CONN_{CONN_ID.upper()}": site.connection(poll_interval_s=options.interval)})
    watcher.ready()
    return watcher


if __name__ == "__main__":
    main()
