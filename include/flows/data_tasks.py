"""Data: the base's raw file, and the datasets of a recipe, validated, versioned and brought to the store."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.domain.canonical import sha256_file
from include.domain.layout import dataset_dir, source_dir
from include.domain.manifest import MANIFEST, FileEntry, Manifest
from include.flows import services
from include.flows.errors import FlowError
from include.settings.catalogue import recipe
from include.settings.recipes import BaseSource, Recipe
from include.stages.refs import DatasetRef, FileRef

if TYPE_CHECKING:
    from include.data.report import ValidationReport
    from include.stores.catalog.datasets import DatasetVersion
    from include.transforms.datasets_io import DatasetInfo

Json = Mapping[str, Any]


def bring_source(run: Json) -> dict[str, Any]:
    """The base's raw file in the store by the sha256 of its bytes, or its files by the digest of their manifest.

    Raises:
        FlowError: a file is missing, is not the one that the recipe pins, or none is pinned.
    """
    found = recipe(run["recipe"])
    if found.base_source.kind == "safetensors":
        return _bring_folder(found)
    local = _raw_file(found.base_source, found.base.file)
    sha256 = sha256_file(local)
    if found.base_source.sha256 not in (None, sha256):
        raise FlowError(f"{local} is {sha256}, the recipe pins {found.base_source.sha256}: fetch the pinned file, or pin this one")
    services.store().put_file(local, f"{source_dir(sha256)}/{found.base.file}", sha256)
    print(f"{found.base.file}: {local.stat().st_size / 1e6:.1f} MB, {sha256}")
    return FileRef(sha256, found.base.file).to_json()


def _bring_folder(found: Recipe) -> dict[str, Any]:
    """The pinned files of a model's folder, each compared with its digest on its way."""
    source = found.base_source
    folder = _local(source)
    if not source.files:
        raise FlowError(
            f"recipe {found.name} pins no file of {folder}: fetch {source.repository or 'the model'} at {source.revision or 'a commit'} into it, "
            f"look at it, then put what `bin/align pin {folder}` prints into base_source"
        )
    entries = []
    for name, sha256 in sorted(source.files.items()):
        if not (folder / name).is_file():
            raise FlowError(f"{folder / name} is missing; the recipe pins it")
        if (seen := sha256_file(folder / name)) != sha256:
            raise FlowError(f"{folder / name} is {seen}, the recipe pins {sha256}: fetch the pinned file, or pin this one")
        entries.append(FileEntry(name, (folder / name).stat().st_size, sha256))
    manifest = Manifest("base", tuple(entries), {"repository": source.repository, "revision": source.revision})
    services.store().put_folder(folder, source_dir(manifest.digest), manifest)
    print(f"{folder}: {len(entries)} files, {manifest.size_bytes / 1e9:.2f} GB, {manifest.digest}")
    return FileRef(manifest.digest, found.base.file).to_json()


def _local(source: BaseSource) -> Path:
    path = Path(str(source.path))
    return path if path.is_absolute() else Path(services.setting("ALIGN_SOURCES")) / path


def _raw_file(source: BaseSource, name: str) -> Path:
    if source.kind == "generated":
        from include.transforms.sources.arithmetic import write_corpus

        local = services.work_dir() / "corpora" / f"{source.seed}-{source.rows}" / name
        local.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=local.parent) as folder:  # whole or not there: another run may read it meanwhile
            made = Path(folder, name)
            write_corpus(made, seed=source.seed, rows=source.rows)
            made.replace(local)
        return local
    local = _local(source)
    if not local.is_file():
        raise FlowError(f"{local} is missing: `python -m local fetch` brings what the quick start needs")
    return local


def build(run: Json, writer: str) -> dict[str, Any]:
    """Reads, validates, cleans, splits and stores the datasets of the recipe; returns their references by name.

    Raises:
        ValidationStopped: Great Expectations says no, or could not check. The pages to read are named in the task's log.
        DataError: a prompt is trained on for two uses.
    """
    from include.data.build import build_datasets
    from include.data.errors import ValidationStopped
    from include.data.plan import plan_of
    from include.data.suites import require_uses_apart
    from include.verifiers import arithmetic

    found = recipe(run["recipe"])
    plan = plan_of(
        found.data,
        Path(services.setting("ALIGN_SOURCES")),
        arithmetic.VERSION,
        held_prompts="holdout" in found.generate.sides,
        max_pairs_per_prompt=found.preferences.max_pairs_per_prompt,
    )
    if (suppression := services.suppression()) is not None:
        plan = replace(plan, suppressed=suppression.covers)
    out = services.run_dir(run, "build")
    try:
        built = build_datasets(plan, out, filesystems=_filesystems(found), protected=held_out_before(found.data.project))
    except ValidationStopped as stopped:
        _show(stopped.report, run)
        raise
    print(built.text)
    _show(built.validation, run)
    apart = require_uses_apart(info.folder for info in built.datasets.values())
    print("Training prompts by use, apart: " + ", ".join(f"{use} {count}" for use, count in apart.items()))
    if services.catalog().erasures.suppressed() != (suppression.hashes if suppression else frozenset()):
        raise FlowError("somebody was erased while this was built: start the build again, so that they stay out")
    sources = {name: [(parent, "source") for parent in info.derived_from] for name, info in built.datasets.items()}
    return {name: publish(info, found.data.project, writer, derived_from=sources[name]) for name, info in built.datasets.items()}


def held_out_before(project: str) -> list[Path]:
    """Folders of the project's earlier dataset versions that hold something out: no later version may train on it."""
    from include.flows.preference_tasks import local_dataset

    versions = {v.content_hash: v for v in services.catalog().datasets.of_project(project) if set(v.info["counts"]) - {"train"}}
    there = [v for v in versions.values() if services.store().exists(f"{dataset_dir(v.content_hash)}/{MANIFEST}")]
    if gone := [v.name for v in versions.values() if v not in there]:
        print(f"What these versions held out is not kept from training, as they are no longer in the store: {', '.join(gone)}")
    return [local_dataset(ref_of(version)) for version in there]


def ref_of(version: "DatasetVersion") -> dict[str, Any]:
    """A version of the catalog as tasks hand it on."""
    return DatasetRef.of(version, counted=True).to_json()


def awaited_exports(run: Json) -> list[dict[str, Any]]:
    """Arguments of an S3KeySensor for every source that arrives in a bucket."""
    wanted = [source for source in recipe(run["recipe"]).data.sources if source.kind == "s3"]
    return [{"bucket_key": _s3_url(str(source.path)), "aws_conn_id": source.s3_conn_id or "aws_default"} for source in wanted]


def _s3_url(path: str) -> str:
    """``bucket/key`` as the sensor wants it; a path that is one already stays."""
    return path if path.startswith("s3://") else f"s3://{path}"


def _filesystems(found: Recipe) -> dict[str, Any]:
    """Ready filesystems of the sources in buckets, with the credentials of their `aws` connection."""
    wanted = [source for source in found.data.sources if source.kind == "s3"]
    return {source.name: s3_filesystem(source.s3_conn_id or "aws_default") for source in wanted}


def s3_filesystem(conn_id: str) -> Any:
    """An fsspec filesystem over S3 with the credentials and the endpoint of an Airflow `aws` connection."""
    import s3fs
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook

    hook = S3Hook(aws_conn_id=conn_id)
    credentials = hook.get_credentials()
    endpoint = hook.conn_config.get_service_endpoint_url("s3")
    return s3fs.S3FileSystem(
        key=credentials.access_key,
        secret=credentials.secret_key,
        token=credentials.token,
        client_kwargs={"endpoint_url": endpoint, "region_name": hook.region_name} if endpoint else {"region_name": hook.region_name},
    )


def _show(report: "ValidationReport", run: Json) -> None:
    """Says the outcome and where its pages are: on disk, and in the UI."""
    from include.flows.links import validation_link

    print(f"Validation {report.outcome}: {report.text}\nPages: {report.docs / 'index.html'}")
    validation_link(report, str(run["run_id"]))


def checked(info: "DatasetInfo", found: Recipe, folder: Path) -> None:
    """Validates one dataset that was made from labels; raises ValidationStopped when it does not pass."""
    from include.data.errors import ValidationStopped
    from include.data.own_expectations import own_expectations, own_table
    from include.data.validate import stored_table, validate

    own = own_expectations(found.data.expectations).get(info.dataset_id, ())
    tables = [stored_table(info, found.data.licences, 1), *([own_table(info.dataset_id, own, info)] if own else [])]
    report = validate(tables, folder / "validation", [], [])
    if not report.passed:
        raise ValidationStopped(report)


def publish(
    info: "DatasetInfo",
    project: str,
    writer: str,
    *,
    derived_from: Sequence[tuple[str, str]] = (),
    members: Sequence[tuple[str, str, str | None]] = (),
) -> dict[str, Any]:
    """Brings a dataset to the store and gives it its version; the same content is the same version."""
    import json

    store, catalog = services.store(), services.catalog()
    manifest = Manifest.from_json(json.loads((info.folder / MANIFEST).read_text("utf-8")))
    target = dataset_dir(info.content_hash)
    if store.exists(f"{target}/{MANIFEST}"):
        # The same rows are there under another name or from an earlier build: jobs check the bytes that lie there.
        manifest = Manifest.from_json(store.read_json(f"{target}/{MANIFEST}"))
    else:
        store.put_folder(info.folder, target, manifest)
    body = {**json.loads((info.folder / "dataset.json").read_text("utf-8")), "dataset_id": f"{project}-{info.dataset_id}"}
    version = catalog.datasets.register(body, manifest, writer, derived_from=list(derived_from), members=list(members))
    catalog.artifacts.add_location(version.artifact, store.uri, target)
    ref = DatasetRef(version.dataset_id, version.version, version.content_hash, version.artifact, dict(info.counts))
    print(f"{ref}: {info.content_hash}")
    return ref.to_json()
