"""Expectations that a recipe has of its own data sets, by the names of Great Expectations; checked before anything is read.

Only these kinds, and only these arguments: no row conditions and no queries, which the library would evaluate as code.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator, model_validator

from include.settings.base import Settings

COLUMNS = (
    *("prompt", "system", "response", "chosen", "rejected", "turns", "prompt_characters", "response_characters", "weight"),
    *("source", "licence", "usage_basis", "language", "topic", "safety_class", "side", "use", "verifier", "origin"),
)
"""What can be expected of: a data set of the recipe has those that its rows have."""
_RANGE = frozenset({"min_value", "max_value"})
_SET = frozenset({"value_set"})
_MOSTLY = frozenset({"mostly"})
KINDS: Mapping[str, frozenset[str]] = {
    "expect_column_values_to_not_be_null": _MOSTLY,
    "expect_column_values_to_be_unique": _MOSTLY,
    "expect_column_values_to_be_in_set": _SET | _MOSTLY,
    "expect_column_values_to_not_be_in_set": _SET | _MOSTLY,
    "expect_column_values_to_be_between": _RANGE | _MOSTLY,
    "expect_column_value_lengths_to_be_between": _RANGE | _MOSTLY,
    "expect_column_values_to_match_regex": frozenset({"regex", "mostly"}),
    "expect_column_values_to_not_match_regex": frozenset({"regex", "mostly"}),
    "expect_column_distinct_values_to_be_in_set": _SET,
    "expect_column_distinct_values_to_contain_set": _SET,
    "expect_column_distinct_values_to_equal_set": _SET,
    "expect_column_most_common_value_to_be_in_set": _SET,
    "expect_column_unique_value_count_to_be_between": _RANGE,
    "expect_column_proportion_of_unique_values_to_be_between": _RANGE,
    "expect_column_min_to_be_between": _RANGE,
    "expect_column_max_to_be_between": _RANGE,
    "expect_column_mean_to_be_between": _RANGE,
    "expect_column_median_to_be_between": _RANGE,
    "expect_column_stdev_to_be_between": _RANGE,
    "expect_compound_columns_to_be_unique": _MOSTLY,
}
"""Kind → its arguments beside the column. All but `mostly` are needed; of a range one end at least."""
COMPOUND = "expect_compound_columns_to_be_unique"


class Expectation(Settings):
    """One expectation of a stored data set; it blocks as the built-in ones do."""

    dataset: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    """As the build names it, or `preferences` or `reward_pairs`: the pairs made of labels."""
    expect: str
    column: str | None = None
    columns: tuple[str, ...] = ()
    """Of `expect_compound_columns_to_be_unique`, instead of `column`."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    why: str = ""
    """For whoever reads that it failed."""

    @field_validator("expect")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in KINDS:
            raise ValueError(f"{value!r} is not taken; there are {', '.join(KINDS)}")
        return value

    @model_validator(mode="after")
    def _whole(self) -> "Expectation":
        named = self.columns if self.expect == COMPOUND else (self.column,) if self.column is not None else ()
        if (
            (self.expect == COMPOUND) == (self.column is not None)
            or len(named) < (2 if self.expect == COMPOUND else 1)
            or (self.columns and self.expect != COMPOUND)
        ):
            raise ValueError(f"{self.expect} takes {'`columns`, two at least' if self.expect == COMPOUND else 'one `column`'}")
        if strange := [name for name in named if name not in COLUMNS]:
            raise ValueError(f"{strange[0]!r} is no column; there are {', '.join(COLUMNS)}")
        self._check_arguments(KINDS[self.expect])
        return self

    def _check_arguments(self, allowed: frozenset[str]) -> None:
        if strange := sorted(set(self.arguments) - allowed):
            raise ValueError(f"{self.expect} does not take {strange[0]!r}; it takes {', '.join(sorted(allowed)) or 'nothing'}")
        ranged = _RANGE & allowed
        if (ranged and not _RANGE & set(self.arguments)) or (missing := sorted(allowed - _MOSTLY - _RANGE - set(self.arguments))):
            raise ValueError(f"{self.expect} needs {'min_value or max_value' if ranged else missing[0]}: without it, it expects nothing")
        for name, value in self.arguments.items():
            _CHECKS[name](f"{self.expect}.{name}", value)
        low, high = (self.arguments.get(name) for name in ("min_value", "max_value"))
        if low is not None and high is not None and low > high:
            raise ValueError(f"{self.expect}: min_value {low} is above max_value {high}")


def _number(where: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where} is {value!r:.60}, not a number")  # noqa: TRY004 - pydantic reports ValueErrors


def _share(where: str, value: Any) -> None:
    _number(where, value)
    if not 0 < value <= 1:
        raise ValueError(f"{where} is {value}; above 0, at most 1")


def _values(where: str, value: Any) -> None:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(item, (str, int, float)) for item in value):
        raise ValueError(f"{where} is {value!r:.60}, not a list of texts or numbers with something in it")


def _regex(where: str, value: Any) -> None:
    try:
        re.compile(value)
    except (re.error, TypeError) as error:
        raise ValueError(f"{where} {value!r:.60} is no regular expression: {error}") from error


_CHECKS = {"min_value": _number, "max_value": _number, "mostly": _share, "value_set": _values, "regex": _regex}
