"""The parts of a planned run as plans of their own, and the plan of the whole that takes what they gave."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from include.domain.parts import TAKEN, parts_of
from include.stages.plan import Plan

CUTS = ("shards", "members", "parts")
"""Placement settings by which a run is cut."""
ONLY_JOINS = ("generate",)
"""Stages whose whole has nothing to compute when its parts are there."""


@dataclass(frozen=True)
class PlannedPart:
    """One part, ready to be placed. `output`: which of its artifacts the whole takes; `beside`: others that it takes with it."""

    name: str
    output: str
    plan: Plan
    beside: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.plan.key


@dataclass(frozen=True)
class Taken:
    """What a committed part gave: its key, and the artifact's digest and absolute path on the cluster.

    beside: the same of what is taken with it, by the output's name, as {artifact, path}.
    """

    key: str
    artifact: str
    path: str
    beside: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        beside = {"beside": {name: dict(place) for name, place in self.beside.items()}} if self.beside else {}
        return {"key": self.key, "artifact": self.artifact, "path": self.path, **beside}


def planned_parts(whole: Plan) -> tuple[PlannedPart, ...]:
    """The plans of the parts, placed as the whole is; none where it is made in one."""
    settings = {name: value for name, value in whole.settings.items() if name not in CUTS}
    return tuple(
        PlannedPart(
            part.name,
            part.output,
            Plan(part.spec, {name: whole.artifacts[source] for name, source in part.sources.items()}, settings, whole.job),
            part.beside,
        )
        for part in parts_of(whole.spec, whole.settings)
    )


def taking(whole: Plan, parts: Mapping[str, Taken]) -> Plan:
    """The whole, made of its parts (by name). Its key stays what it is."""
    given = {name: part.to_json() for name, part in parts.items()}
    job = whole.job
    if whole.spec.stage in ONLY_JOINS:
        job = job.model_copy(update={"nodes": 1, "tasks": 1, "gpus": 0, "heavy": False})
    return replace(whole, settings={**whole.settings, TAKEN: given}, job=job)
