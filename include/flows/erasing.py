"""Erasing persons and prompts: who must stay out is remembered, what holds their texts goes, what learnt from them is named.

In this order, so that a call that died half-way is done by the same call again: keyed hashes, texts of the annotation service,
then for each thing its row in the ledger, its bytes, its place in the catalog.
"""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from include.domain.layout import RunDir, dataset_dir
from include.flows import services
from include.flows.errors import FlowError
from include.flows.preference_tasks import local_dataset
from include.stages.refs import DatasetRef

if TYPE_CHECKING:
    from include.stores.catalog.datasets import DatasetVersion

WITH_TEXTS = ("dataset", "prompt_set", "candidate_set", "rollout_batch")
"""Kinds of artifacts that hold prompts or answers."""
FILES_WITH_TEXTS = ("findings.json",)
"""Of other artifacts, those with such a file: a part of an evaluation hands its answers on."""
LEARNT = ("model", "adapter", "reward_model", "quantised")
STAGES_WITH_TEXTS = ("generate", "ppo", "evaluate", "shadow")
"""Their attempts keep answers, in checkpoints and parts, until they are done."""


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


@dataclass
class Found:
    """What holds their texts, and what learnt from it.

    datasets: name → rows of theirs. artifacts: digest → kind, of what goes. runs: keys whose attempts keep texts.
    """

    prompt_ids: set[str] = field(default_factory=set)
    datasets: dict[str, int] = field(default_factory=dict)
    hashes: dict[str, "DatasetVersion"] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    champions: dict[str, str | None] = field(default_factory=dict)

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
    """Says what it would take away, and with `apply` takes it; the same again changes nothing.

    Raises:
        FlowError: the key of suppressions is not there. Nothing was changed.
    """
    key = services.suppression_key()
    found = find(asked)
    print(found.text)
    if not asked.apply:
        print("Nothing was changed: start it again with `apply` to erase.")
        return _result(asked, found, [])
    _suppress(asked, found, key)
    left = _remove(asked, found)
    for place in left:
        print(f"NOT erased, out of reach from here: {place}")
    return _result(asked, found, left)


def find(asked: Asked) -> Found:
    """Reads every dataset version that is still there, and follows what came from those that hold a row of theirs.

    One that an earlier call began to take away belongs to it, whatever is left of its bytes.
    """
    catalog, found = services.catalog(), Found(prompt_ids=set(asked.prompts))
    versions = [v for v in catalog.datasets.all() if catalog.artifacts.locations(v.artifact)]
    for number, version in enumerate(versions, 1):
        if catalog.erasures.erased(version.artifact) is not None:
            found.datasets[version.name] = 0
            found.hashes[version.content_hash] = version
            continue
        print(f"Reading {version.name} ({number} of {len(versions)})")
        mine = [prompt["prompt_id"] for prompt in _prompts(version) if _is_theirs(prompt, asked)]
        if mine:
            found.prompt_ids |= set(mine)
            found.datasets[version.name] = len(mine)
            found.hashes[version.content_hash] = version
    for content_hash, version in found.hashes.items():
        found.artifacts[version.artifact] = "dataset"
        _follow(found, content_hash)
    return found


def _follow(found: Found, content_hash: str) -> None:
    impact = services.catalog().lineage.impact(content_hash)
    found.artifacts |= {digest: kind for digest, kind in impact.artifacts if _holds_texts(digest, kind)}
    found.models |= {digest for digest, kind in impact.artifacts if kind in LEARNT}
    found.runs |= {key: stage for key, stage, _ in impact.runs if stage in STAGES_WITH_TEXTS}
    found.champions |= dict(impact.rollbacks)


def _holds_texts(digest: str, kind: str) -> bool:
    if kind in WITH_TEXTS:
        return True
    known = services.catalog().artifacts.get(digest)
    return known is not None and any(entry.path in FILES_WITH_TEXTS for entry in known.manifest.files)


def _prompts(version: "DatasetVersion") -> Iterator[Mapping[str, Any]]:
    from include.domain.split import SIDES
    from include.transforms.datasets_io import iter_rows

    counts = dict(version.info.get("counts") or {})
    folder = local_dataset(DatasetRef(version.dataset_id, version.version, version.content_hash, version.artifact, counts).to_json())
    for side in SIDES:
        for row in iter_rows(folder, side):
            yield row.record if "prompt_id" in row.record else row.record["prompt"]


def _is_theirs(prompt: Mapping[str, Any], asked: Asked) -> bool:
    return prompt["prompt_id"] in asked.prompts or (prompt.get("subject_ref") or "") in asked.subjects


def _suppress(asked: Asked, found: Found, key: bytes) -> None:
    from include.stores.catalog.erasures import keyed_hash

    hashes = [keyed_hash(key, "subject", ref) for ref in asked.subjects]
    hashes += [keyed_hash(key, "prompt", prompt_id) for prompt_id in sorted(found.prompt_ids)]
    services.catalog().erasures.suppress(hashes, asked.who, asked.why)
    if found.prompt_ids:
        with services.annotation("pipeline") as client:
            print(f"Annotation service: texts of {client.erase_prompts(sorted(found.prompt_ids))} tasks are gone")


def _remove(asked: Asked, found: Found) -> list[str]:
    """Takes the bytes away, datasets last, as they lead to all the rest; places that can't be reached from here are returned."""
    catalog, store, left = services.catalog(), services.store(), []
    catalog.erasures.erase(sorted(found.artifacts), asked.who, asked.why)
    for key in sorted(found.runs):
        for attempt in store.attempts(key):
            for name in ("checkpoints", "stdout", "stderr"):
                store.remove(f"{RunDir(key).attempt(str(attempt))}/{name}")
    for content_hash in found.hashes:
        shutil.rmtree(services.work_dir() / dataset_dir(content_hash), ignore_errors=True)
    for scratch in ("candidates", "build", "pairs"):  # fetched or built again by whoever needs it
        shutil.rmtree(services.work_dir() / scratch, ignore_errors=True)
    for digest in sorted(found.artifacts, key=lambda one: (found.artifacts[one] == "dataset", one)):
        if asked.taint:
            catalog.releases.taint(digest, f"erased: {asked.why}", asked.who)
        for place in catalog.artifacts.locations(digest):
            if place.store != store.uri:
                left.append(place.uri)
                continue
            store.remove(place.path)
            catalog.artifacts.forget_location(digest, place.store, place.path)
    return left


def _result(asked: Asked, found: Found, left: list[str]) -> dict[str, Any]:
    return {
        "applied": asked.apply,
        "prompts": len(found.prompt_ids),
        "datasets": sorted(found.datasets),
        "artifacts": sorted(found.artifacts),
        "models": sorted(found.models),
        "champions": found.champions,
        "left": left,
    }
