"""A mapping read by typed names: a missing or ill-typed setting is refused by its full name."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from include.domain.errors import SpecError

_MISSING: Any = object()
T = TypeVar("T")


class Settings:
    """Typed reading of spec.config (`where` = "config") or placement.settings."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def number(self, name: str, default: Any = _MISSING) -> float:
        value = self._read(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(name, value, "a number")
        return float(value)

    def integer(self, name: str, default: Any = _MISSING) -> int:
        value = self._read(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, value, "an integer")
        return value

    def positive(self, name: str, default: Any = _MISSING) -> int:
        value = self.integer(name, default)
        if value <= 0:
            raise self._wrong(name, value, "an integer above 0")
        return value

    def text(self, name: str, choices: Sequence[str] | None = None, default: Any = _MISSING) -> str:
        value = self._read(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "text")
        if choices is not None and value not in choices:
            raise self._wrong(name, value, f"one of {', '.join(choices)}")
        return value

    def flag(self, name: str, default: Any = _MISSING) -> bool:
        value = self._read(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def numbers(self, name: str, default: Any = _MISSING) -> list[float]:
        value = self._read(name, default)
        if not isinstance(value, (list, tuple)) or any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in value):
            raise self._wrong(name, value, "a list of numbers")
        return [float(v) for v in value]

    def texts(self, name: str, default: Any = _MISSING) -> list[str]:
        value = self._read(name, default)
        if not isinstance(value, (list, tuple)) or any(not isinstance(v, str) for v in value):
            raise self._wrong(name, value, "a list of texts")
        return list(value)

    def section(self, name: str, default: Any = _MISSING) -> "Settings":
        value = self._read(name, default)
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "a section")
        return Settings(value, f"{self.where}.{name}")

    def only(self, *names: str) -> None:
        """Refuses a setting that nobody reads: it would be part of the key and do nothing."""
        if unknown := sorted(set(self.values) - set(names)):
            raise SpecError(f"{self.where}.{unknown[0]} is not a setting of this program; it reads {', '.join(sorted(names))}")

    def _read(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None:
            if default is _MISSING:
                raise SpecError(f"{self.where}.{name} is missing; there is {', '.join(sorted(self.values)) or 'nothing'}")
            return default
        return value

    def _wrong(self, name: str, value: Any, expected: str) -> SpecError:
        return SpecError(f"{self.where}.{name} is {value!r}, expected {expected}")
