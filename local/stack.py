"""The local stack: up, down, status. All of it below one folder, as the calling user, on ports it chose and keeps."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from local import folders, secret_files
from local.environment import PORT_NAMES, SUBMISSION_POOL, USERS, environment, process_environment, url
from local.http_client import AirflowApi
from local.layout import Layout
from local.ports import Ports, write_atomically
from local.process import LocalError, wait_until
from local.progress import run_logged, say, step
from local.python_environments import make_cluster_environment, make_control_environment
from local.services import Service, annotation_settings, has_annotation, services
from local.slurm_cluster import PrivateSlurm
from local.system import install_packages

_PORT_OWNERS = {
    "airflow": "airflow-api-server", "airflow_worker_logs": "airflow-scheduler", "airflow_trigger_logs": "airflow-triggerer",
    "mlflow": "mlflow", "annotation": "annotation",
}  # fmt: skip
ANNOTATION_ACCOUNTS = {"pipeline": "pipeline", "verifier": "verifier", "annotator": "annotator", "admin": "admin"}
"""Accounts of the annotation service → role."""
SUBMISSION_SLOTS = 4


class Stack:
    """One local stack. Every step can be repeated: what is there stays, what is missing is made."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.daemons = layout.daemons

    # What it is made of

    @property
    def slurm(self) -> PrivateSlurm:
        """The private Slurm; SlurmdTimeout is long here, as two busy cores answer late."""
        base = self.layout.state("slurm")
        if (base / "cluster.json").exists():
            return PrivateSlurm.attach(base)
        return PrivateSlurm(base, name="local", slurmd_timeout_s=60, job_niceness=10)

    def ports(self) -> dict[str, int]:
        """The port of each service; one whose service is down is given up if somebody else took it."""
        chosen = Ports(self.layout.ports_file)
        return {name: chosen.pick(name, ours=bool(self.daemons.members(_PORT_OWNERS[name]))) for name in PORT_NAMES}

    def environment(self) -> dict[str, str]:
        if not (self.layout.state("slurm") / "cluster.json").exists():
            raise LocalError("there is no local stack yet: `python -m local up` makes one")
        return environment(self.layout, self.ports(), self.slurm)

    def services(self) -> list[Service]:
        return [s for s in services(self.layout, self.ports()) if s.name != "annotation" or has_annotation(self.layout)]

    def api(self, user: str) -> AirflowApi:
        """Airflow's API as one of the stack's users."""
        return AirflowApi(url(self.ports()["airflow"]), user, secret_files.password(self.layout, user))

    # Up

    def install(self, development: bool = False) -> None:
        """Everything that has to be on the machine: Debian packages and the two Python environments."""
        self.layout.make_folders()
        install_packages(self.layout, browser=development)
        make_control_environment(self.layout, development)
        make_cluster_environment(self.layout)

    def up(self) -> None:
        with self._only_one():
            self.install()
            secret_files.make_passwords(self.layout)
            secret_files.make_suppression_key(self.layout)
            self._start_slurm()
            settings = self.environment()
            self._prepare_airflow(settings)
            if has_annotation(self.layout):
                self._add_accounts(settings)
            started = self.services()
            fresh = self._start(started, settings)
            for service in started:
                self._await(service, announce=service in fresh)
            self._make_pool()
            self._write_stack_file()
        say("the local stack is up")

    def _start_slurm(self) -> None:
        if self.slurm.is_running():
            return
        with step("starting the private Slurm"):
            PrivateSlurm(self.layout.state("slurm"), name="local", slurmd_timeout_s=60, job_niceness=10).start()

    def _prepare_airflow(self, settings: dict[str, str]) -> None:
        """Bring Airflow's database to the installed version, once for each version."""
        lines = (self.layout.root / "requirements.txt").read_text().splitlines()
        version = next(line for line in lines if line.startswith("apache-airflow=="))
        marker = self.layout.state("airflow") / "migrated"
        self._make_state_folders()
        if marker.exists() and marker.read_text() == version:
            return
        with step("making Airflow's database"):
            argv = [str(self.layout.python), "-m", "airflow", "db", "migrate"]
            env = process_environment(settings, self.layout)
            run_logged(argv, log=self.daemons.log_path("airflow-migrate"), env=env, cwd=self.layout.root, advice="See that log.")
        write_atomically(marker, version)

    def _make_state_folders(self) -> None:
        for service in ("airflow", "mlflow", "annotation", "catalog"):
            self.layout.state(service).mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in ("annotation", "annotation-service"):
            (self.layout.secrets / folder).mkdir(parents=True, exist_ok=True, mode=0o700)

    def _add_accounts(self, settings: dict[str, str]) -> None:
        """Accounts of the annotation service; their tokens go straight into files."""
        own = annotation_settings(self.layout, self.ports())
        tokens = self.layout.secrets / "annotation"
        for account, role in ANNOTATION_ACCOUNTS.items():
            if (tokens / f"{account}.token").exists() and Path(own["ANNOTATION_TOKENS_FILE"]).exists():
                continue
            argv = [str(self.layout.python), "-m", "include.annotation", "add-account", account, "--role", role,
                    "--token-out", str(tokens / f"{account}.token"), "--if-missing"]  # fmt: skip
            env = process_environment({**settings, **own}, self.layout)
            advice = f"Remove {tokens} and {own['ANNOTATION_TOKENS_FILE']} to have all tokens made anew."
            run_logged(argv, log=self.daemons.log_path("annotation-accounts"), env=env, cwd=self.layout.root, advice=advice)

    def _start(self, wanted: list[Service], settings: dict[str, str]) -> list[Service]:
        """Start what does not run, and again what runs with settings that are no longer the stack's; gives what was started."""
        fresh = [s for s in wanted if self.daemons.pid(s.name) is None or self._note(s) != self._fingerprint(s, settings)]
        old = [service for service in fresh if self.daemons.pid(service.name)]
        if old:
            say(f"the settings have changed: starting again {', '.join(service.title for service in old)}")
        self.daemons.stop(*(service.name for service in old), grace_s=30.0)
        for service in fresh:
            self.daemons.stop(service.name, grace_s=3.0)  # what a killed leader left behind has nobody to wait for
            env = process_environment({**settings, **service.env}, self.layout)
            self.daemons.start(service.name, service.command, env=env, cwd=self.layout.root)
            write_atomically(self.daemons.run / f"{service.name}.settings", self._fingerprint(service, settings))
        return fresh

    def _note(self, service: Service) -> str:
        note = self.daemons.run / f"{service.name}.settings"
        return note.read_text() if note.exists() else ""

    def _fingerprint(self, service: Service, settings: dict[str, str]) -> str:
        parts = [service.command, settings, dict(service.env)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _await(self, service: Service, announce: bool) -> None:
        def ready() -> bool:
            if self.daemons.pid(service.name) is None:
                log = self.daemons.log_path(service.name)
                raise LocalError(f"{service.title} ended at its start. Its last words, from {log}:\n{self.daemons.tail(service.name)}")
            return service.ready()

        hint = f"See {self.daemons.log_path(service.name)}; `make stop` and `make demo` start afresh."
        wait_until(service.title, ready, timeout_s=service.patience_s, every_s=0.3, hint=hint)
        if announce:
            say(f"{service.title} is ready{f': {service.url}' if service.url else ''}")

    def _make_pool(self) -> None:
        """The Airflow pool that limits submissions at once."""
        pool = {
            "name": SUBMISSION_POOL,
            "slots": SUBMISSION_SLOTS,
            "description": "Submissions to Slurm at once",
            "include_deferred": False,
        }
        self.api("admin").request("POST", "/pools", pool, accept=(409,))

    def _write_stack_file(self) -> None:
        write_atomically(self.layout.stack_file, json.dumps(self.description(), indent=1, sort_keys=True))

    def description(self) -> dict[str, Any]:
        """What stack.json says: addresses, paths and users; no secret."""
        layout, ports, slurm = self.layout, self.ports(), self.slurm
        return {
            "version": 1, "started_at": datetime.now(UTC).isoformat(timespec="seconds"), "user": slurm.user, "root": str(layout.root),
            "store": str(layout.store), "sources": str(layout.sources), "cluster_environment": str(layout.cluster_environment),
            "catalog_url": self.environment()["ALIGN_CATALOG_URL"],
            "airflow": {"url": url(ports["airflow"]), "users": USERS, "passwords_file": str(secret_files.passwords_file(layout))},
            "mlflow": {"url": url(ports["mlflow"])},
            "annotation": {"url": url(ports["annotation"]), "tokens": str(layout.secrets / "annotation")} if has_annotation(layout) else None,
            "slurm": {
                "base": str(slurm.base), "ssh_host": "127.0.0.1", "ssh_port": slurm.ssh_port, "user": slurm.user,
                "private_key": str(slurm.private_key), "known_hosts": str(slurm.known_hosts), "slurm_conf": str(slurm.slurm_conf),
            },
        }  # fmt: skip

    # Down, and what there is

    def down(self) -> None:
        """Stop what this stack started, and nothing else."""
        with self._only_one():
            names = [s.name for s in services(self.layout, dict.fromkeys(PORT_NAMES, 0))]
            stopped = self.daemons.stop(*reversed(names), grace_s=30.0)
            if (self.layout.state("slurm") / "cluster.json").exists():
                running = any(self.slurm.pid(daemon) for daemon in self.slurm.daemons)
                self.slurm.stop()
                stopped += ["the private Slurm"] if running else []
        say(f"stopped: {', '.join(stopped)}" if stopped else "nothing of the local stack was running")

    def status(self) -> bool:
        """Print a line for each part; whether all are up."""
        if not (self.layout.state("slurm") / "cluster.json").exists():
            print("There is no local stack yet: `make demo` makes one.")
            return False
        rows = [(f"Slurm {daemon}", self.slurm.pid(daemon), True, "") for daemon in self.slurm.daemons]
        for service in self.services():
            pid = self.daemons.pid(service.name)
            rows.append((service.title, pid, pid is not None and service.ready(), service.url))
        for title, pid, ready, address in rows:
            print(
                f"{title:24} {'up' if pid and ready else 'starting or ill' if pid else 'down':16} {f'pid {pid}' if pid else '':12} {address}"
            )
        print(f"\nLogs: {self.daemons.logs}   Users of Airflow: {', '.join(USERS)}; `python -m local secret USER` shows a password.")
        return all(pid and ready for _, pid, ready, _ in rows)

    def down_services(self) -> list[str]:
        """What should run and does not."""
        down = [service.title for service in self.services() if self.daemons.pid(service.name) is None]
        return down + [f"Slurm's {daemon}" for daemon in self.slurm.daemons if self.slurm.pid(daemon) is None]

    def clean(self, everything: bool = False) -> None:
        """Remove what the stack made. Environments and downloads stay, unless `everything`."""
        self.down()
        targets = [self.layout.home / name for name in ("state", "secrets", "work", "run", "logs", "ports.json", "stack.json")]
        targets += [path for path in self.layout.store.glob("*") if path.name != "env"]
        if everything:
            targets = [self.layout.home]
        for target in targets:
            folders.remove(target)

    @contextmanager
    def _only_one(self) -> Iterator[None]:
        """One start or stop at a time."""
        self.layout.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.layout.home / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another `python -m local` is starting or stopping this stack: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
