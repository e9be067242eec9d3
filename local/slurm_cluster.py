"""A private, real Slurm in one folder: munge, slurmctld, slurmd for each virtual node, slurmdbd with MariaDB, sshd.

All daemons run as the calling user, on free ports, and touch nothing outside the folder (but /run/sshd, as root). Tried on
Debian 12 (Slurm 22.05.8), as root and as an ordinary user, and on Debian 13 (24.11.5) as root. Not tried: Ubuntu 24.04 (23.11).
"""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from local import slurm_config, slurm_programs
from local.ports import Ports, is_listening, write_atomically
from local.process import Daemons, LocalError, ProcessStat, all_processes, descendants, open_files, send, wait_until
from local.slurm_config import ClusterSettings
from local.slurm_keys import make_keys
from local.slurm_programs import SEARCH_PATH

_LONGEST_BASE = 66  # below it come /runtime/spool/n10/n10_99999.4294967291, and a socket's path has at most 107 bytes


class PrivateSlurm:
    """A Slurm cluster of one's own below `base`; the folder may be opened again with `PrivateSlurm.attach(base)`."""

    def __init__(
        self, base: Path, *, nodes: int = 2, gpus: int = 2, accounting: bool = True, name: str = "c1",
        slurmd_timeout_s: int = 10, job_niceness: int = 0, switches: int = 0, preemption: bool = False, beside: PrivateSlurm | None = None,
    ) -> None:  # fmt: skip
        """`beside`: a running cluster whose slurmdbd this one uses too, so that `--clusters` reaches either from either."""
        self.base = base.resolve()
        self._daemons = Daemons(self.base / "run", self.base / "log")
        self.settings: ClusterSettings = ClusterSettings(
            name=name, user=pwd.getpwuid(os.getuid()).pw_name, host=socket.gethostname().split(".")[0], base=self.base,
            runtime=self.base / "runtime", nodes=nodes, gpus=gpus, accounting=accounting, ports={},
            slurmd_timeout_s=slurmd_timeout_s, job_niceness=job_niceness, switches=switches, preemption=preemption,
            dbd_port=beside.settings.ports["slurmdbd"] if beside else None,
        )  # fmt: skip
        self._munge_key = (beside.base / "munge/munge.key").read_bytes() if beside else None

    @classmethod
    def attach(cls, base: Path) -> PrivateSlurm:
        """The cluster that was started in `base`, running or not."""
        path = base.resolve() / "cluster.json"
        if not path.exists():
            raise LocalError(f"{path} does not exist: no private Slurm was started in this folder")
        stored = json.loads(path.read_text())
        cluster = cls(base)
        cluster.settings = ClusterSettings(**{**stored, "base": Path(stored["base"]), "runtime": Path(stored["runtime"])})
        return cluster

    # What a client needs to know

    @property
    def ssh_port(self) -> int:
        return self.settings.ports["sshd"]

    @property
    def user(self) -> str:
        return self.settings.user

    @property
    def private_key(self) -> Path:
        return self.base / "ssh/id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.base / "ssh/known_hosts"

    @property
    def host_key(self) -> str:
        """Type and base64 of the server's public key, as an `ssh` connection's `host_key` takes it."""
        return " ".join((self.base / "ssh/host_ed25519.pub").read_text().split()[:2])

    @property
    def slurm_conf(self) -> Path:
        return self.settings.slurm_conf

    def env(self) -> dict[str, str]:
        """What a Slurm client needs in its environment."""
        return {"SLURM_CONF": str(self.slurm_conf)}

    def run(self, *argv: str, check: bool = True, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a Slurm client against this cluster."""
        environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{SEARCH_PATH}", **self.env()}
        return subprocess.run(argv, env=environment, text=True, capture_output=True, check=check, timeout=timeout_s)

    # Life

    @property
    def daemons(self) -> list[str]:
        """The daemons in the order in which they start."""
        database = ["mariadbd", "slurmdbd"] if self.settings.accounting else []
        return ["munged", *database, "slurmctld", *self.settings.node_names, "sshd"]

    def pid(self, daemon: str) -> int | None:
        return self._daemons.pid(daemon)

    def is_running(self) -> bool:
        return all(self.pid(daemon) for daemon in self.daemons)

    def start(self) -> PrivateSlurm:
        """Start what does not run yet and wait until all nodes take jobs."""
        slurm_programs.require(self.settings.accounting)
        slurm_programs.require_plain(self.base)
        self._prepare()
        for daemon in self.daemons:
            self.spawn(daemon)
        self._wait("the nodes", self._nodes_ready, "slurmctld")
        return self

    def spawn(self, daemon: str) -> None:
        """Start one daemon, unless it runs, and wait until it answers."""
        if daemon not in self.daemons:
            raise LocalError(f"{daemon!r} is no daemon of this cluster; these are: {', '.join(self.daemons)}")
        if not self.pid(daemon):
            self._spawn(daemon)
        registers = daemon == ("slurmdbd" if self.settings.accounting else "munged") and self.settings.registered
        if registers and not (self.base / "account.made").exists():
            self._make_account()
            (self.base / "account.made").touch()

    def _spawn(self, daemon: str) -> None:
        if daemon == "mariadbd":
            self._make_database()
        home = pwd.getpwuid(os.getuid()).pw_dir
        environment = {"PATH": SEARCH_PATH, "HOME": home, "LANG": "C.UTF-8", **self.env()}
        if daemon == "slurmdbd":
            environment["MYSQL_UNIX_PORT"] = str(self.settings.mariadb_socket)
        self._daemons.start(daemon, self._argv(daemon), env=environment, cwd=self.base)
        if ready := self._readiness(daemon):
            self._wait(daemon, ready, daemon)

    def kill(self, daemon: str, sig: signal.Signals = signal.SIGKILL) -> None:
        """Kill one daemon, as an accident would; the processes of its jobs live on."""
        if pid := self.pid(daemon):
            os.kill(pid, sig)
            wait_until(f"the end of {daemon}", lambda: self.pid(daemon) is None, timeout_s=15, every_s=0.02)

    def stop(self) -> None:
        """Cancel all jobs and stop every daemon of this cluster, with what is left of its jobs."""
        if self.pid("slurmctld"):
            self._cancel_jobs()
        leftover = self._job_processes()
        self._daemons.stop(*self.settings.node_names, "sshd")
        self._daemons.stop("slurmctld")
        for process in [*leftover, *self._job_processes()]:
            send(process, signal.SIGKILL)
        for daemon in ("slurmdbd", "mariadbd", "munged"):
            self._daemons.stop(daemon, grace_s=30 if daemon == "mariadbd" else 10)
        if not self.settings.runtime.is_relative_to(self.base):
            shutil.rmtree(self.settings.runtime, ignore_errors=True)

    def _cancel_jobs(self) -> None:
        try:
            self.run("scancel", "--user", self.user, check=False, timeout_s=10)
            end = time.monotonic() + 10
            while self.run("squeue", "-h", "-t", "running,completing", check=False, timeout_s=10).stdout and time.monotonic() < end:
                time.sleep(0.2)
        except subprocess.TimeoutExpired:
            return  # the controller does not answer: what is left of the jobs is killed below

    def steps(self) -> list[ProcessStat]:
        """The step daemons of this cluster: they outlive slurmd, in sessions of their own."""
        logs = {str(self.base / f"log/slurmd.{node}.log") for node in self.settings.node_names}
        return [p for p in all_processes() if p.name == "slurmstepd" and logs & open_files(p.pid)]

    def _job_processes(self) -> list[ProcessStat]:
        """The step daemons with all below them."""
        return descendants(self.steps())

    # Files

    def _prepare(self) -> None:
        stored = self.base / "cluster.json"
        if stored.exists():
            self.settings = dataclasses.replace(self.settings, runtime=Path(json.loads(stored.read_text())["runtime"]))
        if len(str(self.base)) > _LONGEST_BASE and not self.settings.runtime.exists():
            self.settings = dataclasses.replace(self.settings, runtime=Path(tempfile.mkdtemp(prefix="slurm-")))
        self.base.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in ("etc", "run", "log", "state", "munge", "ssh", "dev"):
            (self.base / folder).mkdir(exist_ok=True, mode=0o700)
        for node in self.settings.node_names:
            (self.settings.runtime / "spool" / node).mkdir(parents=True, exist_ok=True, mode=0o700)
        ports = Ports(self.base / "ports.json")
        named = ["slurmctld", *self.settings.node_names, "sshd", *(["slurmdbd"] if self.settings.accounting else [])]
        chosen = {name: ports.pick(name, ours=self.pid(name) is not None) for name in named}
        self.settings = dataclasses.replace(self.settings, ports=chosen)
        make_keys(self.base, f"{self.settings.name} of {self.user}", self._munge_key)
        self._write_configuration()
        write_atomically(stored, json.dumps(dataclasses.asdict(self.settings), indent=1, default=str))

    def _write_configuration(self) -> None:
        s, etc = self.settings, self.base / "etc"
        for index in range(s.gpus):
            device = self.base / f"dev/nvidia{index}"
            if not device.is_symlink():
                device.symlink_to("/dev/null")
        write_atomically(s.slurm_conf, slurm_config.slurm_conf(s))
        write_atomically(etc / "gres.conf", slurm_config.gres_conf(s))
        if s.switches:
            write_atomically(etc / "topology.conf", slurm_config.topology_conf(s))
        write_atomically(etc / "task_prolog.sh", slurm_config.task_prolog(s), mode=0o755)
        if (cgroup := slurm_config.cgroup_conf(slurm_programs.version())) is not None:
            write_atomically(etc / "cgroup.conf", cgroup)
        if s.accounting:
            write_atomically(etc / "slurmdbd.conf", slurm_config.slurmdbd_conf(s), mode=0o600)
            write_atomically(etc / "init.sql", slurm_config.DATABASE_SQL)
        write_atomically(self.base / "ssh/sshd_config", slurm_config.sshd_config(s))
        write_atomically(self.known_hosts, f"[127.0.0.1]:{s.ports['sshd']} {self.host_key}\n")

    def _make_database(self) -> None:
        """An empty MariaDB whose only account is the calling user, let in through the socket by who it is."""
        if (self.base / "mysql").exists():
            return
        new = tempfile.mkdtemp(prefix="mysql.new-", dir=self.base)  # one that is whole gets the name
        with open(self.base / "log/mariadb-install-db.log", "w") as log:
            subprocess.run(
                ["mariadb-install-db", "--no-defaults", f"--datadir={new}", f"--user={self.user}",
                 f"--auth-root-socket-user={self.user}", "--skip-test-db", "--innodb-flush-method=nosync",
                 "--innodb-log-file-size=8M"],
                check=True, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{SEARCH_PATH}"},
            )  # fmt: skip
        Path(new).rename(self.base / "mysql")

    def _make_account(self) -> None:
        """The cluster, an account and the calling user, without whom jobs are refused."""
        here = f"Cluster={self.settings.name}"
        for what in (["cluster", self.settings.name], ["account", "ml", "Description=ml", here],
                     ["user", self.user, "Account=ml", "DefaultAccount=ml", here]):  # fmt: skip
            added = self._asked_again("sacctmgr", "-i", "add", *what)
            if added.returncode and "Nothing new added" not in added.stdout + added.stderr and "already exists" not in added.stdout:
                raise LocalError(f"sacctmgr add {' '.join(what)} said: {added.stderr.strip() or added.stdout.strip()}")

    def _asked_again(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """The command, repeated for 30 s while slurmdbd refuses connections: seen on a busy machine right after it had answered."""
        for _ in range(60):
            done = self.run(*argv, check=False)
            if "Connection refused" not in done.stderr:
                break
            time.sleep(0.5)
        return done

    # Daemons

    def _argv(self, daemon: str) -> list[str]:
        s, base = self.settings, self.base
        if daemon == "munged":
            # --force: our folders are closed to others, who have no business with this socket; munged would rather have them open.
            return ["munged", "-F", "--force", f"--key-file={base}/munge/munge.key", f"--socket={s.munge_socket}",
                    f"--pid-file={base}/munge/munged.pid", f"--seed-file={base}/munge/seed",
                    f"--log-file={base}/log/munged.out", "--num-threads=2"]  # fmt: skip
        if daemon == "mariadbd":
            return ["mariadbd", "--no-defaults", f"--datadir={base}/mysql", f"--user={s.user}", f"--socket={s.mariadb_socket}",
                    f"--pid-file={base}/run/mariadbd.pidfile", f"--init-file={base}/etc/init.sql", "--skip-networking", "--skip-log-bin",
                    "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=8M", "--innodb-lock-wait-timeout=900",
                    "--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--performance-schema=OFF",
                    "--max-connections=40"]  # fmt: skip
        if daemon in ("slurmdbd", "slurmctld"):
            return [daemon, "-D"]
        if daemon == "sshd":
            if os.getuid() == 0:  # a folder compiled into sshd, looked for by root only
                Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
            return ["/usr/sbin/sshd", "-D", "-e", "-f", str(base / "ssh/sshd_config")]
        return ["slurmd", "-D", "-N", daemon]

    def _readiness(self, daemon: str) -> Callable[[], bool] | None:
        checks: dict[str, Callable[[], bool]] = {
            "munged": self._answers("munge", "-n", "-s", "", f"--socket={self.settings.munge_socket}"),
            "mariadbd": self.settings.mariadb_socket.is_socket,
            "slurmdbd": self._answers("sacctmgr", "-n", "show", "cluster"),
            "slurmctld": self._answers("scontrol", "ping"),
            "sshd": lambda: is_listening(self.ssh_port),
        }
        return checks.get(daemon)

    def _answers(self, *argv: str) -> Callable[[], bool]:
        return lambda: self.run(*argv, check=False).returncode == 0

    def _nodes_ready(self) -> bool:
        states = self.run("sinfo", "-hN", "-p", "batch", "-o", "%T", check=False).stdout.split()
        return len(states) == self.settings.nodes and all(re.match(r"(idle|mixed|allocated|completing)$", s) for s in states)

    def _wait(self, what: str, ready: Callable[[], bool], daemon: str) -> None:
        def ready_or_dead() -> bool:
            if not self.pid(daemon):
                raise LocalError(
                    f"{daemon} ended at its start. Its last words, from {self._daemons.log_path(daemon)}:\n{self._daemons.tail(daemon)}"
                )
            return ready()

        wait_until(f"{what} of the private Slurm", ready_or_dead, timeout_s=60, every_s=0.05, hint=f"See {self.base}/log.")
