"""Links from a task to what a person wants to look at."""

import shutil
from pathlib import Path

from airflow.sdk import get_current_context

from include.flows import services


def validation_link(docs: Path, run_id: str) -> None:
    """Keeps the pages of a validation where the console serves them, and pushes their link for the task's page."""
    from include.domain.canonical import sha256_bytes

    name = sha256_bytes(run_id.encode()).removeprefix("sha256:")[:24]
    target = services.work_dir() / "validation" / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(docs, target)
    get_current_context()["ti"].xcom_push(key="validation_report", value=f"/alignment/validation/{name}/index.html")
