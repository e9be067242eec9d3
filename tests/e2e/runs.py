"""DAG runs as anybody sees and moves them: through Airflow's public REST API."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from local import run_view
from local.http_client import AirflowApi
from local.process import LocalError

ENDED = ("success", "failed")
PATIENCE = float(os.environ.get("ALIGN_TEST_PATIENCE") or 1)
"""Multiplies every time limit here: more than 1 on a machine that does much else meanwhile."""


def until(what: str, look: Callable[[], Any], *, seconds: float = 120, every: float = 0.5) -> Any:
    """What `look` gives once it gives something true."""
    end = time.monotonic() + seconds * PATIENCE
    while not (found := look()):
        assert time.monotonic() < end, f"{what} did not come within {seconds * PATIENCE:.0f} s"
        time.sleep(every)
    return found


class Run:
    """One run of a DAG."""

    def __init__(self, api: AirflowApi, dag_id: str, run_id: str) -> None:
        self.api, self.dag_id, self.run_id = api, dag_id, run_id
        self.path = f"/dags/{dag_id}/dagRuns/{run_id}"

    @property
    def state(self) -> str:
        return str(self.api.get(self.path)["state"])

    def instances(self) -> dict[str, Mapping[str, Any]]:
        """Task instances by task id; of a mapped one `task` or `task[0]`."""
        found = self.api.get(f"{self.path}/taskInstances", limit=500)["task_instances"]
        return {i["task_id"] if i["map_index"] < 0 else f"{i['task_id']}[{i['map_index']}]": i for i in found}

    def states(self) -> dict[str, str | None]:
        return {name: instance["state"] for name, instance in self.instances().items()}

    def tries(self, task: str) -> int:
        return int(self.instances()[task]["try_number"])

    def wait(self, expected: str | None = "success", *, seconds: float = 300) -> str:
        """Until it has ended; `expected` None takes any end."""
        state: str = until(f"the end of {self.run_id}", lambda: (s := self.state) in ENDED and s, seconds=seconds, every=1.0)
        assert expected in (None, state), f"{self.dag_id} {self.run_id} is {state}: {self.explain()}"
        return state

    def wait_for(self, task: str, *states: str, seconds: float = 240) -> str:
        """Until the task is in one of the states; a run that ended before that is a failure here."""

        def look() -> str | None:
            found = self.states().get(task)
            if found in states:
                return found
            assert self.state not in ENDED, f"{self.run_id} ended and {task} is {found}: {self.explain()}"
            return None

        got: str = until(f"{task} of {self.run_id} as {' or '.join(states)}", look, seconds=seconds)
        return got

    def wait_until_watched(self, task: str) -> None:
        """Until the task is deferred and a triggerer has taken it over."""
        self.wait_for(task, "deferred")
        until(f"a triggerer for {task} of {self.run_id}", lambda: self.instances()[task].get("triggerer_job"))

    def explain(self) -> str:
        failed = [name for name, state in self.states().items() if state == "failed"]
        return "; ".join(f"{name}: {self.log(name)[-1500:]}" for name in failed) or str(self.states())

    def log(self, task: str, number: int | None = None) -> str:
        """All of a try's log, the last one by default."""
        instance = self.instances()[task]
        number = number or instance["try_number"]
        path = f"{self.path}/taskInstances/{instance['task_id']}/logs/{number}?map_index={instance['map_index']}&full_content=true"
        answer = self.api.request("GET", path, accept=(404,))
        return "\n".join(run_view.log_lines(answer.get("content") if isinstance(answer, dict) else answer, 10_000))

    def xcom(self, task: str, key: str = "return_value") -> Any:
        answer = self.api.request("GET", f"{self.path}/taskInstances/{task}/xcomEntries/{key}", accept=(404,))
        return answer.get("value")

    def answer(self, user_api: AirflowApi, choice: str, comment: str, task: str = "release.approve") -> None:
        """A person's answer, through the same API as a browser's, and no faster than a person's."""
        self.wait_for(f"{task}[0]", "awaiting_input")
        time.sleep(run_view.ANSWER_AFTER_S)
        self.wait_for(f"{task}[0]", "awaiting_input")
        body = {"chosen_options": [choice], "params_input": {"comment": comment}}
        user_api.request("PATCH", f"{self.path}/taskInstances/{task}/0/hitlDetails", body)

    def questions(self) -> list[Mapping[str, Any]]:
        """Everything that this run asked a person."""
        found: list[Mapping[str, Any]] = self.api.get(f"{self.path}/hitlDetails")["hitl_details"]
        return found

    def set_state(self, state: str) -> None:
        self.api.request("PATCH", self.path, {"state": state})

    def clear(self, *tasks: str) -> None:
        body = {"dry_run": False, "only_failed": False, "dag_run_id": self.run_id, "task_ids": list(tasks), "include_downstream": True}
        self.api.request("POST", f"/dags/{self.dag_id}/clearTaskInstances", body)


class Runs:
    """Starting and finding runs as one user."""

    def __init__(self, api: AirflowApi) -> None:
        self.api = api

    def start(self, dag_id: str, run_id: str, conf: Mapping[str, Any] | None = None) -> Run:
        """A run of this id; one that is there already is the same."""
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf or {})}
        self.api.request("POST", f"/dags/{dag_id}/dagRuns", body, accept=(409,))
        return Run(self.api, dag_id, run_id)

    def of(self, dag_id: str) -> list[Run]:
        """The runs of a DAG, newest first."""
        found = self.api.get(f"/dags/{dag_id}/dagRuns", limit=100, order_by="-id")["dag_runs"]
        return [Run(self.api, dag_id, run["dag_run_id"]) for run in found]

    def only_of(self, dag_id: str, *, seconds: float = 120) -> Run:
        """The one run of a DAG, once there is one."""
        found: list[Run] = until(f"a run of {dag_id}", lambda: self.of(dag_id), seconds=seconds)
        assert len(found) == 1, [run.run_id for run in found]
        return found[0]

    def pause(self, dag_id: str, paused: bool = True) -> None:
        self.api.request("PATCH", f"/dags/{dag_id}", {"is_paused": paused})

    def known_dags(self) -> set[str]:
        try:
            return {dag["dag_id"] for dag in self.api.get("/dags", limit=100)["dags"]}
        except LocalError:
            return set()
