"""What this installation says in Airflow's configuration: its receipt store, in the section ``[slurm]``, and where its pages are."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import quote

from airflow.configuration import AIRFLOW_HOME, conf

from airflow_slurm.errors import BadConnection

DEFAULT_RECEIPTS = "airflow_slurm.file_receipts.FileReceipts"


def configured_receipts() -> tuple[str, dict[str, Any]]:
    """Dotted path and arguments: ``receipts`` and ``receipts_config`` (JSON) of ``[slurm]``, or a folder in Airflow's home.

    :raises BadConnection: if ``receipts_config`` is no JSON object.
    """
    path = conf.get("slurm", "receipts", fallback="") or DEFAULT_RECEIPTS
    text = conf.get("slurm", "receipts_config", fallback="")
    if not text:
        return path, {"root": os.path.join(AIRFLOW_HOME, "slurm-receipts")} if path == DEFAULT_RECEIPTS else {}
    try:
        config = json.loads(text)
    except ValueError as error:
        raise BadConnection(f"[slurm] receipts_config is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise BadConnection("[slurm] receipts_config is not a JSON object of arguments.")
    return path, config


def task_address(owner: dict[str, Any]) -> str:
    """The address of a task's page in the tab *Slurm*."""
    dag_id, run_id, task_id = (quote(str(owner[name]), safe="") for name in ("dag_id", "run_id", "task_id"))
    return f"{_base()}/slurm/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/{int(owner['map_index'])}"


def schema_address(version: str) -> str:
    """The address at which the API server has the JSON schema of the run facet ``slurm`` in one version."""
    return f"{_base()}/slurm/schemas/{version}/SlurmRunFacet.json"


def _base() -> str:
    """The API server's own address, as Airflow's configuration has it."""
    return (conf.get("api", "base_url", fallback="") or "").rstrip("/")
