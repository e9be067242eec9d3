"""Gates that could not decide, whatever is trained, are refused before anything is computed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from include.domain.records import SuiteItem
from include.domain.slices import item_slices
from include.flows.errors import FlowError
from include.settings.catalogue import versioned
from include.settings.recipes import Recipe

if TYPE_CHECKING:
    from include.gates.fit import Counted
    from include.gates.policy import GatePolicy, GateSet

Json = Mapping[str, Any]
_ON: Mapping[str, Callable[[SuiteItem], bool]] = {
    "over_refusal": lambda item: item.prompt.safety_class == "none",
    "unsafe_refusal": lambda item: item.prompt.safety_class != "none",
    "bbq_ambiguous_named": lambda item: (item.slices or {}).get("context") == "ambiguous",
}
"""Metrics that have a value on some of a suite's items alone, as `include.eval.measurements` gives them."""


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
    policies = policies_from(versioned("gates", found.gates))
    counted = {gate.name: _counted(gate, refs[str(gate.suite)]) for gate in policies.gates if _looked_at(gate) and gate.suite in items}
    _require_panel(found, policies)
    _require_judge(found, policies)
    measured = Measured(suites, found.evaluation.reward_hacking_items, found.evaluation.latency_requests, items, counted)
    if wrong := misfits(policies, measured):
        raise FlowError(f"recipe {found.reference}: gates {found.gates} cannot pass, whatever is trained: {'; '.join(wrong)}")


def _require_panel(found: Recipe, gates: "GateSet") -> None:
    """People are asked exactly where a gate reads what they say, and are enough for it."""
    from include.gates.metrics import HUMAN_WIN_RATE

    asking, panel = [gate for gate in gates.gates if gate.metric == HUMAN_WIN_RATE], found.human_pairwise
    where = f"recipe {found.reference}: gates {found.gates}"
    if bool(asking) != (panel is not None):
        raise FlowError(
            f"{where} read human_win_rate ({asking[0].name}), and the recipe has no `human_pairwise`: say who compares, by which rubric"
            if asking
            else f"{where} have none that reads human_win_rate, and the recipe has a `human_pairwise` panel: nobody would read what it says"
        )
    if panel is not None:
        _require_enough(where, asking, "human_pairwise.human_tasks", panel.human_tasks)


def _require_judge(found: Recipe, gates: "GateSet") -> None:
    """A judge is named exactly where a gate reads it, is there, and people judge some of the same pairs: else nobody knows what it is worth."""
    from include.gates.metrics import HUMAN_WIN_RATE, JUDGE_WIN_RATE
    from include.settings.catalogue import judge

    asking, named = [gate for gate in gates.gates if gate.metric == JUDGE_WIN_RATE], found.model_judge
    where = f"recipe {found.reference}: gates {found.gates}"
    if bool(asking) != (named is not None):
        raise FlowError(
            f"{where} read judge_win_rate ({asking[0].name}), and the recipe has no `model_judge`"
            if asking
            else f"{where} have none that reads judge_win_rate, and the recipe has a `model_judge`: nobody would read what it says"
        )
    if named is None:
        return
    judge(named.judge)
    by_people = {(gate.suite, role) for gate in gates.gates if gate.metric == HUMAN_WIN_RATE for role in gate.against}
    if not any((gate.suite, role) in by_people for gate in asking for role in gate.against):
        raise FlowError(
            f"{where}: people compare nothing that the judge does, so nobody could know what its word is worth: let a gate on human_win_rate "
            f"name a suite and a baseline of {asking[0].name}"
        )
    _require_enough(where, asking, "model_judge.items", named.items)


def _require_enough(where: str, asking: "Sequence[GatePolicy]", setting: str, gives: int) -> None:
    """`gives`: how many items are asked about; 0 is all of them."""
    if small := [gate for gate in asking if gives and gate.min_n > gives]:
        raise FlowError(f"{where}: gate {small[0].name} needs {small[0].min_n} items (min_n), and {setting} gives {gives}")


def _looked_at(gate: "GatePolicy") -> bool:
    return bool(gate.slices) or gate.metric in _ON


def _counted(gate: "GatePolicy", ref: Json) -> "Counted":
    """The stored items that the gate's metric has a value on, and each of its slices."""
    from include.flows.preference_tasks import local_dataset
    from include.gates.fit import Counted
    from include.transforms.datasets_io import read_suite

    stored = (SuiteItem.from_json(row.record) for row in read_suite(local_dataset(ref)))
    items = [item for item in stored if gate.metric not in _ON or _ON[gate.metric](item)]
    slices = {rule.by: Counter(of[rule.by] for of in map(item_slices, items) if rule.by in of) for rule in gate.slices}
    return Counted(len(items), slices)
