"""The object tier against an S3 server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from include.domain.errors import IntegrityError
from include.domain.manifest import Manifest, build_manifest
from include.stores.artifacts import ArtifactStore
from include.stores.errors import NotFound
from include.stores.s3 import ObjectTier
from tests.stores.servers import free_port
from tests.stores.test_artifact_store import folder_of


@pytest.fixture(scope="module")
def s3_options() -> Iterator[dict[str, object]]:
    from moto.server import ThreadedMotoServer

    port = free_port()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    yield {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "eu-central-1"}}
    server.stop()


@pytest.fixture
def tier(s3_options: dict[str, object]) -> ObjectTier:
    fs = fsspec.filesystem("s3", skip_instance_cache=True, **s3_options)
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    fs.mkdir(bucket)
    return ObjectTier(fs, f"{bucket}/align")


@pytest.fixture
def source(store: ArtifactStore, tmp_path: Path) -> tuple[ArtifactStore, Manifest]:
    """A model in a store, one of its files larger than one upload part."""
    manifest = folder_of(tmp_path / "m", {"model.safetensors": bytes(range(256)) * 50_000, "config.json": b"{}"}, "model")
    store.put_folder(tmp_path / "m", "runs/x/output/policy", manifest)
    return store, manifest


def objects(tier: ObjectTier) -> list[str]:
    tier._store.fs.invalidate_cache()
    return sorted(path.split("/", 2)[2] for path in tier._store.fs.find(tier._store.root))


def test_what_is_pushed_comes_back_byte_for_byte(tier: ObjectTier, source: tuple[ArtifactStore, Manifest], tmp_path: Path) -> None:
    store, manifest = source
    tier.push(store, "runs/x/output/policy", manifest)
    assert tier.has(manifest.digest)
    assert tier.fetch(manifest.digest, tmp_path / "here") == manifest
    assert build_manifest("model", tmp_path / "here") == manifest


def test_objects_are_named_by_their_content(tier: ObjectTier, source: tuple[ArtifactStore, Manifest]) -> None:
    store, manifest = source
    tier.push(store, "runs/x/output/policy", manifest)
    expected = [tier.object_path(entry.sha256) for entry in manifest.files] + [tier.manifest_path(manifest.digest)]
    assert objects(tier) == sorted(expected)


def test_pushing_again_sends_nothing(tier: ObjectTier, source: tuple[ArtifactStore, Manifest]) -> None:
    store, manifest = source
    tier.push(store, "runs/x/output/policy", manifest)
    store.remove("runs")
    tier.push(store, "runs/x/output/policy", manifest)
    assert tier.has(manifest.digest)


def test_a_push_that_broke_is_not_there_and_goes_on(tier: ObjectTier, source: tuple[ArtifactStore, Manifest]) -> None:
    store, manifest = source
    data = store.read_bytes("runs/x/output/policy/model.safetensors")
    store.remove("runs/x/output/policy/model.safetensors")
    with pytest.raises(NotFound, match=r"model\.safetensors"):
        tier.push(store, "runs/x/output/policy", manifest)
    assert not tier.has(manifest.digest)
    with pytest.raises(NotFound, match="or not all of it"):
        tier.manifest(manifest.digest)
    store.put_bytes("runs/x/output/policy/model.safetensors", data)
    tier.push(store, "runs/x/output/policy", manifest)
    assert tier.has(manifest.digest)


def test_a_corrupt_byte_at_the_source_is_never_archived(tier: ObjectTier, source: tuple[ArtifactStore, Manifest]) -> None:
    store, manifest = source
    data = bytearray(store.read_bytes("runs/x/output/policy/model.safetensors"))
    data[-1] ^= 1
    store.put_bytes("runs/x/output/policy/model.safetensors", bytes(data))
    with pytest.raises(IntegrityError, match=r"model\.safetensors is corrupt"):
        tier.push(store, "runs/x/output/policy", manifest)
    weights = next(entry for entry in manifest.files if entry.path == "model.safetensors")
    assert tier.object_path(weights.sha256) not in objects(tier)


def test_a_corrupt_object_is_found_when_it_is_fetched(tier: ObjectTier, source: tuple[ArtifactStore, Manifest], tmp_path: Path) -> None:
    store, manifest = source
    tier.push(store, "runs/x/output/policy", manifest)
    entry = next(e for e in manifest.files if e.path == "config.json")
    tier._store.put_bytes(tier.object_path(entry.sha256), b"[]")
    with pytest.raises(IntegrityError, match="corrupt"):
        tier.fetch(manifest.digest, tmp_path / "here")
    assert not (tmp_path / "here" / "config.json").exists()


def test_an_archived_artifact_comes_back_to_a_store(tier: ObjectTier, source: tuple[ArtifactStore, Manifest]) -> None:
    store, manifest = source
    tier.push(store, "runs/x/output/policy", manifest)
    store.remove("runs")
    tier.restore(manifest.digest, store, "runs/x/output/policy")
    store.verify_small("runs/x/output/policy", manifest)
    assert store.read_manifest("runs/x/output/policy") == manifest


def test_what_is_not_there_is_named(tier: ObjectTier, tmp_path: Path) -> None:
    from tests.stores.things import some_digest

    with pytest.raises(NotFound, match=some_digest("none")):
        tier.fetch(some_digest("none"), tmp_path)
