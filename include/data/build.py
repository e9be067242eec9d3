"""Building the dataset versions of a project: read, validated, filtered, split, validated again, stored.

    OUT/datasets/<content hash>/   one folder a dataset (see transforms.datasets_io)
    OUT/quarantine.jsonl           every row set aside: source, line, reason, raw
    OUT/dropped.jsonl              every row left out: dataset, row, reason, what it is like
    OUT/validation/                pages of Great Expectations
    OUT/validation.json            their outcome
    OUT/summary.json               counts

Nothing is stored unless all of it passes. The same sources and settings give the same content hashes on any machine.
"""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.data.errors import ValidationStopped
from include.data.expectations import Table, import_table, sources_table
from include.data.filtering import Filtered, Placed, filter_all
from include.data.importing import Imported, import_sources
from include.data.own_expectations import OF_LABELS, own_tables
from include.data.plan import BuildPlan
from include.data.rarity import mark_rarity
from include.data.report import ValidationReport
from include.data.validate import stored_table, validate
from include.domain.canonical import digest, hex_of
from include.transforms.datasets_io import DatasetHeader, DatasetInfo, SidedRow, write_dataset
from include.transforms.split import EVALUATION


@dataclass(frozen=True)
class BuildResult:
    """What was built. counts: dataset → read, kept, dropped by reason, masked, unused columns."""

    datasets: Mapping[str, DatasetInfo]
    validation: ValidationReport
    quarantine: Path
    counts: Mapping[str, Any]

    @property
    def text(self) -> str:
        """A few lines for a log."""
        lines = []
        for name, info in sorted(self.datasets.items()):
            sides = ", ".join(f"{side} {n}" for side, n in info.counts.items())
            dropped = ", ".join(f"{reason} {n}" for reason, n in self.counts["datasets"][name]["dropped"].items())
            lines.append(f"{name} {info.content_hash[:19]}: {sides}" + (f"; left out: {dropped}" if dropped else ""))
        for name, found in sorted(self.counts.get("rarity", {}).items()):
            lines.append(f"{name}: {found['tail']} of {found['tail'] + found['common']} items are of the long tail, by {found['by']}")
        return "\n".join([*lines, f"set aside: {self.counts['quarantined']} rows ({self.quarantine})", self.validation.text])


def build_datasets(plan: BuildPlan, out: Path, filesystems: Mapping[str, Any] | None = None, protected: Iterable[Path] = ()) -> BuildResult:
    """Builds every dataset of `plan` below `out`; what an earlier try left there is replaced.

    Args:
        filesystems: source name → ready fsspec filesystem.
        protected: folders of earlier datasets of the project whose validation and hold-out rows must stay unseen.

    Raises:
        ValidationStopped: a validation did not pass; its report, and the quarantine file, lie below `out`.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    imported = import_sources(plan, filesystems)
    arriving = _import_tables(imported, plan)
    _write_lines(out / "quarantine.jsonl", [row.to_json() for row in imported.quarantined])
    _validated(arriving, imported, out, pages_if_passed=False)
    filtered = filter_all([imported.datasets[name] for name in sorted(imported.datasets)], plan, protected)
    set_aside = [*imported.quarantined, *(row for one in filtered for row in one.quarantined)]
    _write_lines(out / "quarantine.jsonl", [row.to_json() for row in set_aside])
    _write_lines(
        out / "dropped.jsonl", [{"dataset": one.source.dataset_id, **vars(drop)} for one in filtered for drop in one.dropped.drops]
    )
    rarity = mark_rarity(filtered, plan.long_tail) if plan.long_tail is not None else {}
    counts = {
        "sources": [vars(fact) for fact in imported.facts],
        "quarantined": len(set_aside),
        "datasets": {one.source.dataset_id: one.counts for one in filtered},
        **({"rarity": rarity} if rarity else {}),
    }
    _write_json(out / "summary.json", counts)
    infos = {one.source.dataset_id: _store(one, plan, out, rarity.get(one.source.dataset_id)) for one in filtered if one.rows}
    stored = [stored_table(info, plan.licences, plan.min_rows.get(name, 1)) for name, info in infos.items()]
    empty = [_empty_table(one, plan) for one in filtered if not one.rows]
    own = own_tables({name: items for name, items in plan.expected.items() if name not in OF_LABELS}, infos)
    report = _validated([*arriving, *stored, *empty, *own], imported, out)
    return BuildResult(infos, report, out / "quarantine.jsonl", counts)


def _import_tables(imported: Imported, plan: BuildPlan) -> list[Table]:
    tables = [sources_table(imported.facts, plan.max_quarantine_share)]
    for name, gathered in sorted(imported.datasets.items()):
        tables.append(import_table(f"{name} as read", gathered.rows, gathered.drafts, plan.licences, 1))
    return tables


def _empty_table(one: Filtered, plan: BuildPlan) -> Table:
    """A dataset of which no row was left: its floor fails."""
    return Table(one.source.dataset_id, {"id": []}, max(plan.min_rows.get(one.source.dataset_id, 1), 1))


def _validated(tables: Sequence[Table], imported: Imported, out: Path, *, pages_if_passed: bool = True) -> ValidationReport:
    unread = [fact for fact in imported.facts if fact.error is not None]
    notes = [f"set aside: {row.source}, line {row.line}: {row.reason}" for row in imported.quarantined if not row.deliberate][:10]
    report = validate(tables, out / "validation", notes, unread, pages_if_passed=pages_if_passed)
    _write_json(out / "validation.json", report.to_json())
    if not report.passed:
        raise ValidationStopped(report)
    return report


def _store(one: Filtered, plan: BuildPlan, out: Path, rarity: Mapping[str, Any] | None) -> DatasetInfo:
    header = DatasetHeader(
        dataset_id=one.source.dataset_id,
        rows=one.source.rows,
        filter_policy_version=plan.filter_policy_version,
        derived_from=tuple(one.source.derived_from),
        notes={**one.counts, "project": plan.project, "split": split_digest(plan), **({"rarity": rarity} if rarity else {})},
    )
    rows = [_sided(placed, one) for placed in one.rows]
    return store_dataset(out / "datasets", header, rows)


def split_digest(plan: BuildPlan) -> str:
    """Which split it was, without telling the salt."""
    return digest("split", {"salt": plan.split.salt, "shares": dict(plan.split.shares), "uses": dict(plan.split.uses)})


def store_dataset(root: Path, header: DatasetHeader, rows: Sequence[SidedRow]) -> DatasetInfo:
    """Writes a dataset below `root` into the folder that its content hash names."""
    making = root / f"making-{header.dataset_id}"
    shutil.rmtree(making, ignore_errors=True)
    info = write_dataset(making, header, rows)
    folder = root / hex_of(info.content_hash)
    if folder.exists():  # two datasets with the same rows: each keeps its own description
        folder = root / f"{hex_of(info.content_hash)}-{header.dataset_id}"
        shutil.rmtree(folder, ignore_errors=True)
    making.rename(folder)
    return DatasetInfo(**{**vars(info), "folder": folder})


def _sided(placed: Placed, one: Filtered) -> SidedRow:
    draft, group = placed.draft, placed.group
    use = one.source.use if placed.side in ("train", "validation") else EVALUATION
    if one.source.rows == "demonstration":
        demonstration = draft.demonstration(group)
        return SidedRow(demonstration.example_id, placed.side, group, use, demonstration.to_json())
    if one.source.rows == "prompt":
        prompt = draft.prompt(group)
        return SidedRow(prompt.prompt_id, placed.side, group, use, prompt.to_json())
    if one.source.rows == "pair":
        pair = draft.pair(group)
        return SidedRow(pair.pair_id, placed.side, group, use, pair.to_json())
    item = draft.suite_item(group)
    return SidedRow(item.item_id, placed.side, group, use, item.to_json())


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    # As ASCII: a row may have been set aside for a text that has no UTF-8 form.
    path.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows), "ascii")


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", "ascii")
