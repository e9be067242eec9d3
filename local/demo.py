"""The demonstration: from nothing to an approved model, with what happens shown as it happens.

It uses the stack as anybody may: Airflow's public API as the user `requester`, and the project's command line.
"""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from local import fetch, run_view
from local.environment import process_environment
from local.http_client import AirflowApi
from local.layout import Layout
from local.process import LocalError, wait_until
from local.progress import say, step
from local.stack import Stack
from local.watch import Watch

DAG_ID = "alignment_refresh"
_ACTIVE = ("queued", "running")


@dataclass(frozen=True)
class Wish:
    """What `make demo` was asked for. Without a method the recipe decides."""

    recipe: str
    method: str | None
    auto: bool

    @property
    def conf(self) -> dict[str, Any]:
        return {"recipe": self.recipe, "auto": self.auto, **({"method": self.method} if self.method else {})}


def run(stack: Stack, wish: Wish) -> int:
    """Bring everything up, run the chain, report. 0 if the run ended well."""
    stack.up()
    fetch.fetch(stack.layout, fetch.sources_of(stack.layout, wish.recipe))
    _estimate(stack, wish)
    requester = stack.api("requester")
    run_id = _begin(requester, wish)
    watch = Watch(stack, DAG_ID, run_id, wish.auto)
    say(f"the run: {watch.address}")
    say("to look at it, log in as `requester`; `python -m local secret requester` shows the password")
    begin = time.monotonic()
    state = watch.follow()
    if state != "success":
        watch.explain()
        outcome = watch.xcom("outcome") or "no outcome is named"
        print(f"\nThe run {run_id} ended as {state} after {run_view.duration(time.monotonic() - begin)}: {outcome}.")
        return 1
    _report(stack, watch, wish, time.monotonic() - begin)
    return 0


def _begin(api: AirflowApi, wish: Wish) -> str:
    """The id of the run: one with the same wish that is under way, or a new one."""
    _await_dag(api)
    query = "&".join(f"state={state}" for state in _ACTIVE)
    for known in api.get(f"/dags/{DAG_ID}/dagRuns?{query}&limit=50")["dag_runs"]:
        if known["conf"] == wish.conf:
            say("such a run is under way already: following it")
            return str(known["dag_run_id"])
    api.request("PATCH", f"/dags/{DAG_ID}", {"is_paused": False})
    run_id = f"demo-{wish.recipe.replace('@', '-')}-{wish.method or 'as-configured'}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    api.request("POST", f"/dags/{DAG_ID}/dagRuns", {"dag_run_id": run_id, "logical_date": None, "conf": wish.conf})
    return run_id


def _await_dag(api: AirflowApi) -> None:
    def parsed() -> bool:
        answer = api.request("GET", f"/dags/{DAG_ID}", accept=(404,))
        if "dag_id" not in answer:
            errors = api.get("/importErrors")["import_errors"]
            if any(DAG_ID in error["filename"] for error in errors):
                raise LocalError("\n".join(f"{error['filename']}:\n{error['stack_trace']}" for error in errors))
        return "dag_id" in answer

    with step(f"waiting for Airflow to read {DAG_ID}"):
        wait_until(f"the DAG {DAG_ID}", parsed, timeout_s=180, every_s=1.0, hint="Is there a dags/ folder? `make status` shows the rest.")


def _report(stack: Stack, watch: Watch, wish: Wish, seconds: float) -> None:
    outcome = str(watch.xcom("outcome") or "done")
    print(f"\n{outcome}, after {run_view.duration(seconds)}.\n")
    if "released" in outcome:
        champion = f"champion:{registered_name(stack.layout, wish.recipe)}"
        # A run that found its model released already has asked for nothing: the gates that let it through are the champion's.
        _cli(stack, "gates", watch.run_id if outcome.startswith("released") else champion)
        _cli(stack, "lineage", champion)
    about = stack.description()
    print("Where to look further:")
    print(f"  the run, stage by stage    {watch.address}")
    print(f"  models and metrics         {about['mlflow']['url']}/#/models")
    if about["annotation"]:
        print(f"  comparisons                {about['annotation']['url']}/annotate")
    print("  what came from what        bin/align lineage REF   bin/align impact label:ID   bin/align ledger")
    print("  from here                  make status   make stop   make demo METHOD=ppo")


def registered_name(layout: Layout, recipe: str) -> str:
    """Under which name the recipe's models are registered."""
    text = (layout.root / "configs/recipes" / f"{recipe.partition('@')[0]}.yaml").read_text("utf-8")
    found = re.search(r"\bregistered_name:\s*([\w.-]+)", text)
    if found is None:
        raise LocalError(f"recipe {recipe} says no release.registered_name")
    return found[1]


def _estimate(stack: Stack, wish: Wish) -> None:
    """What it will cost, before it is begun. A recipe that tells too little for that is run all the same."""
    cluster = stack.environment().get("ALIGN_CLUSTER", "local")
    method = ("--method", wish.method) if wish.method else ()
    if _cli_code(stack, "estimate", wish.recipe, "--cluster", cluster, *method):
        say("nothing is estimated; the reason stands above")


def _cli(stack: Stack, *words: str) -> None:
    """Run the project's own command line in the stack's environment; its answer goes to the terminal."""
    if code := _cli_code(stack, *words):
        raise LocalError(f"the run is done, but `bin/align {' '.join(words)}` ended with {code}")


def _cli_code(stack: Stack, *words: str) -> int:
    env = process_environment(stack.environment(), stack.layout)
    done = subprocess.run([str(stack.layout.python), "-m", "include.cli", *words], env=env, cwd=stack.layout.root, check=False)
    print(flush=True)
    return done.returncode
