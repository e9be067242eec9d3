"""From the names in a request to what the catalog knows under them: checkpoints, datasets, configurations."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from include.console.run_body import FieldRefused, Unusable
from include.settings.catalogue import recipe
from include.settings.errors import SettingsError
from include.settings.recipes import Recipe
from include.stages.refs import DatasetRef, StageResult

if TYPE_CHECKING:
    from include.stores.catalog import Catalog

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_VERSIONED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)@v?([0-9]{1,9})\Z")


@dataclass(frozen=True)
class Checkpoint:
    """A committed artifact with the run that made it."""

    digest: str
    result: StageResult
    inputs: dict[str, str]


def configuration(opened: "Catalog", reference: str) -> Recipe:
    """The recipe of `reference` (name@version), which is immutable: its first use in a request fixes its digest.

    Raises:
        FieldRefused: there is none of this name and version, or its content has changed since.
    """
    if not _VERSIONED.match(reference):
        raise FieldRefused("config", f"{reference!r} is not name@version, such as quickstart@v1")
    try:
        found = recipe(reference)
    except SettingsError as error:
        raise FieldRefused("config", str(error)) from error
    known = opened.requests.config_digest(found.reference)
    if known not in (None, found.digest):
        words = f"{found.reference} was {known} when it was first used and is {found.digest} now: raise its version, or put it back"
        raise FieldRefused("config", words)
    return found


def checkpoint(opened: "Catalog", field: str, reference: str, stage: str, output: str) -> Checkpoint:
    """The committed output `output` of a run of `stage`: by digest, or as name@version of the registry.

    Raises:
        FieldRefused: it is unknown, or another kind of thing.
        Unusable: MLflow, which keeps the registry's version numbers, does not answer.
    """
    digest = reference if _DIGEST.match(reference) else _registered(field, reference)
    made = [run for run in opened.runs.producing(digest) if run.stage == stage]
    if not made:
        others = ", ".join(sorted({run.stage for run in opened.runs.producing(digest)})) or "nothing in the catalog"
        raise FieldRefused(field, f"{reference} is not the {output} of a committed {stage} run (it comes from {others})")
    return committed(opened, made[0].key, digest)


def committed(opened: "Catalog", key: str, digest: str) -> Checkpoint:
    """A committed run as the reference that later stages take."""
    from include.stages.record import result

    run, done = opened.runs.get(key), opened.runs.committed(key)
    if run is None or done is None:
        raise Unusable(f"{key} is not committed")
    outputs = {name: {"kind": out.kind, "digest": out.digest} for name, out in done.outputs.items()}
    return Checkpoint(digest, result(run.spec, done.attempt, done.report, outputs, reused=True), dict(run.spec.inputs))


def _registered(field: str, reference: str) -> str:
    """The weights of a registered model version."""
    import os

    from include.stores.errors import RegistryError
    from include.stores.registry import WEIGHTS_TAG
    from include.stores.tracking import Tracking, tags_of

    match = _VERSIONED.match(reference)
    if not match:
        raise FieldRefused(field, f"{reference!r} is neither a digest (sha256:…) nor name@version of a registered model")
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        raise Unusable(f"{field}: MLFLOW_TRACKING_URI is not set for the API server; name the checkpoint by its digest")
    try:
        versions = list(Tracking(uri).versions(match.group(1)))
    except RegistryError as error:
        raise Unusable(f"{field}: {error} (a checkpoint can also be named by its digest)") from error
    for version in versions:
        if int(version["version"]) == int(match.group(2)) and WEIGHTS_TAG in tags_of(version):
            return tags_of(version)[WEIGHTS_TAG]
    known = ", ".join(sorted((str(v["version"]) for v in versions), key=int)) or "none"
    raise FieldRefused(field, f"{reference} is not registered; versions of {match.group(1)}: {known}")


def dataset(opened: "Catalog", field: str, reference: str, rows: str, project: str) -> DatasetRef:
    """A dataset version with rows of this kind, of this project: another project splits by another salt."""
    from include.stores.errors import NotFound

    if not _VERSIONED.match(reference):
        raise FieldRefused(field, f"{reference!r} is not name@version, such as quickstart-preferences@v3")
    try:
        found = opened.datasets.resolve(reference)
    except NotFound as error:
        raise FieldRefused(field, str(error)) from error
    if found.row_kind != rows:
        raise FieldRefused(field, f"{found.name} holds rows of kind {found.row_kind}; {rows} is needed here")
    if not found.dataset_id.startswith(f"{project}-"):
        raise FieldRefused(field, f"{found.name} is not of project {project}, whose hold-out the configuration measures on")
    return DatasetRef.of(found, counted=True)


def reward_model(opened: "Catalog", wanted: str | None, sft: Checkpoint, *, gate_required: bool) -> Checkpoint:
    """The reward model of the request, or the newest one that was trained from the same SFT model and passed its gate."""
    if wanted is not None:
        found = checkpoint(opened, "rewardModel", wanted, "reward_model", "reward_model")  # any member stands for its ensemble
        if gate_required and not _passed(opened, found.result):
            raise FieldRefused("rewardModel", f"{wanted} has not passed its gate; nothing may use it")
        return found
    for run in opened.runs.newest("reward_model", limit=1000):
        done = opened.runs.committed(run.key)
        if done is None or run.spec.inputs.get("base") != sft.digest:
            continue
        found = committed(opened, run.key, done.outputs["reward_model"].digest)
        if not gate_required or _passed(opened, found.result):
            return found
    words = f"no reward model trained from {sft.digest} has passed its gate: run train_reward_model, or name one"
    raise FieldRefused("rewardModel", words)


def _passed(opened: "Catalog", trained: StageResult) -> bool:
    """The gate judges an ensemble as one; its report stands under the first member."""
    first = trained.model("reward_model").digest
    judged = [row for row in opened.measurements.reports_of(first) if row.purpose == "reward_model"]
    return bool(judged) and judged[-1].verdict == "pass"
