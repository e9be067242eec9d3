"""Links from a task to its job: in a portal of the site, if the connection's ``job_url`` names one, and to its output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import XCom
from airflow.sdk.bases.operatorlink import BaseOperatorLink

from airflow_slurm.hook import SlurmHook
from airflow_slurm.requests import output_address, owner_of
from airflow_slurm.work.submit import Submitted

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey

LINK_KEY = "slurm_job_url"
OUTPUT_KEY = "slurm_output_url"
#: Under this name the task says which work it asked for; plain data for the tab *Slurm*.
POINTER_KEY = "slurm_submission"
#: Under this name the task's state store keeps the keys that it asked for, over tries and clears; the newest few.
STORY_KEY, KEPT_WORKS = "slurm_story", 4


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


class SlurmOutputLink(BaseOperatorLink):
    """*Job output* on the task's page: the whole file, a piece at a time."""

    name = "Job output"

    @property
    def xcom_key(self) -> str:
        """Where the operator leaves the address."""
        return OUTPUT_KEY

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The address; nothing before the job is submitted."""
        return XCom.get_value(key=OUTPUT_KEY, ti_key=ti_key) or ""


def keep_links(context: Context, key: str, done: Submitted) -> None:
    """Leave the addresses, and what the tab has to know, before the wait begins."""
    ti: Any = context["ti"]
    receipt = done.receipt
    before = _before(context, key)
    site = SlurmHook(receipt.conn_id).config()
    pointer = {"key": key, "n": done.n, "job_id": receipt.job_id, "conn_id": receipt.conn_id, "before": before}
    # The tab asks neither cluster nor connection.
    ti.xcom_push(key=POINTER_KEY, value=pointer | ({"metrics_url": site.metrics_url} if site.metrics_url else {}))
    template = site.job_url or ""
    ti.xcom_push(key=LINK_KEY, value=template.replace("{job_id}", receipt.job_id).replace("{cluster}", receipt.cluster or ""))
    ti.xcom_push(key=OUTPUT_KEY, value=output_address(owner_of(context), done.n, receipt))


def _before(context: Context, key: str) -> list[str]:
    """The works that this task asked for before this one, the newest first, such as the parts that it now joins."""
    kept: Any = context["task_state_store"]
    known = kept.get(STORY_KEY)
    story = [str(one) for one in known if one != key] if isinstance(known, list) else []
    kept.set(STORY_KEY, [key, *story][:KEPT_WORKS])
    return story[: KEPT_WORKS - 1]
