"""Loads every DAG file in an interpreter of its own and prints what came of it as JSON; started by the tests."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def _airflows_own() -> None:
    """What Airflow itself imports before it reads a DAG file of this kind."""
    import airflow.dag_processing.dagbag
    import airflow.plugins_manager
    import airflow.providers.standard.operators.hitl
    import airflow.providers.standard.operators.trigger_dagrun
    import airflow.sdk
    import airflow.triggers.base  # noqa: F401


def _task(task: Any) -> dict[str, Any]:
    templates = [str(getattr(task, name, "")) for name in task.template_fields] if not task.is_mapped else [str(task.partial_kwargs)]
    return {
        "id": task.task_id,
        "type": task.task_type,
        "outlets": [str(outlet) for outlet in task.outlets],
        "retries": task.retries,
        "templates": templates,
    }


def _dag(dag: Any) -> dict[str, Any]:
    return {
        "tasks": [_task(task) for task in dag.tasks],
        "timetable": type(dag.timetable).__name__,
        "catchup": dag.catchup,
        "params": {name: str(dag.params.get_param(name).value) for name in dag.params},
        "edges": {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks},
    }


def load(folder: Path) -> dict[str, Any]:
    from airflow.dag_processing.dagbag import DagBag

    files = {}
    dags: dict[str, Any] = {}
    for path in sorted(folder.glob("*.py")):
        before, begin = set(sys.modules), time.process_time()
        bag = DagBag(dag_folder=path, bundle_path=folder)
        cpu_seconds = time.process_time() - begin
        files[path.name] = {"cpu_seconds": cpu_seconds, "errors": dict(bag.import_errors), "modules": sorted(set(sys.modules) - before)}
        dags |= {name: _dag(dag) | {"file": path.name} for name, dag in bag.dags.items()}
    return {"files": files, "dags": dags}


def plugins(folder: Path) -> dict[str, Any]:
    """What Airflow made of the plugins folder, and which modules came from there."""
    from airflow import plugins_manager

    found = plugins_manager.get_plugin_info(["name", "source"])
    modules = {name: str(getattr(module, "__file__", None) or "") for name, module in sys.modules.items()}
    return {
        "errors": dict(plugins_manager.get_import_errors()),
        "found": [{name: str(plugin[name]) for name in ("name", "source")} for plugin in found],
        "modules": sorted(name for name, file in modules.items() if file.startswith(f"{folder}/")),
    }


if __name__ == "__main__":
    _airflows_own()
    root = Path(sys.argv[1])
    answer = {"dags": load(root / "dags"), "plugins": plugins(root / "plugins")}
    print("ANSWER " + json.dumps(answer))
