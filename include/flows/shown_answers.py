"""The masked answers of a candidate set, kept beside it in the store before anybody is shown one, and read back when pairs are made."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from include.domain.canonical import canonical_bytes, hex_of
from include.domain.layout import shown_dir
from include.domain.manifest import MANIFEST, build_manifest
from include.domain.records import Candidate, Label, Prompt
from include.flows import services
from include.flows.errors import FlowError
from include.settings.recipes import Recipe

if TYPE_CHECKING:
    from include.data.shown_answers import ShownAnswers

FILE = "answers.jsonl"
ROLE = "as written"


@dataclass(frozen=True)
class Kept:
    """Masked answers that annotators may have been shown, each once, and the artifacts that hold them."""

    answers: tuple[Candidate, ...]
    artifacts: tuple[str, ...]


def shown(candidates: Sequence[Candidate], prompts: Mapping[str, Prompt], wanted: Recipe, of: str, writer: str) -> "ShownAnswers":
    """The answers as this recipe's policy lets annotators see them; masked ones are kept in the store first.

    Args:
        of: digest of the candidate set.
        writer: who asks, for the lineage.

    Raises:
        FlowError: the policy keeps out more of them than `data.max_quarantine_share`.
    """
    from include.data.errors import DataError
    from include.data.plan import pii_of
    from include.data.shown_answers import as_shown

    found = as_shown(candidates, prompts, pii_of(wanted.data))
    print(found.text)
    try:
        found.check(wanted.data.max_quarantine_share)
    except DataError as error:
        raise FlowError(str(error)) from error
    if found.masked:
        _keep(found.masked, of, {"detector": pii_of(wanted.data).version, "found": dict(found.found)}, writer)
    return found


def _keep(masked: Sequence[Candidate], of: str, meta: dict[str, Any], writer: str) -> None:
    """Once for each masking: the same answers masked the same way are the same artifact."""
    store, catalog = services.store(), services.catalog()
    with TemporaryDirectory(dir=services.work_dir()) as folder:
        Path(folder, FILE).write_bytes(b"".join(canonical_bytes(one.to_json()) + b"\n" for one in masked))
        manifest = build_manifest("candidate_set", Path(folder), meta)
        path = f"{shown_dir(of)}/{hex_of(manifest.digest)}"
        store.put_folder(Path(folder), path, manifest)
    catalog.artifacts.register(manifest, writer)
    catalog.lineage.edge(manifest.digest, of, ROLE, writer)
    catalog.artifacts.add_location(manifest.digest, store.uri, path)


def kept(of: str) -> Kept:
    """What was kept of a candidate set, by whatever policy; a folder without manifest is of a task that died, and was shown to nobody."""
    store, folder = services.store(), shown_dir(of)
    found: dict[str, Candidate] = {}
    names = [name for name in store.listdir(folder) if store.exists(f"{folder}/{name}/{MANIFEST}")]
    for name in names:
        manifest = store.read_manifest(f"{folder}/{name}")
        if hex_of(manifest.digest) != name:
            raise FlowError(f"{store.full(folder)}/{name} holds {manifest.digest}: it is not what was kept there")
        local = store.fetch_folder(f"{folder}/{name}", services.work_dir() / "candidates" / name, manifest)
        for line in (local / FILE).read_bytes().splitlines():
            one = Candidate.from_json(json.loads(line))
            found[one.candidate_id] = one
    return Kept(tuple(found.values()), tuple(f"sha256:{name}" for name in names))


def without_personal_data(labels: Sequence[Label], candidates: Sequence[Candidate], wanted: Recipe) -> list[Label]:
    """`labels` without those on an answer that holds personal data and was shown as it was written; how many went is said."""
    from include.data.plan import pii_of
    from include.data.shown_answers import shown_as_written

    unsafe = shown_as_written(labels, candidates, pii_of(wanted.data))
    safe = [label for label in labels if label.candidate_a_id not in unsafe and label.candidate_b_id not in unsafe]
    if gone := len(labels) - len(safe):
        print(
            f"{gone} labels are on {len(unsafe)} answers with personal data that were shown as they were written, before answers were masked "
            "or under another data.pii: they are left out"
        )
    return safe
