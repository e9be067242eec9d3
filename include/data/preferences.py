"""The preference dataset of a snapshot: f(labels, aggregation policy, rubric versions, split), down to each label's id.

Beside its pairs stand the scores that their labels give to dimensions of the rubric. Imported and synthetic pairs can join up to a stated share of the training pairs. A pair is on the side of its prompt's group.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from include.data import aggregate
from include.data.aggregate import Decision
from include.data.build import store_dataset
from include.data.dimension_scores import brought_scores, scored_pairs, scores_of
from include.data.errors import DataError
from include.domain.canonical import digest
from include.domain.records import Candidate, Label, PreferencePair, Prompt, record_digest
from include.domain.split import SIDES, side_of, unit_interval
from include.transforms.datasets_io import DatasetHeader, DatasetInfo, SidedRow, iter_rows, read_info
from include.transforms.dimension_scores import DimensionScore
from include.transforms.filter_policy import filter_policy_version
from include.transforms.split import EVALUATION, SplitSettings


@dataclass(frozen=True)
class PreferenceSource:
    """What was collected.

    purposes: batch id → train, gold, calibration, evaluation. withdrawn: label ids that an event took back.
    prompts: with their split group, by prompt id. derived_from: digests of anything else that it came from, such as the candidates.
    """

    snapshot_digest: str
    labels: Sequence[Label]
    candidates: Sequence[Candidate]
    prompts: Mapping[str, Prompt]
    purposes: Mapping[str, str]
    withdrawn: Collection[str] = ()
    derived_from: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreferenceSettings:
    """rubric_versions: labels under any other are left out. max_imported_share: of the training pairs, imported and synthetic."""

    dataset_id: str
    rubric_versions: tuple[str, ...]
    split: SplitSettings
    max_imported_share: float = 0.0
    max_pairs_per_prompt: int = 4
    min_train_pairs: int = 1
    aggregation: str = aggregate.POLICY
    seed: int = 0

    def __post_init__(self) -> None:
        if self.aggregation != aggregate.POLICY:
            raise DataError(f"aggregation policy {self.aggregation!r} is not known; there is {aggregate.POLICY}")
        if not self.rubric_versions:
            raise DataError(f"dataset {self.dataset_id}: the recipe names no rubric version")
        if not 0 <= self.max_imported_share <= 1:
            raise DataError(f"dataset {self.dataset_id}: max_imported_share {self.max_imported_share} is not from 0 to 1")


@dataclass(frozen=True)
class PreferenceResult:
    """info: the dataset. counts: every label and pair that is not in it, by reason. members: label id → (digest, batch id).
    scored: dimension of the rubric → pairs that have a score for it. masked: pairs with an answer that annotators saw masked."""

    info: DatasetInfo
    counts: Mapping[str, int]
    members: Mapping[str, tuple[str, str]]
    left_win_share: float | None
    imported_share: float
    scored: Mapping[str, int]
    masked: int = 0

    @property
    def text(self) -> str:
        sides = ", ".join(f"{side} {n}" for side, n in self.info.counts.items())
        left = "not applicable" if self.left_win_share is None else f"{self.left_win_share:.0%}"
        not_in = ", ".join(f"{name} {n}" for name, n in self.counts.items() if n)
        scored = ", ".join(f"{name} {n}" for name, n in self.scored.items())
        return (
            f"{self.info.dataset_id} {self.info.content_hash[:19]}: {sides} pairs, {self.imported_share:.0%} of training imported or "
            f"synthetic; wins of the left side {left}; not in it: {not_in or 'nothing'}"
            + (f"; pairs with scores: {scored}" if scored else "")
            + (f"; pairs with a masked answer, learnt from as it was shown: {self.masked}" if self.masked else "")
        )


def build_preferences(
    root: Path, source: PreferenceSource, settings: PreferenceSettings, imported: Sequence[Path] = ()
) -> PreferenceResult:
    """Builds and stores the dataset below `root`, in the folder that its content hash names.

    Args:
        imported: folders of pair datasets, such as the synthetic pairs.

    Raises:
        DataError: fewer training pairs than asked for, a label whose candidate, prompt or batch is not given, or a split that
            is not the one the imported pairs were made with.
    """
    labels, counts = aggregate.standing(source.labels, source.withdrawn)
    found = aggregate.aggregate(_wanted(labels, source, settings, counts))
    counts |= found.counts
    candidates = {candidate.candidate_id: candidate for candidate in source.candidates}
    decided = _usable(found.decisions, source.prompts, candidates, settings, counts)
    pairs = [_pair(decision, source.prompts, candidates) for decision in decided]
    rows = [_row(pair, settings) for pair in pairs]
    rows += _limited(_imported_rows(imported, settings), rows, settings, counts)
    train = [row for row in rows if row.side == "train"]
    if len(train) < settings.min_train_pairs:
        left_out = ", ".join(f"{name} {n}" for name, n in counts.items() if n) or "nothing"
        raise DataError(
            f"dataset {settings.dataset_id}: {len(train)} training pairs, at least {settings.min_train_pairs} are needed; "
            f"of {len(source.labels)} labels these are not in it: {left_out}"
        )
    members = {label.label_id: (record_digest("label", label), label.batch_id) for decision in decided for label in decision.labels}
    scores = [score for pair, decision in zip(pairs, decided, strict=True) for score in scores_of(pair.pair_id, decision)]
    scores += brought_scores(imported, {row.id for row in rows})
    masked = sum(pair.chosen.masked_from is not None or pair.rejected.masked_from is not None for pair in pairs)
    header = _header(source, settings, imported, counts, members)
    header = replace(header, notes={**header.notes, "pairs_with_a_masked_answer": masked}) if masked else header
    info = store_dataset(root, _with_scores(header, scores), rows)
    share = sum(_brought(row) for row in train) / len(train) if train else 0.0
    return PreferenceResult(info, counts, members, found.left_win_share, share, scored_pairs(scores), masked)


def _wanted(labels: Sequence[Label], source: PreferenceSource, settings: PreferenceSettings, counts: dict[str, int]) -> list[Label]:
    """Labels of training batches, under the rubrics that the recipe names."""
    kept = []
    counts |= {"other_purpose": 0, "other_rubric": 0}
    for label in labels:
        purpose = source.purposes.get(label.batch_id)
        if purpose is None:
            raise DataError(f"label {label.label_id}: the purpose of batch {label.batch_id} is not given")
        if purpose != "train":
            counts["other_purpose"] += 1
        elif label.rubric_version not in settings.rubric_versions:
            counts["other_rubric"] += 1
        else:
            kept.append(label)
    return kept


def _usable(
    decisions: Sequence[Decision],
    prompts: Mapping[str, Prompt],
    candidates: Mapping[str, Candidate],
    settings: PreferenceSettings,
    counts: dict[str, int],
) -> list[Decision]:
    """Decisions between two different texts, on prompts that may train, at most so many a prompt (chosen by hash)."""
    taken: Counter[str] = Counter()
    kept = []
    counts |= {"personal_data_unknown": 0, "identical_candidates": 0, "over_the_cap_of_its_prompt": 0}
    for decision in sorted(decisions, key=lambda d: digest("pair-order", [d.prompt_id, d.chosen_id, d.rejected_id])):
        both = [_candidate(decision, i, candidates) for i in (decision.chosen_id, decision.rejected_id)]
        if decision.prompt_id not in prompts:
            raise DataError(f"prompt {decision.prompt_id} of label {decision.deciding.label_id} is not among the prompts")
        if prompts[decision.prompt_id].pii not in ("none", "masked"):
            counts["personal_data_unknown"] += 1
        elif (both[0].response_text, both[0].tool_calls) == (both[1].response_text, both[1].tool_calls):
            counts["identical_candidates"] += 1
        elif taken[decision.prompt_id] >= settings.max_pairs_per_prompt:
            counts["over_the_cap_of_its_prompt"] += 1
        else:
            taken[decision.prompt_id] += 1
            kept.append(decision)
    return kept


def _candidate(decision: Decision, candidate_id: str, candidates: Mapping[str, Candidate]) -> Candidate:
    candidate = candidates.get(candidate_id)
    if candidate is None:
        raise DataError(f"candidate {candidate_id} of label {decision.deciding.label_id} is not among the candidates")
    if candidate.prompt_id != decision.prompt_id:
        raise DataError(
            f"label {decision.deciding.label_id}: candidate {candidate_id} answers prompt {candidate.prompt_id}, not the label's"
        )
    return candidate


def _pair(decision: Decision, prompts: Mapping[str, Prompt], candidates: Mapping[str, Candidate]) -> PreferencePair:
    """The id holds every label that counted, so that a changed opinion is another dataset even where the winner stays."""
    label = decision.deciding
    counted = [[other.label_id, record_digest("label", other)] for other in decision.labels]
    body = {"prompt_id": decision.prompt_id, "chosen": decision.chosen_id, "rejected": decision.rejected_id, "labels": counted}
    return PreferencePair(
        pair_id=digest("pair", body),
        prompt=prompts[decision.prompt_id],
        chosen=candidates[decision.chosen_id],
        rejected=candidates[decision.rejected_id],
        label_id=label.label_id,
        label_digest=record_digest("label", label),
        rubric_version=label.rubric_version,
        annotator_kind=label.annotator_kind,
        swap_flag=label.swap_flag,
    )


def _row(pair: PreferencePair, settings: PreferenceSettings) -> SidedRow:
    side = side_of(settings.split.salt, pair.prompt.split_group, pair.prompt.safety_class, settings.split.shares)
    use = "preference" if side in ("train", "validation") else EVALUATION
    return SidedRow(pair.pair_id, side, pair.prompt.split_group, use, pair.to_json())


def _imported_rows(folders: Sequence[Path], settings: PreferenceSettings) -> list[SidedRow]:
    """Pairs of other datasets, once each, on the side where this project's split has them."""
    rows: dict[str, SidedRow] = {}
    for folder in folders:
        if (kind := read_info(folder)["rows"]) != "pair":
            raise DataError(f"{folder} holds rows of kind {kind}, not pairs")
        for side in SIDES:
            for row in iter_rows(folder, side):
                sided = _row(PreferencePair.from_json(row.record), settings)
                if sided.side != side:
                    raise DataError(
                        f"{folder}: pair {row.id} is on side {side}, this project's split has it on {sided.side}; "
                        "it was made with another salt or other shares: build it anew"
                    )
                rows[row.id] = sided
    return list(rows.values())


def _limited(brought: list[SidedRow], own: list[SidedRow], settings: PreferenceSettings, counts: dict[str, int]) -> list[SidedRow]:
    """All imported pairs that are not trained on, and of the others so many (by hash) as the share allows; of a prompt, with its own
    pairs, no more than the cap."""
    brought = _under_the_cap(brought, own, settings, counts)
    train = [row for row in brought if row.side == "train"]
    traced = sum(row.side == "train" and not _brought(row) for row in own)
    mixed = sum(row.side == "train" and _brought(row) for row in own)
    room = len(train)
    if settings.max_imported_share < 1:
        room = max(0, int(traced * settings.max_imported_share / (1 - settings.max_imported_share) + 1e-9) - mixed)
    ordered = sorted(train, key=lambda row: unit_interval(f"imported-{settings.seed}", row.id))
    counts["over_the_imported_share"] = max(0, len(train) - room)
    return [*(row for row in brought if row.side != "train"), *ordered[:room]]


def _under_the_cap(
    brought: Sequence[SidedRow], own: Sequence[SidedRow], settings: PreferenceSettings, counts: dict[str, int]
) -> list[SidedRow]:
    """Imported pairs (by hash) for which their prompt's own pairs leave room."""
    taken = Counter(row.record["prompt"]["prompt_id"] for row in own)
    kept = set()
    for row in sorted(brought, key=lambda row: unit_interval(f"imported-cap-{settings.seed}", row.id)):
        prompt_id = row.record["prompt"]["prompt_id"]
        if taken[prompt_id] < settings.max_pairs_per_prompt:
            taken[prompt_id] += 1
            kept.add(row.id)
    counts["over_the_cap_of_its_prompt"] += len(brought) - len(kept)
    return [row for row in brought if row.id in kept]


def _brought(row: SidedRow) -> bool:
    """Imported or synthetic: one of its candidates does not lead back to a policy."""
    return any(row.record[side]["origin"] != "policy" for side in ("chosen", "rejected"))


def _header(
    source: PreferenceSource,
    settings: PreferenceSettings,
    imported: Sequence[Path],
    counts: Mapping[str, int],
    members: Mapping[str, tuple[str, str]],
) -> DatasetHeader:
    decided_by = {
        "aggregation": settings.aggregation,
        "rubric_versions": sorted(settings.rubric_versions),
        "max_imported_share": settings.max_imported_share,
        "max_pairs_per_prompt": settings.max_pairs_per_prompt,
        "seed": settings.seed,
    }
    brought = [read_info(folder)["content_hash"] for folder in imported]
    return DatasetHeader(
        dataset_id=settings.dataset_id,
        rows="pair",
        filter_policy_version=filter_policy_version(decided_by),
        derived_from=(source.snapshot_digest, *source.derived_from, *brought),
        notes={"snapshot": source.snapshot_digest, "policy": decided_by, "not_in_it": dict(counts)},
        members={label_id: label_digest for label_id, (label_digest, _) in members.items()},
    )


def _with_scores(header: DatasetHeader, scores: Sequence[DimensionScore]) -> DatasetHeader:
    """As it is where there are none: such a dataset is written as it always was."""
    if not scores:
        return header
    notes = {**header.notes, "scored_pairs": scored_pairs(scores)}
    return replace(header, notes=notes, dimension_scores=tuple(scores))
