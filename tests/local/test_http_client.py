"""The client of Airflow's API, against a server that can be told to fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from local import http_client
from local.http_client import AirflowApi, answers
from local.process import LocalError


class Server(HTTPServer):
    """Gives out tokens t1, t2, … and holds only the newest for valid, once `expired` is set."""

    tokens = 0
    expired = False
    password = "right"
    seen: list[tuple[str, str, Any]]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/auth/token":
            if body["password"] != self.server.password:
                return self._send(401, {"detail": "no"})
            self.server.tokens += 1
            return self._send(201, {"access_token": f"t{self.server.tokens}"})
        self.server.seen.append(("POST", self.path, body))
        return self._send(409, {"detail": "is there already"})

    def do_GET(self) -> None:
        self.server.seen.append(("GET", self.path, self.headers["Authorization"]))
        if self.server.expired and self.headers["Authorization"] == "Bearer t1":
            return self._send(401, {"detail": "expired"})
        return self._send(404 if "missing" in self.path else 200, {"path": self.path, "detail": "not here"})

    def _send(self, status: int, body: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        return None


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.seen = []
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def api(server: Server) -> AirflowApi:
    return AirflowApi(f"http://127.0.0.1:{server.server_port}", "requester", "right")


def test_one_login_serves_many_requests(api: AirflowApi, server: Server) -> None:
    assert api.get("/dags/x", limit=1)["path"] == "/api/v2/dags/x?limit=1"
    api.get("/dags/y")
    assert server.tokens == 1


def test_a_token_that_ran_out_is_replaced(api: AirflowApi, server: Server) -> None:
    api.get("/dags/x")
    server.expired = True
    assert api.get("/dags/x")["path"] == "/api/v2/dags/x"
    assert server.seen[-1][2] == "Bearer t2"


def test_a_refusal_carries_airflows_own_words_unless_it_was_expected(api: AirflowApi) -> None:
    with pytest.raises(LocalError, match="POST /pools for requester with 409: is there already"):
        api.request("POST", "/pools", {"name": "p"})
    assert api.request("POST", "/pools", {"name": "p"}, accept=(409,)) == {"detail": "is there already"}


def test_a_wrong_password_is_not_quoted(server: Server) -> None:
    api = AirflowApi(f"http://127.0.0.1:{server.server_port}", "requester", "wrong-secret")
    with pytest.raises(LocalError, match="does not let requester in") as caught:
        api.get("/dags")
    assert "wrong-secret" not in str(caught.value)


def test_nobody_listening_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client.time, "sleep", lambda _: None)
    with pytest.raises(LocalError, match="does not answer"):
        AirflowApi("http://127.0.0.1:9", "requester", "x").get("/dags")
    assert not answers("http://127.0.0.1:9/health")
