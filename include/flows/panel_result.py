"""What the panel said, as measurements: frozen for the run, kept by digest, and bound to labels, answers and deployments."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from include.domain.canonical import canonical_bytes, digest, hex_of, sha256_bytes
from include.domain.manifest import MANIFEST, FileEntry, Manifest
from include.domain.records import Label
from include.flows import services
from include.flows.errors import FlowError
from include.flows.gold_items import held_for_review, without
from include.flows.panel import Opened, Pairing, answer_id, settings_of
from include.flows.withdrawing import make_known
from include.settings.catalogue import recipe, rubric
from include.settings.recipes import Recipe

Json = Mapping[str, Any]
FILE, SCHEMA = "panel.json", "align/panel/v1"
ANEW = "another seed or rubric of the recipe asks anew, of the same answers"
"""How a batch of the panel becomes another one."""


def freeze(run_id: str, one: Opened, run: Json) -> None:
    """Closes the batch and fixes for this run the labels that stand: nobody waits until a number looks good. The same again changes nothing."""
    labels = services.catalog().labels
    if one.batch_id is None or labels.snapshot(run_id, one.batch_id) is not None:
        return
    with services.annotation("pipeline") as client:
        client.close_batch(one.batch_id)
        progress, snapshot = client.progress(one.batch_id), client.snapshot(one.batch_id)
        make_known(client.withdrawals(one.batch_id), "annotation service")
    labels.collected([label.to_json() for label in snapshot.labels])
    held = held_for_review(progress, settings_of(recipe(run["recipe"])))
    body = {"batch_id": one.batch_id, "purpose": snapshot.purpose, "progress": progress, "held": held}
    labels.record_snapshot(run_id, one.batch_id, snapshot.mark, snapshot.digest, services.setting("ALIGN_ANNOTATION_URL"), body=body)


def kinds_of(found: Recipe) -> tuple[str, ...]:
    """Whose labels count: people's; of a demonstration also its own accounts'."""
    return ("human", "demo") if found.demonstration else ("human",)


def scorer_of(found: Recipe, code: str) -> str:
    """What a share of wins is measured by: code, rubric, the seed of the sides, and whose word counts."""
    shown = rubric(settings_of(found).rubric)
    return digest("panel-scorer", {"code": code, "rubric": shown.version, "seed": found.seed, "kinds": list(kinds_of(found))})


def keep(run: Json, run_id: str, opened: Sequence[Opened], measured: Json, writer: str) -> dict[str, Any]:
    """Writes the panel's measurements, once for the same labels, and gives digest and path."""
    from include.gates.metrics import HUMAN_WIN_RATE
    from include.stages.plan import revision
    from include.stages.programs import SCORERS

    found = recipe(run["recipe"])
    told = [_told(found, run_id, one) for one in opened]
    scorer = scorer_of(found, revision(SCORERS[HUMAN_WIN_RATE]))
    rows = [
        {**row, **_not_read(found, one, of)}
        for one, of in zip(opened, told, strict=True)
        for row in _rows(one.pairing, of["items"], scorer)
    ]
    answers = measured["outputs"]["answers"]["digest"]
    body = {"schema": SCHEMA, "metric": HUMAN_WIN_RATE, "rubric": rubric(settings_of(found).rubric).version, "seed": found.seed}
    whole = {**body, "answers": answers, "comparisons": told, "rows": rows}
    kept, path = put("panels", FILE, whole, _parents(answers, opened, told), writer)
    for note in (one["note"] for one in told):
        print(note)
    return {"digest": kept, "path": path}


def _not_read(found: Recipe, one: Opened, told: Json) -> dict[str, Any]:
    """Why no gate may read a comparison: too many answers may not be shown, or too few people are left who judged (others are held for
    review, of another kind, or could judge nothing)."""
    beside, different = ", ".join(told["roles"]), len(one.pairing.different())
    hidden, allowed = len(one.unseen.answers), found.data.max_quarantine_share
    if hidden > allowed * different:
        message = (
            f"{hidden} of {different} pairs of answers beside {beside} may not be shown to people, and what is not compared is not better: "
            f"{one.unseen.text}; data.max_quarantine_share allows {allowed:g}"
        )
        return {"refused": {"cause": "not_shown", "message": message}}
    people, labels, least = len(told["judged"]), sum(told["judged"].values()), settings_of(found).min_annotators
    if people >= min(least, different - len(one.unseen)):
        return {}
    message = f"{labels} labels of {people} people count beside {beside}, human_pairwise.min_annotators asks for {least}"
    return {"refused": {"cause": "too_few_people", "message": message}}


def _parents(answers: str, opened: Sequence[Opened], told: Sequence[Json]) -> list[tuple[str, str]]:
    found = [(answers, "answers")]
    for one, of in zip(opened, told, strict=True):
        found += [(str(one.pairing.ours["deployment"]), "candidate"), (one.pairing.opponent, "compared with")]
        found += [(f"rubric:{of['rubric']}", "rubric")] if of["rubric"] else []
        found += [(f"label:{name}", "label") for item in of["items"] for name in item["labels"]]
    return list(dict.fromkeys(found))


def _told(found: Recipe, run_id: str, one: Opened) -> dict[str, Any]:
    """One pairing: every item with its value and labels, those that nobody was shown, who compared (by pseudonym, with how many labels, and how
    many of them judged), and a sentence for the report."""
    labels, frozen = _labels(found, run_id, one)
    by_pair: dict[tuple[str, str], list[Label]] = {}
    for label in labels:
        by_pair.setdefault((label.candidate_a_id, label.candidate_b_id), []).append(label)
    items = [_item(one, item, own == other, by_pair) for item, own, other in one.pairing.texts()]
    verdicts = Counter(label.verdict for label in labels)
    people, judged = Counter(label.annotator_id for label in labels), judged_by(labels)
    return {
        **frozen,
        "suite": one.pairing.suite,
        "roles": list(one.pairing.roles),
        "deployment": one.pairing.opponent,
        "items": items,
        "not_shown": one.unseen.reasons,
        "annotators": dict(sorted(people.items())),
        "judged": dict(sorted(judged.items())),
        "kept_out": list(one.kept_out),
        "note": _note(one, items, verdicts, len(judged)) + _uncounted(frozen["not_counted"]),
    }


def judged_by(labels: Iterable[Label]) -> "Counter[str]":
    """annotator → verdicts that say something of the answers; who could judge nothing is not there."""
    return Counter(label.annotator_id for label in labels if label.verdict != "cannot_judge")


def _uncounted(kinds: Mapping[str, int]) -> str:
    return f"; labels that do not count: {', '.join(f'{kind} {n}' for kind, n in kinds.items())}" if kinds else ""


def _labels(found: Recipe, run_id: str, one: Opened) -> tuple[list[Label], dict[str, Any]]:
    """The labels that count of what was frozen, and what was.

    Raises:
        FlowError: the labels at the frozen mark are no longer those that were frozen.
    """
    if one.batch_id is None:
        return [], {"batch_id": None, "mark": None, "snapshot": None, "rubric": None, "not_counted": {}}
    kept = services.catalog().labels.snapshot(run_id, one.batch_id)
    assert kept is not None, "frozen just before"
    with services.annotation("pipeline") as client:
        seen = client.snapshot(one.batch_id, int(kept.high_water_mark))
    if seen.digest != kept.digest:
        raise FlowError(
            f"the labels of panel batch {one.batch_id} were frozen as {kept.digest}, at the same mark {seen.mark} they now read {seen.digest}: "
            f"they were changed under it, and no gate reads them. {ANEW[0].upper()}{ANEW[1:]}"
        )
    trusted = without(seen.labels, [*(kept.body.get("held") or ()), *one.kept_out])
    labels = [label for label in trusted if label.annotator_kind in kinds_of(found)]
    others = Counter(label.annotator_kind for label in trusted if label.annotator_kind not in kinds_of(found))
    frozen = {"batch_id": one.batch_id, "mark": seen.mark, "snapshot": seen.digest, "rubric": seen.rubric_version}
    return labels, {**frozen, "not_counted": dict(sorted(others.items()))}


def _item(one: Opened, item: Json, equal: bool, by_pair: Mapping[tuple[str, str], Sequence[Label]]) -> dict[str, Any]:
    from include.gates.pairwise import HALF, share_of_wins

    side = one.sides[item["id"]]
    pair = (answer_id(one.pairing.ours, item), answer_id(one.pairing.theirs, item))
    labels = () if equal else by_pair.get(pair if side == "A" else pair[::-1], ())
    value = HALF if equal else share_of_wins([label.verdict for label in labels], side)
    return {**item, "candidate_is": side, "equal": equal, "value": value, "labels": sorted(label.label_id for label in labels)}


def _note(one: Opened, items: Sequence[Json], verdicts: Mapping[str, int], people: int) -> str:
    values = [item["value"] for item in items if item["value"] is not None]
    share = f"{sum(values) / len(values):.3f}" if values else "–"
    counts = ", ".join(f"{verdicts.get(name, 0)} {words}" for name, words in _WORDS)
    equal = sum(bool(item["equal"]) for item in items)
    return (
        f"people compared the candidate with {', '.join(one.pairing.roles)} on {one.pairing.suite}: win rate {share} on {len(values)} of "
        f"{len(items)} items; {sum(verdicts.values())} labels of {people} people ({counts}), {equal} equal answers, "
        f"{one.unseen.text}; batch {one.batch_id or 'none'}"
    )


_WORDS = (("tie", "ties"), ("both_bad", "both bad"), ("cannot_judge", "could not be judged"))


def _rows(pairing: Pairing, items: Sequence[Json], scorer: str) -> list[dict[str, Any]]:
    """A row of measurements for each role under which the other deployment stands; items without a verdict have no value."""
    from include.gates.metrics import HUMAN_WIN_RATE

    return rows_of(HUMAN_WIN_RATE, pairing, items, scorer)


def rows_of(metric: str, pairing: Pairing, items: Sequence[Json], scorer: str) -> list[dict[str, Any]]:
    """As `_rows`, for any metric of two answers side by side."""
    from include.gates.pairwise import row

    ours, theirs = pairing.ours, pairing.theirs
    same = ours["generation"] == theirs["generation"]
    identity = {
        "metric": metric,
        "model": ours["model"],
        "deployment": ours["deployment"],
        "suite": pairing.suite,
        "suite_digest": pairing.suite_digest,
        "scorer": scorer,
        "generation": ours["generation"] if same else digest("generation", [ours["generation"], theirs["generation"]]),
        "backend": ours["backend"],
    }
    values = [{k: item[k] for k in ("id", "group", "value", "slices")} for item in items if item["value"] is not None]
    return [row(identity, {"role": role, "deployment": pairing.opponent}, values) for role in pairing.roles]


@dataclass(frozen=True)
class Said:
    """What others said of the answers: measurements (`body["rows"]`), the scorers they are by, and sentences for the report.

    digest, path: of the artifact that keeps it; None where nobody was asked. role: what it is to the gate report.
    """

    role: str
    body: Mapping[str, Any] = field(default_factory=lambda: {"rows": [], "comparisons": []})
    scorers: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    digest: str | None = None
    path: str = ""


def panel_of(run: Json, asked: Json, scorers: Mapping[str, str], measured: Json) -> Said:
    """panel.json of what the sensor returned, checked against its digest; no rows where nobody was asked.

    Args:
        scorers: digests of their code.
        measured: the evaluation's result.

    Raises:
        FlowError: the catalog does not know it, or people compared other answers than this evaluation gave.
    """
    from include.gates.metrics import HUMAN_WIN_RATE

    if not asked:
        return Said("human_pairwise")
    known = services.catalog().artifacts.get(asked["digest"])
    if known is None:
        raise FlowError(f"the panel's measurements {asked['digest']} are not in the catalog: clear `ask_people`")
    services.store().verify_small(asked["path"], known.manifest)
    path = f"{asked['path']}/{FILE}"
    body = services.store().read_json(path)
    if body["answers"] != measured["outputs"]["answers"]["digest"]:
        raise FlowError(f"people compared {body['answers']}, this evaluation gave other answers: clear `ask_people`")
    own = {HUMAN_WIN_RATE: scorer_of(recipe(run["recipe"]), scorers[HUMAN_WIN_RATE])}
    return Said("human_pairwise", body, own, tuple(one["note"] for one in body["comparisons"]), asked["digest"], path)


def put(kind: str, file: str, body: Json, parents: Sequence[tuple[str, str]], writer: str) -> tuple[str, str]:
    """Keeps a report below reports/`kind`/ by its digest, its manifest last, with what it came from; gives digest and folder."""
    data = canonical_bytes(dict(body))
    manifest = Manifest("report", (FileEntry(file, len(data), sha256_bytes(data)),))
    folder, store, catalog = f"reports/{kind}/{hex_of(manifest.digest)}", services.store(), services.catalog()
    store.put_bytes(f"{folder}/{file}", data)
    store.put_json(f"{folder}/{MANIFEST}", manifest.to_json())
    catalog.artifacts.register(manifest, writer)
    catalog.artifacts.add_location(manifest.digest, store.uri, folder, verified=True)
    catalog.lineage.edges(manifest.digest, parents, writer)
    return manifest.digest, folder
