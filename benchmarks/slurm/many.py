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

from airflow_slurm.slurm.commands import ACCOUNTING_COLUMNS, DELIMITER, QUEUE_COLUMNS
from benchmarks.slurm.site import CONN_ID, Site, load, markdown, percentile, private_site
from benchmarks.slurm.watched import Watcher

#: Stands for the mark of the question in the files that are printed.
_MARK = "@"
#: Prints its file with the mark that ours gives, as the real command does; of one job, to who asks with ``-j``, the state alone.
_PRINTS = """#!/bin/sh
file="${0%/bin/*}/${0##*/}.txt"
echo "${0##*/}" >> "${0%/bin/*}/commands"
for word; do
  case "$word" in
    --Format=*\\|*|--delimiter=*\\|*) mark="${word##*|}"; [ -n "$mark" ] && exec sed "s/@/$mark/g" "$file" ;;
  esac
  [ "$last" = -j ] && exec sed -n "s/^$word|[^|]*|\\([^|]*\\)|.*/\\1/p" "$file"
  last=$word
done
echo "unknown question: $*" >&2
exit 1
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
        # Before the site is taken down, which takes its time: thousands of folders go with it.
        print(_table(options, ours, theirs, delays))
        print(
            f"\n{len(delays)} ends seen, {ours['missed']} not, with {ours['looks']} looks in {ours['wall_s']:.0f} s. {load()}", flush=True
        )


def _table(options: argparse.Namespace, ours: dict[str, Any], theirs: dict[str, Any], delays: list[float]) -> str:
    if not ours["looks"]:
        raise SystemExit("Our loop made no look in the time: the machine is too busy to measure.")
    hourly = 60 / ours["looks"]  # those that it made: on a busy machine there are fewer than intervals
    share = 3600 / theirs["wall_s"] / options.baseline_jobs * options.jobs
    cpu_s, baseline_cpu_s = ours["cpu_s"] * hourly, theirs["cpu_s"] * share
    commands, baseline_commands = ours["commands"] * hourly, theirs["commands"] * share
    head = ["way", "jobs", "commands/h", "CPU s/h", "peak MiB", "of them imports", f"delay p95 s at {options.interval:.0f} s"]
    rows = [
        ["one loop for all", f"{options.jobs}", f"{commands:.0f}", f"{cpu_s:.0f}", f"{ours['peak_mib']:.0f}", f"{ours['bare_mib']:.0f}", f"{percentile(delays, 0.95):.1f}"],
        ["a trigger a job, every 5 s", f"{options.jobs} (from {options.baseline_jobs})", f"{baseline_commands:.0f}", f"{baseline_cpu_s:.0f}", "–", "–", "–"],
    ]  # fmt: skip
    return f"{markdown(head, rows)}\n\nCPU {baseline_cpu_s / cpu_s:.0f} ×, commands {baseline_commands / commands:.0f} ×"


def _ours(site: Site, options: argparse.Namespace) -> tuple[dict[str, Any], list[float]]:
    log = site.folder / "log.txt"
    log.write_text("step 1 loss 2.3\n")
    jobs = [{"id": str(i), "name": f"job-{i}"} | ({"log": str(log)} if i <= options.running else {}) for i in range(1, options.jobs + 1)]
    states = {job["id"]: "RUNNING" if "log" in job else "PENDING" for job in jobs}
    _write(site, states)
    watcher = _start(site, "ours", jobs, options)
    commands, looks = site.commands(), site.commands("squeue")
    ended: dict[str, float] = {}
    for _ in range(options.looks):
        time.sleep(options.interval)
        alive = [job_id for job_id, state in states.items() if state != "COMPLETED"]
        for job_id in random.sample(alive, max(1, int(options.jobs * options.ends))):
            states[job_id] = "COMPLETED"
            ended[job_id] = time.time()
        _write(site, states)
    time.sleep(options.interval * 1.1 + 2)
    commands, looks = site.commands() - commands, site.commands("squeue") - looks
    usage, seen = watcher.stop()
    usage |= {"commands": commands, "looks": looks}
    usage["missed"] = len(ended.keys() - seen.keys())
    return usage, [seen[job_id] - at for job_id, at in ended.items() if job_id in seen]


def _theirs(site: Site, options: argparse.Namespace) -> dict[str, Any]:
    jobs = [{"id": str(i), "name": f"job-{i}"} for i in range(options.jobs, options.jobs - options.baseline_jobs, -1)]
    _write(site, {str(i): "RUNNING" for i in range(1, options.jobs + 1)})
    watcher = _start(site, "peers", jobs, options)
    commands = site.commands()
    time.sleep(options.baseline_seconds)
    return {"commands": site.commands() - commands} | watcher.stop()[0]


def _write(site: Site, states: dict[str, str]) -> None:
    now = int(time.time())
    queue = "".join(_queue_row(job_id, state, now) for job_id, state in states.items())
    ended = "".join(_accounting_row(job_id, now) for job_id, state in states.items() if state == "COMPLETED")
    for name, text in (("squeue", queue), ("sacct", ended)):
        (site.folder / f".{name}").write_text(text)
        (site.folder / f".{name}").rename(site.folder / f"{name}.txt")


def _queue_row(job_id: str, state: str, now: int) -> str:
    waits = state == "PENDING"
    values = {
        "JobID": job_id, "JobArrayID": job_id, "State": state, "RestartCnt": "0", "exit_code": "0", "SubmitTime": f"{now - 999}",
        "StartTime": "N/A" if waits else f"{now - 99}", "EndTime": f"{now + 9999}", "NumNodes": "1", "NodeList": "" if waits else "n1",
        "Reason": "Priority" if waits else "None", "Name": f"job-{job_id}",
    }  # fmt: skip
    return "".join(f"{values[column]}{DELIMITER}" for column in QUEUE_COLUMNS) + f"{_MARK}\n"


def _accounting_row(job_id: str, now: int) -> str:
    values = {
        "JobIDRaw": job_id, "JobID": job_id, "State": "COMPLETED", "ExitCode": "0:0", "Submit": f"{now - 999}", "Start": f"{now - 99}",
        "End": f"{now}", "ElapsedRaw": "99", "NNodes": "1", "NodeList": "n1", "JobName": f"job-{job_id}",
        "AllocTRES": "billing=8,cpu=8,gres/gpu=2,gres/gpu:a100=2,mem=64G,node=1",
    }  # fmt: skip
    return "".join(f"{values[column]}{DELIMITER}{_MARK}" for column in ACCOUNTING_COLUMNS) + "\n"


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
