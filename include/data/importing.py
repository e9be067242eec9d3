"""Reading every source of a plan: drafts for each dataset, what was set aside, and how each reading went."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from include.data.errors import DataError
from include.data.expectations import SourceFacts
from include.data.mappings import Contribution, map_rows
from include.data.plan import BuildPlan, SourcePlan
from include.domain.canonical import digest
from include.transforms.draft import Draft
from include.transforms.errors import SourceError
from include.transforms.reading import read_source, source_digest
from include.transforms.rows import Quarantined


@dataclass
class Gathered:
    """The drafts of one dataset, from all of its sources. derived_from: digests of the sources."""

    dataset_id: str
    rows: str
    use: str
    shared: bool
    drafts: list[Draft] = field(default_factory=list)
    derived_from: list[str] = field(default_factory=list)


@dataclass
class Imported:
    """What all sources gave."""

    datasets: dict[str, Gathered] = field(default_factory=dict)
    quarantined: list[Quarantined] = field(default_factory=list)
    facts: list[SourceFacts] = field(default_factory=list)

    def add(self, part: Contribution, derived_from: str) -> None:
        new = Gathered(part.dataset_id, part.rows, part.use, part.shared)
        into = self.datasets.setdefault(part.dataset_id, new)
        if (into.rows, into.use, into.shared) != (new.rows, new.use, new.shared):
            raise DataError(
                f"dataset {part.dataset_id}: one source brings {into.rows} rows for {into.use}, another {new.rows} for {new.use}"
            )
        into.drafts.extend(part.drafts)
        into.derived_from.append(derived_from)


def import_sources(plan: BuildPlan, filesystems: Mapping[str, Any] | None = None) -> Imported:
    """Reads all sources; one that cannot be read as a whole is in `facts` with its error.

    Args:
        filesystems: source name → ready fsspec filesystem, for those that are not on this machine's disk.
    """
    imported = Imported()
    for item in plan.sources:
        try:
            _import_one(imported, item, plan, (filesystems or {}).get(item.source.name))
        except SourceError as error:
            imported.facts.append(SourceFacts(item.source.name, item.source.uri, 0, 0, str(error)))
    return imported


def _import_one(imported: Imported, item: SourcePlan, plan: BuildPlan, filesystem: Any) -> None:
    rows = list(read_source(item.source, filesystem))
    seen = source_digest(item.source, rows, filesystem)
    if item.source.format == "generated":
        seen = digest("generated-rows", {"source": seen, "options": dict(item.options)})
    if item.sha256 is not None and item.sha256 != seen:
        raise SourceError(f"{item.source.uri} is {seen}, the recipe pins {item.sha256}: take the pinned file, or pin this one")
    named = [replace(row, source=item.source.name) if isinstance(row, Quarantined) else row for row in rows]
    mapped = map_rows(named, replace(item, sha256=seen), plan)
    for part in mapped.contributions:
        imported.add(part, seen)
    imported.quarantined.extend(mapped.quarantined)
    defects = sum(not row.deliberate for row in mapped.quarantined)
    used = len(rows) - len(mapped.quarantined) if rows else max((len(part.drafts) for part in mapped.contributions), default=0)
    imported.facts.append(SourceFacts(item.source.name, item.source.uri, used, defects))
