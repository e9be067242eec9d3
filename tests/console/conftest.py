"""The console on a real catalog; of Airflow only the question who asks is answered by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from include.console import reading
from include.stores.catalog import Catalog
from tests.airflow_database import serialize

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """The catalog that the console reads."""
    url = f"sqlite:///{tmp_path}/catalog.db"
    monkeypatch.setenv("ALIGN_CATALOG_URL", url)
    monkeypatch.setenv("ALIGN_WORK", str(tmp_path / "work"))
    reading.catalog.cache_clear()
    yield Catalog.open(url)
    reading.catalog.cache_clear()


@pytest.fixture
def app(opened: Catalog) -> FastAPI:
    from include.console.app import create_app

    return create_app()


@pytest.fixture
def stranger(app: FastAPI) -> TestClient:
    return mounted(app)


def mounted(app: FastAPI, **options: Any) -> TestClient:
    outer = FastAPI()
    outer.mount("/alignment", app)
    return TestClient(outer, raise_server_exceptions=False, **options)


@pytest.fixture(scope="session")
def airflow_database() -> None:
    """Airflow's own database with the DAG that alignment runs start, unpaused; a scheduler there is none."""
    from airflow.api_fastapi.app import init_auth_manager

    init_auth_manager()
    serialize(ROOT / "dags/align_policy.py")


@pytest.fixture
def person(app: FastAPI, airflow_database: None) -> Callable[[str, str], TestClient]:
    """A client of a person with a role of Airflow's simple auth manager, which decides for real what they may do."""
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api.security import get_user

    def client(name: str, role: str) -> TestClient:
        users[name] = SimpleAuthManagerUser(username=name, role=role)
        return mounted(app, headers={"x-user": name})

    def who(request: Request) -> SimpleAuthManagerUser:
        return users[request.headers["x-user"]]

    users: dict[str, SimpleAuthManagerUser] = {}
    app.dependency_overrides[get_user] = who
    return client


@pytest.fixture
def signed_in(person: Callable[[str, str], TestClient]) -> TestClient:
    """A browser with a session of Airflow's, of somebody who may read everything; the app is mounted as Airflow mounts it."""
    return person("rita", "viewer")
