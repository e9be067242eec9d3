"""`align bundle`: code at a commit, both environments as wheels by hash, and what recipes read, as one tar by digest, for a site without network."""

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from include.cli import site_bundle
from include.domain.canonical import canonical_bytes, sha256_file
from include.domain.errors import AlignmentError
from include.settings.catalogue import recipe

LOCKS = {"control": "requirements.txt", "cluster": "requirements-cluster.txt"}
_EPOCH = "315532800"
"""1980-01-01: wheels that are built here for want of published ones hold no time of their own."""


class BundleRefused(AlignmentError):
    """A bundle that can't be made, is not whole, or can't be installed."""


@dataclass(frozen=True)
class Wish:
    """What goes into a bundle. python: whose pip brings the wheels; of the version, system and machine that the site has."""

    project: Path
    commit: str
    recipes: tuple[str, ...]
    sources: Path
    wheels: Path
    python: str


def add_to(commands: Any) -> None:
    text = "one tar by digest of code, environments and what recipes read, for a site without network"
    bundle = commands.add_parser("bundle", help=text, description=text)
    inner = bundle.add_subparsers(required=True, metavar="COMMAND")
    make = inner.add_parser("make", help="brings the wheels of both locks and writes the bundle")
    make.add_argument("target", type=Path, help="the tar to write")
    make.add_argument("--commit", default="HEAD", help="of the code (HEAD); what is not committed is left out")
    make.add_argument("--recipe", action="append", default=[], help="whose base and data go along; may be given several times")
    make.add_argument("--sources", type=Path, help="where they lie (ALIGN_SOURCES)")
    make.add_argument("--wheels", type=Path, help="kept between bundles (.local/wheels)")
    make.add_argument("--python", default=_base_python(), help="whose pip brings the wheels (%(default)s)")
    make.set_defaults(run=_make)
    site_bundle.add_to(inner)
    for name in ("make", "verify", "install"):
        inner.choices[name].set_defaults(run=_translated(inner.choices[name].get_default("run")))


def _translated(run: Any) -> Any:
    def translated(options: argparse.Namespace) -> int:
        try:
            return int(run(options))
        except (site_bundle.BundleError, OSError) as error:
            raise BundleRefused(str(error)) from error

    return translated


def _base_python() -> str:
    """The interpreter that this environment was made from: it has a pip, which an environment made by uv lacks."""
    version = ".".join(platform.python_version_tuple()[:2])
    found = Path(sysconfig.get_config_var("BINDIR") or sys.base_prefix, f"python{version}")
    return str(found) if found.exists() else sys.executable


def _make(options: argparse.Namespace) -> int:
    project = Path(os.environ.get("ALIGN_HOME") or Path(__file__).resolve().parents[2])
    sources = options.sources or os.environ.get("ALIGN_SOURCES") or project / ".local/sources"
    wheels = options.wheels or project / ".local/wheels"
    wish = Wish(project, options.commit, tuple(options.recipe), Path(sources), Path(wheels), options.python)
    digest, size = make_bundle(wish, options.target)
    print(f"{digest} {options.target} ({size / 1e6:.1f} MB)")
    return 0


def make_bundle(wish: Wish, target: Path) -> tuple[str, int]:
    """Writes the bundle to `target`, whole or not at all; its digest and size in bytes. The same content gives the same bytes.

    Raises:
        BundleRefused: the commit, a wheel or a file of a recipe is missing, or its bytes are others than are pinned.
    """
    scratch = target.with_name(f".{target.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        (scratch / "locks").mkdir(parents=True)
        commit = _code(wish, scratch / "code.tar")
        files = {"code.tar": scratch / "code.tar", "bundle.py": Path(site_bundle.__file__)}
        files |= _wheels(wish, scratch)
        files |= _sources(wish)
        facts = {"schema": site_bundle.SCHEMA, "commit": commit, "recipes": sorted(wish.recipes), **_platform(wish.python)}
        (scratch / site_bundle.FACTS).write_bytes(canonical_bytes(facts))
        files[site_bundle.FACTS] = scratch / site_bundle.FACTS
        digest = _write(files, scratch / "bundle.tar")
        (scratch / "bundle.tar").replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return digest, target.stat().st_size


def _code(wish: Wish, target: Path) -> str:
    commit = _run(
        ["git", "rev-parse", "--verify", "--quiet", f"{wish.commit}^{{commit}}"], wish.project, f"{wish.commit!r} is no commit"
    ).strip()
    _run(
        ["git", "-c", "tar.umask=0022", "archive", "--format=tar", f"--output={target}", commit],
        wish.project,
        f"git gives no archive of {commit}",
    )
    return commit


def _wheels(wish: Wish, scratch: Path) -> dict[str, Path]:
    """Every pin of both locks, and pip, as wheels; beside them the locks with the hashes of just these."""
    with tarfile.open(scratch / "code.tar") as tar:
        locks = {name: _member(tar, file) for name, file in LOCKS.items()}
    files: dict[str, Path] = {}
    for name, lock in locks.items():
        wanted = [lock, _platform(wish.python), os.environ.get("TORCH_INDEX", "")]
        folder = wish.wheels / hashlib.sha256(canonical_bytes(wanted)).hexdigest()[:16]
        _bring(wish, folder, lock)
        brought = {_name_of(path): path for path in sorted(folder.glob("*.whl"))}
        pins = [line.partition(";")[0].strip() for line in lock.splitlines() if line.strip() and not line.lstrip().startswith(("#", "--"))]
        lines = []
        for pin in pins:
            wheel = _wheel_of(pin, brought, LOCKS[name])
            files[f"wheels/{wheel.name}"] = _same(files.get(f"wheels/{wheel.name}"), wheel)
            lines.append(f"{pin} --hash={sha256_file(wheel)}\n")
        (scratch / "locks" / f"{name}.txt").write_text("".join(lines), "utf-8")
        files[f"locks/{name}.txt"] = scratch / "locks" / f"{name}.txt"
    if (pip := next(iter(sorted(folder.glob("pip-*.whl"))), None)) is None:
        raise BundleRefused(f"{folder} holds no pip any more: remove it, and make the bundle again")
    return files | {f"wheels/{pip.name}": pip}


def _member(tar: tarfile.TarFile, name: str) -> str:
    try:
        found = tar.extractfile(name)
    except KeyError as error:
        raise BundleRefused(f"the commit holds no {name}") from error
    assert found is not None, "git archives it as a file"
    return found.read().decode()


def _bring(wish: Wish, folder: Path, lock: str) -> None:
    """pip downloads what is published as a wheel and builds the rest; its settings (index, links) hold. Done once for each lock, Python and index."""
    if (folder / "whole").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lock.txt").write_text(lock, "utf-8")
    version = _run(
        [wish.python, "-c", "import pip; print(pip.__version__)"], wish.project, f"{wish.python} has no pip: name another with --python"
    ).strip()
    env = {"SOURCE_DATE_EPOCH": _EPOCH, "DS_BUILD_OPS": "0", **_torch_index()}
    argv = [
        wish.python,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--quiet",
        "--wheel-dir",
        str(folder),
        "-r",
        str(folder / "lock.txt"),
        f"pip=={version}",
    ]
    _run(argv, wish.project, "pip could not bring every package", env)
    (folder / "whole").touch()


def _torch_index() -> dict[str, str]:
    source = os.environ.get("TORCH_INDEX")
    if not source:
        return {}
    if Path(source).is_dir() or source.endswith((".html", ".htm")):
        return {"PIP_FIND_LINKS": f"{source} {os.environ.get('PIP_FIND_LINKS', '')}".strip()}
    return {"PIP_EXTRA_INDEX_URL": f"{source} {os.environ.get('PIP_EXTRA_INDEX_URL', '')}".strip()}


def _name_of(wheel: Path) -> tuple[str, str]:
    """Name and version, without the local part, as the wheel's own metadata has them."""
    with zipfile.ZipFile(wheel) as opened:
        inside = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1)
        told = HeaderParser().parsestr(opened.read(inside).decode("utf-8", "replace"))
    return _canonical(told["Name"]), told["Version"].partition("+")[0]


def _canonical(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")


def _wheel_of(pin: str, brought: Mapping[tuple[str, str], Path], lock: str) -> Path:
    name, _, version = pin.partition("==")
    if (found := brought.get((_canonical(name.partition("[")[0]), version.partition("+")[0]))) is None:
        raise BundleRefused(f"{lock}: no wheel of {pin} was brought")
    return found


def _same(known: Path | None, wheel: Path) -> Path:
    """The wheel that is in the bundle under this name already, if it is the same: both locks may hold one package."""
    if known is not None and sha256_file(known) != sha256_file(wheel):
        raise BundleRefused(f"{known} and {wheel} differ: remove the folder of one of them, and make the bundle again")
    return known or wheel


def _sources(wish: Wish) -> dict[str, Path]:
    """Files of the recipes, each held against its pin."""
    files: dict[str, Path] = {}
    for name in wish.recipes:
        for path, pinned in _pinned(name):
            place = wish.sources / path
            if Path(path).is_absolute() or ".." in Path(path).parts:
                raise BundleRefused(f"recipe {name} reads {path}: a bundle holds what lies below ALIGN_SOURCES")
            if not place.is_file():
                raise BundleRefused(f"recipe {name}: {place} is not there")
            if (found := sha256_file(place)) != pinned:
                raise BundleRefused(f"recipe {name}: {place} has {found}, and {pinned} is pinned")
            files[f"sources/{path}"] = place
    return files


def _pinned(name: str) -> Iterator[tuple[str, str]]:
    found = recipe(name)
    base = found.base_source
    if base.kind == "safetensors":
        yield from _whole_pins(name, "base_source", {f"{base.path}/{file}": sha256 for file, sha256 in base.files.items()})
    elif base.kind == "file":
        yield from _whole_pins(name, "base_source", {base.path: base.sha256})
    for source in found.data.sources:
        if source.kind in ("hub", "s3"):
            raise BundleRefused(
                f"recipe {name}: source {source.name} is fetched over a network ({source.kind}); make it a file, and pin it"
            )
        if source.kind != "generated":
            yield from _whole_pins(name, f"source {source.name}", {source.path: source.sha256})


def _whole_pins(recipe_name: str, what: str, pins: Mapping[str | None, str | None] | Mapping[str, str]) -> Iterable[tuple[str, str]]:
    if not pins or not all(path and sha256 for path, sha256 in pins.items()):
        raise BundleRefused(f"recipe {recipe_name}: {what} is not pinned by sha256 (`align pin FOLDER` prints what pins a model's folder)")
    return [(str(path), str(sha256)) for path, sha256 in pins.items()]


def _platform(python: str) -> dict[str, str]:
    ask = "import json, platform as p; print(json.dumps([p.python_version(), p.system().lower(), p.machine()]))"
    version, system, machine = json.loads(_run([python, "-c", ask], Path.cwd(), f"{python} is no Python"))
    return {"python": ".".join(version.split(".")[:2]), "system": system, "machine": machine}


def _write(files: Mapping[str, Path], target: Path) -> str:
    """The tar, manifest first, without times, owners and modes of this machine."""
    entries = [
        {"path": name, "size": path.stat().st_size, "sha256": sha256_file(path).removeprefix("sha256:")}
        for name, path in sorted(files.items())
    ]
    digest = site_bundle.digest_of(entries)
    manifest = target.with_name(site_bundle.MANIFEST)
    manifest.write_bytes(canonical_bytes({"schema": site_bundle.SCHEMA, "digest": digest, "files": entries}))
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in [(site_bundle.MANIFEST, manifest), *sorted(files.items())]:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = path.stat().st_size, 0o644, 0
            with open(path, "rb") as stream:
                tar.addfile(entry, stream)
    site_bundle.take(target, digest)  # what was read a second time, for the tar, is what was hashed
    return digest


def _run(argv: list[str], folder: Path, what: str, env: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(argv, cwd=folder, env={**os.environ, **(env or {})}, text=True, capture_output=True, check=False)
    except OSError as error:
        raise BundleRefused(f"{what}: {error}") from error
    if done.returncode != 0:
        raise BundleRefused(f"{what}: {(done.stderr or done.stdout).strip()[-1500:] or f'it ended with {done.returncode}'}")
    return done.stdout
