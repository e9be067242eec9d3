"""What a program hands on: one folder an artifact with a manifest of its own, and the manifest of all of them last."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from include.domain.manifest import MANIFEST, Manifest, build_manifest
from include.runtime.errors import RuntimeFault
from include.runtime.files import json_bytes, replace_durable, sync_folder, sync_tree


class Outputs:
    """The output folder of one attempt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifests: dict[str, Manifest] = {}

    def open(self, name: str) -> Path:
        """A new, empty folder for the artifact `name`."""
        path = self.folder / name
        if path.exists():
            raise RuntimeFault(f"{path} is there already: an output is written once")
        path.mkdir(parents=True)
        return path

    def close(self, name: str, kind: str, meta: Mapping[str, Any] | None = None) -> Manifest:
        """Hashes the artifact's files, makes them durable and writes its manifest."""
        path = self.folder / name
        manifest = build_manifest(kind, path, meta)
        sync_tree(path)
        replace_durable(path / MANIFEST, json_bytes(manifest.to_json()))
        self.manifests[name] = manifest
        return manifest

    def finish(self) -> dict[str, str]:
        """Writes the manifest of all artifacts; gives name → digest."""
        self.folder.mkdir(exist_ok=True)
        artifacts = {name: manifest.to_json() for name, manifest in sorted(self.manifests.items())}
        sync_folder(self.folder)
        replace_durable(self.folder / MANIFEST, json_bytes({"schema": "align/outputs/v1", "artifacts": artifacts}))
        return {name: manifest.digest for name, manifest in sorted(self.manifests.items())}
