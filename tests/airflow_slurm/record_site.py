"""Makes the recordings `recorded/site_<version>/`: what a real Slurm answers to the questions of the capability record.

    PYTHONPATH=.:plugins python -m tests.airflow_slurm.record_site commands > commands.json
    PYTHONPATH=. python tests/airflow_slurm/record_site.py run commands.json OUT

The second half needs the standard library and Slurm only, so that it also runs in a chroot of another Debian.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from local.slurm_cluster import PrivateSlurm


def commands() -> dict[str, list[str]]:
    """File name → argument vector."""
    from airflow_slurm.site import commands as site
    from airflow_slurm.slurm import commands as base

    return {
        "version": base.version(),
        "config": site.configuration(),
        "partitions": site.partitions(),
        "nodes": site.nodes(),
        "reservations": site.reservations(),
        "licenses": site.licenses(),
        "qos": site.qos(),
        "associations": site.associations("USER"),
        "clusters": site.clusters(),
        "json": site.json_ability(),
        "squeue": base.squeue(),
        "sacct": base.sacct(0, ids=[str(n) for n in range(1, 60)]),
    }


PARTITIONS = """PartitionName=DEFAULT State=UP DefaultTime=10 MaxTime=2-00:00:00 OverSubscribe=NO
PartitionName=batch Default=YES Nodes=ALL
PartitionName=gpu Nodes=n1,n2,n3 MaxTime=1-00:00:00 MaxNodes=2 AllowAccounts=ml MaxMemPerNode=32000 PriorityTier=2
PartitionName=debug Nodes=n4 MaxTime=30
PartitionName=scavenge Nodes=ALL MaxTime=UNLIMITED PreemptMode=REQUEUE
PartitionName=closed Nodes=n4 State=DOWN
PartitionName=big Nodes=ALL MinNodes=2 DenyAccounts=other
"""
QOS = (
    "qos long set MaxWall=7-00:00:00 Flags=PartitionTimeLimit",
    "qos small set MaxTRESPerJob=gres/gpu=1,cpu=2 MaxJobsPerUser=1 MaxSubmitJobsPerUser=2",
    "qos scavenger",
)


def slurm_conf(text: str) -> str:
    """The private Slurm's file with partitions, features and GPU types that differ."""
    head, _, _ = text.partition("PartitionName=DEFAULT")
    head = head.replace("Licenses=heavy:1", "Licenses=heavy:1,matlab:4").replace(
        "PreemptType=preempt/none", "PreemptType=preempt/qos\nPreemptMode=REQUEUE"
    )
    kinds = {"n1": "a100", "n2": "a100", "n3": "h100"}
    lines = []
    for line in head.splitlines():
        for node, kind in kinds.items():
            if line.startswith(f"NodeName={node} "):
                line = line.replace("Gres=gpu:2", f"Gres=gpu:{kind}:2") + f" Feature={kind},ib"
        if line.startswith("NodeName=n4 "):
            line = line.replace(" Gres=gpu:2", "") + " Feature=ib,bigdisk"
        lines.append(line)
    return "\n".join(lines) + "\n" + PARTITIONS


def gres_conf(base: Path) -> str:
    kinds = {"n1": "a100", "n2": "a100", "n3": "h100"}
    return "AutoDetect=off\n" + "".join(f"NodeName={n} Name=gpu Type={k} Count=2 File={base}/dev/nvidia[0-1]\n" for n, k in kinds.items())


#: Name of a job → its options. Each ends, or waits, in a way of its own.
JOBS = {
    "done": ("--wrap=true",),
    "exit7": ("--wrap=exit 7",),
    "killed": ("--wrap=kill -9 $$",),
    "name|with bars": ("--wrap=true",),
    "sleeper": ("--wrap=sleep 300", "--nodelist=n4"),
    "cancelled": ("--wrap=sleep 300", "--partition=gpu"),
    "requeued": ("--wrap=sleep 300", "--requeue", "--partition=gpu"),
    "shards": ("--wrap=sleep 300", "--array=2-5%1"),
    "held": ("--wrap=true", "--hold"),
    "too_long": ("--wrap=true", "--partition=debug", "--time=60"),
    "too_wide": ("--wrap=true", "--partition=gpu", "--nodes=3"),
    "closed": ("--wrap=true", "--partition=closed"),
    "later": ("--wrap=true", "--begin=now+1hour"),
    "licence_1": ("--wrap=sleep 300", "--licenses=heavy:1"),
    "licence_2": ("--wrap=sleep 300", "--licenses=heavy:1"),
    "qos_1": ("--wrap=sleep 300", "--qos=small"),
    "qos_2": ("--wrap=sleep 300", "--qos=small"),
    "qos_full": ("--wrap=sleep 300", "--qos=small"),
    "never": ("--wrap=true", "--dependency=afterok:{exit7}"),
    "het": ("--wrap=sleep 300", ":", "--partition=batch", "--gpus-per-node=a100:1"),
    "unknown_qos": ("--wrap=true", "--qos=platinum"),
    "unknown_account": ("--wrap=true", "--account=nobody"),
    "unknown_partition": ("--wrap=true", "--partition=nowhere"),
    "unknown_feature": ("--wrap=true", "--constraint=quantum"),
    "unknown_gpu": ("--wrap=true", "--gpus-per-node=b200:1"),
    "unknown_reservation": ("--wrap=true", "--reservation=none"),
    "unknown_licence": ("--wrap=true", "--licenses=none:1"),
    "array_too_large": ("--wrap=true", "--array=0-5000"),
    "too_much_memory": ("--wrap=true", "--mem=999G"),
}


def run_jobs(slurm: PrivateSlurm, out: Path) -> None:
    """Queue them all, and keep what sbatch said of those that it refused."""
    ids: dict[str, str] = {}
    for name, options in JOBS.items():
        given = [o.format(**ids) if o.startswith("--dep") else o for o in options]
        done = slurm.run("sbatch", "--parsable", "--output=/dev/null", f"--job-name={name}", *given, check=False)
        ids[name] = done.stdout.strip()
        if done.returncode:
            (out / f"sbatch_{name}.stderr.txt").write_text(done.stderr)
        if name in ("exit7", "requeued"):
            time.sleep(4)
        if name == "requeued":
            slurm.run("scancel", ids["cancelled"])
            slurm.run("scontrol", "requeue", ids["requeued"])
    time.sleep(8)


def record(argvs: dict[str, list[str]], out: Path) -> None:
    from local import slurm_config
    from local.slurm_cluster import PrivateSlurm

    plain = slurm_config.slurm_conf
    slurm_config.slurm_conf = lambda s: slurm_conf(plain(s))
    slurm_config.gres_conf = lambda s: gres_conf(s.base)
    slurm = PrivateSlurm(Path(tempfile.mkdtemp(prefix="rec-", dir="/tmp")) / "c", nodes=4, gpus=2, name="c1")
    out.mkdir(parents=True, exist_ok=True)
    try:
        slurm.start()
        for line in QOS:
            print(slurm.run("sacctmgr", "-i", "add", *line.split(), check=False).stdout)
        slurm.run("sacctmgr", "-i", "modify", "account", "ml", "set", "qos+=long,small")
        time.sleep(2)
        # A QOS has to be there before a partition may name it.
        slurm.run("scontrol", "update", "PartitionName=gpu", "AllowQos=normal,long")
        slurm.run("scontrol", "update", "PartitionName=scavenge", "DenyQos=long", "QOS=small")
        slurm.run(
            "scontrol", "create", "reservation", "ReservationName=maint", "StartTime=now+1hour", "Duration=60", "Users=root", "Nodes=n4"
        )
        os.environ |= {"LC_ALL": "C.UTF-8", "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}
        run_jobs(slurm, out)
        for name, argv in argvs.items():
            done = slurm.run(*(word.replace("USER", slurm.user) for word in argv), check=False)
            text = done.stdout.replace(str(slurm.base), "/srv/c1").replace(slurm.settings.host, "login1")
            (out / f"{name}.txt").write_text(text + (f"\n[exit {done.returncode}] {done.stderr}" if done.returncode else ""))
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{error.cmd}: {error.stderr}") from error
    finally:
        slurm.stop()


if __name__ == "__main__":
    if sys.argv[1:] == ["commands"]:
        print(json.dumps(commands(), indent=1))
    else:
        record(json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3]))
