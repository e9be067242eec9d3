"""Manifests: what an artifact is made of, file by file, and the digest that names it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from include.domain.canonical import check_digest, digest, sha256_file
from include.domain.errors import IntegrityError, RecordError

KINDS = (
    "base",
    "prompt_set",
    "dataset",
    "candidate_set",
    "model",
    "adapter",
    "reward_model",
    "rollout_batch",
    "quantised",
    "deployment",
    "report",
)
"""Kinds of artifact. `candidate_set` is the answers of one generation run."""

MANIFEST = "manifest.json"


@dataclass(frozen=True, order=True)
class FileEntry:
    """One payload file: POSIX path relative to the artifact's folder, size in bytes, sha256 of its bytes."""

    path: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.path).parts
        if not parts or self.path.startswith("/") or ".." in parts or "\\" in self.path or "\0" in self.path:
            raise RecordError(f"manifest path {self.path!r} must be relative, without '..'")
        check_digest(self.sha256, f"sha256 of {self.path}")

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "sha256": self.sha256}


@dataclass(frozen=True)
class Manifest:
    """An artifact's kind, its files, and what else is told about it (`meta` is outside the digest)."""

    kind: str
    files: tuple[FileEntry, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise RecordError(f"artifact kind {self.kind!r} is none of {', '.join(KINDS)}")
        if not self.files:
            raise RecordError(f"a {self.kind} without a file is not an artifact")
        paths = [entry.path for entry in self.files]
        if len(set(paths)) != len(paths):
            raise RecordError("a path stands twice in the manifest")

    @property
    def digest(self) -> str:
        """The artifact digest: over (path, size, sha256) of the payload, sorted by path."""
        return digest("artifact", [entry.to_json() for entry in sorted(self.files)])

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.files)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "align/manifest/v1",
            "kind": self.kind,
            "digest": self.digest,
            "files": [entry.to_json() for entry in sorted(self.files)],
            "meta": dict(self.meta),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Manifest":
        """Reads one, and refuses it when its own digest does not fit its files."""
        try:
            files = tuple(FileEntry(f["path"], int(f["size"]), f["sha256"]) for f in value["files"])
            manifest = cls(value["kind"], files, value.get("meta", {}))
            stated = value["digest"]
        except (KeyError, TypeError) as error:
            raise RecordError(f"not a manifest: {error!r}") from error
        if manifest.digest != stated:
            raise IntegrityError(f"the manifest says {stated}, its own files give {manifest.digest}")
        return manifest


def build_manifest(kind: str, folder: Path, meta: Mapping[str, Any] | None = None, skip: Iterable[str] = ()) -> Manifest:
    """Hashes every file below `folder` (its own manifest.json and `skip`, relative paths, left out)."""
    left_out = {MANIFEST, *skip}
    entries = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise IntegrityError(f"{path} is a link: an artifact holds plain files only")
        if path.is_file() and name not in left_out:
            entries.append(file_entry(folder, name))
    return Manifest(kind, tuple(entries), meta or {})


def file_entry(folder: Path, name: str) -> FileEntry:
    """Size and hash of one file below `folder`."""
    path = folder / name
    return FileEntry(name, path.stat().st_size, sha256_file(path))


def verify_files(manifest: Manifest, folder: Path, *, hashes: bool = True, only: Iterable[FileEntry] | None = None) -> None:
    """Compares the files below `folder` with `manifest`.

    Args:
        hashes: False compares sizes only (what a control plane that never opens checkpoints does).
        only: these of its files; None: all.

    Raises:
        IntegrityError: naming the first file that is missing, of another size, or of other bytes.
    """
    for entry in sorted(manifest.files if only is None else only):
        path = folder / entry.path
        if not path.is_file():
            raise IntegrityError(f"{path} is missing (manifest {manifest.digest})")
        size = path.stat().st_size
        if size != entry.size:
            raise IntegrityError(f"{path} has {size} bytes, its manifest says {entry.size}")
        if hashes and (seen := sha256_file(path)) != entry.sha256:
            raise IntegrityError(f"{path} is corrupt: its bytes give {seen}, its manifest says {entry.sha256}")
