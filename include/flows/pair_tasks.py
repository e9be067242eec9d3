"""The preference datasets: from the labels that a run froze to pairs of answers, people's, the verifier's and imported ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.domain.canonical import digest
from include.domain.split import side_of
from include.flows import earlier_batches, preference_tasks, services, shown_answers
from include.flows.errors import FlowError
from include.flows.gold_items import without
from include.settings.catalogue import recipe, rubric, versioned
from include.settings.recipes import Recipe

if TYPE_CHECKING:
    from include.data.annotation_client import Snapshot
    from include.data.preferences import PreferenceSettings, PreferenceSource
    from include.domain.records import Label, Prompt

Json = Mapping[str, Any]
SYNTHETIC = "synthetic_pairs"


def pairs_from(run: Json, snapshot: Json, generated: Json, datasets: Json, writer: str) -> dict[str, Any]:
    """The preference datasets of a snapshot: `preferences` (people's and the verifier's labels) and `reward_pairs` (with synthetic ones).

    Pairs that a source brought join either, up to its share.
    """
    from include.data.preferences import build_preferences
    from include.flows.data_tasks import checked, publish
    from include.transforms.datasets_io import read_members

    wanted = recipe(run["recipe"])
    source, parents = collected(wanted, snapshot, generated, datasets)
    made = {}
    for name, share in (
        ("preferences", wanted.preferences.max_imported_share),
        ("reward_pairs", wanted.preferences.reward_max_imported_share),
    ):
        imported = {other: datasets[other] for other in brought(wanted, datasets, name, share)}
        folder = services.run_dir(run, "pairs") / name
        built = build_preferences(
            folder, source, _settings(wanted, name, share), [preference_tasks.local_dataset(r) for r in imported.values()]
        )
        print(built.text)
        if name == "preferences":
            say_short_wins(built.info.folder, wanted)
        checked(built.info, wanted, folder)
        if name == "reward_pairs":
            require_measurable(built.info.counts, wanted)
        origins = [(ref["content_hash"], "imported") for ref in imported.values()]
        batches = {label_id: batch_id for label_id, (_, batch_id) in built.members.items()}
        members = [(label_id, digest_, batches[label_id]) for label_id, digest_ in read_members(built.info.folder).items()]
        made[name] = publish(built.info, wanted.data.project, writer, derived_from=[*origins, *parents], members=members)
    return made


def brought(wanted: Recipe, datasets: Json, name: str, share: float) -> list[str]:
    """The datasets of pairs that join `name`: synthetic ones the reward model's, those of the recipe's sources where they have a share."""
    sources = {str(source.options.get("dataset")) for source in wanted.data.sources if source.options.get("rows") == "pair"}
    there = sorted(sources & set(datasets))
    if there and not share:
        print(
            f"{name}: pairs of {', '.join(there)} are not used, their share is 0 (preferences.max_imported_share, reward_max_imported_share)"
        )
    synthetic = [SYNTHETIC] if name == "reward_pairs" and SYNTHETIC in datasets else []
    return [*synthetic, *(other for other in there if share and other != SYNTHETIC)]


def collected(wanted: Recipe, snapshot: Json, generated: Json, datasets: Json) -> "tuple[PreferenceSource, list[tuple[str, str]]]":
    """The labels of this run's batch and of the earlier ones it froze, with their candidates and prompts; and what it all came from."""
    from include.data.preferences import PreferenceSource

    frozen, of = [_frozen(snapshot)], [generated["outputs"]["candidates"]["digest"]]
    candidates, prompts = [preference_tasks.candidates_of(generated)], preference_tasks.prompts_of(datasets["preference_prompts"])
    before: dict[str, Any] = {}
    for other in snapshot.get("earlier", ()):
        key = other["origin"]["candidates"]
        earlier_batches.require_candidates(other["batch_id"], key)
        frozen.append(_frozen(other))
        candidates.append(preference_tasks.candidates_of({"key": key}))
        before |= preference_tasks.prompts_of(other["origin"]["prompts"])
        done = services.catalog().runs.committed(key)
        of += [done.outputs["candidates"].digest] if done else []
    earlier = {prompt_id: prompt for prompt_id, prompt in before.items() if prompt_id not in prompts}
    labels = [label for one, told in zip(frozen, (snapshot, *snapshot.get("earlier", ())), strict=True) for label in _trusted(one, told)]
    if earlier:
        labels, gone = _held_out(wanted, earlier, labels, datasets)
        print(
            f"{len(frozen) - 1} earlier batches; {gone} of their labels are on prompts that say what a held-out row says, and are left out"
        )
    masked = [shown_answers.kept(one) for one in dict.fromkeys(of)]
    every = earlier_batches.all_candidates([*candidates, *(one.answers for one in masked)])
    labels = shown_answers.without_personal_data(labels, every, wanted)
    parents = [*of, *(artifact for one in masked for artifact in one.artifacts)]
    digests = sorted(one.digest for one in frozen)
    source = PreferenceSource(
        snapshot_digest=digests[0] if len(digests) == 1 else digest("label-snapshots", digests),
        labels=labels,
        candidates=every,
        prompts={**earlier, **prompts},
        purposes={one.batch_id: one.purpose for one in frozen},
        withdrawn=services.catalog().labels.withdrawn(label.label_id for label in labels),
    )
    return source, [(parent, "candidates") for parent in dict.fromkeys(parents)]


def _held_out(wanted: Recipe, earlier: "Mapping[str, Prompt]", labels: "list[Label]", datasets: Json) -> "tuple[list[Label], int]":
    """`labels` without those on earlier prompts that an item of a suite or a held-out prompt says now, and how many went.

    Of those that would be trained on, also without what any data set of the project holds out, or an earlier version of one did: they
    may have been held out themselves, under another salt.
    """
    from include.data.plan import split_of
    from include.flows.data_tasks import held_out_before

    near, split = wanted.data.near_duplicate_threshold, split_of(wanted.data)
    now = {name: preference_tasks.local_dataset(datasets[name]) for name in datasets}
    kept, gone = earlier_batches.apart_from(earlier, labels, [now[name] for name in _held_names(wanted, datasets)], near)
    sides = {prompt_id: side_of(split.salt, prompt.split_group, prompt.safety_class, split.shares) for prompt_id, prompt in earlier.items()}
    trained = {prompt_id: prompt for prompt_id, prompt in earlier.items() if sides[prompt_id] == "train"}
    everything = dict.fromkeys([*now.values(), *held_out_before(wanted.data.project)])
    kept, more = earlier_batches.apart_from(trained, kept, list(everything), near)
    return kept, gone + more


def _trusted(frozen: "Snapshot", told: Json) -> "list[Label]":
    """A snapshot's labels but for those that are held for review; how many these are is said."""
    kept = without(frozen.labels, told.get("held", ()))
    if gone := len(frozen.labels) - len(kept):
        print(f"Batch {frozen.batch_id}: {gone} labels of {len(told['held'])} annotators are held for review and not used")
    return kept


def _held_names(wanted: Recipe, datasets: Json) -> list[str]:
    suites = [item["dataset"] for item in versioned("suites", wanted.evaluation.suites)["suites"].values()]
    return [name for name in (*suites, "preference_prompts") if name in datasets]


def say_short_wins(folder: Path, wanted: Recipe) -> None:
    """How often a short answer won among the pairs of people and the verifier; a warning where that is rarer than the recipe wants."""
    from include.data.short_wins import short_wins
    from include.transforms.datasets_io import read_rows

    found = short_wins(row.record for row in read_rows(folder, "train"))
    print(found.text)
    if found.share is not None and found.share < wanted.preferences.min_short_win_share:
        print(
            f"WARNING: below {wanted.preferences.min_short_win_share:.0%} (preferences.min_short_win_share): what learns from these pairs may "
            "take length for quality. Have more such comparisons labelled (annotation.short_answer_share), and look at the rubric"
        )


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
