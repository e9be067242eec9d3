"""Real databases and servers for the tests of the stores, each started once, on a free port or a socket of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import sqlalchemy as sa

from include.stores.artifacts import ArtifactStore
from include.stores.catalog import Catalog
from include.stores.registry import Registry
from include.stores.sftp import SftpFileSystem
from tests import postgres
from tests.stores.servers import SSHD, SshServer, free_port, mlflow_argv, running
from tests.stores.things import Clock


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[sa.URL]:
    """A private server for all tests of this folder."""
    with postgres.server(max_connections=300) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind; on PostgreSQL a schema of its own, which is made in no time."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/catalog.db"
        return
    server: sa.URL = request.getfixturevalue("postgres_server")
    name = f"catalog_{uuid.uuid4().hex[:12]}"
    with sa.create_engine(server, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(sa.schema.CreateSchema(name))
        yield server.update_query_dict({"options": f"-csearch_path={name}"}).render_as_string(hide_password=False)
        connection.execute(sa.schema.DropSchema(name, cascade=True))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def catalog(catalog_url: str, clock: Clock) -> Catalog:
    return Catalog.open(catalog_url, clock=clock)


@pytest.fixture(scope="session")
def ssh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    """A private sshd for the whole session."""
    if SSHD is None:
        pytest.skip("no sshd here: apt-get install openssh-server")
    server = SshServer(tmp_path_factory.mktemp("sshd"))
    with server.run():
        yield server


@pytest.fixture(params=["local", "sftp"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ArtifactStore]:
    """An empty store, as a mounted path and over SFTP."""
    root = tmp_path / "store"
    root.mkdir()
    if request.param == "local":
        yield ArtifactStore(fsspec.filesystem("file"), str(root))
        return
    fs = SftpFileSystem(request.getfixturevalue("ssh_server").target())
    yield ArtifactStore(fs, str(root), uri=f"sftp://test{root}")
    fs.channel.close()


@pytest.fixture(scope="session")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A private MLflow server for the whole session."""
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    with running(mlflow_argv(port, folder), port, folder / "log", cwd=folder):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def registry(mlflow_uri: str) -> Registry:
    """A registry with an experiment of its own."""
    return Registry(mlflow_uri, experiment=f"test-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def sqlite_catalog(tmp_path: Path, clock: Clock) -> Catalog:
    """A catalog where the kind of database does not matter."""
    return Catalog.open(f"sqlite:///{tmp_path}/catalog.db", clock=clock)
