"""Submissions a second: one connection for all, one a task as the operator does, and Airflow's SSH hook with a bare sbatch.

    python -m benchmarks.slurm.submitting --jobs 40

Ours is the whole protocol: claim, a held job with a look for doubles, its receipt, release, receipt. The baseline opens a
paramiko connection a task, as an SSHOperator does, runs sbatch, and knows nothing if its answer gets lost.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from benchmarks.slurm.site import CONN_ID, Site, markdown, private_site


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=40, help="each way (default 40)")
    parser.add_argument("--at-once", type=int, default=4, help="submissions under way at a time (default 4)")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with private_site(accounting=False) as site:
        os.environ |= {
            f"AIRFLOW_CONN_{CONN_ID.upper()}": site.connection(counted=False), "AIRFLOW_CONN_BENCH_SSH": site.connection("ssh"),
            "AIRFLOW_HOME": str(site.folder / "airflow"),
        }  # fmt: skip
        ways: dict[str, Callable[[Site, int, int], None]] = {
            "the protocol, one connection for all": _shared,
            "the protocol, a connection a task (the operator)": _own,
            "SSHHook of Airflow, a connection a task, bare sbatch": _bare,
        }
        rates = {}
        for name, run in ways.items():
            run(site, 1, 1)  # imports, and the far side's caches
            began = time.monotonic()
            run(site, options.jobs, options.at_once)
            rates[name] = options.jobs / (time.monotonic() - began)
            site.slurm.run("scancel", "--user", site.slurm.user)
    print(markdown(["way", "submissions/s"], [[name, f"{rate:.1f}"] for name, rate in rates.items()]))
    first, *rest = rates.items()
    for name, rate in rest:
        print(f"\n{first[0]}: {first[1] / rate:.1f} × {name}")


def _protocol(site: Site, count: int, at_once: int, shared: bool) -> None:
    from airflow_slurm.file_receipts import FileReceipts
    from airflow_slurm.hook import SlurmHook
    from airflow_slurm.remote.client import SlurmClient
    from airflow_slurm.slurm.names import job_name_for
    from airflow_slurm.spec import JobSpec
    from airflow_slurm.work.submit import Work, submit

    store = FileReceipts(str(site.folder / "receipts"))
    spec = JobSpec(command=("sleep", "600"), output="/dev/null", mem="1M")

    async def one(client: SlurmClient, number: int) -> None:
        key = f"{shared}/{count}/{number}"
        work = Work(key, lambda n: spec, lambda n: job_name_for(key, n))
        await submit(client, store, work, {"dag_id": "b", "run_id": "r", "task_id": "t", "map_index": number})

    async def all_of_them() -> None:
        limit = asyncio.Semaphore(at_once)

        async def limited(client: SlurmClient | None, number: int) -> None:
            async with limit:
                if client is not None:
                    await one(client, number)
                else:
                    async with SlurmHook(CONN_ID).get_client() as own:
                        await one(own, number)

        if not shared:
            await asyncio.gather(*(limited(None, number) for number in range(count)))
            return
        async with SlurmHook(CONN_ID).get_client() as client:
            await asyncio.gather(*(limited(client, number) for number in range(count)))

    asyncio.run(all_of_them())


def _shared(site: Site, count: int, at_once: int) -> None:
    _protocol(site, count, at_once, True)


def _own(site: Site, count: int, at_once: int) -> None:
    _protocol(site, count, at_once, False)


def _bare(site: Site, count: int, at_once: int) -> None:
    from airflow.providers.ssh.hooks.ssh import SSHHook

    script = Path(site.folder) / "job.sh"
    script.write_text("#!/bin/sh\nsleep 600\n")

    def one(_: int) -> None:
        hook = SSHHook(ssh_conn_id="bench_ssh")
        with hook.get_conn() as client:
            code, _, error = hook.exec_ssh_client_command(
                client, f"sbatch --parsable --mem=1 --output=/dev/null {script}", get_pty=False, environment=None
            )
            if code:
                raise SystemExit(f"sbatch: {error.decode()}")

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, range(count)))


if __name__ == "__main__":
    main()
