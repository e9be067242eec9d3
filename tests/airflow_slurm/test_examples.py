"""The examples: they load without the rest of this project, and run by ``dag.test()`` on a real Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import airflow_slurm
from local.slurm_cluster import PrivateSlurm

from .conftest import connection_uri

PACKAGE = Path(airflow_slurm.__file__).parent
EXAMPLES = sorted((PACKAGE / "example_dags").glob("example_*.py"))


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """An environment in which the package stands alone, as where somebody installed it."""
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone/airflow_slurm").symlink_to(PACKAGE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW") and name != "PYTHONPATH"}
    return kept | {
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(PACKAGE / "example_dags"),
        "PYTHONPATH": str(tmp_path / "alone"),
    }


def run(program: str, environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    # In a folder of its own: the current one is on the path, and would bring the project along.
    return subprocess.run(
        [sys.executable, "-P", "-c" if "\n" in program else program, *([program] if "\n" in program else []), *arguments],
        env=environ, cwd=environ["PYTHONPATH"], text=True, capture_output=True, timeout=400, check=False,
    )  # fmt: skip


@pytest.mark.timeout(240)
def test_the_examples_and_the_whole_package_load_without_the_project(alone: dict[str, str]) -> None:
    program = f"""
import importlib, pkgutil, runpy, sys
for path in {[str(path) for path in EXAMPLES]}:
    print(runpy.run_path(path)["dag"].task_ids)
import airflow_slurm
for found in pkgutil.walk_packages(airflow_slurm.__path__, "airflow_slurm."):
    importlib.import_module(found.name)
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("include", "local", "mlflow", "torch", "alignment_plugin")))
"""
    done = run(program, alone)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[-2] == "[]"
    assert "['score', 'count']" in done.stdout


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.slurm
@pytest.mark.timeout(420)
def test_the_examples_run_by_dag_test_and_their_pages_show_them(
    slurm: PrivateSlurm, alone: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    events = tmp_path / "events.jsonl"
    environ = alone | {
        "AIRFLOW_CONN_SLURM_DEFAULT": connection_uri(slurm),
        "AIRFLOW__SLURM__RECEIPTS_CONFIG": json.dumps({"root": str(tmp_path / "receipts")}),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps({"type": "file", "log_file_path": str(events), "append": True}),
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "examples",
        "AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": "120",
    }
    done = run(str(Path(__file__).parent / "run_examples.py"), environ, str(PACKAGE / "example_dags"), str(shared))
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    told = json.loads(done.stdout.strip().split("\n")[-1])
    assert told["import_errors"] == {}
    assert told["example_slurm_job"]["tasks"] == {"prepare": "success", "add": "success", "seen": "success"}
    assert told["example_slurm_array"]["tasks"] == {"score": "success", "count": "success"}
    assert told["example_slurm_reconcile"]["tasks"] == {"reconcile_jobs": "success"}
    assert told["example_slurm_reconcile"]["ends"] == {"ended": "never_queued", "deleted": "never_queued"}
    assert told["job_page"]["status"] == [200, 200]
    assert "COMPLETED" in told["job_page"]["page"]
    assert "the sum is 5050" in told["job_page"]["output"]
    assert "COMPLETED" in told["array_page"]["page"]
    assert "shard 2 is done" in told["array_page"]["output"]
    assert "[job " in done.stdout + done.stderr
    job = emitted(events, "example_slurm_job.add")
    assert {name: job[name] for name in ("jobId", "attempt", "submission", "state")} == {
        "jobId": told["example_slurm_job"]["add"]["job_id"], "attempt": 1, "submission": 1, "state": "COMPLETED",
    }  # fmt: skip
    assert job["nodeList"]
    assert emitted(events, "example_slurm_array.score")["jobId"]


def emitted(path: Path, job: str) -> dict[str, Any]:
    """The facet of a task in the one event of its end that OpenLineage's provider wrote."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    ended = [event for event in events if event["job"]["name"] == job and event["eventType"] == "COMPLETE"]
    assert len(ended) == 1, [(event["job"]["name"], event["eventType"]) for event in events]
    facet: dict[str, Any] = ended[0]["run"]["facets"]["slurm"]
    assert facet["_schemaURL"].endswith("/slurm/schemas/1-0-0/SlurmRunFacet.json")
    found: dict[str, Any] = facet["job"]
    return found
