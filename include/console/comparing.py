"""Alignment runs side by side: which parameters, metrics and ancestors differ."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from include.stores.catalog import Catalog
    from include.stores.catalog.lineage import Node
    from include.stores.catalog.requests import Request

_PINS = ("code_revision", "environment", "seed", "tokenizer", "chat_template")


def compare(opened: "Catalog", runs: Sequence["Request"]) -> dict[str, Any]:
    """{"parameters": {"same", "different"}, "metrics", "lineage": {"shared", "only"}}, values by run id."""
    parameters = {run.run_id: _parameters(opened, run) for run in runs}
    names = sorted({name for values in parameters.values() for name in values})
    by_name = {name: {run_id: values.get(name) for run_id, values in parameters.items()} for name in names}
    different = {name: values for name, values in by_name.items() if len({repr(value) for value in values.values()}) > 1}
    same = {name: next(iter(values.values())) for name, values in by_name.items() if name not in different}
    return {
        "runs": [run.run_id for run in runs],
        "parameters": {"same": same, "different": different},
        "metrics": _metrics(opened, runs),
        "lineage": _lineage(opened, runs),
    }


def _parameters(opened: "Catalog", run: "Request") -> dict[str, Any]:
    from include.stores.catalog.compare import flat

    asked, config = run.body["asked"], run.body["config"]
    settings = flat(config["body"][asked["type"]])
    planned = opened.runs.get(run.body["key"])
    pins = {name: getattr(planned.spec, name) for name in _PINS} if planned else {}
    return {**asked, "configDigest": config["digest"], **settings, **pins}


def _metrics(opened: "Catalog", runs: Sequence["Request"]) -> dict[str, dict[str, float | None]]:
    """name → run → value; null where a run is not committed or has no such metric."""
    found = {run.run_id: opened.runs.committed(run.body["key"]) for run in runs}
    measured: dict[str, Mapping[str, float]] = {run_id: done.report.metrics if done else {} for run_id, done in found.items()}
    names = sorted({name for values in measured.values() for name in values})
    return {name: {run_id: values.get(name) for run_id, values in measured.items()} for name in names}


def _lineage(opened: "Catalog", runs: Sequence["Request"]) -> dict[str, Any]:
    behind = {run.run_id: {node.ref: node for node in _ancestors(opened, run)} for run in runs}
    shared = set.intersection(*(set(nodes) for nodes in behind.values()))
    only = {run_id: [_named(node) for ref, node in sorted(nodes.items()) if ref not in shared] for run_id, nodes in behind.items()}
    first = next(iter(behind.values()))
    return {"shared": [_named(first[ref]) for ref in sorted(shared)], "only": only}


def _ancestors(opened: "Catalog", run: "Request") -> list["Node"]:
    """Everything behind a run: behind its policy once there is one, before that behind its inputs."""
    from include.stores.errors import NotFound

    done = opened.runs.committed(run.body["key"])
    if done is not None:
        return opened.lineage.trace(done.outputs["policy"].digest).walk()
    state = run.body["state"]
    data = state["pairs"].get("preferences") or state["datasets"]["rl_prompts"]
    starts = [state["sft"]["outputs"]["policy"]["digest"], data["content_hash"]]
    if run.body["asked"]["type"] == "ppo":
        starts += [out["digest"] for out in state["reward"]["outputs"].values() if out["kind"] == "reward_model"]
    found: list[Node] = []
    for ref in starts:
        try:
            found += opened.lineage.trace(ref).walk()
        except NotFound:
            continue
    return found


def _named(node: "Node") -> dict[str, Any]:
    return {"ref": node.ref, "kind": node.kind, "names": list(node.names)}
