"""The plugin behind the entry point ``airflow.plugins``: the tab *Slurm* of a task instance, and the operators' links."""

from __future__ import annotations

import sys
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_slurm.links import SlurmJobLink, SlurmOutputLink

URL_PREFIX = "/slurm"


def _apps() -> list[dict[str, Any]]:
    """The app is made where it is served: scheduler, workers and triggerer load plugins too, and need none of it."""
    serving = any(part in ("api-server", "api_server", "standalone") for part in sys.argv) or "airflow.api_fastapi.main" in sys.modules
    if not serving:
        return []
    from airflow_slurm.web.app import create_app

    return [{"app": create_app(), "url_prefix": URL_PREFIX, "name": "Slurm"}]


class SlurmPlugin(AirflowPlugin):
    """See the module."""

    name = "slurm"
    fastapi_apps = _apps()
    external_views = [  # noqa: RUF012 - Airflow reads a plain list
        {
            "name": "Slurm",
            "href": f"{URL_PREFIX}/dags/{{DAG_ID}}/runs/{{RUN_ID}}/tasks/{{TASK_ID}}/{{MAP_INDEX}}",
            "destination": "task_instance",
            "url_route": "slurm",
        }
    ]
    operator_extra_links = [SlurmJobLink(), SlurmOutputLink()]  # noqa: RUF012
