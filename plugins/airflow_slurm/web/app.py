"""The FastAPI app behind the tab *Slurm* of a task instance, mounted at ``/slurm`` of Airflow's API server.

A mounted app inherits no authentication: every route asks Airflow's auth manager, for the task instance or for its logs.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import jinja2
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Query
from fastapi import Path as PathParameter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, HTMLResponse

from airflow_slurm.errors import SlurmError
from airflow_slurm.receipts import Record
from airflow_slurm.web import reading
from airflow_slurm.web.reading import TaskKey, Work

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
TAIL_LINES = 25
"""Lines of output that the tab itself shows, in a frame of their own: the tab is there also while the cluster is slow, or away."""
SHARD_LINES = 8
"""Of each task of an array that is shown there."""
_TASK = "/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/{map_index}"


def _when(seconds: float | None) -> str:
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


_templates = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined)
_templates.filters |= {"when": _when, "span": _span}


def task_key(dag_id: str, run_id: str, task_id: str, map_index: str) -> TaskKey:
    """The task instance of a path. The UI leaves ``{MAP_INDEX}`` as it is for a task that isn't mapped."""
    return TaskKey(dag_id, run_id, task_id, int(map_index) if map_index.lstrip("-").isdigit() else -1)


Task = Annotated[TaskKey, Depends(task_key)]


def create_app() -> FastAPI:
    """The app that the plugin mounts."""
    app = FastAPI(title="Slurm", docs_url=None, redoc_url=None, openapi_url=None)
    may_read = [Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))]
    may_read_logs = [Depends(requires_access_dag("GET", DagAccessEntity.TASK_LOGS))]
    app.get("/schemas/{version}/SlurmRunFacet.json")(facet_schema)  # for anybody: it is part of this package
    app.get(_TASK, dependencies=may_read, response_class=HTMLResponse)(task_page)
    app.get(_TASK + "/job.json", dependencies=may_read)(task_json)
    app.get(_TASK + "/output/{n}", dependencies=may_read_logs, response_class=HTMLResponse)(output_page)
    app.get(_TASK + "/tail/{n}", dependencies=may_read_logs, response_class=HTMLResponse)(tail_page)
    app.get(_TASK + "/tails/{n}", dependencies=may_read_logs, response_class=HTMLResponse)(tails_page)
    return app


def facet_schema(version: Annotated[str, PathParameter(pattern=r"^[0-9]+-[0-9]+-[0-9]+$")]) -> FileResponse:
    """The JSON schema of the run facet ``slurm``, as OpenLineage's events name it; each version stays as it is."""
    path = Path(__file__).parent / "schemas" / version / "SlurmRunFacet.json"
    if not path.is_file():
        raise HTTPException(404, "There is no such version.")
    return FileResponse(path, media_type="application/schema+json", headers={"X-Content-Type-Options": "nosniff"})


def task_page(task: Task) -> HTMLResponse:
    """Job, attempts, nodes, states, reason and estimated start, as they were last seen."""
    pointer, works, problem = _read(task)
    values = {
        "pool": reading.pool_problem(task),
        "shards_of": reading.shards_of,
        "shown_shards": reading.shown_shards,
        "metrics_address": reading.metrics_address,
        "tail_lines": TAIL_LINES,
    }
    return _page("task.html", task=task, pointer=pointer, works=works, problem=problem, **values)


def task_json(task: Task) -> dict[str, Any]:
    """The same for programs."""
    pointer, works, problem = _read(task)
    asked, *before = works or [Work("", ())]
    earlier = [{"key": work.key, "submissions": [_as_json(record) for record in work.records]} for work in before]
    now = {"key": (pointer or {}).get("key"), "submissions": [_as_json(record) for record in asked.records]}
    return now | {"earlier": earlier, "problem": problem or None}


async def output_page(task: Task, n: int, shard: int | None = None, before: int | None = None, earlier: int | None = None) -> HTMLResponse:
    """A piece of the job's output, read over SSH now; this page and the next two are the only ones that ask the cluster."""
    record, path = await _output_of(task, n, shard, earlier)
    output = await reading.read_output(record, path, before)
    return _page("output.html", task=task, record=record, shard=shard, earlier=earlier, output=output)


async def tail_page(
    task: Task, n: int, lines: Annotated[int, Query(ge=1, le=500)] = TAIL_LINES, earlier: int | None = None
) -> HTMLResponse:
    """The last lines of the job's output, for the frame in the tab."""
    record, path = await _output_of(task, n, None, earlier)
    output = await reading.read_output(record, path)
    return _page("tail.html", outputs=[("", output, _last(output.text, lines))])


async def tails_page(task: Task, n: int, earlier: int | None = None) -> HTMLResponse:
    """The last lines of tasks of an array that failed or run, for the same frame."""
    record = await _record_of(task, n, earlier)
    shards = [(index, state, path) for index, state in reading.shown_shards(record) if (path := reading.output_path(record, index))]
    outputs = await reading.read_outputs(record, [path for _, _, path in shards], reading.SHARD_BYTES) if shards else []
    named = [(f"Task {index}: {state}", output) for (index, state, _), output in zip(shards, outputs, strict=True)]
    return _page("tail.html", outputs=[(title, output, _last(output.text, SHARD_LINES)) for title, output in named])


def _last(text: str, lines: int) -> str:
    return "\n".join(text.rstrip("\n").split("\n")[-lines:])


async def _record_of(task: TaskKey, n: int, earlier: int | None) -> Record:
    """A submission; 404 if there is none."""
    _, works, problem = await run_in_threadpool(_read, task)
    record = next((record for work in works if work.earlier == earlier for record in work.records if record.n == n), None)
    if record is None:
        raise HTTPException(404, problem or "No such submission of this task.")
    return record


async def _output_of(task: TaskKey, n: int, shard: int | None, earlier: int | None) -> tuple[Record, str]:
    """A submission and the file that it, or one task of its array, writes; 404 if there is none."""
    record = await _record_of(task, n, earlier)
    path = reading.output_path(record, shard)
    if path is None:
        raise HTTPException(404, "The receipt of this submission names no output file" + (" for this shard." if shard is not None else "."))
    return record, path


def _read(task: TaskKey) -> tuple[dict[str, Any] | None, list[Work], str]:
    pointer = reading.pointer_of(task)
    if pointer is None:
        return None, [], ""
    try:
        return pointer, reading.works_of(task, pointer), ""
    except SlurmError as error:
        return pointer, [], str(error)


def _as_json(record: Record) -> dict[str, Any]:
    kept = asdict(record)
    kept.pop("owners")
    kept["view"] = record.view.to_json() if record.view else None
    kept["end"] = record.end.to_json() if record.end else None
    return kept


def _page(template: str, **values: Any) -> HTMLResponse:
    return HTMLResponse(_templates.get_template(template).render(**values), headers=_HEADERS)
