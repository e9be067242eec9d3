"""The first step of every run: what is asked, by whom, and whether the services are there."""

from collections.abc import Mapping
from typing import Any

from include.flows import services
from include.flows.errors import FlowError
from include.flows.foretelling import refuse_unaffordable
from include.flows.gates_fit import require_gates_fit
from include.settings.catalogue import cluster, recipe


def resolve_run(params: Mapping[str, Any], run_id: str, dag_id: str, asked_by: str | None, *, whole_chain: bool = False) -> dict[str, Any]:
    """Pins recipe and method for the whole run; of the `whole_chain` each stage must fit the cluster that the run will use.

    Raises:
        SettingsError: an unknown recipe, with the known ones.
        FlowError, RegistryError: gates could not decide on what the recipe measures, a stage cannot fit, or a service is not usable;
            nothing is computed yet.
    """
    found = recipe(str(params["recipe"]))
    method = str(params.get("method") or found.method)
    if method not in ("dpo", "ppo"):
        raise FlowError(f"method {method!r}: dpo or ppo")
    require_gates_fit(found)
    if whole_chain:
        refuse_unaffordable(found, method, cluster())
    services.catalog()
    services.registry().preflight()
    who = asked_by or found.owner
    print(f"{found.reference} ({method}), asked by {who}, recipe {found.digest}")
    return {
        "recipe": found.name,
        "recipe_digest": found.digest,
        "method": method,
        "auto": bool(params.get("auto", False)),
        "ask_again": bool(params.get("ask_again", False)),
        "rerun_salt": str(params.get("rerun_salt") or ""),
        "requested_by": who,
        "run_id": run_id,
        "dag_id": dag_id,
    }
