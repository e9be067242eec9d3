"""What people do to one task that waits for a Slurm job, in a real Airflow, and what the cluster's queue says then."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_slurm.slurm.names import job_name_for
from include.stores.catalog.receipts import CatalogReceipts
from local.folders import remove
from local.services import Service
from tests.e2e.runs import PATIENCE, Run, Runs, until
from tests.e2e.stack import ROOT, TestStack

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900 * PATIENCE)]
GONE = ("", "COMPLETING", "COMPLETED", "FAILED", "CANCELLED")


class SlurmStack(TestStack):
    """Airflow and Slurm alone, with the DAGs of these tests and the project's reconciler."""

    __test__ = False

    def services(self) -> list[Service]:
        return [service for service in super().services() if service.name.startswith("airflow-")]

    def prepare(self) -> None:
        super().prepare()
        dags = self.layout.home / "dags"
        shutil.copytree(Path(__file__).with_name("slurm_dags"), dags, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "dags/reconcile_slurm.py", dags)
        self.changes = {
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "ALIGN_RECONCILE_MINUTES": "600",
            # A living worker that could not say so for 20 s, on a busy machine, would be taken for dead.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        }

    def environment(self) -> dict[str, str]:
        """The key stands in the connection itself, too."""
        own = super().environment()
        conn = json.loads(own["AIRFLOW_CONN_SLURM_LOCAL"])
        conn["extra"]["private_key"] = self.slurm.private_key.read_text()
        return own | {"AIRFLOW_CONN_SLURM_LOCAL": json.dumps(conn)}

    def _add_accounts(self, settings: dict[str, str]) -> None:
        """Nobody annotates here."""


@dataclass(frozen=True)
class Held:
    """A run whose two tasks wait for jobs that run."""

    stack: TestStack
    run: Run

    @property
    def folder(self) -> Path:
        return self.stack.layout.store / "held" / self.run.run_id

    def jobs(self, task: str) -> dict[str, str]:
        """Id → state of the task's jobs, all submissions, as the queue has them."""
        prefix = job_name_for(f"{self.run.dag_id}/{self.run.run_id}/{task}/-1", 1).rpartition("-")[0]
        said = self.stack.slurm.run("squeue", "-h", "-t", "all", "-o", "%i %T %j").stdout
        rows = [line.split() for line in said.splitlines() if line]
        return {job_id: state for job_id, state, name in rows if name.startswith(f"{prefix}-")}

    def state(self, task: str) -> str:
        """Of the task's only job; empty if the queue has forgotten it."""
        found = self.jobs(task)
        assert len(found) <= 1, found
        return next(iter(found.values()), "")

    def mark(self, task: str, state: str) -> None:
        self.run.api.request("PATCH", f"{self.run.path}/taskInstances/{task}", {"new_state": state})

    def ended_politely(self, task: str) -> bool:
        """The job has saved and is gone, and whoever ended it has confirmed that: the reconciler has nothing to do any more."""
        receipts = CatalogReceipts(self.stack.environment()["ALIGN_CATALOG_URL"])
        closed = receipts.get(f"{self.run.dag_id}/{self.run.run_id}/{task}/-1") is None
        return closed and self.state(task) in GONE and (self.folder / f"{task}.saved").exists()

    def end(self) -> None:
        (self.folder / "end").touch()


@dataclass(frozen=True)
class Site:
    """The stack, and how runs of these DAGs are begun."""

    stack: TestStack
    runs: Runs

    def hold(self, name: str, dag_id: str = "slurm_held", *, in_worker: bool = False) -> Held:
        """A run whose tasks are deferred, taken over by the triggerer, with both jobs running. `in_worker`: ``other`` waits there instead."""
        (self.stack.layout.store / "held" / name).mkdir(parents=True)
        held = Held(self.stack, self.runs.start(dag_id, name))
        for task in ("train", "other"):
            if in_worker and task == "other":
                held.run.wait_for(task, "running")
            else:
                held.run.wait_until_watched(task)
            until(f"the job of {task}", lambda task=task: (held.folder / f"{task}.runs").exists(), seconds=60)
        return held

    def reconcile(self, name: str) -> list[dict[str, Any]]:
        run = self.runs.start("reconcile_slurm", name)
        run.wait()
        found: list[dict[str, Any]] = run.xcom("reconcile_jobs")
        return found


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    home = Path(tempfile.mkdtemp(prefix="e2e-"))
    stack = SlurmStack(home)
    stack.prepare()
    try:
        stack.up()
        runs = Runs(stack.api("admin"))
        wanted = {"slurm_held", "slurm_deleted", "slurm_deadline", "slurm_restarted", "reconcile_slurm"}
        until("all DAGs", lambda: wanted <= runs.known_dags(), seconds=180)
        for dag_id in sorted(wanted):
            runs.pause(dag_id, False)
        yield Site(stack, runs)
    finally:
        stack.down()
        remove(home)


def test_marking_one_task_as_failed_ends_its_job_and_no_other(site: Site) -> None:
    held = site.hold("marked-failed")
    held.mark("train", "failed")
    until("the end of its job", lambda: held.ended_politely("train"), seconds=60)
    assert held.state("other") == "RUNNING"
    assert held.run.states() == {"train": "failed", "other": "deferred"}
    held.end()
    held.run.wait("failed")
    assert held.run.states()["other"] == "success"


def test_marking_a_task_as_success_ends_its_job(site: Site) -> None:
    held = site.hold("marked-success")
    held.mark("train", "success")
    until("the end of its job", lambda: held.ended_politely("train"), seconds=60)
    assert held.state("other") == "RUNNING"
    assert site.reconcile("after-the-mark") == []
    held.end()
    held.run.wait("success")


def test_a_run_that_is_marked_as_failed_ends_its_jobs(site: Site) -> None:
    """By the living triggerer: the reconciler passes every ten hours here."""
    held = site.hold("run-failed")
    held.run.set_state("failed")
    until("the end of its jobs", lambda: all(held.ended_politely(task) for task in ("train", "other")), seconds=60)
    assert held.run.states() == {"train": "failed", "other": "failed"}
    assert site.reconcile("after-the-failed-run") == []


def test_the_execution_timeout_ends_the_jobs_of_a_deferred_task_and_of_one_in_its_worker(site: Site) -> None:
    held = site.hold("deadline", "slurm_deadline", in_worker=True)
    held.run.wait("failed", seconds=180)
    assert held.run.states() == {"train": "failed", "other": "failed"}
    until("the end of its jobs", lambda: all(held.ended_politely(task) for task in ("train", "other")), seconds=60)
    assert "execution_timeout is over" in held.run.log("train")
    assert site.reconcile("after-the-deadline") == []


def test_clearing_a_task_leaves_its_job_and_the_next_try_adopts_it(site: Site) -> None:
    held = site.hold("cleared")
    (job_id,) = held.jobs("train")
    held.run.clear("train")
    until("its next try", lambda: f"Job {job_id} " in (said := held.run.log("train")) and "found again" in said, seconds=90)
    held.run.wait_until_watched("train")
    assert site.reconcile("after-the-clear") == []
    assert held.jobs("train") == {job_id: "RUNNING"}
    held.end()
    held.run.wait("success")
    assert (held.folder / "train.runs").read_text().split() == [job_id]
    assert not (held.folder / "train.saved").exists()


def test_pausing_the_dag_or_restarting_the_triggerer_ends_no_job(site: Site) -> None:
    held = site.hold("paused")
    site.runs.pause("slurm_held")
    triggerer = next(service for service in site.stack.services() if service.name == "airflow-triggerer")
    site.stack.daemons.stop(triggerer.name, grace_s=30.0)
    site.stack.up()
    assert site.reconcile("while-paused") == []
    time.sleep(6)  # three looks
    assert (held.state("train"), held.state("other")) == ("RUNNING", "RUNNING")
    site.runs.pause("slurm_held", False)
    held.end()
    held.run.wait("success")
    assert [len((held.folder / f"{task}.runs").read_text().split()) for task in ("train", "other")] == [1, 1]


def test_all_of_airflow_stops_and_starts_again_and_the_tasks_take_up_their_jobs(site: Site) -> None:
    held = site.hold("restarted", "slurm_restarted", in_worker=True)
    jobs = {task: held.jobs(task) for task in ("train", "other")}
    names = [service.name for service in site.stack.services()]
    site.stack.daemons.stop(*reversed(names), grace_s=30.0)
    assert [name for name in names if site.stack.daemons.pid(name)] == []
    assert {task: held.jobs(task) for task in jobs} == jobs
    site.stack.up()
    held.run.wait_until_watched("train")
    until("the next try of the task that waited in its worker", lambda: held.run.tries("other") > 1, seconds=180)
    (job_id,) = jobs["other"]
    until("it to find its job", lambda: f"Job {job_id} " in (said := held.run.log("other")) and "found again" in said, seconds=90)
    held.end()
    held.run.wait("success")
    assert {task: (held.folder / f"{task}.runs").read_text().split() for task in jobs} == {
        task: list(found) for task, found in jobs.items()
    }
    assert [task for task in jobs if (held.folder / f"{task}.saved").exists()] == []


def test_the_jobs_of_a_run_that_was_deleted_are_ended(site: Site) -> None:
    """Airflow 3.3 refuses to delete a run that runs; with its DAG it goes."""
    held = site.hold("deleted", "slurm_deleted")
    held.run.api.request("DELETE", "/dags/slurm_deleted")
    found = site.reconcile("after-the-deletion")
    assert sorted((f["kind"], f["job_id"]) for f in found) == sorted(
        ("ended", job) for task in ("train", "other") for job in held.jobs(task)
    )
    assert held.ended_politely("train")
    assert held.ended_politely("other")


def test_neither_logs_nor_xcoms_nor_templates_hold_the_key(site: Site) -> None:
    runs = site.runs.of("slurm_held")
    secret = [line for line in site.stack.slurm.private_key.read_text().splitlines() if len(line) > 40 and "-----" not in line][1:]
    assert secret
    text = ""
    for run in runs:
        for task, instance in run.instances().items():
            text += run.log(task, 1) + json.dumps(instance) + json.dumps(run.xcom(task))
    assert '"rendered_fields": {' in text
    assert "COMPLETED" in text
    assert [line for line in secret if line in text] == []
