"""The one plugin file: the console under Airflow's API server, its places in the UI, and the link of a validation report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin
from airflow.sdk.bases.operatorlink import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class ValidationReportLink(BaseOperatorLink):
    """The pages of Great Expectations behind a data task."""

    name = "Validation report"

    @property
    def xcom_key(self) -> str:
        """Where the data task leaves the address."""
        return "validation_report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The address; nothing for a task that validated nothing.

        Airflow calls this of a global link in the API server, for every task: tasks' own way to XComs ends in an error there.
        """
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        query = XComModel.get_many(
            key=self.xcom_key,
            run_id=ti_key.run_id,
            dag_ids=ti_key.dag_id,
            task_ids=ti_key.task_id,
            map_indexes=ti_key.map_index,
            limit=1,
        )
        with create_session() as session:
            row = session.scalars(query).first()
            return "" if row is None else str(XComModel.deserialize_value(row) or "")


def _app() -> Any:
    from include.console.app import create_app

    return create_app()


def _only_in_the_api_server() -> list[dict[str, Any]]:
    """The app is made where it is served: scheduler, workers and triggerer load plugins too, and need none of it."""
    import sys

    serving = any(part in ("api-server", "api_server", "standalone") for part in sys.argv) or "airflow.api_fastapi.main" in sys.modules
    return [{"app": _app(), "url_prefix": "/alignment", "name": "Alignment"}] if serving else []


class AlignmentPlugin(AirflowPlugin):
    """Console, views and links."""

    name = "alignment"
    fastapi_apps = _only_in_the_api_server()
    external_views = [  # noqa: RUF012 - Airflow reads a plain list
        {"name": "Alignment", "href": "/alignment/", "destination": "nav", "category": "browse", "url_route": "alignment"},
        {"name": "Lineage", "href": "/alignment/lineage", "destination": "dag", "url_route": "alignment-lineage"},
        {"name": "Release", "href": "/alignment/", "destination": "dag_run", "url_route": "alignment-release"},
    ]
    global_operator_extra_links = [ValidationReportLink()]  # noqa: RUF012
