"""The receipt store that this installation names, in the section ``[slurm]`` of Airflow's configuration."""

from __future__ import annotations

import json
import os
from typing import Any

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
