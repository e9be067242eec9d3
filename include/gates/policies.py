"""From a plain mapping (a file of configs/gates) to a GateSet. Whatever is not known is refused with what would have been."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from include.gates.errors import GateError
from include.gates.policy import GatePolicy, GateSet, SliceRule

_TOP = ("name", "version", "demonstration", "defaults", "gates", "not_built")
_DEFAULTS = ("alpha", "min_n", "on_missing")
_GATE = tuple(f.name for f in fields(GatePolicy))
_SLICE = tuple(f.name for f in fields(SliceRule))
_TYPES: Mapping[str, tuple[type, ...]] = {
    "margin": (int, float),
    "alpha": (int, float),
    "min_n": (int,),
    "version": (int,),
    "demonstration": (bool,),
}


def policies_from(data: Mapping[str, Any]) -> GateSet:
    """The gate set that `data` describes.

    ``{name, version, demonstration, defaults: {alpha, min_n, on_missing}, gates: [{name, group, metric, …}], not_built:
    {group: reason}}``; `against` may be one baseline or a list.

    Raises:
        GateError: an unknown, missing or ill-typed field, or a set that would let a mere copy through.
    """
    _known(data, _TOP, "gates file")
    defaults = _mapping(data.get("defaults", {}), "defaults")
    _known(defaults, _DEFAULTS, "defaults")
    gates = data.get("gates")
    if not isinstance(gates, list) or not gates:
        raise GateError(f"gates: expected a list of at least one gate, got {gates!r}")
    not_built = _mapping(data.get("not_built", {}), "not_built")
    return GateSet(
        name=_typed(data, "name", "gates file"),
        version=_typed(data, "version", "gates file"),
        demonstration=_typed(data, "demonstration", "gates file"),
        gates=tuple(_gate(gate, defaults, f"gates[{i}]") for i, gate in enumerate(gates)),
        not_built={group: _text(reason, f"not_built.{group}") for group, reason in not_built.items()},
    )


def _gate(data: Any, defaults: Mapping[str, Any], where: str) -> GatePolicy:
    given = _mapping(data, where)
    _known(given, _GATE, where)
    where = f"{where} ({given['name']})" if isinstance(given.get("name"), str) else where
    merged = {**defaults, **given}
    for required in ("name", "group", "metric", "kind"):
        _typed(merged, required, where)
    values = {name: _typed(merged, name, where) for name in merged if name not in ("against", "slices")}
    for name in ("margin", "alpha"):
        if name in values:
            values[name] = float(values[name])
    against = merged.get("against", [])
    roles = [against] if isinstance(against, str) else against
    if not isinstance(roles, list):
        raise GateError(f"{where}.against: expected a baseline or a list of them, got {against!r}")
    slices = tuple(_slice(item, f"{where}.slices[{i}]") for i, item in enumerate(merged.get("slices", [])))
    return GatePolicy(**values, against=tuple(_text(role, f"{where}.against") for role in roles), slices=slices)


def _slice(data: Any, where: str) -> SliceRule:
    given = _mapping(data, where)
    _known(given, _SLICE, where)
    return SliceRule(_typed(given, "by", where), float(_typed(given, "margin", where)), _typed(given, "min_n", where))


def _known(data: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    if unknown := sorted(str(key) for key in data if key not in names):
        raise GateError(f"{where}: {unknown[0]!r} is not known; it may have {', '.join(sorted(names))}")


def _typed(data: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in data:
        raise GateError(f"{where}: {name} is missing; it has {', '.join(sorted(data)) or 'nothing'}")
    value, wanted = data[name], _TYPES.get(name, (str,))
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise GateError(f"{where}.{name}: {value!r} is not {' or '.join(kind.__name__ for kind in wanted)}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise GateError(f"{where}: {value!r} is not text")
    return value


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise GateError(f"{where}: expected a mapping, got {value!r}")
    return value
