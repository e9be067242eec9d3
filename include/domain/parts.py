"""A run made in parts: each a run of its own, with its own key, so that a finished one is reused and an unfinished one resumes.

How a run is cut is placement: the whole has the same key and gives the same bytes, cut or not. Which parts follow from a
specification is said here once: the control plane plans them, and the whole's job compares what it is given with it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from include.domain.errors import SpecError
from include.domain.spec import RunSpec

PART = "part"
"""config.part: says that a run is a part of another."""
TAKEN = "taken"
"""placement.settings.taken: name → {key, path, artifact} of the parts that the whole is made of; beside: output → {path, artifact} of what it takes with it."""
ALONE = "model"
"""The role of the one model that a part of an evaluation measures: whatever role it has in the whole, its part is the same."""


@dataclass(frozen=True)
class Part:
    """One part. `output`: which of its artifacts the whole takes; `beside`: others that it takes with it. `sources`: its inputs' names
    in the whole."""

    name: str
    spec: RunSpec
    output: str
    sources: Mapping[str, str]
    beside: tuple[str, ...] = ()


def parts_of(spec: RunSpec, settings: Mapping[str, Any]) -> tuple[Part, ...]:
    """The parts of a run under these placement settings, by different keys; none where it is made in one.

    settings: `shards` (generate), `members` (reward_model) and `parts` (evaluate); others are not looked at.

    Raises:
        SpecError: parts are asked for that this run cannot have.
    """
    if PART in spec.config:
        return ()
    if spec.stage == "generate" and int(settings.get("shards") or 1) > 1:
        return tuple(_shares(spec, int(settings["shards"])))
    if spec.stage == "reward_model" and settings.get("members") == "array" and spec.config.get("seeds"):
        return tuple(_member(spec, seed) for seed in spec.config["seeds"])
    if spec.stage == "evaluate" and settings.get("parts"):
        return tuple(_models(spec))
    return ()


def _shares(spec: RunSpec, count: int) -> Iterator[Part]:
    """Part i of n answers the portions i, i + n, i + 2n … of the whole's."""
    for index in range(count):
        config = {**spec.config, PART: {"index": index, "of": count}}
        sources = {name: name for name in spec.inputs}
        yield Part(f"{index + 1} of {count}", _with(spec, config), "candidates", sources, ("log_probs",))


def _member(spec: RunSpec, seed: int) -> Part:
    """A plain reward model of this seed: every recipe that asks for it has the same key."""
    config = {name: value for name, value in spec.config.items() if name != "seeds"}
    return Part(f"seed {seed}", replace(_with(spec, config), seed=seed), "reward_model", {name: name for name in spec.inputs})


def _models(spec: RunSpec) -> Iterator[Part]:
    """A part for each deployment, under whatever roles; latency is none of theirs, as it is measured side by side."""
    roles: dict[str, list[str]] = {}
    for role in sorted(spec.config["measure"]):
        roles.setdefault(spec.config["deployments"][role]["digest"], []).append(role)
    for same in roles.values():
        role = same[0]
        sources = {name: name for name in spec.inputs if not name.startswith("model_")} | {f"model_{ALONE}": f"model_{role}"}
        left_out = ("measure", "latency", "latency_requests", "deployments")
        kept = {name: value for name, value in spec.config.items() if name not in left_out}
        config = {**kept, "measure": [ALONE], "latency": [], "deployments": {ALONE: spec.config["deployments"][role]}, PART: True}
        inputs = {name: spec.inputs[source] for name, source in sources.items()}
        yield Part(", ".join(same), replace(_with(spec, config), inputs=inputs), "findings", sources)


def _with(spec: RunSpec, config: Mapping[str, Any]) -> RunSpec:
    if spec.config == config:
        raise SpecError(f"{spec.stage}: a part would be the whole itself")
    return replace(spec, config=config)
