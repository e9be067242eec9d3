"""``@task.slurm``, what OpenLineage is told, and what the package registers."""

from __future__ import annotations

import importlib
from typing import Any

import jsonschema
import pytest
from airflow.sdk import DAG, task
from fastapi.testclient import TestClient

from airflow_slurm import provider_info
from airflow_slurm.decorators import slurm_task
from airflow_slurm.errors import InvalidSpec
from airflow_slurm.lineage import facts_of, lineage_of
from airflow_slurm.operators import JobRequest, SlurmJobOperator
from airflow_slurm.spec import JobSpec
from airflow_slurm.truth.view import JobView
from airflow_slurm.web.app import create_app

from .tasks import Task


def operator_of(function: Any, **values: Any) -> Any:
    with DAG("d", schedule=None):
        made = slurm_task(function, task_id="t", **values)()
    return made.operator


def spec_of(operator: SlurmJobOperator) -> JobSpec:
    request = operator.prepare(Task(lambda: operator).context)
    assert isinstance(request, JobRequest)
    assert isinstance(request.spec, JobSpec)
    return request.spec


def test_a_text_is_the_body_of_the_job_and_a_list_its_command() -> None:
    assert spec_of(operator_of(lambda: "echo $HOME", spec={"mem": "1G"})) == JobSpec(body="echo $HOME", mem="1G")
    assert spec_of(operator_of(lambda: ["echo", "$HOME; rm x"])) == JobSpec(command=("echo", "$HOME; rm x"))


def test_the_function_gets_the_context_it_asks_for_and_may_be_called_again() -> None:
    def script(ti: Any) -> str:
        return f"echo {ti.task_id}"

    operator = operator_of(script)
    assert spec_of(operator).body == "echo t"
    assert spec_of(operator).body == "echo t"


@pytest.mark.parametrize("given", ["", None, 3, b"echo", [], {"command": "x"}])
def test_what_is_no_script_is_refused(given: Any) -> None:
    with pytest.raises(InvalidSpec, match="the function returned"):
        spec_of(operator_of(lambda: given))


def test_two_programs_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="from what the function returns"):
        spec_of(operator_of(lambda: "echo", spec={"body": "true"}))


def test_airflow_knows_the_decorator_by_its_short_name() -> None:
    with DAG("d", schedule=None):
        made = task.slurm(task_id="t")(lambda: "true")()
    assert type(made.operator).custom_operator_name == "@task.slurm"


def test_everything_that_is_registered_is_there() -> None:
    info = provider_info.get_provider_info()
    modules = [name for kind in ("hooks", "operators", "sensors", "triggers") for row in info[kind] for name in row["python-modules"]]
    for name in modules:
        importlib.import_module(name)
    paths = [
        *info["extra-links"],
        *(row["plugin-class"] for row in info["plugins"]),
        *(row["class-name"] for row in info["task-decorators"]),
    ]
    for path in paths:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path


STATE = {"conn_id": "c1", "cluster": "borealis", "job_name": "job-k-1", "key": "k", "n": 2}


def test_openlineage_is_told_job_submission_attempt_cluster_and_nodes() -> None:
    view = JobView("9912", None, state="COMPLETED", node_list="n[1-2]", nodes=2, restarts=1, elapsed_s=60.0)
    lineage = lineage_of(facts_of(STATE, view))
    job = lineage.run_facets["slurm"].job
    assert (job["cluster"], job["jobId"], job["submission"], job["attempt"], job["nodeList"]) == ("borealis", "9912", 2, 2, "n[1-2]")
    assert lineage.inputs == []


def test_the_facet_is_what_its_schema_says_and_the_api_server_has_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")
    view = JobView("9912", None, state="COMPLETED", tasks={"COMPLETED": "0-3"})
    facet = lineage_of(facts_of(STATE, view)).run_facets["slurm"]
    assert facet._schemaURL == "https://airflow.example/team/slurm/schemas/1-0-0/SlurmRunFacet.json"
    client = TestClient(create_app())
    served = client.get(facet._schemaURL.partition("/slurm")[2])
    assert (served.status_code, served.headers["content-type"]) == (200, "application/schema+json")
    schema = served.json()
    own = {name: value for name, value in schema.items() if name != "allOf"}  # without OpenLineage's own schema, which is elsewhere
    jsonschema.validate({"job": facet.job}, own)
    assert set(schema["properties"]["job"]["properties"]) == set(facet.job)
    for other in ("2-0-0", "..", "1-0-0%2f..%2f1-0-0"):
        assert client.get(f"/schemas/{other}/SlurmRunFacet.json").status_code in (404, 422)


def test_a_task_that_submitted_nothing_tells_nothing() -> None:
    assert SlurmJobOperator(task_id="t", spec={"command": ["true"]}).get_openlineage_facets_on_complete(None) is None


def test_without_the_openlineage_provider_there_are_no_facets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "airflow.providers.openlineage.extractors", None)
    assert lineage_of(facts_of(STATE, JobView("9912"))) is None
