"""Gold items among people's work, and whose labels are held for review because of them."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from include.domain.agreement import falls_short
from include.domain.canonical import digest
from include.domain.records import Label

if TYPE_CHECKING:
    from include.data.annotation_batches import Comparison
    from include.settings.annotation import AnnotationSettings

Json = Mapping[str, Any]
LICENCE = "internal"


def gold_for(wanted: "AnnotationSettings", people: int, batch: str) -> "list[Comparison]":
    """Gold items for a batch of `people` comparisons by people, drawn by hash of `batch`, so that each batch has others.

    Raises:
        SettingsError: the recipe names a set that is not there.
    """
    from include.settings.catalogue import gold

    if wanted.gold is None or not people:
        return []
    items = [_comparison(item, wanted.gold) for item in gold(wanted.gold).items]
    drawn = sorted(items, key=lambda item: digest("gold-order", [batch, item.prompt.prompt_id, item.candidate_a.candidate_id]))
    return drawn[: math.ceil(wanted.gold_share * people)]


def _comparison(item: Any, name: str) -> "Comparison":
    from include.data.annotation_batches import Comparison, Gold
    from include.domain.records import Message
    from include.transforms.draft import Draft

    turns = [Message("user", item.prompt)] if isinstance(item.prompt, str) else [Message(t.role, t.content) for t in item.prompt]
    draft = Draft(
        source=name,
        line=0,
        messages=tuple(turns),
        licence=LICENCE,
        usage_basis=LICENCE,
        chosen=Message("assistant", item.a),
        rejected=Message("assistant", item.b),
        origin=f"external:gold/{name}",
    ).with_pii("none", name)
    pair = draft.pair(digest("gold", name))
    return Comparison(pair.prompt, pair.chosen, pair.rejected, Gold(item.verdict, item.confirmed_by))


def held_for_review(progress: Json, wanted: "AnnotationSettings") -> dict[str, dict[str, int]]:
    """Annotators whose gold accuracy is below what the recipe asks for, with their gold labels and how many were right."""
    if wanted.min_gold_accuracy is None:
        return {}
    counts: Mapping[str, Mapping[str, int]] = (progress.get("gold") or {}).get("by_annotator", {})
    return {
        who: dict(count)
        for who, count in sorted(counts.items())
        if who not in wanted.gold_reviewed
        and falls_short(count["right"], count["labels"], wanted.min_gold_accuracy, wanted.min_gold_labels)
    }


def without(labels: Sequence[Label], held: Collection[str]) -> list[Label]:
    """The labels of everybody else."""
    return [label for label in labels if label.annotator_id not in held]


def counted(progress: Json, labels: Sequence[Label]) -> dict[str, Any]:
    """`progress` as if `labels` alone had been given."""
    from include.data.aggregate import standing
    from include.data.agreement import agreement_of

    stand = standing(labels, ())[0]
    found = agreement_of(stand)
    verdicts = {verdict: sum(label.verdict == verdict for label in stand) for verdict in progress["labels"]["by_verdict"]}
    agreement = {**progress["agreement"], "applicable": found.applicable, "share": found.raw}
    return {**progress, "labels": {**progress["labels"], "current": len(stand), "by_verdict": verdicts}, "agreement": agreement}


def words(held: Mapping[str, Mapping[str, int]]) -> str:
    """Who is held for review, and why."""
    return ", ".join(f"{who} ({count['right']} of {count['labels']} gold items right)" for who, count in held.items())
