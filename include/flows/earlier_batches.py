"""Comparisons of a project's earlier batches, beside those of the present one: collected once, they are learnt from again and again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.domain.records import Candidate, Label, Prompt
from include.flows import services
from include.flows.errors import FlowError
from include.flows.gold_items import held_for_review

if TYPE_CHECKING:
    from include.data.annotation_client import AnnotationClient, Snapshot
    from include.settings.recipes import Recipe
    from include.stores.catalog.labels import Snapshot as Recorded

Json = Mapping[str, Any]


def origin(project: str, generated: Json, prompts: Json) -> dict[str, Any]:
    """What a later run of the project needs to read a batch: whose candidates were compared, on which prompts."""
    return {"project": project, "candidates": generated["key"], "prompts": dict(prompts)}


def earlier_batches(project: str, batch_id: str, most: int) -> "list[Recorded]":
    """What runs last recorded of the project's other batches, the newest `most` of them."""
    newest = {
        kept.name: kept for kept in services.catalog().labels.snapshots() if dict(kept.body.get("origin") or {}).get("project") == project
    }
    newest.pop(batch_id, None)
    return sorted(newest.values(), key=lambda kept: (kept.created_at, kept.name))[len(newest) - min(most, len(newest)) :]


@dataclass(frozen=True)
class Again:
    """An earlier batch as it is now. unchanged: no label has come or gone since a run last looked."""

    recorded: "Recorded"
    now: "Snapshot"
    held: Mapping[str, Mapping[str, int]]
    """Annotators whose labels of that batch are held for review."""

    @property
    def unchanged(self) -> bool:
        return self.recorded.digest == self.now.digest


def look_again(client: "AnnotationClient", found: "Recipe", batch_id: str) -> list[Again]:
    """The earlier batches that the recipe asks for, each with the labels that stand now: what was withdrawn since is not among them."""
    if not (most := found.preferences.earlier_batches):
        return []
    return [
        Again(kept, client.snapshot(kept.name), held_for_review(client.progress(kept.name), found.annotation))
        for kept in earlier_batches(found.data.project, batch_id, most)
    ]


def record(run_id: str, again: Sequence[Again]) -> None:
    """Freezes them for this run, so that its later tasks, and their tries, read the same."""
    labels = services.catalog().labels
    for one in again:
        labels.collected([label.to_json() for label in one.now.labels])
        kept = one.recorded
        body = {"origin": kept.body["origin"], "held": one.held}
        labels.record_snapshot(run_id, kept.name, one.now.mark, one.now.digest, kept.uri, body=body)


def recorded(run_id: str, batch_id: str) -> list[dict[str, Any]]:
    """What `record` froze for this run, as the sensor hands it on."""
    found = services.catalog().labels.snapshots(run_id=run_id)
    return [
        {
            "batch_id": kept.name,
            "mark": kept.high_water_mark,
            "digest": kept.digest,
            "origin": kept.body["origin"],
            "held": sorted(kept.body.get("held") or ()),
        }
        for kept in found
        if kept.name != batch_id
    ]


def apart_from(earlier: Mapping[str, Prompt], labels: Sequence[Label], held: Sequence[Path], threshold: float) -> tuple[list[Label], int]:
    """`labels` without those on prompts of `earlier` that say what a held-out row of `held` says, and how many went.

    The build keeps its own data sets apart; prompts of earlier batches may not be among them any more.
    """
    from include.data.suites import said_again

    texts = {prompt_id: "\n".join(turn.content for turn in prompt.messages if turn.role == "user") for prompt_id, prompt in earlier.items()}
    gone = said_again(texts, held, threshold)
    kept = [label for label in labels if label.prompt_id not in gone]
    return kept, len(labels) - len(kept)


def require_candidates(batch_id: str, key: str) -> None:
    """Refuses a batch whose candidates are gone: a pair without its answers is none.

    Raises:
        FlowError: naming the setting that leaves it out.
    """
    done = services.catalog().runs.committed(key)
    if done is None or not services.store().exists(f"{done.outputs['candidates'].path}/candidates.parquet"):
        raise FlowError(
            f"the candidates of the earlier batch {batch_id} ({key}) are no longer in the store: lower preferences.earlier_batches, "
            "so that it is left out, or bring them back"
        )


def all_candidates(sets: Sequence[Sequence[Candidate]]) -> list[Candidate]:
    """Each once."""
    return list({candidate.candidate_id: candidate for one in sets for candidate in one}.values())
