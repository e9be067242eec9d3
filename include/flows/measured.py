"""What a committed run gave, as the catalog knows it, and the gates that read an evaluation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from include.flows import services
from include.flows.errors import FlowError
from include.settings.catalogue import recipe, versioned

if TYPE_CHECKING:
    from include.domain.manifest import Manifest
    from include.gates.policies import GateSet
    from include.stores.catalog.runs import Output

Json = Mapping[str, Any]


def measurements_of(result: Json, output: str = "measurements") -> dict[str, Any]:
    """measurements.json of a committed run, as it was committed."""
    return committed_file(result["key"], output, "measurements.json")


def answers_of(result: Json) -> dict[str, Any]:
    """answers.json of an evaluation whose suites are compared side by side, as it was committed.

    Raises:
        FlowError: the evaluation gave no answers.
    """
    if "answers" not in outputs_of(result["key"]):
        raise FlowError(f"evaluation {result['key']} gave no answers: no suite of it has the scorer human_win_rate")
    return committed_file(result["key"], "answers", "answers.json")


def committed_file(key: str, output: str, file: str) -> dict[str, Any]:
    """A JSON file of a committed run, checked against what the catalog knows of it: the job's own folder may have been written to since.

    Raises:
        FlowError: the run is not committed, or the catalog has not what it gave.
        IntegrityError: these are other bytes.
    """
    (path, manifest), store = committed(key, output), services.store()
    store.verify_small(path, manifest, limit_bytes=512 << 20)
    found: dict[str, Any] = store.read_json(f"{path}/{file}")
    return found


def committed(key: str, output: str) -> "tuple[str, Manifest]":
    """Where an output of a committed run lies in the store, and what it must be by the catalog.

    Raises:
        FlowError: the run is not committed, or the catalog has not what it gave.
    """
    out = outputs_of(key)[output]
    known = services.catalog().artifacts.get(out.digest)
    if known is None:
        raise FlowError(f"{output} of {key} are {out.digest}, which the catalog does not know")
    return out.path, known.manifest


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
    """The gates of a run's recipe, with what it asks of a model judge."""
    from include.gates.policies import policies_from

    found = recipe(run["recipe"])
    gates = policies_from(versioned("gates", found.gates))
    return gates if found.model_judge is None else replace(gates, judge_rules=found.model_judge.rules)
