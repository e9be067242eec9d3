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


def earlier_batches(project: str, batch_id: str, most: int, run_id: str) -> "list[Recorded]":
    """What other runs last recorded of the project's other batches, the newest `most` of them whose texts are not erased, oldest first.

    What `run_id` itself recorded is no earlier look: a try of it that was cut off has used nothing.
    """
    found: list[Recorded] = []
    for kept in reversed(services.catalog().labels.newest_of_project(project, other_than=run_id)):
        if kept.name == batch_id or len(found) == most:
            continue
        if (why := _erased(kept)) is None:
            found.append(kept)
        else:
            print(f"The earlier batch {kept.name} is left out: {why}")
    return found[::-1]


def _erased(kept: "Recorded") -> str | None:
    """That the answers or the prompts of a batch were erased, in words."""
    from include.stages.refs import DatasetRef

    catalog, told = services.catalog(), kept.body["origin"]
    done = catalog.runs.committed(told["candidates"])
    things = [("answers", done.outputs["candidates"].digest)] if done else []
    for what, digest in (*things, ("prompts", DatasetRef.from_json(told["prompts"]).artifact)):
        if gone := catalog.erasures.erased(digest):
            return f"its {what} were erased by {gone['by']} at {gone['at']}: {gone['why']}"
    return None


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


def look_again(client: "AnnotationClient", found: "Recipe", batch_id: str, run_id: str) -> list[Again]:
    """The earlier batches that the recipe asks for, each with the labels that stand now: what was withdrawn since is not among them.

    Raises:
        FlowError: the candidates of one are gone from the store and not erased; before anybody is waited for.
    """
    if not (most := found.preferences.earlier_batches):
        return []
    before = earlier_batches(found.data.project, batch_id, most, run_id)
    for kept in before:
        require_candidates(kept.name, kept.body["origin"]["candidates"])
    return [Again(kept, client.snapshot(kept.name), held_for_review(client.progress(kept.name), found.annotation)) for kept in before]


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
