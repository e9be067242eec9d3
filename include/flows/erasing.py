"""Erasing persons and prompts: who must stay out is remembered, what holds their texts goes, what learnt from them is named.

In this order, so that a call that died half-way is done by the same call again: keyed hashes, texts of the annotation service,
then for each thing its row in the ledger, its bytes, its place in the catalog. The same call later also takes what a job wrote
that was still running, and names what it can't reach.
"""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.domain.canonical import digest
from include.domain.layout import RunDir, dataset_dir
from include.domain.manifest import MANIFEST
from include.flows import services
from include.flows.data_tasks import ref_of
from include.flows.errors import FlowError
from include.flows.preference_tasks import local_dataset

if TYPE_CHECKING:
    from include.stores.catalog.datasets import DatasetVersion

WITH_TEXTS = ("dataset", "prompt_set", "candidate_set", "rollout_batch")
"""Kinds of artifacts that hold prompts or answers."""
FILES_WITH_TEXTS = ("findings.json", "log_probs.parquet")
"""Of other artifacts, those with such a file: a part of an evaluation hands its answers on; log-probabilities tell of each token of one."""
LEARNT = ("model", "adapter", "reward_model", "quantised")
STAGES_WITH_TEXTS = ("generate", "ppo", "evaluate", "shadow")
"""Their attempts keep answers, in checkpoints and parts, until they are done. A model judge's runs are of the stage `evaluate`."""
SCRATCH = ("build", "pairs")
SCRATCH_IN_USE_S = 24 * 3600.0
"""Younger scratch may be a build that is at work."""


@dataclass(frozen=True)
class Asked:
    """Whom to erase: references of persons (`subject_ref` of prompts) and prompt ids. taint: nothing that learnt from them is released."""

    subjects: tuple[str, ...]
    prompts: tuple[str, ...]
    why: str
    who: str
    apply: bool = False
    taint: bool = True

    def __post_init__(self) -> None:
        if not self.subjects and not self.prompts:
            raise FlowError("name persons or prompts: nothing was erased")
        services.require_steward(self.who)

    def request(self, key: bytes) -> str:
        """Tells the same request again, and nobody who it is about."""
        from include.stores.catalog.erasures import keyed_hash

        named = [keyed_hash(key, "subject", one) for one in self.subjects] + [keyed_hash(key, "prompt", one) for one in self.prompts]
        return digest("erasure-request", sorted(named))


@dataclass
class Found:
    """What holds their texts, and what learnt from it.

    datasets: name → rows of theirs. hashes: content hash → version, of those. artifacts: digest → kind, of what goes.
    runs: keys whose attempts keep texts, with their stage. left: what could not be read or reached.
    """

    prompt_ids: set[str] = field(default_factory=set)
    datasets: dict[str, int] = field(default_factory=dict)
    hashes: dict[str, "DatasetVersion"] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    champions: dict[str, str | None] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        lines = [f"{len(self.prompt_ids)} prompts of theirs are in {len(self.datasets)} datasets:"]
        lines += [f"  {name}: {rows} rows" for name, rows in sorted(self.datasets.items())]
        lines += [f"  {kind} {digest}" for digest, kind in sorted(self.artifacts.items(), key=lambda item: (item[1], item[0]))]
        lines += [f"  attempts of {stage} {key}: answers and checkpoints" for key, stage in sorted(self.runs.items())]
        lines += [f"{len(self.models)} models learnt from them"]
        for name, target in sorted(self.champions.items()):
            lines.append(f"  champion of {name}: " + (f"roll back to {target}" if target else "no earlier one is free of them; train anew"))
        return "\n".join(lines)


def erase(asked: Asked) -> dict[str, Any]:
    """Says what it would take away, and with `apply` takes it; the same again changes nothing but what came since.

    Raises:
        FlowError: the key of suppressions is not there. Nothing was changed.
        StoreError: it is another key than the one that others were suppressed with.
    """
    key = services.suppression_key()
    found = find(asked, asked.request(key))
    print(found.text)
    if asked.apply:
        _suppress(asked, found, key)
        _remove(asked, found, asked.request(key))
    for place in found.left:
        print(f"NOT erased: {place}")
    if not asked.apply:
        print("Nothing was changed: start it again with `apply` to erase.")
    return {
        "applied": asked.apply,
        "prompts": len(found.prompt_ids),
        "datasets": sorted(found.datasets),
        "artifacts": sorted(found.artifacts),
        "models": sorted(found.models),
        "champions": found.champions,
        "left": found.left,
    }


def find(asked: Asked, request: str) -> Found:
    """Reads every dataset version whose bytes are there, and follows what came from those that hold a row of theirs.

    A version that the same request took away before leads to what came from it since. Prompts of a person count wherever they
    stand, also where another source gave them without the person.
    """
    catalog, found = services.catalog(), Found(prompt_ids=set(asked.prompts))
    readable = []
    for version in catalog.datasets.all():
        gone = catalog.erasures.erased(version.artifact)
        if services.store().exists(f"{dataset_dir(version.content_hash)}/{MANIFEST}"):
            readable.append(version)
        elif places := catalog.artifacts.locations(version.artifact):
            found.left.append(f"{version.name} was not read, it lies only in {', '.join(place.uri for place in places)}")
        if gone is not None and gone["request"] == request:
            found.datasets[version.name], found.hashes[version.content_hash] = 0, version
    if asked.subjects:
        for prompt in _all_prompts(readable, "whose prompts they are"):
            if (prompt.get("subject_ref") or "") in asked.subjects:
                found.prompt_ids.add(prompt["prompt_id"])
    for version in readable:
        if rows := sum(prompt["prompt_id"] in found.prompt_ids for prompt in _all_prompts([version], "their rows")):
            found.datasets[version.name], found.hashes[version.content_hash] = rows, version
    _follow(found)
    return found


def _follow(found: Found) -> None:
    """What came from these datasets by way of texts alone goes; models stay, and are named."""
    catalog = services.catalog()
    spread = catalog.lineage.spread(found.hashes, _holds_texts)
    for digest_ in spread:
        if (known := catalog.artifacts.get(digest_)) is not None and known.kind not in LEARNT:
            found.artifacts[digest_] = known.kind
    for version in found.hashes.values():
        found.artifacts[version.artifact] = "dataset"
    for key in catalog.lineage.readers(spread):
        run = catalog.runs.get(key)
        if run is not None and run.stage in STAGES_WITH_TEXTS:
            found.runs[key] = run.stage
    for content_hash in found.hashes:
        impact = catalog.lineage.impact(content_hash)
        found.models |= {one for one, kind in impact.artifacts if kind in LEARNT}
        found.champions |= dict(impact.rollbacks)


def _holds_texts(ref: str) -> bool:
    """Whether a node is an artifact with prompts or answers; a dataset is read for itself, and not taken because of its parents."""
    known = services.catalog().artifacts.get(ref)
    if known is None or known.kind in ("dataset", "prompt_set"):
        return False
    return known.kind in WITH_TEXTS or any(entry.path in FILES_WITH_TEXTS for entry in known.manifest.files)


def _all_prompts(versions: Sequence["DatasetVersion"], what: str) -> Iterator[Mapping[str, Any]]:
    from include.domain.split import SIDES
    from include.transforms.datasets_io import iter_rows

    for number, version in enumerate(versions, 1):
        print(f"Reading {version.name} for {what} ({number} of {len(versions)})")
        folder = local_dataset(ref_of(version))
        for side in SIDES:
            for row in iter_rows(folder, side):
                yield row.record if "prompt_id" in row.record else row.record["prompt"]


def _suppress(asked: Asked, found: Found, key: bytes) -> None:
    services.catalog().erasures.suppress(key, asked.subjects, sorted(found.prompt_ids), asked.who, asked.why)
    if found.prompt_ids:
        with services.annotation("pipeline") as client:
            print(f"Annotation service: texts of {client.erase_prompts(sorted(found.prompt_ids))} tasks are gone")


def _remove(asked: Asked, found: Found, request: str) -> None:
    """Takes the bytes away, datasets last, as they lead to all the rest."""
    catalog, store = services.catalog(), services.store()
    catalog.erasures.erase(sorted(found.artifacts), asked.who, asked.why, request)
    for key, stage in sorted(found.runs.items()):
        _empty_attempts(found, key, stage)
    _empty_scratch(found)
    for one in sorted(found.artifacts, key=lambda one: (found.artifacts[one] == "dataset", one)):
        if asked.taint:
            catalog.releases.taint(one, f"erased: {asked.why}", asked.who)
        for place in catalog.artifacts.locations(one):
            if place.store != store.uri:
                found.left.append(f"{place.uri} is out of reach from here")
                continue
            store.remove(place.path)
            catalog.artifacts.forget_location(one, place.store, place.path)


def _empty_attempts(found: Found, key: str, stage: str) -> None:
    """Checkpoints, outputs that were never committed, and what the program said. A job that is at work keeps its own, and is named."""
    catalog, store = services.catalog(), services.store()
    state, run = catalog.key_states.of(key), catalog.runs.get(key)
    if state is not None and state.live:
        found.left.append(f"a job of {stage} {key} is at work on their texts: let it end, or end it, then start the same again")
        return
    for attempt in store.attempts(key):
        folder = RunDir(key).attempt(str(attempt))
        committed = run is not None and run.committed_attempt == str(attempt)
        for name in ("checkpoints", "stdout", "stderr", *(() if committed else ("output",))):
            store.remove(f"{folder}/{name}")


def _empty_scratch(found: Found) -> None:
    """Of the control plane: copies are fetched again by whoever needs them, pages of validations are not kept, old builds go."""
    work = services.work_dir()
    for content_hash in found.hashes:
        shutil.rmtree(work / dataset_dir(content_hash), ignore_errors=True)
    for name in ("candidates", "validation"):
        shutil.rmtree(work / name, ignore_errors=True)
    for folder in (folder for name in SCRATCH for folder in _folders(work / name)):
        if time.time() - folder.stat().st_mtime > SCRATCH_IN_USE_S:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            found.left.append(f"{folder} may be a build that is at work: start the same again tomorrow")


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
