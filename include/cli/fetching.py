"""Weights out of the store, verified."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.cli.command import REFS, command, mounted_store, open_catalog
from include.domain.errors import AlignmentError

if TYPE_CHECKING:
    from include.domain.manifest import Manifest
    from include.stores.artifacts import ArtifactStore
    from include.stores.catalog import Catalog


def add_to(commands: Any) -> None:
    pull = command(commands, "pull", _pull, "fetches and verifies the weights of an alias or a deployment, or any artifact", ("ref", REFS))
    pull.add_argument("directory", type=Path, help="a new folder")


def _weights_of(catalog: "Catalog", digest: str) -> str:
    """The weights of a deployment; any other artifact (a member of a reward ensemble, an adapter) is what it is."""
    from include.stores.errors import NotFound

    try:
        return str(catalog.releases.deployment(digest)["weights"])
    except NotFound:
        return digest


def _pull(options: argparse.Namespace) -> int:
    catalog = open_catalog()
    weights = _weights_of(catalog, catalog.lineage.resolve(catalog.ledger.full_ref(options.ref)))
    store = mounted_store()
    where = next((place for place in catalog.artifacts.locations(weights)), None)
    if where is None:
        raise AlignmentError(f"no place of {weights} is on record")
    manifest = _manifest_at(store, where.path, weights)
    store.fetch_folder(where.path, options.directory, manifest)
    print(f"{options.directory}: {len(manifest.files)} files, {manifest.size_bytes / 1e6:.1f} MB, {manifest.digest} verified")
    return 0


def _manifest_at(store: "ArtifactStore", path: str, digest: str) -> "Manifest":
    """Outputs of a run have one manifest together, above their folders; a dataset has its own."""
    from include.domain.errors import IntegrityError
    from include.domain.manifest import Manifest

    if not path.startswith("runs/"):
        found = [store.read_manifest(path)]
    else:
        found = [Manifest.from_json(item) for item in store.read_json(f"{path.rsplit('/', 1)[0]}/manifest.json")["artifacts"].values()]
    for manifest in found:
        if manifest.digest == digest:
            return manifest
    raise IntegrityError(f"{store.full(path)} holds {', '.join(m.digest for m in found)}; {digest} was registered there")
