"""Code on its way to a cluster: a tar of a program's import closure, the same bytes for the same files."""

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

from include.domain.canonical import sha256_bytes
from include.domain.closure import import_closure

_Stamp = tuple[tuple[str, int, int], ...]
_made: dict[tuple[Path, str], tuple[_Stamp, "CodeTar"]] = {}


@dataclass(frozen=True)
class CodeTar:
    """The tar and its ``sha256:<hex>``; `modules` are the names of what is in it."""

    data: bytes
    sha256: str
    modules: tuple[str, ...]


def code_tar(project: Path, program: str) -> CodeTar:
    """The tar of every module of ours that `program` imports; made once a process while the files stay as they are.

    Args:
        project: the folder that holds the package `include`.
        program: module name, such as ``include.training.sft``.
    """
    project = project.resolve()
    known = _made.get((project, program))
    if known is not None and known[0] == _stamp(project, known[1].modules):
        return known[1]
    closure = import_closure(project, program)
    data = pack(project, tuple(closure.values()))
    made = CodeTar(data, sha256_bytes(data), tuple(closure))
    _made[(project, program)] = (_stamp(project, made.modules), made)
    return made


def pack(project: Path, files: tuple[Path, ...]) -> bytes:
    """A plain ustar of `files`, sorted by path, without times, owners and modes of this machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(files):
            data = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(project).as_posix())
            entry.size, entry.mode, entry.mtime = len(data), 0o644, 0
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _stamp(project: Path, modules: tuple[str, ...]) -> _Stamp:
    found = []
    for name in modules:
        stem = project.joinpath(*name.split("."))
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.is_file():
                seen = path.stat()
                found.append((str(path), seen.st_mtime_ns, seen.st_size))
                break
    return tuple(found)
