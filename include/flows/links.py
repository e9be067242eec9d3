"""Links from a task to what a person wants to look at."""

import json
import shutil
from typing import TYPE_CHECKING

from airflow.sdk import get_current_context

from include.flows import services

if TYPE_CHECKING:
    from include.data.report import ValidationReport


def validation_link(report: "ValidationReport", run_id: str) -> None:
    """Keeps a validation and its pages where the console shows them, and pushes the link for the task's page."""
    from include.domain.canonical import sha256_bytes

    name = sha256_bytes(run_id.encode()).removeprefix("sha256:")[:24]
    target = services.work_dir() / "validation" / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(report.docs, target)
    (target / "report.json").write_text(json.dumps(report.to_json()), encoding="utf-8")
    get_current_context()["ti"].xcom_push(key="validation_report", value=f"/alignment/validation/{name}/")
