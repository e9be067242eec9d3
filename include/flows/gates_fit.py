"""Gates that could not decide, whatever is trained, are refused before anything is computed."""

from collections.abc import Mapping
from typing import Any

from include.flows.errors import FlowError
from include.settings.catalogue import versioned
from include.settings.recipes import Recipe


def require_gates_fit(found: Recipe, datasets: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Compares each gate's smallest n, metric and slices with what the recipe measures; with `datasets` also with the items that are there.

    Raises:
        FlowError: naming every gate that can only come out as *inconclusive* or *not evaluated*.
    """
    from include.gates.fit import Measured, misfits
    from include.gates.policies import policies_from

    suites = versioned("suites", found.evaluation.suites)["suites"]
    refs = {name: (datasets or {}).get(suite["dataset"], {}) for name, suite in suites.items()}
    items = {name: sum(ref["counts"].values()) for name, ref in refs.items() if ref.get("counts")}
    measured = Measured(suites, found.evaluation.reward_hacking_items, found.evaluation.latency_requests, items)
    if wrong := misfits(policies_from(versioned("gates", found.gates)), measured):
        raise FlowError(f"recipe {found.reference}: gates {found.gates} cannot pass, whatever is trained: {'; '.join(wrong)}")
