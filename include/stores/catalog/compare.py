"""Two things side by side: how the stages behind them were set up, which data only one of them learnt from, and how gates judged them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from include.stores.catalog.lineage import Node
from include.stores.catalog.render import short

if TYPE_CHECKING:
    from include.stores.catalog.facade import Catalog

Pair = tuple[Any, Any]
_ABSENT = "–"


@dataclass(frozen=True)
class Comparison:
    """What differs between `first` and `second`; values in that order, None where one of them has none.

    stages: stage → setting or pin → both values. data: (only behind the first, only behind the second), named.
    shared: how many datasets and artifacts are behind both. gates: ``gate against baseline`` → (estimate, verdict) of each.
    seconds: job and GPU seconds of each.
    """

    first: str
    second: str
    stages: Mapping[str, Mapping[str, Pair]]
    data: tuple[tuple[str, ...], tuple[str, ...]]
    shared: int
    gates: Mapping[str, Pair]
    seconds: Mapping[str, tuple[float, float]]

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "stages": {stage: dict(found) for stage, found in self.stages.items()}, "gates": dict(self.gates)}


def compare(catalog: "Catalog", first: str, second: str) -> Comparison:
    """Compares what `Lineage.trace` takes.

    Raises:
        NotFound: nothing of one of the names is in the catalog.
    """
    trees = catalog.lineage.trace(first), catalog.lineage.trace(second)
    setups = _setups(trees[0]), _setups(trees[1])
    stages = {}
    for stage in dict.fromkeys([*setups[0], *setups[1]]):
        found = _different(setups[0].get(stage, {}), setups[1].get(stage, {}))
        if found:
            stages[stage] = found
    behind = tuple({node.ref: node for node in tree.walk() if node.kind in ("dataset", "source")} for tree in trees)
    costs = catalog.costs.of(first), catalog.costs.of(second)
    return Comparison(
        first,
        second,
        stages,
        (_only(behind[0], behind[1]), _only(behind[1], behind[0])),
        len(set(behind[0]) & set(behind[1])),
        _different(_judged(catalog, trees[0].ref), _judged(catalog, trees[1].ref)),
        {field: (costs[0].total(field), costs[1].total(field)) for field in ("job_seconds", "gpu_seconds")},
    )


def _setups(tree: Node) -> dict[str, dict[str, Any]]:
    """stage → its settings and pins, flat; of several runs of a stage the one nearest to the thing itself, which `walk` meets first."""
    found: dict[str, dict[str, Any]] = {}
    for node in tree.walk():
        for production in node.made:
            if production.stage is not None and production.committed:
                found.setdefault(production.stage, {**flat(production.config), **production.pins})
    return found


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level: ``optimiser.betas`` → value."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return out


def _different(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Pair]:
    return {name: (one.get(name), other.get(name)) for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)}


def _only(mine: Mapping[str, Node], others: Mapping[str, Node]) -> tuple[str, ...]:
    return tuple(sorted(", ".join(node.names) or ref for ref, node in mine.items() if ref not in others))


def _judged(catalog: "Catalog", deployment: str) -> dict[str, Pair]:
    """By the newest report: estimate and verdict of every gate that was decided."""
    reports = catalog.measurements.reports_of(deployment)
    results = reports[-1].body["results"] if reports else []
    return {
        f"{found['name']} against {found['against']}" if found["against"] else found["name"]: (found["estimate"], found["verdict"])
        for found in results
    }


def render_comparison(found: Comparison) -> str:
    """As text; only what differs."""
    lines = [f"1: {found.first}", f"2: {found.second}"]
    for stage, settings in found.stages.items():
        lines += [f"{stage}", *(f"  {name}: {_shown(a)} | {_shown(b)}" for name, (a, b) in settings.items())]
    if not found.stages:
        lines.append("the stages behind them were set up alike")
    lines.append(f"data: {found.shared} behind both")
    for number, names in enumerate(found.data, 1):
        lines += [f"  only behind {number}: {name}" for name in names]
    lines += list(_gate_lines(found.gates))
    for field, (a, b) in found.seconds.items():
        lines.append(f"{field.removesuffix('_seconds')} hours: {a / 3600:.3f} | {b / 3600:.3f}")
    return "\n".join(lines)


def _gate_lines(gates: Mapping[str, Pair]) -> Iterator[str]:
    if gates:
        yield "gates"
    for name, sides in gates.items():
        told = (_ABSENT if side is None else f"{'–' if side[0] is None else format(side[0], '+.3f')} {side[1]}" for side in sides)
        yield f"  {name}: {' | '.join(told)}"


def _shown(value: Any) -> str:
    return _ABSENT if value is None else short(str(value))
