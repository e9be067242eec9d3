"""Verifies and installs a bundle on a site without network. Standard library alone: a bundle holds this file as `bundle.py`.

    python3 bundle.py verify BUNDLE [--digest sha256:…]
    python3 bundle.py install BUNDLE FOLDER [--digest sha256:…] [--only control|cluster] [--store DIR]

BUNDLE is the tar, or the folder it was unpacked into. The digest goes another way than the bundle does: a bundle that was
altered together with its own manifest is told by nothing else.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

SCHEMA, MANIFEST, FACTS, MARKER = "align/bundle/v1", "manifest.json", "bundle.json", ".bundle.json"
_PIECE, _MOST_MANIFEST_BYTES = 1 << 20, 64 << 20


class BundleError(Exception):
    """What is wrong with a bundle, or with the place it is to go to, and where."""


def digest_of(files: list[dict[str, Any]]) -> str:
    """The bundle's name: over path, size and sha256 of every file but the manifest."""
    rows = sorted(([entry["path"], entry["size"], entry["sha256"]] for entry in files), key=lambda row: row[0])
    return "sha256:" + hashlib.sha256(f"{SCHEMA}\n{json.dumps(rows, separators=(',', ':'))}".encode()).hexdigest()


def read_manifest(data: bytes, expected: str | None) -> dict[str, dict[str, Any]]:
    """Path → entry, of a manifest whose digest is its own files', and the one that was asked for."""
    try:
        value = json.loads(data)
        files: list[dict[str, Any]] = [{"path": str(f["path"]), "size": int(f["size"]), "sha256": str(f["sha256"])} for f in value["files"]]
        schema, stated = str(value["schema"]), str(value["digest"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise BundleError(f"{MANIFEST} is not a bundle's manifest: {error!r}") from error
    if schema != SCHEMA:
        raise BundleError(f"{MANIFEST} is of {schema!r}; this program reads {SCHEMA}")
    if (own := digest_of(files)) != stated:
        raise BundleError(f"{MANIFEST} was altered: it says {stated}, and its own files give {own}")
    if expected is not None and own != expected:
        raise BundleError(f"this is the bundle {own}; {expected} was asked for")
    for entry in files:
        _safe(entry["path"])
    if len({entry["path"] for entry in files}) != len(files):
        raise BundleError(f"{MANIFEST} names a file twice")
    found = {entry["path"]: entry for entry in files}
    if within := next((name for name in found for folder in PurePosixPath(name).parents if str(folder) in found), None):
        raise BundleError(f"{MANIFEST} names {within!r}, and a file where its folder would be")
    return found


def _safe(name: str) -> str:
    parts, plain = PurePosixPath(name).parts, name.isprintable() and name == PurePosixPath(name).as_posix()
    if not parts or not plain or name.startswith("/") or ".." in parts or "\\" in name or name == MANIFEST:
        raise BundleError(f"{MANIFEST} names {name!r}, which is no place inside a bundle")
    return name


def take(bundle: Path, expected: str | None, into: Path | None = None) -> str:
    """Holds every file against the manifest, and writes it below `into` where that is given. The bundle's digest.

    Raises:
        BundleError: naming the first file that is missing, cut short, of other bytes, or not in the manifest.
    """
    if not bundle.exists():
        raise BundleError(f"{bundle} is not there")
    wanted: dict[str, dict[str, Any]] | None = None
    seen: set[str] = set()
    for name, size, stream in _members(bundle):
        if wanted is None:
            if name != MANIFEST or size > _MOST_MANIFEST_BYTES:
                raise BundleError(f"{bundle} begins with {name!r} and not with a manifest: it is no bundle")
            data = _whole(stream, name)
            wanted = read_manifest(data, expected)
            if (target := _place(into, MANIFEST)) is not None:
                target.write_bytes(data)
            continue
        if (entry := wanted.get(name)) is None or name in seen:
            raise BundleError(f"{name} is in {bundle} and not in its manifest{' a second time' if name in seen else ''}")
        _check(name, size, stream, entry, into)
        seen.add(name)
    if wanted is None:
        raise BundleError(f"{bundle} is empty: it is no bundle")
    if missing := sorted(wanted.keys() - seen):
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise BundleError(f"{missing[0]} is missing in {bundle}{more}: was it cut short?")
    return digest_of(list(wanted.values()))


def _members(bundle: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and bytes of each file, the manifest first."""
    if bundle.is_dir():
        rest = sorted(path for path in bundle.rglob("*") if (path.is_symlink() or not path.is_dir()) and path != bundle / MANIFEST)
        for path in [bundle / MANIFEST, *rest]:
            name = path.relative_to(bundle).as_posix()
            if path.is_symlink() or not path.is_file():
                raise BundleError(f"{name} in {bundle} is missing, or no plain file")
            with open(path, "rb") as stream:
                yield name, path.stat().st_size, stream
        return
    try:
        with tarfile.open(bundle, "r:") as tar:
            for member in tar:
                inside = tar.extractfile(member) if member.isreg() else None
                if inside is None:
                    raise BundleError(f"{member.name} in {bundle} is no plain file")
                yield member.name, member.size, inside
    except tarfile.TarError as error:
        raise BundleError(f"{bundle} is no whole tar: {error}. Was it cut short?") from error


def _whole(stream: IO[bytes], name: str) -> bytes:
    try:
        return stream.read()
    except (tarfile.TarError, EOFError) as error:
        raise BundleError(f"{name} is cut short: {error}") from error


def _check(name: str, size: int, stream: IO[bytes], entry: dict[str, Any], into: Path | None) -> None:
    if size != entry["size"]:
        raise BundleError(f"{name} has {size} bytes, and the manifest says {entry['size']}")
    hashed, read = hashlib.sha256(), 0
    target = _place(into, name)
    with open(target, "wb") if target else open(os.devnull, "wb") as out:
        try:
            while piece := stream.read(_PIECE):
                hashed.update(piece)
                out.write(piece)
                read += len(piece)
        except (tarfile.TarError, EOFError) as error:
            raise BundleError(f"{name} is cut short: {error}") from error
    if read != size:
        raise BundleError(f"{name} is cut short after {read} of {size} bytes")
    if hashed.hexdigest() != entry["sha256"]:
        raise BundleError(f"{name} was altered: its sha256 is {hashed.hexdigest()}, and the manifest says {entry['sha256']}")


def _place(into: Path | None, name: str) -> Path | None:
    if into is None:
        return None
    target = into / name
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


class Site:
    """The folder that a bundle is installed into. What is done is not done again; a run that died goes on."""

    def __init__(self, folder: Path, store: Path | None) -> None:
        self.folder = folder.resolve()
        self.local = self.folder / ".local"
        self.store = (store or self.local / "store").resolve()
        self.unpacked = self.local / "bundle"

    def install(self, bundle: Path, expected: str | None, only: str | None) -> str:
        """Code always; `only`: control (its environment and the sources) or cluster (the environment of jobs, in the store); None: both."""
        self._claim(take(bundle, expected))
        shutil.rmtree(self.unpacked, ignore_errors=True)
        digest = take(bundle, expected, self.unpacked)
        self._claim(digest)
        facts = json.loads((self.unpacked / FACTS).read_text("utf-8"))
        self._fits(facts)
        self._code()
        if only != "cluster":
            self._control()
            self._sources()
        if only != "control":
            self._cluster(facts)
        shutil.rmtree(self.unpacked)
        self._mark(digest, done=True)
        return digest

    def _claim(self, digest: str) -> None:
        """The folder is new, or holds this bundle: another one's files would stay among its own."""
        marker = self.folder / MARKER
        if marker.exists():
            if (there := json.loads(marker.read_text("utf-8"))["digest"]) != digest:
                raise BundleError(f"{self.folder} holds the bundle {there}: install {digest} into a folder of its own")
            return
        if self.folder.exists() and any(path.name != f"{MARKER}.new" for path in self.folder.iterdir()):
            raise BundleError(f"{self.folder} is not empty, and no bundle was installed into it: name a new folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._mark(digest, done=False)

    def _mark(self, digest: str, *, done: bool) -> None:
        new = self.folder / f"{MARKER}.new"
        new.write_text(json.dumps({"digest": digest, "done": done}) + "\n", "utf-8")
        new.replace(self.folder / MARKER)

    def _fits(self, facts: dict[str, Any]) -> None:
        here = {"python": ".".join(platform.python_version_tuple()[:2]), "system": platform.system().lower(), "machine": platform.machine()}
        if differs := [f"{name} {facts[name]} (here {value})" for name, value in here.items() if facts[name] != value]:
            words = "its packages do not run here. Run it with that Python, or make one for this site"
            raise BundleError(f"the bundle is for {', '.join(differs)}: {words}")

    def _code(self) -> None:
        with tarfile.open(self.unpacked / "code.tar", "r:") as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(self.folder, filter="data")
            else:  # Python before 3.11.4; the tar is the one of the manifest, either way
                tar.extractall(self.folder)

    def _control(self) -> None:
        environment = self.local / "venv"
        self._environment(environment, "control.txt", "installed.json")
        anew = _anew(environment / "installed.json")
        editable = ["install", "--no-index", "--no-deps", "--no-build-isolation", "--quiet", *anew, "--editable", str(self.folder)]
        self._pip(environment, editable)
        names = ("requirements.txt", "pyproject.toml")
        wanted = {name: hashlib.sha256((self.folder / name).read_bytes()).hexdigest() for name in names}
        (environment / "installed.json").write_text(json.dumps(wanted, indent=1), "utf-8")

    def _sources(self) -> None:
        if (found := self.unpacked / "sources").is_dir():
            shutil.copytree(found, self.local / "sources", dirs_exist_ok=True)

    def _cluster(self, facts: dict[str, Any]) -> None:
        lock = self.folder / "requirements-cluster.txt"
        hashed = hashlib.sha256(lock.read_bytes()).hexdigest()
        place = self.store / "env" / hashed
        if (place / "environment.json").exists():
            return
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._environment(place, "cluster.txt", "environment.json")
        shutil.copyfile(lock, place / lock.name)
        told = {"lock_sha256": hashed, "machine": facts["machine"], "system": facts["system"], "python": platform.python_version()}
        (place / "environment.json.new").write_text(json.dumps(told, indent=1, sort_keys=True), "utf-8")
        (place / "environment.json.new").replace(place / "environment.json")

    def _environment(self, place: Path, lock: str, done: str) -> None:
        """A virtual environment of exactly what the lock names, by hash; nothing is asked of a network. `done`: what is in a whole one."""
        made = [sys.executable, "-m", "venv", "--without-pip", str(place)]
        if not (place / "bin/python").exists() and (code := subprocess.run(made, check=False).returncode) != 0:
            raise BundleError(f"no virtual environment in {place}: {sys.executable} -m venv ended with {code}; its words are above")
        argv = ["install", "--no-index", "--no-deps", "--require-hashes", "--quiet", "--find-links", str(self.unpacked / "wheels")]
        self._pip(place, [*argv, *_anew(place / done), "-r", str(self.unpacked / "locks" / lock)])

    def _pip(self, place: Path, arguments: list[str]) -> None:
        """The pip of the bundle itself: many a Python comes without one."""
        pip = next(iter(sorted((self.unpacked / "wheels").glob("pip-*.whl"))))
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
        argv = [str(place / "bin/python"), f"{pip}/pip", *arguments]
        if (code := subprocess.run(argv, env=env, check=False).returncode) != 0:
            raise BundleError(f"pip ended with {code} for {place}; its words are above. Run the same again")


def _anew(done: Path) -> list[str]:
    """pip takes a package for installed that an earlier run, which died in it, left without its commands."""
    return [] if done.exists() else ["--ignore-installed"]


def main(argv: list[str] | None = None) -> int:
    """0 done, 1 refused."""
    parser = argparse.ArgumentParser(prog="bundle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_to(parser.add_subparsers(required=True, metavar="COMMAND"))
    options = parser.parse_args(argv)
    try:
        return int(options.run(options))
    except (BundleError, OSError) as error:
        print(f"bundle: {error}", file=sys.stderr)
        return 1


def add_to(commands: Any) -> None:
    """The two commands that a site needs."""
    verify = commands.add_parser("verify", help="holds every file of a bundle against its manifest")
    verify.set_defaults(run=lambda options: _say(take(options.bundle, options.digest), "is whole"))
    install = commands.add_parser("install", help="verifies a bundle and installs it; no network is used")
    for made in (verify, install):
        made.add_argument("bundle", type=Path, help="the tar, or the folder it was unpacked into")
        made.add_argument("--digest", help="sha256:… that the bundle must have")
    install.add_argument("folder", type=Path, help="a new folder, or one this bundle was installed into")
    install.add_argument("--only", choices=("control", "cluster"), help="one of the two environments")
    install.add_argument("--store", type=Path, help="root of the cluster's store (FOLDER/.local/store)")
    install.set_defaults(run=_install)


def _install(options: argparse.Namespace) -> int:
    site = Site(options.folder, options.store)
    return _say(site.install(options.bundle, options.digest, options.only), f"is installed in {options.folder}")


def _say(digest: str, words: str) -> int:
    print(f"{digest} {words}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
