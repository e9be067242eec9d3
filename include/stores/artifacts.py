"""The artifact store: runs, bases, datasets and code by digest, over any ready fsspec file system.

Paths are POSIX and relative to the store's root; `include.domain.layout` names them. Checkpoints are opened here only by `verify`, before
something is put back; else their sizes are compared, and their hashes are the jobs' business.
"""

import json
import posixpath
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from include.domain.canonical import canonical_bytes, sha256_bytes, sha256_file
from include.domain.errors import IntegrityError, RecordError
from include.domain.layout import AttemptName, RunDir, base_dir, code_tar
from include.domain.manifest import MANIFEST, FileEntry, Manifest
from include.domain.spec import Report
from include.stores.code import CodeTar
from include.stores.errors import NotFound, StoreError
from include.stores.links import link
from include.stores.transfer import (
    FileSystem,
    Hashing,
    copy_hashed,
    demand,
    is_object_store,
    make_read_only,
    whole_file,
    whole_local_file,
    write_whole,
)

SMALL_BYTES = 64 << 20
"""Up to here a file's hash is checked by the control plane; above it only its size is."""


class ArtifactStore:
    """Bytes by path and by digest.

    Args:
        fs: a ready fsspec file system.
        root: the store's root there.
        uri: the store's name in the catalog, such as ``sftp://cluster-a/home/me/store``.
    """

    def __init__(self, fs: FileSystem, root: str, uri: str = "") -> None:
        self.fs = fs
        self.root = root.rstrip("/")
        self.uri = uri or f"file://{self.root}"

    def full(self, path: str) -> str:
        """The absolute path; one that leaves the root is refused."""
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or "\0" in path:
            raise StoreError(f"store path {path!r} must be relative to {self.root}, without '..'")
        return posixpath.join(self.root, *parts)

    def put_bytes(self, path: str, data: bytes) -> None:
        """Writes a small file as a whole; the same bytes again change nothing for a reader."""
        write_whole(self.fs, self.full(path), data)

    def put_json(self, path: str, value: Any) -> None:
        """Writes `value` in its canonical form."""
        self.put_bytes(path, canonical_bytes(value))

    def put_file(self, local: Path, path: str, sha256: str) -> str:
        """Brings a file that is named by its digest, once, and gives its path."""
        self._put(local, path, FileEntry(local.name, local.stat().st_size, sha256))
        return path

    def put_code(self, code: CodeTar) -> str:
        """Brings a code tar to ``code/<hex>.tar``, once."""
        path = code_tar(code.sha256)
        if self._size(path) != len(code.data):
            self.put_bytes(path, code.data)
            make_read_only(self.fs, self.full(path))
        return path

    def put_folder(self, local: Path, path: str, manifest: Manifest) -> str:
        """Brings an artifact's folder, once: every file hashed on its way, manifest.json last.

        Raises:
            IntegrityError: a local file is not what the manifest says; or another artifact lies at `path`.
        """
        if self.exists(f"{path}/{MANIFEST}"):
            there = self.read_manifest(path)
            if there.digest != manifest.digest:
                raise IntegrityError(f"{self.full(path)} holds {there.digest}, not {manifest.digest}")
            return path
        for entry in manifest.files:
            self._put(local / entry.path, f"{path}/{entry.path}", entry)
        self.put_json(f"{path}/{MANIFEST}", manifest.to_json())
        return path

    def _put(self, local: Path, path: str, entry: FileEntry) -> None:
        if self._size(path) == entry.size:
            return  # it appeared under a name made of its digest, as a whole
        with open(local, "rb") as source, whole_file(self.fs, self.full(path)) as target:
            seen, _ = copy_hashed(source, target)
            demand(str(local), entry.sha256, seen)
        make_read_only(self.fs, self.full(path))

    def read_bytes(self, path: str) -> bytes:
        try:
            return bytes(self.fs.cat_file(self.full(path)))
        except FileNotFoundError as error:
            raise NotFound(f"{self.uri}: {path} is not in the store") from error

    def read_json(self, path: str) -> Any:
        """Raises NotFound, or StoreError naming the file and the place in it that is no JSON."""
        data = self.read_bytes(path)
        try:
            return json.loads(data)
        except ValueError as error:
            raise StoreError(f"{self.full(path)} is no JSON: {error}") from error

    def read_manifest(self, folder: str) -> Manifest:
        """manifest.json of an artifact's folder."""
        try:
            return Manifest.from_json(self.read_json(f"{folder}/{MANIFEST}"))
        except RecordError as error:
            raise IntegrityError(f"{self.full(folder)}/{MANIFEST}: {error}") from error

    def exists(self, path: str) -> bool:
        return self._info(path) is not None

    def _info(self, path: str) -> dict[str, Any] | None:
        """None only when it is not there: `exists` of fsspec says no to every error, also to a host that is not reached."""
        full = self.full(path)
        self.fs.invalidate_cache(full)
        try:
            return dict(self.fs.info(full))
        except FileNotFoundError:
            return None

    def size(self, path: str) -> int:
        found = self._size(path)
        if found is None:
            raise NotFound(f"{self.uri}: {path} is not in the store")
        return found

    def _size(self, path: str) -> int | None:
        found = self._info(path)
        return int(found["size"]) if found is not None and found["type"] == "file" else None

    def listdir(self, path: str) -> list[str]:
        """The names in a folder, sorted; none when it is not there."""
        try:
            self.fs.invalidate_cache(self.full(path))
            found = self.fs.ls(self.full(path), detail=False)
        except FileNotFoundError:
            return []
        return sorted(PurePosixPath(item).name for item in found)

    def attempts(self, key: str) -> list[AttemptName]:
        """The attempts of a run, sorted; other names are passed over."""
        found = []
        for name in self.listdir(RunDir(key).attempts):
            try:
                found.append(AttemptName.parse(name))
            except RecordError:
                continue
        return sorted(found)

    def report(self, key: str, attempt: str) -> Report | None:
        """The attempt's report, or None while there is none."""
        try:
            return Report.from_json(self.read_json(f"{RunDir(key).attempt(attempt)}/report.json"))
        except NotFound:
            return None

    def metrics(self, key: str, attempt: str) -> list[dict[str, Any]]:
        """metrics.jsonl of the attempt, one object a step; a last line that is still being written is left out."""
        path = f"{RunDir(key).attempt(attempt)}/metrics.jsonl"
        try:
            lines = self.read_bytes(path).split(b"\n")
        except NotFound:
            return []
        whole = lines[:-1]  # what follows the last line feed is being written
        try:
            return [json.loads(line) for line in whole if line.strip()]
        except ValueError as error:
            raise StoreError(f"{self.full(path)}: a line is no JSON: {error}") from error

    def outputs(self, key: str, attempt: str) -> dict[str, Manifest]:
        """The attempt's artifacts by name, from output/manifest.json."""
        path = f"{RunDir(key).attempt(attempt)}/output/{MANIFEST}"
        value = self.read_json(path)
        if not isinstance(value, Mapping) or value.get("schema") != "align/outputs/v1":
            raise IntegrityError(f"{self.full(path)} is not of schema 'align/outputs/v1'")
        return {name: Manifest.from_json(item) for name, item in value["artifacts"].items()}

    def check_sizes(self, folder: str, manifest: Manifest) -> None:
        """Compares every file's size with the manifest; IntegrityError names the first that is missing or differs."""
        for entry in sorted(manifest.files):
            self._check_size(folder, entry)

    def _check_size(self, folder: str, entry: FileEntry) -> None:
        path = f"{folder}/{entry.path}"
        seen = self._size(path)
        if seen is None:
            raise IntegrityError(f"{self.full(path)} is missing")
        if seen != entry.size:
            raise IntegrityError(f"{self.full(path)} has {seen} bytes, its manifest says {entry.size}")

    def verify_small(self, folder: str, manifest: Manifest, limit_bytes: int = SMALL_BYTES) -> None:
        """As `check_sizes`, and the hashes of files up to `limit_bytes`."""
        for entry in sorted(manifest.files):
            self._check_size(folder, entry)
            if entry.size <= limit_bytes:
                path = f"{folder}/{entry.path}"
                demand(self.full(path), entry.sha256, sha256_bytes(self.read_bytes(path)))

    def verify(self, folder: str, manifest: Manifest, said: Callable[[str], None] = lambda _: None) -> None:
        """Reads every byte of an artifact and compares its hashes; `said` is told how far it is, every GB or so.

        Raises:
            IntegrityError: naming the first file that is missing or differs.
        """
        self.check_sizes(folder, manifest)
        hashing = Hashing(manifest.size_bytes, said)
        for entry in sorted(manifest.files):
            path = self.full(f"{folder}/{entry.path}")
            with self.fs.open(path, "rb") as source:
                demand(path, entry.sha256, hashing.sha256(source))

    def publish_base(self, digest: str, path: str) -> str:
        """Makes ``bases/<hex>`` point at a committed output, by a relative link; a copy where links don't work."""
        target = base_dir(digest)
        found = self.read_manifest(path)
        if found.digest != digest:
            raise IntegrityError(f"{self.full(path)} holds {found.digest}, not {digest}")
        if self.exists(f"{target}/{MANIFEST}") and self.read_manifest(target).digest == digest:
            return target
        relative = posixpath.relpath(path, posixpath.dirname(target))
        if is_object_store(self.fs) or not link(self.fs, relative, self.full(target)):
            self._copy_inside(path, target, found)
        return target

    def _copy_inside(self, source: str, target: str, manifest: Manifest) -> None:
        for entry in manifest.files:
            path = f"{target}/{entry.path}"
            if self._size(path) == entry.size:
                continue
            with self.fs.open(self.full(f"{source}/{entry.path}"), "rb") as given, whole_file(self.fs, self.full(path)) as taken:
                seen, _ = copy_hashed(given, taken)
                demand(self.full(f"{source}/{entry.path}"), entry.sha256, seen)
        self.put_json(f"{target}/{MANIFEST}", manifest.to_json())

    def fetch_file(self, path: str, local: Path, sha256: str | None = None) -> Path:
        """Copies a file to this machine; with `sha256` its bytes are checked before it appears."""
        try:
            with self.fs.open(self.full(path), "rb") as source, whole_local_file(local) as target:
                seen, _ = copy_hashed(source, target)
                if sha256 is not None:
                    demand(self.full(path), sha256, seen)
        except FileNotFoundError as error:
            raise NotFound(f"{self.uri}: {path} is not in the store") from error
        return local

    def fetch_folder(self, path: str, local: Path, manifest: Manifest) -> Path:
        """Copies an artifact's folder to this machine, every byte checked; what is there already, and right, stays."""
        for entry in manifest.files:
            place = local / entry.path
            if place.is_file() and place.stat().st_size == entry.size and sha256_file(place) == entry.sha256:
                continue
            self.fetch_file(f"{path}/{entry.path}", place, entry.sha256)
        with whole_local_file(local / MANIFEST) as stream:
            stream.write(canonical_bytes(manifest.to_json()))
        return local

    def remove(self, path: str) -> None:
        """Removes a file or folder, once; what is not there is no error."""
        if self.exists(path):
            self.fs.rm(self.full(path), recursive=True)
