"""A small HTTP client of the standard library: JSON in, JSON out, and Airflow's public API as one of its users."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from local.process import LocalError

_TRIES = 5
_no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # everything here is on 127.0.0.1


def call(method: str, url: str, body: Any = None, headers: dict[str, str] | None = None, timeout_s: float = 30.0) -> tuple[int, Any]:
    """Status and answer (parsed where it is JSON, else text). Raises OSError where nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json", **(headers or {})})  # noqa: S310 - our own http addresses
    try:
        with _no_proxy.open(request, timeout=timeout_s) as answer:
            status, text = answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as refused:
        status, text = refused.code, refused.read().decode(errors="replace")
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def answers(url: str) -> bool:
    """Whether a GET of the address gives 200."""
    try:
        return call("GET", url, timeout_s=5.0)[0] == 200
    except OSError:
        return False


class AirflowApi:
    """Airflow's public REST API as one user."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._url, self._user, self._password = url, user, password
        self._token = ""

    def get(self, path: str, **query: str | int | bool) -> Any:
        return self.request("GET", path + ("?" + urllib.parse.urlencode(query) if query else ""))

    def request(self, method: str, path: str, body: Any = None, accept: tuple[int, ...] = ()) -> Any:
        """The answer's body. A status of 400 or more that is not in `accept` raises LocalError with Airflow's words."""
        status, answer = self._try(method, path, body)
        if status >= 400 and status not in accept:
            detail = answer.get("detail", answer) if isinstance(answer, dict) else answer
            raise LocalError(f"Airflow refused {method} {path} for {self._user} with {status}: {detail}")
        return answer

    def _try(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        for attempt in range(_TRIES):
            try:
                self._token = self._token or self._log_in()
                status, answer = call(method, f"{self._url}/api/v2{path}", body, {"Authorization": f"Bearer {self._token}"})
            except OSError as error:
                if attempt == _TRIES - 1 or method not in ("GET", "PATCH"):
                    raise LocalError(f"Airflow at {self._url} does not answer: {error}. Does `make status` show it up?") from error
                time.sleep(2.0)
                continue
            if status != 401:
                return status, answer
            self._token = ""  # it ran out while a person was thinking
        raise LocalError(f"Airflow at {self._url} refuses the password of {self._user}: was its password file replaced while it ran?")

    def _log_in(self) -> str:
        status, answer = call("POST", f"{self._url}/auth/token", {"username": self._user, "password": self._password})
        if status >= 400:
            raise LocalError(f"Airflow at {self._url} does not let {self._user} in ({status})")
        token: str = answer["access_token"]
        return token
