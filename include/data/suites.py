"""Proof that an evaluation measures what nobody was trained on: suites hold hold-out rows only, apart from all training data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from include.data.errors import DataError
from include.domain.split import SIDES, USES, normalise_prompt
from include.transforms.datasets_io import Row, iter_rows, read_info, read_suite
from include.transforms.near import NearIndex, NearSettings


@dataclass(frozen=True)
class Overlap:
    """A training row that says what a suite item says. exact: word for word after normalisation."""

    suite: str
    item: str
    dataset: str
    row: str
    exact: bool


def prompt_text(row: Row) -> str:
    """What the user says in a stored row, turn by turn."""
    prompt = row.record.get("prompt", row.record)
    return "\n".join(turn["content"] for turn in prompt["messages"] if turn["role"] == "user")


def overlaps(suites: Sequence[Path], training: Sequence[Path], near: NearSettings) -> list[Overlap]:
    """Every training row of `training` that is a (near-)duplicate of an item of `suites`; all are dataset folders."""
    index = NearIndex(near)
    items: dict[str, str] = {}
    for folder in suites:
        name = _checked_suite(folder)
        for row in read_suite(folder):
            key = f"{name}\n{row.id}"
            items[key] = normalise_prompt(prompt_text(row))
            index.add(key, prompt_text(row))
    found = []
    for dataset, row in _trained_on(training):
        like = index.match(prompt_text(row))
        if like is not None:
            suite, _, item = like.partition("\n")
            found.append(Overlap(suite, item, dataset, row.id, items[like] == normalise_prompt(prompt_text(row))))
    return found


def said_again(texts: Mapping[str, str], folders: Iterable[Path], threshold: float) -> set[str]:
    """Those of `texts` (by name) that are a (near-)duplicate of a row that one of these datasets does not train on."""
    index = NearIndex(NearSettings(threshold=threshold))
    for folder in folders:
        for side in SIDES:
            for row in iter_rows(folder, side) if side != "train" else ():
                index.add(f"{folder.name}:{row.id}", prompt_text(row))
    return {name for name, text in texts.items() if index.match(text) is not None}


def _checked_suite(folder: Path) -> str:
    info = read_info(folder)
    if info["rows"] != "suite" or not set(info["counts"]) <= {"holdout", "safety_holdout"}:
        raise DataError(f"{folder} is no evaluation suite: rows {info['rows']}, sides {', '.join(info['counts'])}; hold-out rows only")
    return str(info["dataset_id"])


def _trained_on(folders: Iterable[Path]) -> Iterable[tuple[str, Row]]:
    for folder in folders:
        name = str(read_info(folder)["dataset_id"])
        for row in iter_rows(folder, "train"):
            yield name, row


def require_apart(suites: Sequence[Path], training: Sequence[Path], near: NearSettings) -> int:
    """Number of suite items, after checking that no training row says what one of them says.

    Raises:
        DataError: naming the first overlaps.
    """
    if found := overlaps(suites, training, near):
        shown = "; ".join(f"{o.dataset} row {o.row[:19]} and {o.suite} item {o.item[:19]}" for o in found[:3])
        raise DataError(f"{len(found)} training rows overlap with evaluation suites: {shown}")
    return sum(len(read_suite(folder)) for folder in suites)


def require_uses_apart(folders: Iterable[Path]) -> dict[str, int]:
    """Number of training groups of each use, after checking that none has two: what is demonstrated, compared and explored differs.

    Raises:
        DataError: a group is trained on for two uses; its data sets are named.
    """
    seen: dict[str, tuple[str, str]] = {}
    counts = dict.fromkeys(USES, 0)
    for dataset, row in _trained_on(folders):
        if row.use not in counts:
            continue
        if row.split_group not in seen:
            counts[row.use] += 1
        use, where = seen.setdefault(row.split_group, (row.use, dataset))
        if use != row.use:
            raise DataError(f"{dataset} row {row.id[:19]} is for {row.use}, and {where} has its prompt for {use}: one prompt, one use")
    return counts
