"""Evaluation suites: items of the hold-out, in an order by hash, so that a limit takes no special part of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.domain.canonical import digest
from include.domain.errors import RecordError
from include.domain.records import Reference, SuiteItem
from include.domain.slices import item_slices
from include.eval.errors import EvaluationError
from include.transforms.datasets_io import read_suite
from include.verifiers.errors import VerifierError
from include.verifiers.registry import verify

COMPARED = ("human_win_rate", "judge_win_rate")
"""Scorers that read two deployments' answers side by side, elsewhere: the answers are given out for it, and no value is measured here."""

GENERATED = ("exact_match", "asked_form", "length_tokens", "reward_score", "refusal", *COMPARED)
"""Scorers that read an answer written by the model."""

CHOSEN = ("likelihood_choice", "bbq_accuracy")
"""Scorers that read the likelihood of given options."""

_KEYS = ("dataset", "scorers", "limit", "slices")


@dataclass(frozen=True)
class Entry:
    """One item, and the group that is clustered as one."""

    item: SuiteItem
    group: str

    @property
    def id(self) -> str:
        return self.item.item_id


@dataclass(frozen=True)
class Suite:
    """A suite as this run reads it. `slices`: keys that `item_slices` knows."""

    name: str
    digest: str
    entries: tuple[Entry, ...]
    scorers: tuple[str, ...]
    slices: tuple[str, ...]

    @property
    def generated(self) -> bool:
        return any(scorer in GENERATED for scorer in self.scorers)

    @property
    def compared(self) -> bool:
        return any(scorer in COMPARED for scorer in self.scorers)

    @property
    def chosen(self) -> bool:
        return any(scorer in CHOSEN for scorer in self.scorers)

    def slices_of(self, entry: Entry) -> dict[str, str]:
        """The slice keys asked for that this item has."""
        known = item_slices(entry.item)
        return {key: known[key] for key in self.slices if key in known}


def read(name: str, folder: Path, content_hash: str, settings: Mapping[str, Any]) -> Suite:
    """The suite `name` with what `settings` {scorers, limit, slices} ask of it.

    Raises:
        EvaluationError: no items, an unknown setting or scorer, or an item that a scorer asked for cannot read.
    """
    where = f"config.suites.{name}"
    if unknown := sorted(set(settings) - set(_KEYS)):
        raise EvaluationError(f"{where}.{unknown[0]} is not known; a suite has {', '.join(_KEYS)}")
    scorers = tuple(settings.get("scorers") or ())
    if not scorers or not set(scorers) <= {*GENERATED, *CHOSEN}:
        raise EvaluationError(
            f"{where}.scorers: {list(scorers)} must name at least one of {', '.join((*GENERATED, *CHOSEN))}, and no other"
        )
    rows = sorted(read_suite(folder), key=lambda row: digest("suite-order", row.id))
    entries = tuple(Entry(_item(row.record, f"{where} item {row.id}"), row.split_group) for row in rows[: settings.get("limit") or None])
    suite = Suite(name, content_hash, entries, scorers, tuple(settings.get("slices") or ()))
    if not entries:
        raise EvaluationError(f"{where}: {folder} has 0 hold-out items; nothing would be evaluated")
    _check(suite, where)
    return suite


def _item(record: Mapping[str, Any], where: str) -> SuiteItem:
    try:
        return SuiteItem.from_json(record)
    except RecordError as error:
        raise EvaluationError(f"{where}: {error}") from error


def _check(suite: Suite, where: str) -> None:
    for entry in suite.entries:
        item = entry.item
        if suite.chosen and not (
            item.options and len(item.options) > 1 and item.answer is not None and 0 <= item.answer < len(item.options)
        ):
            raise EvaluationError(f"{where} item {item.item_id}: a choice needs at least two options and the index of the right one")
        if {"exact_match", "asked_form"} & set(suite.scorers) and item.prompt.reference is None:
            raise EvaluationError(f"{where} item {item.item_id}: {', '.join(suite.scorers)} need a reference, it has none")
        if {"exact_match", "asked_form"} & set(suite.scorers) and item.prompt.reference is not None:
            _readable(item.prompt.reference, f"{where} item {item.item_id}")


def _readable(reference: Reference, where: str) -> None:
    try:
        verify(reference, "")
    except VerifierError as error:
        raise EvaluationError(f"{where}: {error}") from error


def portions(entries: Sequence[Any], size: int) -> list[tuple[int, int]]:
    """[start, end) of consecutive portions."""
    return [(at, min(at + size, len(entries))) for at in range(0, len(entries), size)]
