"""The parts of a planned run as plans of their own, and the plan of the whole that takes what they gave."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from include.domain.parts import TAKEN, parts_of
from include.stages.plan import Plan

CUTS = ("shards", "members", "parts")
"""Placement settings by which a run is cut."""
ONLY_JOINS = ("generate",)
"""Stages whose whole has nothing to compute when its parts are there."""


@dataclass(frozen=True)
class PlannedPart:
    """One part, ready to be placed. `output`: which of its artifacts the whole takes."""

    name: str
    output: str
    plan: Plan

    @property
    def key(self) -> str:
        return self.plan.key


@dataclass(frozen=True)
class Taken:
    """What a committed part gave: its key, and the artifact's digest and absolute path on the cluster."""

    key: str
    artifact: str
    path: str


def planned_parts(whole: Plan) -> tuple[PlannedPart, ...]:
    """The plans of the parts, placed as the whole is; none where it is made in one."""
    settings = {name: value for name, value in whole.settings.items() if name not in CUTS}
    return tuple(
        PlannedPart(
            part.name,
            part.output,
            Plan(part.spec, {name: whole.artifacts[source] for name, source in part.sources.items()}, settings, whole.job),
        )
        for part in parts_of(whole.spec, whole.settings)
    )


def taking(whole: Plan, parts: Mapping[str, Taken]) -> Plan:
    """The whole, made of its parts (by name). Its key stays what it is."""
    given = {name: {"key": part.key, "artifact": part.artifact, "path": part.path} for name, part in parts.items()}
    job = whole.job
    if whole.spec.stage in ONLY_JOINS:
        job = job.model_copy(update={"nodes": 1, "tasks": 1, "gpus": 0, "heavy": False})
    return replace(whole, settings={**whole.settings, TAKEN: given}, job=job)
