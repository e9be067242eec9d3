"""What lies around the runs: Slurm's queue and books, MLflow's aliases, the store's files, the project's command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.domain.layout import RunDir
from include.stores.tracking import MlflowRefused, Tracking
from local.environment import process_environment
from local.process import all_processes
from tests.e2e.runs import Run, Runs, until
from tests.e2e.stack import TestStack

NAME = "demo-tiny"


@dataclass(frozen=True)
class Job:
    """A job in Slurm's books."""

    id: str
    name: str
    state: str


class World:
    """The stack, seen from all sides."""

    def __init__(self, stack: TestStack) -> None:
        self.stack = stack
        self.catalog = stack.catalog()
        self.runs = Runs(stack.api("requester"))
        self.admin = Runs(stack.api("admin"))

    # Slurm

    def jobs(self, key: str | None = None) -> list[Job]:
        """Every job that Slurm ever had (of one stage key), oldest first."""
        said = self.stack.slurm.run("sacct", "-X", "-n", "-P", "-D", "-S", "2020-01-01", "-o", "JobIDRaw,JobName,State").stdout
        found = [Job(*line.split("|")[:3]) for line in said.splitlines() if line]
        prefix = "" if key is None else f"align-{key.removeprefix('sha256:')[:16]}-"
        return sorted((job for job in found if job.name.startswith(prefix)), key=lambda job: int(job.id))

    def queued(self) -> dict[str, str]:
        """Name → state of what is in the queue now."""
        said = self.stack.slurm.run("squeue", "-h", "-o", "%j|%T").stdout
        return dict(line.split("|") for line in said.splitlines() if line)

    @contextmanager
    def busy_cluster(self) -> Iterator[None]:
        """Somebody else's job holds the licence that heavy jobs need, so that ours wait."""
        made = self.stack.slurm.run("sbatch", "--parsable", "-J", "somebody-else", "-L", "heavy:1", "-n1", "--wrap", "sleep 600")
        job_id = made.stdout.split(";")[0].strip()
        until("the other job", lambda: self.queued().get("somebody-else") == "RUNNING", seconds=60)
        try:
            yield
        finally:
            self.stack.slurm.run("scancel", job_id)

    def processes_of(self, job_id: str, program: str) -> list[int]:
        """Processes of a job that run the program."""
        wanted = (f"SLURM_JOB_ID={job_id}".encode(), program.encode())
        found = []
        for process in all_processes():
            with suppress(OSError):
                environment = Path(f"/proc/{process.pid}/environ").read_bytes()
                command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
                if wanted[0] in environment.split(b"\0") and wanted[1] in command:
                    found.append(process.pid)
        return found

    # What is on record

    def aliases(self) -> dict[str, str | None]:
        """alias → deployment, as MLflow has it."""
        tracking = Tracking(self.stack.environment()["MLFLOW_TRACKING_URI"])
        found: dict[str, str | None] = {}
        for alias in ("candidate", "canary", "champion"):
            try:
                version = tracking.get("registered-models/alias", name=NAME, alias=alias)["model_version"]
            except MlflowRefused:
                found[alias] = None
                continue
            found[alias] = {tag["key"]: tag["value"] for tag in version["tags"]}["align.deployment"]
        return found

    def ledger(self, kind: str) -> list[Any]:
        """Rows of one kind, oldest first."""
        return self.catalog.ledger.entries(name=NAME, kind=kind)

    def attempt_folder(self, result: Mapping[str, Any]) -> Path:
        return self.stack.layout.store / RunDir(result["key"]).attempt(result["attempt"])

    def report(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """report.json of the attempt that a stage's result names."""
        found: dict[str, Any] = json.loads((self.attempt_folder(result) / "report.json").read_text())
        return found

    # The command line

    def align(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`bin/align …` in the stack's environment."""
        env = process_environment(self.stack.environment(), self.stack.layout)
        argv = [str(self.stack.layout.root / "bin/align"), *words]
        return subprocess.run(argv, env=env, cwd="/", text=True, capture_output=True, check=False, timeout=120)

    # Accidents

    def kill_at(self, line: str, run_id: str) -> Path:
        """Asks for the death of the run's worker at a line; the file that says it happened."""
        asked = self.stack.kills / f"{line}@{run_id}"
        done = asked.with_name(f"{asked.name}.done")
        if not done.exists():
            asked.touch()
        return done

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Chain:
    """What a whole chain gave: the state that phases hand on, and the run that made it."""

    run: Run
    state: Mapping[str, Any]
    deployment: str

    @classmethod
    def of(cls, run: Run) -> Chain:
        tasks = {
            "run": "resolve",
            "base": "base.import_base",
            "datasets": "data.build_datasets",
            "sft": "sft.train",
            "pairs": "preferences.build_pairs",
            "reward": "reward_model.gate",
            "policy": "policy.optimise",
        }
        state = {name: run.xcom(task) for name, task in tasks.items()}
        return cls(run, state, run.xcom("evaluation.compare_with")["deployment"])

    def salted(self, salt: str, *, recipe: str | None = None, digest: str | None = None) -> dict[str, Any]:
        """The state before SFT, for a run that computes anew under a salt."""
        run = {**self.state["run"], "rerun_salt": salt}
        if recipe:
            run |= {"recipe": recipe, "recipe_digest": digest}
        return {"run": run, "base": self.state["base"], "datasets": self.state["datasets"]}
