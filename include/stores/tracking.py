"""Quick questions to an MLflow server over its REST interface, answered in milliseconds and without importing mlflow.

Importing mlflow takes seconds; a task that finds everything as it should be has no need of it.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from include.stores.errors import RegistryError

TIMEOUT_S, ATTEMPTS = 10, 3
_PAGE = 50
_API = "/api/2.0/mlflow/"


class MlflowRefused(RegistryError):
    """The server answered with an error; `code` is MLflow's own word for it."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Tracking:
    """An MLflow server. Credentials come from the variables that mlflow itself reads."""

    def __init__(self, uri: str, *, timeout_s: float | None = None, attempts: int | None = None) -> None:
        if not uri.startswith(("http://", "https://")):
            raise RegistryError(f"the MLflow tracking URI {uri!r} is not http(s): start a server and give its address")
        self.uri = uri.rstrip("/")
        self._timeout_s, self._attempts = timeout_s, attempts

    def get(self, what: str, **params: Any) -> dict[str, Any]:
        return self._call("GET", what, params=params)

    def post(self, what: str, **body: Any) -> dict[str, Any]:
        return self._call("POST", what, json=body)

    def patch(self, what: str, **body: Any) -> dict[str, Any]:
        return self._call("PATCH", what, json=body)

    def _call(self, method: str, what: str, **payload: Any) -> dict[str, Any]:
        answer = self._request(method, what, payload)
        try:
            value = answer.json()
        except ValueError:
            value = {"error_code": f"HTTP {answer.status_code}", "message": answer.text[:300]}
        if not answer.ok:
            code = str(value.get("error_code", answer.status_code))
            raise MlflowRefused(f"MLflow at {self.uri}, {what}: {code}: {value.get('message', '')}", code)
        return dict(value)

    def _request(self, method: str, what: str, payload: Mapping[str, Any]) -> Any:
        """The server's answer. A slow server is asked again (everything asked here may be repeated); one that is not there is not."""
        import requests

        headers, auth = _credentials()
        for left in reversed(range(self._attempts or ATTEMPTS)):
            try:
                return requests.request(
                    method, self.uri + _API + what, timeout=self._timeout_s or TIMEOUT_S, headers=headers, auth=auth, **payload
                )
            except requests.RequestException as error:
                if left and isinstance(error, requests.Timeout):
                    continue
                raise RegistryError(f"MLflow at {self.uri} does not answer ({type(error).__name__}): is the server running?") from error
        raise RegistryError(f"MLflow at {self.uri} was not asked")

    def experiment(self, name: str) -> dict[str, Any] | None:
        """The experiment of this name, deleted ones too; None when there is none."""
        try:
            return dict(self.get("experiments/get-by-name", experiment_name=name)["experiment"])
        except MlflowRefused as error:
            if error.code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def runs(self, experiment_id: str, query: str) -> list[dict[str, Any]]:
        """The runs that a filter finds, oldest first."""
        found: list[dict[str, Any]] = []
        token = ""
        while True:
            more = {"page_token": token} if token else {}
            page = self.post("runs/search", experiment_ids=[experiment_id], filter=query, max_results=_PAGE, **more)
            found += page.get("runs", [])
            if not (token := page.get("next_page_token", "")):
                return sorted(found, key=lambda run: (int(run["info"]["start_time"]), str(run["info"]["run_id"])))

    def model(self, name: str) -> dict[str, Any] | None:
        """A registered model with its aliases, or None."""
        try:
            return dict(self.get("registered-models/get", name=name)["registered_model"])
        except MlflowRefused as error:
            if error.code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def versions(self, name: str) -> Iterator[dict[str, Any]]:
        """Every version of a registered model."""
        token = ""
        while True:
            query = {"filter": f"name = '{quoted(name)}'", "max_results": 200, **({"page_token": token} if token else {})}
            page = self.get("model-versions/search", **query)
            yield from page.get("model_versions", [])
            token = page.get("next_page_token", "")
            if not token:
                return


def quoted(value: str) -> str:
    """A value for MLflow's filter language, which has no escape for a quote."""
    if "'" in value or "`" in value:
        raise RegistryError(f"{value!r} holds a quote, which MLflow cannot search for")
    return value


def tags_of(item: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a run's data, or of a model version."""
    return {tag["key"]: tag["value"] for tag in item.get("tags", [])}


def aliases_of(model: Mapping[str, Any] | None) -> dict[str, int]:
    """alias → version."""
    return {item["alias"]: int(item["version"]) for item in (model or {}).get("aliases", [])}


def _credentials() -> tuple[dict[str, str], tuple[str, str] | None]:
    token, user = os.environ.get("MLFLOW_TRACKING_TOKEN"), os.environ.get("MLFLOW_TRACKING_USERNAME")
    if user:
        return {}, (user, os.environ.get("MLFLOW_TRACKING_PASSWORD", ""))
    return ({"Authorization": f"Bearer {token}"} if token else {}), None
