"""Preference collection: the batch, the verifier's labels, and the datasets made from a snapshot."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.domain.canonical import digest, hex_of
from include.domain.records import Candidate, Prompt, Rubric
from include.flows import services
from include.flows.errors import FlowError
from include.flows.measured import committed
from include.settings.annotation import AnnotationSettings
from include.settings.catalogue import recipe, rubric
from include.stages.refs import DatasetRef

if TYPE_CHECKING:
    from include.data.annotation_batches import BatchRequest, Comparison
    from include.data.annotation_client import AnnotationClient

Json = Mapping[str, Any]


def local_dataset(ref: Json) -> Path:
    """A dataset version's folder on the control plane, fetched once and checked against its manifest."""
    from include.domain.layout import dataset_dir
    from include.domain.manifest import Manifest

    found, store = DatasetRef.from_json(ref), services.store()
    folder = dataset_dir(found.content_hash)
    if not store.exists(f"{folder}/manifest.json"):
        services.catalog().artifacts.locate(found.artifact, store.uri)  # says where it is, or that it was erased
    manifest = Manifest.from_json(store.read_json(f"{folder}/manifest.json"))
    if manifest.digest != found.artifact:
        raise FlowError(f"{found}: the store holds {manifest.digest}, expected {found.artifact}")
    local = services.work_dir() / folder
    store.fetch_folder(folder, local, manifest)
    return local


def prompts_of(ref: Json) -> dict[str, Prompt]:
    """Every prompt of a prompt set, by prompt_id."""
    from include.transforms.datasets_io import read_rows

    folder = local_dataset(ref)
    rows = [row for side in ("train", "validation", "holdout", "safety_holdout") for row in read_rows(folder, side)]
    return {row.record["prompt_id"]: Prompt.from_json(row.record) for row in rows}


def candidates_of(result: Json) -> list[Candidate]:
    """The candidate set of a generation run, in its own order."""
    import json

    import pyarrow.parquet as pq

    path, manifest = committed(result["key"], "candidates")
    local = services.work_dir() / "candidates" / hex_of(manifest.digest)
    services.store().fetch_folder(path, local, manifest)
    return [Candidate.from_json(json.loads(text)) for text in pq.read_table(local / "candidates.parquet").column("record").to_pylist()]


def open_batch(run: Json, generated: Json, datasets: Json) -> dict[str, Any]:
    """The comparisons of a candidate set, created once: the batch's key is made of the candidates, as they are shown, the rubric and who compares."""
    from include.flows import shown_answers
    from include.flows.comparisons import added, compared, shared_out
    from include.flows.earlier_batches import origin

    found, of = recipe(run["recipe"]), generated["outputs"]["candidates"]["digest"]
    wanted, shown = found.annotation, rubric(found.annotation.rubric)
    prompts, writer = prompts_of(datasets["preference_prompts"]), f"dag:{run['dag_id']}/{run['run_id']}/open_batch"
    seen = shown_answers.shown(candidates_of(generated), prompts, found, of, writer)
    possible = compared(seen.answers, prompts, wanted.comparisons_per_prompt)
    if not possible:
        raise FlowError("the policy gave two equal answers to every prompt: raise the sampling temperature or the number of prompts")
    tasks, people = shared_out(possible, wanted, bool(run["auto"]))
    body = {"candidates": of, "rubric": shown.version, "human": people, "overlap": wanted.overlap_share, **added(wanted), **seen.marks}
    with services.annotation("pipeline") as client:
        receipt = client.create_batch(digest("annotation-batch", body), _request(wanted, shown, tasks, people, of))
    same = len({c.prompt_id for c in seen.answers} - {t.prompt.prompt_id for t in possible})
    print(
        f"Batch {receipt.batch_id}: {len(tasks)} comparisons, {people} for people, {len(tasks) - people} for the verifier; {same} with equal answers left out"
    )
    return {
        "batch_id": receipt.batch_id,
        "tasks": len(tasks),
        "human": people,
        "url": services.setting("ALIGN_ANNOTATION_URL"),
        "equal_answers": same,
        "masked_answers": len(seen.masked),
        "answers_not_shown": len(seen.left_out),
        "origin": origin(found.data.project, generated, datasets["preference_prompts"]),
    }


def _request(wanted: AnnotationSettings, shown: Rubric, tasks: "Sequence[Comparison]", people: int, candidates: str) -> "BatchRequest":
    """The batch as the service is asked for it; its gold items are drawn by the digest of the `candidates`."""
    from include.data.annotation_batches import BatchRequest
    from include.flows.comparisons import per_annotator
    from include.flows.gold_items import gold_for

    return BatchRequest(
        purpose="train",
        rubric=shown,
        tasks=tasks,
        human=people,
        overlap_share=wanted.overlap_share,
        overlap_annotators=wanted.overlap_annotators,
        gold_items=gold_for(wanted, people, candidates),
        per_annotator=per_annotator(people, wanted),
        review=None if wanted.min_gold_accuracy is None else (wanted.min_gold_accuracy, wanted.min_gold_labels),
    )


def verify_batch(run: Json, batch: Json, datasets: Json) -> dict[str, Any]:
    """The verifier as an annotator: right first, then the asked form, through the same blind API as people.

    It judges no answer of which something is masked: a result such as 2125550123 is a telephone number to whoever masks, and without it
    a right answer looks wrong. What it would say of the text as written is nothing that the text as shown can teach.
    """
    if batch["human"] == batch["tasks"]:
        return {"labels": 0, "verdicts": {}}
    prompts, masked = prompts_of(datasets["preference_prompts"]), _masked_in(batch)
    counts: dict[str, int] = {}
    with services.annotation("verifier") as client:
        while (answered := _verify_next(client, batch["batch_id"], prompts, masked)) is not None:
            counts[answered] = counts.get(answered, 0) + 1
    total = sum(counts.values())
    decided = counts.get("left", 0) + counts.get("right", 0)
    if total:
        print(f"The verifier labelled {total} comparisons and decided {decided} of them ({decided / total:.0%}): {counts}")
    return {"labels": total, "verdicts": counts}


def _masked_in(batch: Json) -> set[tuple[str, str]]:
    """Prompt and text of every answer of the batch's candidates that is shown masked."""
    from include.flows import shown_answers

    if not batch.get("masked_answers"):
        return set()
    done = services.catalog().runs.committed(batch["origin"]["candidates"])
    answers = shown_answers.kept(done.outputs["candidates"].digest).answers if done else ()
    return {(one.prompt_id, one.response_text) for one in answers}


def _verify_next(
    client: "AnnotationClient", batch_id: str, prompts: Mapping[str, Prompt], masked: Collection[tuple[str, str]]
) -> str | None:
    from include.data.annotation_client import Judgement
    from include.verifiers.compare import compare

    task = client.next_task(batch_id)
    if task is None:
        return None
    prompt = prompts.get(task.prompt_id)
    hidden = any((task.prompt_id, side.text) in masked for side in (task.left, task.right))
    if prompt is None or prompt.reference is None or hidden:
        client.submit(task.task_id, Judgement("cannot_judge", ("not_decidable",)))
        return "cannot_judge"
    found = compare(prompt.reference, task.left.text, task.right.text)
    verdict = {"A": "left", "B": "right"}.get(found.verdict, found.verdict)
    client.submit(task.task_id, Judgement(verdict, tuple(found.reason_codes)))
    return verdict
