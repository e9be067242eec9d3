import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.annotation.server import Server
from tests.annotation.support import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    with made.http:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("annotation")).start()
    yield made
    made.kill(signal.SIGTERM)
