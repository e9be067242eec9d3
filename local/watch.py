"""Following a DAG run: its stages as they change, and the people it asks."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from local import job_progress, run_view
from local.environment import SUBMISSION_POOL
from local.progress import say
from local.run_view import Stage
from local.stack import Stack

POLL_S = 2.0
PROGRESS_EVERY_S = 60.0
"""Where no line can be written over, how often one says how far the job is."""
AUTO_APPROVER = "demo-approver"
NOT_COUNTED = "not_counted"
"""Where the approval's task says why an answer did not count (`include.flows.approval`)."""
AUTO_COMMENT = "Unattended demonstration: approved by a demonstration account after all gates, without a look by a person."


class Watch:
    """One run, seen through the public API."""

    def __init__(self, stack: Stack, dag_id: str, run_id: str, auto: bool) -> None:
        self._stack, self._api, self.run_id, self.auto = stack, stack.api("requester"), run_id, auto
        self.address = run_view.run_address(stack.description()["airflow"]["url"], dag_id, run_id)
        self._path = f"/dags/{dag_id}/dagRuns/{run_id}"
        self._shown: dict[str, str] = {}
        self._asked: set[str] = set()
        self._down: set[str] = set()
        self._missing_pools: set[str] = set()
        self._told_at, self._told = time.monotonic(), ""

    def follow(self) -> str:
        """Show what changes until the run has ended; gives its state."""
        while True:
            state = str(self._api.get(self._path)["state"])
            instances = self.instances()
            self._show(run_view.stages(instances))
            if state in ("success", "failed"):
                self._live("")
                return state
            self._look_for_pools(instances)
            self._ask_for_labels(instances)
            if any(instance["state"] == "awaiting_input" for instance in instances):
                self._ask_for_answers()
            self._look_after_services()
            time.sleep(POLL_S)

    def instances(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = self._api.get(f"{self._path}/taskInstances", limit=1000)["task_instances"]
        return found

    def xcom(self, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """What a task returned, or said under another key; None if nothing."""
        path = f"{self._path}/taskInstances/{task_id}/xcomEntries/{key}?map_index={map_index}"
        answer = self._api.request("GET", path, accept=(404,))
        return answer.get("value") if isinstance(answer, dict) else None

    def _show(self, stages: list[Stage]) -> None:
        """A line for each stage whose state changed, and on a terminal one that keeps the time."""
        now = datetime.now(UTC)
        for stage in stages:
            known = f"{stage.state} {stage.task}"
            if self._shown.get(stage.name) != known:
                self._shown[stage.name] = known
                self._live("")
                print(stage.line(run_view.stage_address(self.address, stage), now), flush=True)
                if stage.state == run_view.RETRYING:
                    self._say_why(stage)
        busy = [stage for stage in stages if stage.state not in run_view.ENDED]
        far = job_progress.said(self._stack.layout.store, now.timestamp()) if any(stage.state == "waiting" for stage in busy) else ""
        times = "   ".join(f"{stage.name}: {stage.state} {run_view.duration(stage.seconds(now))}" for stage in busy)
        self._live(f"{times}   {far}" if far else times)
        self._tell(busy, far)

    def _tell(self, busy: list[Stage], far: str) -> None:
        """Into a file or a pipe, a line now and then while a job works."""
        if sys.stdout.isatty() or not far or far == self._told or time.monotonic() - self._told_at < PROGRESS_EVERY_S:
            return
        self._told_at, self._told = time.monotonic(), far
        names = ", ".join(stage.name for stage in busy if stage.state == "waiting")
        print(f"{names:14} {far}", flush=True)

    def _live(self, text: str) -> None:
        if sys.stdout.isatty():
            print(f"\r\033[K{text[:150]}", end="", flush=True)

    def _look_for_pools(self, instances: list[Mapping[str, Any]]) -> None:
        """A task in a pool that does not exist is never started, and Airflow says so in its scheduler's log alone."""
        waiting = sorted({str(i["pool"]) for i in instances if i["state"] == "scheduled" and i.get("pool")})
        found = {name: self._stack.api("admin").request("GET", f"/pools/{quote(name, safe='')}", accept=(404,)) for name in waiting}
        missing = {name for name, answer in found.items() if "slots" not in answer}
        for name in sorted(missing - self._missing_pools):
            self._live("")
            say(f"Airflow has no pool {name}, so the tasks in it are never started; `python -m local up` in another terminal makes")
            say(f"  {SUBMISSION_POOL} again; any other: `airflow pools set {shlex.quote(name)} 4 ''`; the run goes on then")
        self._missing_pools = missing

    def _ask_for_labels(self, instances: list[Mapping[str, Any]]) -> None:
        """When the run waits for labels of people: who is asked for what, and where."""
        waits = any(i["task_id"] == "preferences.wait_for_labels" and i["state"] == "deferred" for i in instances)
        if not waits or "labels" in self._asked:
            return
        batch = self.xcom("preferences.open_batch") or {}
        self._asked.add("labels")
        if batch.get("human"):
            self._live("")
            say(f"YOU are asked to compare {batch['human']} pairs of answers, as `annotator`: {batch.get('url')}/annotate")
            say("  `python -m local secret annotator` shows the token to log in with; keys are explained on the page; the run waits")

    def _ask_for_answers(self) -> None:
        """Open questions of the run: answered by the demonstration account where nobody attends, else shown."""
        for detail in self._api.get(f"{self._path}/hitlDetails", response_received=False)["hitl_details"]:
            instance = detail["task_instance"]
            task_id, map_index = instance["task_id"], instance["map_index"]
            people = [user["name"] for user in detail["assigned_users"]]
            if self.auto and (not people or AUTO_APPROVER in people):
                if run_view.seconds_since(detail["created_at"]) >= run_view.ANSWER_AFTER_S:
                    self._answer(task_id, map_index, detail)
            else:
                self._ask(task_id, map_index, detail, [name for name in people if name != AUTO_APPROVER] or people)

    def _ask(self, task_id: str, map_index: int, detail: Mapping[str, Any], people: list[str]) -> None:
        """Who is asked for what, and where, once; and once more for each answer that did not count."""
        why = self.xcom(task_id, NOT_COUNTED, map_index)
        seat = f"{task_id}/{map_index}/{detail['created_at']}/{why}"
        if seat in self._asked:
            return
        self._asked.add(seat)
        self._live("")
        if why:
            say(f"{why}; the question stands")
        say(f"{' or '.join(people) or 'somebody'} is asked: {detail['subject']} ({' / '.join(detail['options'])}, with a comment)")
        say(f"  {run_view.answer_address(self.address, task_id, map_index)}")
        user = people[0] if people else "USER"
        say(
            f"  log in as `{user}`; `python -m local secret {user}` shows the password; who asked for the run may not answer; the run waits"
        )

    def _answer(self, task_id: str, map_index: int, detail: Mapping[str, Any]) -> None:
        """Approve through the same public API that a person's browser uses."""
        answer = {"chosen_options": ["Approve"], "params_input": {"comment": AUTO_COMMENT}}
        path = f"{self._path}/taskInstances/{task_id}/{map_index}/hitlDetails"
        said = self._stack.api(AUTO_APPROVER).request("PATCH", path, answer, accept=(409,))
        self._live("")
        if "chosen_options" in said:
            say(f"{AUTO_APPROVER}, a demonstration account, approved: {detail['subject']}")

    def _look_after_services(self) -> None:
        down = set(self._stack.down_services())
        for name in sorted(down - self._down):
            self._live("")
            say(f"{name} is down; `python -m local up` in another terminal starts it again, and the run goes on")
        self._down = down

    def _say_why(self, stage: Stage) -> None:
        """The last words of a task that is to be tried again."""
        waiting = next((i for i in self.instances() if i["state"] == "up_for_retry" and i["task_id"].partition(".")[0] == stage.name), None)
        if waiting is not None:
            print("\n".join(f"    {line}" for line in self._log(waiting, 3)), flush=True)

    def _log(self, instance: Mapping[str, Any], lines: int) -> list[str]:
        task_id, index, number = instance["task_id"], instance["map_index"], instance["try_number"]
        path = f"{self._path}/taskInstances/{task_id}/logs/{number}?map_index={index}&full_content=true"
        answer = self._api.request("GET", path, accept=(404,))
        return run_view.log_lines(answer.get("content") if isinstance(answer, dict) else answer, lines)

    def explain(self) -> None:
        """What failed first, with its last words."""
        self._live("")
        failed = run_view.first_failure(self.instances())
        if failed is None:
            print(f"\nNo task failed by itself; see {self.address}")
            return
        task_id, index = failed["task_id"], failed["map_index"]
        print(f"\n{task_id} failed (try {failed['try_number']}). Its last words:\n")
        print("\n".join(f"  {line}" for line in self._log(failed, 15)))
        mapped = f"/mapped/{index}" if index >= 0 else ""
        print(f"\nAll of it: {self.address}/tasks/{task_id}{mapped}")
