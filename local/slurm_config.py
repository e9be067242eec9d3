"""The configuration files of a private Slurm, as pure functions of its settings.

Tried with Slurm 22.05.8 (Debian 12) and 24.11.5 (Debian 13); not with 23.11 (Ubuntu 24.04).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_FIRST_VERSION_WITH_CGROUP_CHOICE = (23, 11)

GRACE_S = 3
"""Seconds that a job that is pushed out has to save; Slurm ends one that does not use them some fifteen seconds later."""
DATABASE_NAME = "slurm_acct"
# slurmdbd would make its database itself, but then goes on with a connection that has failed once, and with Debian 13's client
# library (MariaDB 11.8.9) it ends at the first query: "Number of columns in result (=1) … allowed number of columns (=0)".
DATABASE_SQL = f"CREATE DATABASE IF NOT EXISTS {DATABASE_NAME};\n"


@dataclass(frozen=True)
class ClusterSettings:
    """What a private cluster is made of; stored in `cluster.json`."""

    name: str
    user: str
    host: str
    base: Path
    runtime: Path  # sockets and slurmd's spool: a short path, as a socket's has at most 107 bytes
    nodes: int
    gpus: int
    accounting: bool
    ports: dict[str, int]
    slurmd_timeout_s: int = 10
    job_niceness: int = 0
    switches: int = 0  # leaf switches below one at the top, the nodes spread over them; 0: no topology
    dbd_port: int | None = None  # of another cluster's slurmdbd, which this one shares
    preemption: bool = False  # three partitions more, one whose jobs push out those of the other two

    @property
    def registered(self) -> bool:
        """Whether a slurmdbd keeps its accounting, its own or a shared one."""
        return self.accounting or self.dbd_port is not None

    @property
    def node_names(self) -> list[str]:
        return [f"n{i}" for i in range(1, self.nodes + 1)]

    @property
    def munge_socket(self) -> Path:
        return self.runtime / "munge.sock"

    @property
    def mariadb_socket(self) -> Path:
        return self.runtime / "mariadb.sock"

    @property
    def slurm_conf(self) -> Path:
        return self.base / "etc/slurm.conf"


def slurm_conf(s: ClusterSettings) -> str:
    """The text of slurm.conf. One wrong key in it would break every client."""
    return f"""# Written by local/slurm_config.py at each start.
ClusterName={s.name}
SlurmctldHost={s.host}(127.0.0.1)
SlurmctldPort={s.ports["slurmctld"]}
SlurmUser={s.user}
SlurmdUser={s.user}
AuthType=auth/munge
# A requeued job waits cred_expire + 1 s; the default of 120 s is too long here.
AuthInfo=socket={s.munge_socket},cred_expire=5
StateSaveLocation={s.base}/state
SlurmdSpoolDir={s.runtime}/spool/%n
SlurmctldPidFile={s.base}/run/slurmctld.pidfile
SlurmdPidFile={s.base}/run/slurmd.%n.pidfile
SlurmctldLogFile={s.base}/log/slurmctld.log
SlurmdLogFile={s.base}/log/slurmd.%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={s.base}/etc/task_prolog.sh
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
# The nodes are as large as this file says, whatever the machine has.
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=100000,batch_sched_delay=0,bf_continue,default_queue_depth=1000
PriorityType=priority/multifactor
{_preemption(s)}
JobRequeue=1
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout={s.slurmd_timeout_s}
KillWait=5
UnkillableStepTimeout=60
MinJobAge=300
CompleteWait=0
InactiveLimit=0
MaxArraySize=1001
MaxJobCount=10000
DefMemPerCPU=1000
# One job that asks for `--licenses=heavy` at a time: two at once more than double each other's time.
Licenses=heavy:1
{"TopologyPlugin=topology/tree" if s.switches else "# no topology"}
{_accounting(s)}
{_nodes(s)}
{_partitions(s)}"""


def _preemption(s: ClusterSettings) -> str:
    """Who is pushed out is decided by the partitions' tiers; a job that asked for a signal gets it then, not only before its time limit."""
    if not s.preemption:
        return "PreemptType=preempt/none"
    return "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nSlurmctldParameters=preempt_send_user_signal"


def _partitions(s: ClusterSettings) -> str:
    """With preemption, `urgent` pushes out the jobs of `scavenge`, which Slurm puts back, and of `spot`, which it warns and ends; no others."""
    every = "PartitionName=DEFAULT Nodes=ALL State=UP DefaultTime=10 MaxTime=2-00:00:00 OverSubscribe=NO"
    lines = [every + (" PreemptMode=OFF" if s.preemption else ""), "PartitionName=batch Default=YES", "PartitionName=other"]
    if s.preemption:
        lines += [
            "PartitionName=scavenge PreemptMode=REQUEUE",
            f"PartitionName=spot PreemptMode=CANCEL GraceTime={GRACE_S}",
            "PartitionName=urgent PriorityTier=10",
        ]
    return "\n".join(lines) + "\n"


def _accounting(s: ClusterSettings) -> str:
    if not s.registered:
        return "AccountingStorageType=accounting_storage/none\nJobCompType=jobcomp/none"
    return f"""AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={s.dbd_port or s.ports["slurmdbd"]}
AccountingStoragePass={s.munge_socket}
AccountingStorageEnforce=associations,limits,qos
AccountingStoreFlags=job_comment
AccountingStorageTRES=gres/gpu
JobCompType=jobcomp/none"""


def _nodes(s: ClusterSettings) -> str:
    """A loopback address for each node, so that a job of two nodes can tell them apart; slurmd listens on all addresses."""
    gres = f" Gres=gpu:{s.gpus}" if s.gpus else ""
    lines = ["NodeName=DEFAULT CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=64000 State=UNKNOWN"]
    for i, node in enumerate(s.node_names, start=1):
        lines.append(f"NodeName={node} NodeHostname={s.host} NodeAddr=127.0.1.{i} Port={s.ports[node]}{gres}")
    return "\n".join(lines)


def topology_conf(s: ClusterSettings) -> str:
    """Neighbouring nodes below one leaf switch: n1 and n2 below s1, n3 and n4 below s2, and both below `top`."""
    size = -(-s.nodes // s.switches)
    leaves = [s.node_names[first : first + size] for first in range(0, s.nodes, size)]
    lines = [f"SwitchName=s{i} Nodes={','.join(nodes)}" for i, nodes in enumerate(leaves, start=1)]
    return "\n".join([*lines, f"SwitchName=top Switches=s[1-{len(leaves)}]"]) + "\n"


def gres_conf(s: ClusterSettings) -> str:
    """Pretend GPUs. A count without `File=` leaves the nodes INVAL; a link to /dev/null passes (seen in 22.05)."""
    if not s.gpus:
        return "AutoDetect=off\n"
    files = f"{s.base}/dev/nvidia" + (f"[0-{s.gpus - 1}]" if s.gpus > 1 else "0")
    return "AutoDetect=off\n" + "".join(f"NodeName={node} Name=gpu Count={s.gpus} File={files}\n" for node in s.node_names)


def task_prolog(s: ClusterSettings) -> str:
    """Run before each task: gives the job its configuration back (`--export=NONE` takes it) and lowers its priority.

    The prolog is a child of the process that becomes the task, so renicing the parent renices the task.
    """
    renice = f"renice -n {s.job_niceness} -p $PPID >/dev/null 2>&1\n" if s.job_niceness else ""
    return f'#!/bin/sh\n{renice}echo "export SLURM_CONF={s.slurm_conf}"\n'


def cgroup_conf(version: tuple[int, int]) -> str | None:
    """From 23.11 on Slurm wants to hear that cgroups are not used; 22.05 stops at the same line."""
    return "CgroupPlugin=disabled\n" if version >= _FIRST_VERSION_WITH_CGROUP_CHOICE else None


def slurmdbd_conf(s: ClusterSettings) -> str:
    """MariaDB is reached through its socket and lets the calling user in by who it is: there is no password."""
    return f"""AuthType=auth/munge
AuthInfo=socket={s.munge_socket}
DbdHost={s.host}
DbdAddr=127.0.0.1
DbdPort={s.ports["slurmdbd"]}
SlurmUser={s.user}
PidFile={s.base}/run/slurmdbd.pidfile
LogFile={s.base}/log/slurmdbd.log
DebugLevel=info
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={s.user}
StorageLoc={DATABASE_NAME}
"""


def sshd_config(s: ClusterSettings) -> str:
    """An SSH server for one user and one key. `SHLVL=1` keeps bash from reading ~/.bashrc for each command."""
    ssh = s.base / "ssh"
    return f"""Port {s.ports["sshd"]}
ListenAddress 127.0.0.1
HostKey {ssh}/host_ed25519
PidFile {s.base}/run/sshd.pidfile
AuthorizedKeysFile {ssh}/authorized_keys
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin prohibit-password
StrictModes no
AllowUsers {s.user}
PermitUserEnvironment no
AcceptEnv LANG
SetEnv SLURM_CONF={s.slurm_conf} SHLVL=1
PrintMotd no
PrintLastLog no
UseDNS no
Subsystem sftp internal-sftp
LogLevel INFO
"""
