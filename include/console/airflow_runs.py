"""The DAG runs behind alignment runs: started, looked at and ended through Airflow's own functions, in the API server's process."""

from typing import Any

from include.console.run_body import Unusable
from include.stores.errors import NotFound

DAG_ID = "align_policy"


def dag_run_id(run_id: str) -> str:
    """The DAG run of an alignment run: one name, so that starting it twice starts it once."""
    return f"api__{run_id}"


def check_ready() -> None:
    """Raises Unusable when a run would be accepted and never start."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        model = session.get(DagModel, DAG_ID)
        if model is None or model.is_stale:
            raise Unusable(f"DAG {DAG_ID} is not there: does the DAG processor run?")
        if model.has_import_errors:
            raise Unusable(f"DAG {DAG_ID} has import errors: mend them first")
        if model.is_paused:
            raise Unusable(f"DAG {DAG_ID} is paused, so nothing would start: unpause it first")


def start(run_id: str, conf: dict[str, Any], who: str) -> str:
    """Starts the DAG run, or finds it started; gives its id."""
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.exceptions import DagNotFound, DagRunAlreadyExists
    from airflow.utils.types import DagRunTriggeredByType

    name = dag_run_id(run_id)
    try:
        trigger_dag(DAG_ID, triggered_by=DagRunTriggeredByType.REST_API, triggering_user_name=who, run_id=name, conf=conf)
    except DagRunAlreadyExists:
        pass
    except DagNotFound as error:
        raise Unusable(f"DAG {DAG_ID} is not there: does the DAG processor run?") from error
    return name


def state_of(name: str) -> str | None:
    """Airflow's state of a DAG run (queued, running, success, failed), or None when it has no such run."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        state = session.scalar(select(DagRun.state).where(DagRun.dag_id == DAG_ID, DagRun.run_id == name))
    return None if state is None else str(getattr(state, "value", state))


def end(name: str) -> None:
    """Fails the DAG run as Airflow's own API does, so that each task's `on_kill` ends its job in order; a finished run stays as it is."""
    from airflow.api.common.mark_tasks import set_dag_run_state_to_failed
    from airflow.models.dagbag import DBDagBag
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        run = session.scalar(select(DagRun).where(DagRun.dag_id == DAG_ID, DagRun.run_id == name))
        if run is None:
            raise NotFound(f"DAG run {name} of {DAG_ID} is not in Airflow")
        if str(getattr(run.state, "value", run.state)) in ("success", "failed"):
            return
        dag = DBDagBag().get_dag_for_run(run, session=session)
        if dag is None:
            raise Unusable(f"DAG {DAG_ID} is not there as it was when {name} began")
        set_dag_run_state_to_failed(dag=dag, run_id=name, commit=True, session=session)
