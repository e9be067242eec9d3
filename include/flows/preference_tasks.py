"""Preference collection: the batch, the verifier's labels, and the datasets made from a snapshot."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.domain.canonical import digest
from include.domain.records import Candidate, Prompt
from include.flows import services
from include.flows.errors import FlowError
from include.settings.catalogue import recipe, rubric
from include.settings.recipes import Recipe
from include.stages.refs import DatasetRef

if TYPE_CHECKING:
    from include.data.annotation_client import AnnotationClient, Snapshot
    from include.data.preferences import PreferenceSettings

Json = Mapping[str, Any]


def local_dataset(ref: Json) -> Path:
    """A dataset version's folder on the control plane, fetched once and checked against its manifest."""
    from include.domain.layout import dataset_dir
    from include.domain.manifest import Manifest

    found, store = DatasetRef.from_json(ref), services.store()
    folder = dataset_dir(found.content_hash)
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
    import pyarrow.parquet as pq

    store = services.store()
    done = services.catalog().runs.committed(result["key"])
    if done is None:
        raise FlowError(f"{result['key']} is not committed")
    out = done.outputs["candidates"]
    manifest = store.outputs(result["key"], done.attempt)["candidates"]
    local = services.work_dir() / "candidates" / out.digest.removeprefix("sha256:")
    store.fetch_folder(out.path, local, manifest)
    import json

    return [Candidate.from_json(json.loads(text)) for text in pq.read_table(local / "candidates.parquet").column("record").to_pylist()]


def open_batch(run: Json, generated: Json, datasets: Json) -> dict[str, Any]:
    """The comparisons of a candidate set, created once: the batch's key is made of the candidates, the rubric and who compares."""
    from include.data.annotation_client import BatchRequest
    from include.flows.comparisons import compared, shared_out

    wanted = recipe(run["recipe"]).annotation
    shown = rubric(wanted.rubric)
    candidates = candidates_of(generated)
    found = compared(candidates, prompts_of(datasets["preference_prompts"]))
    if not found:
        raise FlowError("the policy gave two equal answers to every prompt: raise the sampling temperature or the number of prompts")
    tasks, people = shared_out(found, wanted, bool(run["auto"]))
    body = {
        "candidates": generated["outputs"]["candidates"]["digest"],
        "rubric": shown.version,
        "human": people,
        "overlap": wanted.overlap_share,
    }
    request = BatchRequest(purpose="train", rubric=shown, tasks=tasks, human=people, overlap_share=wanted.overlap_share)
    with services.annotation("pipeline") as client:
        receipt = client.create_batch(digest("annotation-batch", body), request)
    same = len({c.prompt_id for c in candidates} - {t.prompt.prompt_id for t in found})
    print(
        f"Batch {receipt.batch_id}: {len(tasks)} comparisons, {people} for people, {len(tasks) - people} for the verifier; {same} with equal answers left out"
    )
    return {
        "batch_id": receipt.batch_id,
        "tasks": len(tasks),
        "human": people,
        "url": services.setting("ALIGN_ANNOTATION_URL"),
        "equal_answers": same,
    }


def verify_batch(run: Json, batch: Json, datasets: Json) -> dict[str, Any]:
    """The verifier as an annotator: right first, then the asked form, through the same blind API as people."""
    if batch["human"] == batch["tasks"]:
        return {"labels": 0, "verdicts": {}}
    prompts = prompts_of(datasets["preference_prompts"])
    counts: dict[str, int] = {}
    with services.annotation("verifier") as client:
        while (answered := _verify_next(client, batch["batch_id"], prompts)) is not None:
            counts[answered] = counts.get(answered, 0) + 1
    total = sum(counts.values())
    decided = counts.get("left", 0) + counts.get("right", 0)
    if total:
        print(f"The verifier labelled {total} comparisons and decided {decided} of them ({decided / total:.0%}): {counts}")
    return {"labels": total, "verdicts": counts}


def _verify_next(client: "AnnotationClient", batch_id: str, prompts: Mapping[str, Prompt]) -> str | None:
    from include.data.annotation_client import Judgement
    from include.verifiers.compare import compare

    task = client.next_task(batch_id)
    if task is None:
        return None
    prompt = prompts.get(task.prompt_id)
    if prompt is None or prompt.reference is None:
        client.submit(task.task_id, Judgement("cannot_judge", ("not_decidable",)))
        return "cannot_judge"
    found = compare(prompt.reference, task.left.text, task.right.text)
    verdict = {"A": "left", "B": "right"}.get(found.verdict, found.verdict)
    client.submit(task.task_id, Judgement(verdict, tuple(found.reason_codes)))
    return verdict


def pairs_from(run: Json, snapshot: Json, generated: Json, datasets: Json, writer: str) -> dict[str, Any]:
    """The preference datasets of a snapshot: `preferences` (people's and the verifier's labels) and `reward_pairs` (with synthetic ones)."""
    from include.data.preferences import PreferenceSource, build_preferences
    from include.flows.data_tasks import checked, publish
    from include.transforms.datasets_io import read_members

    wanted = recipe(run["recipe"])
    frozen = _frozen(snapshot)
    source = PreferenceSource(
        snapshot_digest=frozen.digest,
        labels=frozen.labels,
        candidates=candidates_of(generated),
        prompts=prompts_of(datasets["preference_prompts"]),
        purposes={frozen.batch_id: frozen.purpose},
        withdrawn=services.catalog().labels.withdrawn(label.label_id for label in frozen.labels),
    )
    synthetic = [local_dataset(datasets["synthetic_pairs"])] if "synthetic_pairs" in datasets else []
    made = {}
    for name, imported, share in (
        ("preferences", [], wanted.preferences.max_imported_share),
        ("reward_pairs", synthetic, wanted.preferences.reward_max_imported_share),
    ):
        folder = services.run_dir(run, "pairs") / name
        built = build_preferences(folder, source, _settings(wanted, name, share), imported)
        print(built.text)
        checked(built.info, wanted, folder)
        if name == "reward_pairs":
            require_measurable(built.info.counts, wanted)
        origins = [(ref["content_hash"], "imported") for ref in ([datasets["synthetic_pairs"]] if imported else [])]
        parents = [*origins, (generated["outputs"]["candidates"]["digest"], "candidates")]
        members = [(label_id, digest_, frozen.batch_id) for label_id, digest_ in read_members(built.info.folder).items()]
        made[name] = publish(built.info, wanted.data.project, writer, derived_from=parents, members=members)
    return made


def require_measurable(counts: Mapping[str, int], wanted: Recipe) -> None:
    """Refuses pairs on which a reward model could not be stopped or judged, before it is paid for.

    Raises:
        FlowError: no validation pair, or fewer hold-out pairs than the reward model's gate asks for.
    """
    held = counts.get("holdout", 0) + counts.get("safety_holdout", 0)
    needed = wanted.reward_gate.min_pairs if wanted.reward_gate.required else 1
    short = ["no validation pair to stop on"] * (not counts.get("validation", 0))
    short += [f"{held} hold-out pairs, reward_gate needs {needed}"] * (held < needed)
    if short:
        raise FlowError(
            f"recipe {wanted.name}: the reward model would be trained in vain: {' and '.join(short)}. Have answers to prompts of these sides "
            f"compared (generate.sides, now {dict(wanted.generate.sides)}), or allow synthetic pairs (data.synthetic_pairs)"
        )


def _frozen(snapshot: Json) -> "Snapshot":
    """The labels at the snapshot's mark; refused when they no longer give its digest."""
    with services.annotation("pipeline") as client:
        frozen = client.snapshot(snapshot["batch_id"], up_to=snapshot["mark"])
    if frozen.digest != snapshot["digest"]:
        raise FlowError(
            f"snapshot {snapshot['digest']} of batch {snapshot['batch_id']} now reads {frozen.digest}: labels were changed under it"
        )
    return frozen


def _settings(wanted: Recipe, name: str, max_imported_share: float) -> "PreferenceSettings":
    from include.data.plan import split_of
    from include.data.preferences import PreferenceSettings

    return PreferenceSettings(
        dataset_id=name,
        rubric_versions=tuple(rubric(item).version for item in wanted.preferences.rubrics),
        split=split_of(wanted.data),
        max_imported_share=max_imported_share,
        max_pairs_per_prompt=wanted.preferences.max_pairs_per_prompt,
        min_train_pairs=wanted.preferences.min_train_pairs,
        aggregation=wanted.preferences.aggregation,
        seed=wanted.seed,
    )
