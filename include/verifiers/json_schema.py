"""JSON that fits a schema: a subset of JSON Schema 2020-12 whose check takes time linear in schema × text.

Known keywords are those of `_CHECKS`; a schema with another one is refused, never half checked. `pattern` and `$ref` are left out on
purpose: the first can take for ever, the second can go in circles. Written here because the cluster's environment holds no library
for it, and none bounds its time; the tests hold it against jsonschema.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sized
from typing import Any

from include.verifiers.errors import VerifierError
from include.verifiers.result import VerifierResult
from include.verifiers.stated import fields_of

NAME = "json_schema"
VERSION = "1"
MAX_DEPTH = 40
MAX_STEPS = 50_000
"""Comparisons of a value with a schema, large values counted several times; JSON that needs more is wrong."""

_FENCE = re.compile(r"```(?:[jJ][sS][oO][nN])?[ \t]*\n(.*?)```", re.DOTALL)
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_NOTES = ("title", "description", "$schema", "examples", "default")
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: _number(value),
    "integer": lambda value: _number(value) and float(value).is_integer(),
}


class _Stop(Exception):
    """The value does not fit; its text is one word for why."""


def check(expected: Any, text: str) -> VerifierResult:
    """right: the answer, or the one fenced block in it, is JSON that fits the schema. in_form: nothing stands around the JSON.

    Wrong are also: a key that stands twice, NaN, numbers beyond a float, nesting deeper than MAX_DEPTH.

    Args:
        expected: a schema (an object with keywords), or {schema: …}.

    Raises:
        VerifierError: the schema is none, or has a keyword that is not known here.
    """
    whole = expected if isinstance(expected, dict) and set(expected) == {"schema"} else {"schema": expected}
    schema = fields_of(f"{NAME}@{VERSION}", whole, {"schema": (dict, bool)}, "schema")["schema"]
    _check_schema(schema, "schema", 0)
    fenced = _FENCE.findall(text)
    written = fenced[0] if len(fenced) == 1 else text
    try:
        _fits(_parsed(written), schema, [MAX_STEPS])
    except _Stop as stop:
        return VerifierResult(False, not fenced and str(stop) != "no_json", str(stop))
    return VerifierResult(True, not fenced, "right")


def _parsed(text: str) -> Any:
    depth = most = 0
    for sign in _STRINGS.sub("", text):
        depth += (sign in "[{") - (sign in "]}")
        most = max(most, depth)
    if most > MAX_DEPTH:
        raise _Stop("too_deep")
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant, parse_int=_integer, parse_float=_finite)
    except ValueError as error:
        raise _Stop("no_json") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise _Stop("key_twice")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise _Stop("no_json")


def _integer(written: str) -> Any:
    return int(written) if len(written) <= 18 else _finite(written)


def _finite(written: str) -> float:
    value = float(written) if len(written) <= 400 else math.inf
    if not math.isfinite(value):
        raise _Stop("number_too_big")
    return value


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _equal_form(value: Any) -> str:
    """Equal for equal JSON values: 1 and 1.0 are one, true and 1 are two."""
    return json.dumps(_whole(value), sort_keys=True)


def _among(value: Any, asked: Any, steps: list[int]) -> bool:
    form = _equal_form(value)
    _spend(steps, len(form) // 16 + len(asked) // 8)
    return form in {_equal_form(item) for item in asked}


def _unique(value: Any, asked: Any, schema: Any, steps: list[int]) -> bool:
    if not asked or not isinstance(value, list):
        return True
    forms = [_equal_form(item) for item in value]
    _spend(steps, sum(map(len, forms)) // 16)
    return len(set(forms)) == len(forms)


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _spend(steps: list[int], count: int) -> None:
    steps[0] -= count
    if steps[0] < 0:
        raise _Stop("too_big_to_check")


def _fits(value: Any, schema: Any, steps: list[int]) -> None:
    """Raises _Stop where `value` does not fit; `steps`: what is left of the budget."""
    _spend(steps, 1 + (len(value) // 8 if isinstance(value, (dict, list)) else 0))
    if isinstance(schema, bool):
        if not schema:
            raise _Stop("not_allowed")
        return
    for keyword, asked in schema.items():
        if keyword not in _NOTES and not _CHECKS[keyword](value, asked, schema, steps):
            raise _Stop(f"schema_{keyword}")


def _one_fits(value: Any, schemas: list[Any], steps: list[int]) -> int:
    """How many of `schemas` the value fits."""
    found = 0
    for schema in schemas:
        try:
            _fits(value, schema, steps)
            found += 1
        except _Stop as stop:
            if str(stop) == "too_big_to_check":
                raise
    return found


def _properties(value: Any, asked: Any, schema: Any, steps: list[int]) -> bool:
    for name in asked if isinstance(value, dict) else ():
        if name in value:
            _fits(value[name], asked[name], steps)
    return True


def _additional(value: Any, asked: Any, schema: Any, steps: list[int]) -> bool:
    for name in value if isinstance(value, dict) else ():
        if name not in schema.get("properties", {}):
            _fits(value[name], asked, steps)
    return True


def _items(value: Any, asked: Any, schema: Any, steps: list[int]) -> bool:
    for item in value if isinstance(value, list) else ():
        _fits(item, asked, steps)
    return True


def _all(value: Any, asked: Any, schema: Any, steps: list[int]) -> bool:
    return _one_fits(value, asked, steps) == len(asked)


def _sized(kind: type[Sized], holds: Callable[[int, Any], bool]) -> Callable[..., bool]:
    return lambda value, asked, schema, steps: not isinstance(value, kind) or holds(len(value), asked)


def _measured(holds: Callable[[Any, Any], bool]) -> Callable[..., bool]:
    return lambda value, asked, schema, steps: not _number(value) or holds(value, asked)


def _typed(value: Any, asked: Any, schema: Any, steps: list[int]) -> bool:
    return any(_TYPES[name](value) for name in ([asked] if isinstance(asked, str) else asked))


_CHECKS: Mapping[str, Callable[..., bool]] = {
    "type": _typed,
    "enum": lambda value, asked, schema, steps: _among(value, asked, steps),
    "const": lambda value, asked, schema, steps: _among(value, [asked], steps),
    "required": lambda value, asked, schema, steps: not isinstance(value, dict) or set(asked) <= set(value),
    "properties": _properties,
    "additionalProperties": _additional,
    "minProperties": _sized(dict, lambda size, asked: size >= asked),
    "maxProperties": _sized(dict, lambda size, asked: size <= asked),
    "items": _items,
    "minItems": _sized(list, lambda size, asked: size >= asked),
    "maxItems": _sized(list, lambda size, asked: size <= asked),
    "uniqueItems": _unique,
    "minLength": _sized(str, lambda size, asked: size >= asked),
    "maxLength": _sized(str, lambda size, asked: size <= asked),
    "minimum": _measured(lambda value, asked: value >= asked),
    "maximum": _measured(lambda value, asked: value <= asked),
    "exclusiveMinimum": _measured(lambda value, asked: value > asked),
    "exclusiveMaximum": _measured(lambda value, asked: value < asked),
    "anyOf": lambda value, asked, schema, steps: _one_fits(value, asked, steps) > 0,
    "oneOf": lambda value, asked, schema, steps: _one_fits(value, asked, steps) == 1,
    "allOf": _all,
    "not": lambda value, asked, schema, steps: _one_fits(value, [asked], steps) == 0,
}
_LISTS = ("anyOf", "oneOf", "allOf")
_NESTED = ("items", "additionalProperties", "not")


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _fit_for(keyword: str, asked: Any) -> bool:
    """Whether what a schema says under a keyword is of the right kind."""
    if keyword == "type":
        return (isinstance(asked, str) and asked in _TYPES) or (_texts(asked) and bool(asked) and set(asked) <= set(_TYPES))
    if keyword == "required":
        return _texts(asked)
    if keyword in ("enum", *_LISTS):
        return isinstance(asked, list) and bool(asked)
    if keyword == "properties":
        return isinstance(asked, dict)
    if keyword in (*_NESTED, "const"):
        return True
    if keyword == "uniqueItems":
        return isinstance(asked, bool)
    whole = keyword.endswith(("Properties", "Items", "Length"))
    return _number(asked) and (not whole or (isinstance(asked, int) and asked >= 0))


def _check_schema(schema: Any, where: str, depth: int) -> None:
    """Raises VerifierError at the first thing that is not known, or of the wrong kind."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        raise VerifierError(f"{NAME}@{VERSION}: {where} must be an object or a boolean, nested at most {MAX_DEPTH} deep")
    for keyword, asked in schema.items():
        if keyword in _NOTES:
            continue
        if keyword not in _CHECKS:
            raise VerifierError(f"{NAME}@{VERSION}: {where}.{keyword} is not known here; there are {', '.join(_CHECKS)}")
        if not _fit_for(keyword, asked):
            raise VerifierError(f"{NAME}@{VERSION}: {where}.{keyword} is {asked!r:.60}, which is of the wrong kind")
        inner = asked if keyword in _LISTS else asked.values() if keyword == "properties" else [asked] if keyword in _NESTED else []
        for item in inner:
            _check_schema(item, f"{where}.{keyword}", depth + 1)
