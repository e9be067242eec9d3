"""From drafts to rows with a side: cleaned, masked, de-duplicated, split, and apart from every hold-out."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from include.data.importing import Gathered
from include.data.plan import HELD_SIDES, PROMPT_SIDES, BuildPlan
from include.domain.canonical import canonical_bytes
from include.domain.records import prompt_id_of
from include.domain.split import SIDES, USES, normalise_prompt
from include.transforms import dedupe
from include.transforms.clean import unclean
from include.transforms.datasets_io import iter_rows
from include.transforms.dedupe import Dropped, place
from include.transforms.draft import Draft
from include.transforms.near import NearIndex
from include.transforms.pii import mask
from include.transforms.rows import Quarantined
from include.transforms.split import check_overlap, group_of, side_of_draft, use_of_group


@dataclass(frozen=True)
class Placed:
    """A draft with its group and its side."""

    draft: Draft
    group: str
    side: str


@dataclass
class Filtered:
    """The rows of one dataset that stay; what went, and why; personal data found, by kind."""

    source: Gathered
    rows: list[Placed] = field(default_factory=list)
    dropped: Dropped = field(default_factory=Dropped)
    quarantined: list[Quarantined] = field(default_factory=list)
    masked: Counter[str] = field(default_factory=Counter)

    @property
    def counts(self) -> dict[str, object]:
        unused = Counter(column for draft in self.source.drafts for column in draft.unused)
        return {
            "read": len(self.source.drafts),
            "kept": len(self.rows),
            "dropped": self.dropped.counts,
            "masked": dict(sorted(self.masked.items())),
            "unused_columns": dict(sorted(unused.items())),
        }


def filter_all(datasets: Iterable[Gathered], plan: BuildPlan, protected: Iterable[Path] = ()) -> list[Filtered]:
    """All datasets of a project together, because what one holds out no other may train on.

    Args:
        protected: folders of earlier datasets whose validation and hold-out rows count as well.
    """
    filtered = [_filter_one(gathered, plan) for gathered in datasets]
    _one_use_a_group(filtered)
    _validation_off_the_holdout(filtered)
    _prompts_off_the_suites(filtered)
    _training_off_the_rest(filtered, plan, protected)
    for one in filtered:
        one.rows.sort(key=lambda placed: (placed.side, place(placed.draft)))
    check_overlap((placed.side, placed.draft.prompt_text) for one in filtered for placed in one.rows)
    return filtered


def _filter_one(gathered: Gathered, plan: BuildPlan) -> Filtered:
    out = Filtered(gathered)
    here: dict[int, Placed] = {}
    for draft in gathered.drafts:
        masked = _clean_and_masked(draft, plan, out)
        if masked is None:
            continue
        group = group_of(masked)
        placed = Placed(masked, group, side_of_draft(masked, plan.split, group))
        if reason := _elsewhere(placed, gathered, plan):
            out.dropped.add(reason, place(masked))
        else:
            here[id(masked)] = placed
    drafts = _without_repetitions([placed.draft for placed in here.values()], gathered.rows, plan, out.dropped)
    out.rows = [here[id(draft)] for draft in drafts]
    return out


def _without_repetitions(drafts: list[Draft], rows: str, plan: BuildPlan, dropped: Dropped) -> list[Draft]:
    drafts = dedupe.exact(drafts, dropped)
    if rows == "prompt":
        return dedupe.one_per_prompt(drafts, dropped)
    if rows == "pair":
        drafts = dedupe.contradictions(dedupe.identical_sides(drafts, dropped), dropped)
        return dedupe.cap_per_prompt(drafts, plan.max_pairs_per_prompt, dropped)
    return drafts


def _clean_and_masked(draft: Draft, plan: BuildPlan, out: Filtered) -> Draft | None:
    if _erased(draft, plan):
        out.dropped.add("erased", place(draft))  # without a copy of it among what is set aside
        return None
    reason = unclean(draft, plan.clean)
    if reason is None:
        draft, found = mask(draft, plan.pii)
        if _erased(draft, plan):
            out.dropped.add("erased", place(draft))
            return None
        if draft.pii in ("none", "masked"):
            out.masked.update(found)
            return draft
        reason = f"personal data: {draft.pii} ({', '.join(sorted(found)) or 'not scanned'})"
    out.quarantined.append(Quarantined(draft.source, draft.line, reason, _raw(draft)))
    out.dropped.add(reason.split(":")[0] if reason.startswith("personal data") else "unclean", place(draft))
    return None


def _erased(draft: Draft, plan: BuildPlan) -> bool:
    return plan.suppressed is not None and plan.suppressed(draft.subject_ref, prompt_id_of(draft.messages, draft.tools))


def _raw(draft: Draft) -> str:
    sides = [side.to_json() for side in (draft.chosen, draft.rejected) if side]
    body = {"messages": [m.to_json() for m in draft.messages], "response": [m.to_json() for m in draft.response], "sides": sides}
    return canonical_bytes(body).decode()


def _elsewhere(placed: Placed, gathered: Gathered, plan: BuildPlan) -> str | None:
    """Why a row of this side or use belongs to another dataset; None where it belongs here."""
    prompts = plan.preference_sides if gathered.use == "preference" else PROMPT_SIDES
    sides = {"suite": HELD_SIDES, "prompt": prompts}.get(gathered.rows, SIDES)
    if placed.side not in sides:
        return "of_a_side_that_is_not_kept_here"
    if placed.side == "train" and gathered.shared and use_of_group(placed.group, plan.split) not in (None, gathered.use):
        return "used_elsewhere"
    return None


def _one_use_a_group(filtered: list[Filtered]) -> None:
    """A training group that two datasets claim for different uses stays with the first use of demonstration, preference, rl."""
    claims: dict[str, set[str]] = defaultdict(set)
    for one in filtered:
        for placed in one.rows:
            if placed.side == "train":
                claims[placed.group].add(one.source.use)
    first = {group: next((use for use in USES if use in uses), None) for group, uses in claims.items()}
    for one in filtered:
        allowed = (one.source.use, None)
        _drop(one, [p for p in one.rows if p.side == "train" and first[p.group] not in allowed], "used_elsewhere")


def _drop(one: Filtered, gone: list[Placed], reason: str) -> None:
    for placed in gone:
        one.dropped.add(reason, place(placed.draft))
    ids = {id(placed) for placed in gone}
    one.rows = [placed for placed in one.rows if id(placed) not in ids]


def _validation_off_the_holdout(filtered: list[Filtered]) -> None:
    """Only where rows name groups of their own can a prompt be on both: the validation row goes."""
    held = {normalise_prompt(p.draft.prompt_text) for one in filtered for p in one.rows if p.side in HELD_SIDES}
    for one in filtered:
        on_both = [p for p in one.rows if p.side == "validation" and normalise_prompt(p.draft.prompt_text) in held]
        _drop(one, on_both, "validation_row_on_the_holdout")


def _prompts_off_the_suites(filtered: list[Filtered]) -> None:
    """Held-out prompts whose answers are compared are not those that the policy is measured on: the prompt goes, never the suite's item."""
    items = [p for one in filtered if one.source.rows == "suite" for p in one.rows]
    texts, groups = {normalise_prompt(p.draft.prompt_text) for p in items}, {p.group for p in items}
    for one in filtered:
        if one.source.rows == "prompt":
            held = [p for p in one.rows if p.side in HELD_SIDES]
            _drop(one, [p for p in held if p.group in groups or normalise_prompt(p.draft.prompt_text) in texts], "an_item_of_a_suite")


def _training_off_the_rest(filtered: list[Filtered], plan: BuildPlan, protected: Iterable[Path]) -> None:
    """Training rows that are near-duplicates of a validation or hold-out row of any dataset go; never the reverse."""
    index = NearIndex(plan.near)
    seen: set[str] = set()
    for name, text in (*_held_here(filtered), *_held_before(protected)):
        if (key := normalise_prompt(text)) not in seen:
            seen.add(key)
            index.add(name, text)
    for one in filtered:
        kept = []
        for placed in one.rows:
            like = index.match(placed.draft.prompt_text) if placed.side == "train" else None
            if like is None:
                kept.append(placed)
            else:
                one.dropped.add("near_duplicate_of_a_held_out_row", place(placed.draft), like)
        one.rows = kept


def _held_here(filtered: list[Filtered]) -> Iterable[tuple[str, str]]:
    for one in filtered:
        for placed in sorted(one.rows, key=lambda p: place(p.draft)):
            if placed.side != "train":
                yield f"{one.source.dataset_id}:{placed.side}:{place(placed.draft)}", placed.draft.prompt_text


def _held_before(folders: Iterable[Path]) -> Iterable[tuple[str, str]]:
    for folder in folders:
        for side in SIDES:
            for row in iter_rows(folder, side) if side != "train" else ():
                prompt = row.record.get("prompt", row.record)
                text = "\n".join(turn["content"] for turn in prompt["messages"] if turn["role"] == "user")
                yield f"{folder.name[:12]}:{side}:{row.id}", text
