"""Strict, frozen settings; every training setting says whether it is identity or placement.

Identity settings say what a result *is* and move its key. Placement settings say where and how it is made (cluster, batch on the
device, intervals) and may change between attempts of one key.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

_MARK = "align"
_UNSAID = "unsaid"
_PLACEMENT = ("placement", "placement-added")


class Settings(BaseModel):
    """Base of all settings: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, allow_inf_nan=False, validate_default=True)


def identity(default: Any = ..., **constraints: Any) -> Any:
    """A field that is part of a result's identity. A field added later must leave keys alone at its default: see `identity_config`."""
    return Field(default, json_schema_extra={_MARK: "identity"}, **constraints)


def added_identity(default: Any, *, unsaid: Any = None, **constraints: Any) -> Any:
    """An identity field added after the first release: left out of the key while it holds `unsaid`, so that no key moves.

    Args:
        unsaid: what a configuration without the field means to the program; `default` unless told, which is what a recipe without it means.
    """
    extra: dict[str, Any] = {_MARK: "identity-added"} if unsaid is None else {_MARK: "identity-added", _UNSAID: unsaid}
    return Field(default, json_schema_extra=extra, **constraints)


def placement(default: Any = ..., **constraints: Any) -> Any:
    """A field that says where or how, never what."""
    return Field(default, json_schema_extra={_MARK: "placement"}, **constraints)


def added_placement(default: Any, **constraints: Any) -> Any:
    """A placement field added after the first release: left out of a recipe's digest while it holds `default`."""
    return Field(default, json_schema_extra={_MARK: "placement-added"}, **constraints)


def mark_of(field: FieldInfo) -> str | None:
    extra = field.json_schema_extra
    return str(extra[_MARK]) if isinstance(extra, dict) and _MARK in extra else None


def unsaid_of(field: FieldInfo) -> Any:
    """The value at which an added field is left out of keys and digests."""
    extra = field.json_schema_extra
    return extra.get(_UNSAID, field.default) if isinstance(extra, dict) else field.default


def identity_config(settings: Settings) -> dict[str, Any]:
    """The identity settings of one stage as plain JSON, with nested settings whole but for added fields that go unsaid."""
    out: dict[str, Any] = {}
    dumped = settings.model_dump(mode="json")
    for name, field in type(settings).model_fields.items():
        mark, value = mark_of(field), getattr(settings, name)
        if mark == "identity" or (mark == "identity-added" and value != unsaid_of(field)):
            out[name] = _without_added(value, dumped[name])
    return out


def _without_added(value: Any, dumped: Any) -> Any:
    """`dumped` without the fields that nested settings got after the first release, where they go unsaid."""
    if isinstance(value, (list, tuple)):
        return [_without_added(item, plain) for item, plain in zip(value, dumped, strict=True)]
    if not isinstance(value, Settings):
        return dumped
    fields = type(value).model_fields
    kept = {name: getattr(value, name) for name, f in fields.items() if not _added(f) or getattr(value, name) != unsaid_of(f)}
    return {name: _without_added(item, dumped[name]) for name, item in kept.items()}


def _added(field: FieldInfo) -> bool:
    return mark_of(field) in ("identity-added", "placement-added")


def stable_form(settings: Settings) -> Any:
    """All settings as plain JSON, but for added fields that go unsaid: what a digest is taken of, so that a new release moves none."""
    return _without_added(settings, settings.model_dump(mode="json"))


def placement_config(settings: Settings) -> dict[str, Any]:
    """The placement settings of one stage as plain JSON."""
    dumped = settings.model_dump(mode="json")
    return {name: dumped[name] for name, field in type(settings).model_fields.items() if mark_of(field) in _PLACEMENT}


def unmarked(model: type[Settings]) -> Iterator[str]:
    """Names of fields that say neither identity nor placement (a test refuses them in stage settings)."""
    return (name for name, field in model.model_fields.items() if mark_of(field) is None)
