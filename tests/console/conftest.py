"""The console on a real catalog; of Airflow only the question who asks is answered by the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from include.console import reading
from include.stores.catalog import Catalog


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
def signed_in(app: FastAPI) -> TestClient:
    """A browser with a session of Airflow's; the app is mounted as Airflow mounts it."""
    from airflow.api_fastapi.core_api.security import get_user

    app.dependency_overrides[get_user] = lambda: object()
    return mounted(app)


@pytest.fixture
def stranger(app: FastAPI) -> TestClient:
    return mounted(app)


def mounted(app: FastAPI, **options: Any) -> TestClient:
    outer = FastAPI()
    outer.mount("/alignment", app)
    return TestClient(outer, raise_server_exceptions=False, **options)
