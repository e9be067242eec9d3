"""Quick questions to MLflow: what is repeated, and what fails at once."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import ClassVar

import pytest

from include.stores import tracking
from include.stores.errors import RegistryError
from include.stores.tracking import MlflowRefused, Tracking


class Slow(http.server.BaseHTTPRequestHandler):
    """Answers from a list; a number is a time to wait first."""

    script: ClassVar[list[float | tuple[int, str]]] = []
    asked: ClassVar[list[str]] = []
    headers_seen: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        Slow.asked.append(self.path)
        Slow.headers_seen.append(self.headers.get("Authorization"))
        step = Slow.script.pop(0) if Slow.script else (200, "{}")
        if isinstance(step, float):
            time.sleep(step)
            step = (200, "{}")
        self.send_response(step[0])
        self.end_headers()
        self.wfile.write(step[1].encode())

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def server() -> Iterator[Tracking]:
    Slow.script, Slow.asked, Slow.headers_seen = [], [], []
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield Tracking(f"http://127.0.0.1:{listening.server_port}")
    listening.shutdown()
    listening.server_close()


def test_a_slow_answer_is_asked_for_again(server: Tracking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "TIMEOUT_S", 0.5)
    Slow.script = [2.0, (200, json.dumps({"registered_model": {"name": "x"}}))]
    assert server.model("x") == {"name": "x"}
    assert len(Slow.asked) == 2


def test_a_server_that_stays_silent_is_given_up(server: Tracking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "TIMEOUT_S", 0.3)
    Slow.script = [3.0, 3.0, 3.0]
    with pytest.raises(RegistryError, match="does not answer"):
        server.model("x")
    assert len(Slow.asked) == 3


def test_a_refusal_is_told_in_the_servers_words_and_not_repeated(server: Tracking) -> None:
    Slow.script = [(403, json.dumps({"error_code": "PERMISSION_DENIED", "message": "not yours"}))]
    with pytest.raises(MlflowRefused, match="PERMISSION_DENIED: not yours"):
        server.model("x")
    assert len(Slow.asked) == 1


def test_an_answer_that_is_no_json_is_shown(server: Tracking) -> None:
    Slow.script = [(502, "<html>Bad gateway</html>")]
    with pytest.raises(MlflowRefused, match="HTTP 502: <html>Bad gateway"):
        server.model("x")


def test_credentials_come_from_mlflows_own_variables_and_stand_in_no_message(server: Tracking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "hunter2")
    Slow.script = [(500, "{}")]
    with pytest.raises(MlflowRefused) as refused:
        server.model("x")
    assert Slow.headers_seen == ["Bearer hunter2"]
    assert "hunter2" not in str(refused.value)


def test_every_page_of_versions_is_read(server: Tracking) -> None:
    pages = [{"model_versions": [{"version": "1"}], "next_page_token": "t"}, {"model_versions": [{"version": "2"}]}]
    Slow.script = [(200, json.dumps(page)) for page in pages]
    assert [version["version"] for version in server.versions("x")] == ["1", "2"]
    assert "page_token=t" in Slow.asked[1]
