"""Phases chained by assets, so that a person can start anywhere.

Each phase ends by emitting its asset; the event carries the state of the chain so far: what the run is, and every phase's references.
The next phase takes the state from the events that triggered it, from `state` in its configuration, or, started by hand, from the newest
event of its recipe. Several events in one run: the newest of each recipe counts, one is handled here and each other in a run of its own.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from airflow.sdk import Asset, Metadata, get_current_context, task

from include.flows.errors import FlowError

DATASETS = Asset(uri="x-alignment://datasets", name="alignment_datasets", group="alignment")
SFT = Asset(uri="x-alignment://sft", name="alignment_sft", group="alignment")
PREFERENCES = Asset(uri="x-alignment://preferences", name="alignment_preferences", group="alignment")
REWARD_MODEL = Asset(uri="x-alignment://reward_model", name="alignment_reward_model", group="alignment")
POLICY = Asset(uri="x-alignment://policy", name="alignment_policy", group="alignment")

State = dict[str, Any]


def newest_by_recipe(states: list[State]) -> list[State]:
    """The last state of each recipe, in the order in which they came."""
    newest: dict[str, State] = {}
    for state in states:
        newest.pop(state["run"]["recipe"], None)
        newest[state["run"]["recipe"]] = state
    return list(newest.values())


def _states(events: Any) -> list[State]:
    return [dict(event.extra["state"]) for event in events if "state" in (event.extra or {})]


def choose(params: Mapping[str, Any], triggering: list[State], known: list[State], source: str) -> list[State]:
    """The states that a run of a phase handles.

    Raises:
        FlowError: there is none; it names the DAG to run first.
    """
    if params.get("state"):
        return [dict(params["state"])]
    if triggering:
        return newest_by_recipe(triggering)
    wanted = params.get("recipe")
    of_recipe = [state for state in known if not wanted or state["run"]["recipe"] == wanted]
    if not of_recipe:
        raise FlowError(f"there is no {source} yet{f' of recipe {wanted}' if wanted else ''}: run the DAG before this one first")
    return [of_recipe[-1]]


def asked_for_by(run: Mapping[str, Any], person: str | None) -> dict[str, Any]:
    """`run` with who started this phase by hand as the one who asks. Whoever asked before still counts as an asker: none of them approves."""
    if not person or person == run["requested_by"]:
        return dict(run)
    before = [name for name in (run["requested_by"], *run.get("also_requested_by", ())) if name != person]
    return {**run, "requested_by": person, "also_requested_by": before}


def start(asset: Asset) -> Any:
    """The first task of a phase: its state, with this run's own id in it."""

    @task(task_id="start", multiple_outputs=True, inlets=[asset], retries=1)
    def start_phase(**context: Any) -> State:
        from include.flows.benches import bench_of

        triggering = [s for _, events in (context.get("triggering_asset_events") or {}).items() for s in _states(events)]
        known = [] if triggering else _states(context["inlet_events"][asset])
        first, *others = choose(context["params"], triggering, known, asset.name)
        first["run"] = {**first["run"], "run_id": context["dag_run"].run_id, "dag_id": context["dag_run"].dag_id}
        first["run"] |= {name: context["params"][name] for name in ("method", "ask_again") if context["params"].get(name)}
        first["run"] = asked_for_by(first["run"], getattr(context["dag_run"], "triggering_user_name", None))
        bench_of(first["run"])
        context["ti"].xcom_push(key="others", value=[{"state": other} for other in others])
        return first

    return start_phase()


@task(retries=2)
def others(**context: Any) -> list[dict[str, Any]]:
    """Configurations of the further runs that this phase needs (none, mostly)."""
    return list(context["ti"].xcom_pull(task_ids="start", key="others") or [])


def emit(asset: Asset, state: Any, **results: Any) -> Any:
    """The last task of a phase: emits the asset with the state so far and this phase's results."""

    @task(task_id="emit", outlets=[asset], retries=2)
    def emit_state(state: Any, results: Any) -> Iterator[Metadata]:
        yield Metadata(asset, extra={"state": {**state, **results}, "run_id": get_current_context()["dag_run"].run_id})

    return emit_state(state, results)
