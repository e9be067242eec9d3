"""What a committed evaluation gave, and the gates that read it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from include.flows import services
from include.flows.errors import FlowError
from include.settings.catalogue import recipe, versioned

if TYPE_CHECKING:
    from include.gates.policies import GateSet
    from include.stores.catalog.runs import Output

Json = Mapping[str, Any]


def measurements_of(result: Json, output: str = "measurements") -> dict[str, Any]:
    """measurements.json of a committed run, read from the store and checked against its manifest."""
    store = services.store()
    path = outputs_of(result["key"])[output].path
    manifest = store.outputs(result["key"], result["attempt"])[output]
    store.verify_small(path, manifest, limit_bytes=512 << 20)
    found: dict[str, Any] = store.read_json(f"{path}/measurements.json")
    return found


def answers_of(result: Json) -> dict[str, Any]:
    """answers.json of an evaluation whose suites are compared side by side, checked like its measurements.

    Raises:
        FlowError: the evaluation gave no answers.
    """
    store, outputs = services.store(), outputs_of(result["key"])
    if "answers" not in outputs:
        raise FlowError(f"evaluation {result['key']} gave no answers: no suite of it has the scorer human_win_rate")
    path = outputs["answers"].path
    store.verify_small(path, store.outputs(result["key"], result["attempt"])["answers"], limit_bytes=512 << 20)
    found: dict[str, Any] = store.read_json(f"{path}/answers.json")
    return found


def outputs_of(key: str) -> Mapping[str, "Output"]:
    """What a committed run gave, by name.

    Raises:
        FlowError: it is not committed.
    """
    done = services.catalog().runs.committed(key)
    if done is None:
        raise FlowError(f"{key} is not committed: clear the task that computes it")
    return done.outputs


def gate_set(run: Json) -> "GateSet":
    """The gates of a run's recipe."""
    from include.gates.policies import policies_from

    return policies_from(versioned("gates", recipe(run["recipe"]).gates))
