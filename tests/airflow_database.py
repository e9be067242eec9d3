"""Airflow's own database for tests that start or run DAGs: real tables in the tests' Airflow home, no scheduler."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache(maxsize=1)
def prepare() -> None:
    """Makes the tables, once a process."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.utils.db import initdb

    initdb()
    DagBundlesManager().sync_bundles_to_db()


def serialize(path: Path) -> dict[str, Any]:
    """Reads one DAG file into the database, unpaused; gives its DAGs by name."""
    prepare()
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    bag = DagBag(dag_folder=path, bundle_path=path.parent, bundle_name="dags-folder")
    assert not bag.import_errors, bag.import_errors
    sync_bag_to_db(bag, "dags-folder", None)
    with create_session() as session:
        for name in bag.dags:
            session.get(DagModel, name).is_paused = False
    return dict(bag.dags)
