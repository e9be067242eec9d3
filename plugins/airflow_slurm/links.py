"""A link from the task to its job in a portal of the site, if the connection's ``job_url`` names one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import XCom
from airflow.sdk.bases.operatorlink import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

LINK_KEY = "slurm_job_url"


class SlurmJobLink(BaseOperatorLink):
    """*Slurm job* on the task's page."""

    name = "Slurm job"

    @property
    def xcom_key(self) -> str:
        """Where the operator leaves the address."""
        return LINK_KEY

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The address; nothing before the job is submitted, or where the site has no portal."""
        return XCom.get_value(key=LINK_KEY, ti_key=ti_key) or ""
