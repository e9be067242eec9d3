"""Measurements as a table: one row for what one metric found of one role on one suite, values per item kept."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from include.domain.canonical import digest
from include.gates.errors import GateError

SCHEMA = "align/measurements/v1"
_IDENTITY = ("model", "deployment", "suite", "suite_digest", "metric", "scorer", "generation", "backend")


@dataclass(frozen=True)
class ItemValue:
    """One item's value; `group` is what is resampled or clustered as one (the prompt's group)."""

    id: str
    group: str
    value: float
    slices: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """One row, with everything that must be equal before it is compared with another.

    deployment: empty for what is never deployed (a reward model). against: of a pairwise metric, the role beside which it was measured;
    its deployment is part of `scorer`. bench: of a run in which a deployment has an engine of its own: environment and device, which all
    deployments of the run share.
    """

    role: str
    model: str
    deployment: str
    suite: str
    suite_digest: str
    metric: str
    scorer: str
    generation: str
    backend: str
    items: tuple[ItemValue, ...]
    against: str = ""
    refused: tuple[str, str] | None = None
    """Why its values must not be used, as (cause, message), where whoever measured it says so."""
    bench: str = ""

    def same_backend(self, other: "Measurement") -> bool:
        """Whether its numbers were computed alike, or on one bench by the engines that are compared."""
        return self.backend == other.backend or (self.bench != "" and self.bench == other.bench)

    @property
    def identity(self) -> str:
        """Names what was measured of which deployment, and how."""
        return digest("measurement", {name: getattr(self, name) for name in _IDENTITY})


@dataclass(frozen=True)
class MeasurementTable:
    """All rows of one evaluation."""

    rows: tuple[Measurement, ...]

    def find(self, role: str, metric: str, suite: str | None, against: str = "") -> Measurement | None:
        """The row, or None. Without `suite` the metric's only one (latency)."""
        found = [r for r in self.rows if (r.role, r.metric, r.against) == (role, metric, against) and suite in (None, r.suite)]
        if len(found) > 1:
            raise GateError(f"{metric} of {role} was measured on {', '.join(sorted(r.suite for r in found))}: the gate must name one suite")
        return found[0] if found else None


def table_from(data: Mapping[str, Any]) -> MeasurementTable:
    """Reads measurements.json.

    Raises:
        GateError: another schema, a row without a field, one measured twice, an item twice, or a value that is no number.
    """
    if data.get("schema") != SCHEMA:
        raise GateError(f"measurements have schema {data.get('schema')!r}, expected {SCHEMA!r}")
    rows = [*_metric_rows(data.get("rows", [])), *_latency_rows(data.get("latency", []))]
    seen: set[tuple[str, str, str, str]] = set()
    for row in rows:
        key = (row.role, row.metric, row.suite, row.against)
        if key in seen:
            raise GateError(f"{row.metric} of {row.role} on {row.suite} stands twice in the measurements")
        seen.add(key)
    return MeasurementTable(tuple(rows))


def _metric_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[Measurement]:
    for i, row in enumerate(rows):
        where = f"rows[{i}]"
        yield _measurement(row, str(_of(row, "metric", where)), _items(_of(row, "items", where), "value", where), where)


def _latency_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[Measurement]:
    """Latency is a metric like the others: seconds of each request. Speed and cost follow from it, where every answer has tokens."""
    for i, row in enumerate(rows):
        where = f"latency[{i}]"
        samples = _of(row, "samples", where)
        timed = _measurement(row, "latency_s", _items(samples, "seconds", where), where)
        yield timed
        tokens = {str(sample["id"]): sample.get("tokens") or 0 for sample in samples}
        if all(tokens[item.id] > 0 and item.value > 0 for item in timed.items):
            speed = [replace(item, value=tokens[item.id] / item.value) for item in timed.items]
            yield replace(timed, metric="tokens_per_s", items=tuple(speed))
            devices = int(row.get("devices") or 1)
            cost = [replace(item, value=1000 * devices * item.value / tokens[item.id]) for item in timed.items]
            yield replace(timed, metric="device_s_per_1k_tokens", items=tuple(cost))


def _measurement(row: Mapping[str, Any], metric: str, items: tuple[ItemValue, ...], where: str) -> Measurement:
    names = ("role", "model", "suite", "suite_digest", "scorer", "generation", "backend")
    deployment = str(row.get("deployment") or "")
    against = str(row.get("against") or "")
    refused = (str(row["refused"]["cause"]), str(row["refused"]["message"])) if row.get("refused") else None
    plain = {name: str(_of(row, name, where)) for name in names}
    return Measurement(
        metric=metric, items=items, deployment=deployment, against=against, refused=refused, bench=str(row.get("bench") or ""), **plain
    )


def _items(values: Sequence[Mapping[str, Any]], field_name: str, where: str) -> tuple[ItemValue, ...]:
    items, seen = [], set()
    for j, item in enumerate(values):
        place = f"{where}.items[{j}]"
        name, value = str(_of(item, "id", place)), _of(item, field_name, place)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise GateError(f"{place}.{field_name}: {value!r} is not a finite number")
        if name in seen:
            raise GateError(f"{place}: item {name} stands twice")
        seen.add(name)
        items.append(ItemValue(name, str(_of(item, "group", place)), float(value), dict(item.get("slices") or {})))
    return tuple(items)


def _of(row: Mapping[str, Any], name: str, where: str) -> Any:
    if row.get(name) is None:
        raise GateError(f"{where}: {name} is missing; it has {', '.join(sorted(row))}")
    return row[name]
