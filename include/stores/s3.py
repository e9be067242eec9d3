"""The object tier: artifacts carried and archived as content-addressed objects, their manifest last.

Works over any fsspec file system; meant for S3. A manifest that is there stands for an artifact that is whole.
"""

from pathlib import Path

from include.domain.canonical import canonical_bytes, check_digest, hex_of
from include.domain.errors import IntegrityError
from include.domain.manifest import FileEntry, Manifest
from include.stores.artifacts import ArtifactStore
from include.stores.errors import NotFound
from include.stores.transfer import FileSystem, copy_hashed, demand, whole_file


class ObjectTier:
    """Objects below a prefix.

    Args:
        fs: a ready fsspec file system, such as s3fs with credentials of an `aws` connection.
        prefix: bucket and folder, without scheme.
        uri: the tier's name in the catalog, such as ``s3://bucket/align``.
    """

    def __init__(self, fs: FileSystem, prefix: str, uri: str = "") -> None:
        self._store = ArtifactStore(fs, prefix, uri or f"s3://{prefix.strip('/')}")

    @property
    def uri(self) -> str:
        return self._store.uri

    @staticmethod
    def object_path(sha256: str) -> str:
        name = hex_of(sha256)
        return f"objects/{name[:2]}/{name}"

    @staticmethod
    def manifest_path(digest: str) -> str:
        return f"manifests/{hex_of(digest)}.json"

    def has(self, digest: str) -> bool:
        """Whether the whole artifact is here."""
        return self._store.exists(self.manifest_path(digest))

    def push(self, source: ArtifactStore, path: str, manifest: Manifest) -> str:
        """Brings an artifact from `path` in `source` here, once, and gives its manifest's path.

        Every file is hashed on its way; one that is here already is not sent again, so that a broken push goes on.
        """
        if not self.has(manifest.digest):
            for entry in sorted(manifest.files):
                self._push_file(source, f"{path}/{entry.path}", entry)
            self._store.put_bytes(self.manifest_path(manifest.digest), canonical_bytes(manifest.to_json()))
        return self.manifest_path(manifest.digest)

    def _push_file(self, source: ArtifactStore, path: str, entry: FileEntry) -> None:
        target = self.object_path(entry.sha256)
        if self._store.exists(target) and self._store.size(target) == entry.size:
            return
        try:
            with source.fs.open(source.full(path), "rb") as given, whole_file(self._store.fs, self._store.full(target)) as taken:
                seen, _ = copy_hashed(given, taken)
                demand(f"{source.uri}: {path}", entry.sha256, seen)
        except FileNotFoundError as error:
            raise NotFound(f"{source.uri}: {path} is not in the store") from error

    def manifest(self, digest: str) -> Manifest:
        """The manifest of an artifact that is here whole."""
        check_digest(digest)
        try:
            found = Manifest.from_json(self._store.read_json(self.manifest_path(digest)))
        except NotFound as error:
            raise NotFound(f"{self.uri} does not hold {digest}, or not all of it") from error
        if found.digest != digest:
            raise IntegrityError(f"{self.uri}: the manifest of {digest} is that of {found.digest}")
        return found

    def fetch(self, digest: str, local: Path) -> Manifest:
        """Copies an artifact to a folder of this machine, every byte checked, and gives its manifest."""
        manifest = self.manifest(digest)
        for entry in sorted(manifest.files):
            self._store.fetch_file(self.object_path(entry.sha256), local / entry.path, entry.sha256)
        return manifest

    def restore(self, digest: str, target: ArtifactStore, path: str) -> Manifest:
        """Copies an artifact into another store at `path`: how one that was archived comes back to a cluster."""
        manifest = self.manifest(digest)
        for entry in sorted(manifest.files):
            where = target.full(f"{path}/{entry.path}")
            source = self._store.full(self.object_path(entry.sha256))
            with self._store.fs.open(source, "rb") as given, whole_file(target.fs, where) as taken:
                seen, _ = copy_hashed(given, taken)
                demand(f"{self.uri}: {entry.path} of {digest}", entry.sha256, seen)
        target.put_json(f"{path}/manifest.json", manifest.to_json())
        return manifest
