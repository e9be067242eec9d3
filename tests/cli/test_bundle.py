"""A bundle: made of a commit, locks and a recipe's files; whole or refused; installed where there is no network."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from include.cli import bundling, main, site_bundle
from include.cli.bundling import BundleRefused, Wish, make_bundle
from include.cli.site_bundle import BundleError, take
from include.settings import catalogue
from include.settings.recipes import Recipe

ROOT = Path(__file__).resolve().parents[2]
NO_NETWORK = ["unshare", "-n"] if subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode == 0 else []
BACKEND = """
import base64, hashlib, zipfile

def get_requires_for_build_editable(config_settings=None):
    return []

def build_editable(folder, config_settings=None, metadata_directory=None):
    files = {"site.pth": b"", "site-1.dist-info/METADATA": b"Metadata-Version: 2.1\\nName: site\\nVersion: 1\\n"}
    files["site-1.dist-info/WHEEL"] = b"Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    with zipfile.ZipFile(folder + "/site-1-py3-none-any.whl", "w") as made:
        for name, data in files.items():
            made.writestr(name, data)
        made.writestr("site-1.dist-info/RECORD", "".join(f"{name},,\\n" for name in files))
    return "site-1-py3-none-any.whl"
"""


def make_wheel(folder: Path, name: str, version: str) -> None:
    """A package of one module."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n".encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={hashed(data)},{len(data)}\n" for path, data in files.items())
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as made:
        for path, data in {**files, f"{info}/RECORD": record.encode()}.items():
            made.writestr(zipfile.ZipInfo(path), data)


def hashed(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project under git, an index of three wheels, and a Python whose own pip is among them."""
    folder = tmp_path_factory.mktemp("bundle")
    subprocess.run([bundling._base_python(), "-m", "venv", folder / "python"], check=True)
    index, project = folder / "index", folder / "project"
    index.mkdir()
    project.mkdir()
    ask = "import ensurepip, os; print(os.path.join(os.path.dirname(ensurepip.__file__), '_bundled'))"
    bundled = subprocess.run([folder / "python/bin/python", "-c", ask], text=True, capture_output=True, check=True).stdout.strip()
    for wheel in Path(bundled).glob("pip-*.whl"):
        shutil.copy(wheel, index)
    make_wheel(index, "steering", "1.0")
    make_wheel(index, "pulling", "2.0")
    make_wheel(index, "shared", "3.0")
    (project / "requirements.txt").write_text("# pins\nsteering==1.0\nshared==3.0\n")
    (project / "requirements-cluster.txt").write_text("pulling==2.0\nshared==3.0\n")
    (project / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n')
    (project / "backend.py").write_text(BACKEND)
    for argv in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *argv], cwd=project, check=True)
    (project / "not-committed.txt").write_text("left out\n")
    return folder


@pytest.fixture
def wish(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Wish]:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(place / "index"))

    def wish(*recipes: str, commit: str = "HEAD", wheels: str = "wheels") -> Wish:
        return Wish(place / "project", commit, recipes, place / "sources", place / wheels, str(place / "python/bin/python"))

    return wish


@pytest.fixture
def bundle(wish: Callable[..., Wish], tmp_path: Path) -> tuple[Path, str]:
    digest, _ = make_bundle(wish(), tmp_path / "bundle.tar")
    return tmp_path / "bundle.tar", digest


def test_the_same_content_is_the_same_bytes(wish: Callable[..., Wish], bundle: tuple[Path, str], tmp_path: Path) -> None:
    again = tmp_path / "again.tar"
    digest, size = make_bundle(wish(wheels="other"), again)
    assert (digest, size) == (bundle[1], again.stat().st_size)
    assert again.read_bytes() == bundle[0].read_bytes()
    assert not list(tmp_path.glob(".*.new"))


def test_what_is_in_it(bundle: tuple[Path, str], place: Path) -> None:
    with tarfile.open(bundle[0]) as tar:
        names = tar.getnames()
        control = tar.extractfile("locks/control.txt").read().decode()  # type: ignore[union-attr]
        facts = json.loads(tar.extractfile("bundle.json").read())  # type: ignore[union-attr]
        with tarfile.open(fileobj=tar.extractfile("code.tar")) as inside:
            code = inside.getnames()
    assert names[0] == "manifest.json"
    assert {"bundle.py", "locks/cluster.txt", "wheels/pulling-2.0-py3-none-any.whl"} < set(names)
    steering = hashlib.sha256((place / "index/steering-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    assert f"steering==1.0 --hash=sha256:{steering}\n" in control
    assert facts["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert "requirements.txt" in code
    assert "not-committed.txt" not in code


@pytest.mark.timeout(300)
def test_it_is_installed_without_a_network_by_a_python_alone_and_twice_is_once(bundle: tuple[Path, str], tmp_path: Path) -> None:
    with tarfile.open(bundle[0]) as tar:
        (tmp_path / "bundle.py").write_bytes(tar.extractfile("bundle.py").read())  # type: ignore[union-attr]
    site = tmp_path / "site with a blank"
    argv = [
        *NO_NETWORK,
        bundling._base_python(),
        "-I",
        str(tmp_path / "bundle.py"),
        "install",
        str(bundle[0]),
        str(site),
        "--digest",
        bundle[1],
    ]
    for _ in range(2):
        done = subprocess.run(argv, text=True, capture_output=True, check=False, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
        assert done.returncode == 0, done.stderr
    lock = hashlib.sha256((site / "requirements-cluster.txt").read_bytes()).hexdigest()
    cluster = site / ".local/store/env" / lock
    ask = [cluster / "bin/python", "-c", "import pulling, shared; print(pulling.version, shared.version)"]
    assert subprocess.run(ask, text=True, capture_output=True, check=True).stdout == "2.0 3.0\n"
    ask = [site / ".local/venv/bin/python", "-c", "import steering; from importlib.metadata import version; print(version('site'))"]
    assert subprocess.run(ask, text=True, capture_output=True, check=True).stdout == "1\n"
    assert json.loads((cluster / "environment.json").read_text())["lock_sha256"] == lock
    assert not (site / ".local/bundle").exists()
    assert json.loads((site / ".bundle.json").read_text()) == {"digest": bundle[1], "done": True}
    # As a run leaves it that died inside of a package.
    (cluster / "environment.json").unlink()
    next(cluster.glob("lib/*/site-packages/pulling.py")).unlink()
    assert subprocess.run(argv, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, check=False).returncode == 0
    assert subprocess.run([cluster / "bin/python", "-c", "import pulling"], check=False).returncode == 0


def test_a_folder_in_which_an_install_died_at_its_first_word_is_taken_up(bundle: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/.bundle.json.new").write_text("{")
    site = site_bundle.Site(tmp_path / "site", None)
    site._claim(bundle[1])
    assert json.loads((tmp_path / "site/.bundle.json").read_text()) == {"digest": bundle[1], "done": False}


def test_a_file_in_the_place_of_a_folder_and_numbers_without_end_are_no_manifest(tmp_path: Path) -> None:
    files = [{"path": name, "size": 1, "sha256": "0" * 64} for name in ("a", "a/b/c")]
    manifest = {"schema": site_bundle.SCHEMA, "digest": site_bundle.digest_of(files), "files": files}
    with pytest.raises(BundleError, match="a file where its folder would be"):
        site_bundle.read_manifest(json.dumps(manifest).encode(), None)
    for data in (b"[" * 100_000, json.dumps(manifest | {"files": [files[0] | {"size": float("inf")}]}).encode()):
        with pytest.raises(BundleError, match=r"is not a bundle's manifest"):
            site_bundle.read_manifest(data, None)


def test_a_folder_with_other_things_or_another_bundle_is_refused_before_anything_is_written(
    bundle: tuple[Path, str], tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("x")
    with pytest.raises(BundleError, match="is not empty"):
        site_bundle.Site(tmp_path / "full", None).install(bundle[0], None, None)
    (tmp_path / "full/.bundle.json").write_text('{"digest": "sha256:1"}')
    with pytest.raises(BundleError, match="holds the bundle sha256:1"):
        site_bundle.Site(tmp_path / "full", None).install(bundle[0], None, None)
    assert sorted(path.name for path in (tmp_path / "full").iterdir()) == [".bundle.json", "mine.txt"]


@pytest.mark.parametrize("cut", [0.02, 0.5, 0.97])
def test_a_bundle_that_was_cut_short_is_refused(bundle: tuple[Path, str], tmp_path: Path, cut: float) -> None:
    whole = bundle[0].read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: int(len(whole) * cut)])
    with pytest.raises(BundleError, match="cut short|is empty"):
        take(tmp_path / "cut.tar", None)


def test_an_altered_byte_is_found_and_its_file_named(bundle: tuple[Path, str], tmp_path: Path) -> None:
    data = bytearray(bundle[0].read_bytes())
    with tarfile.open(bundle[0]) as tar:
        data[tar.getmember("locks/cluster.txt").offset_data + 3] ^= 1
    (tmp_path / "other.tar").write_bytes(data)
    with pytest.raises(BundleError, match=r"locks/cluster\.txt was altered"):
        take(tmp_path / "other.tar", None)
    site = tmp_path / "site"
    with pytest.raises(BundleError, match=r"locks/cluster\.txt was altered"):
        site_bundle.Site(site, None).install(tmp_path / "other.tar", None, None)
    assert not site.exists()


def test_a_file_that_is_missing_too_many_or_a_link_is_named(bundle: tuple[Path, str], tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    assert take(bundle[0], None, folder) == bundle[1] == take(folder, bundle[1])
    (folder / "more.txt").write_text("x")
    with pytest.raises(BundleError, match=r"more\.txt is in .* and not in its manifest"):
        take(folder, None)
    (folder / "more.txt").unlink()
    (folder / "code.tar").rename(tmp_path / "code.tar")
    with pytest.raises(BundleError, match=r"code\.tar is missing"):
        take(folder, None)
    (folder / "code.tar").symlink_to(tmp_path / "code.tar")
    with pytest.raises(BundleError, match=r"code\.tar .* no plain file"):
        take(folder, None)


def test_a_manifest_that_was_altered_with_its_files_is_told_by_the_digest_alone(bundle: tuple[Path, str], tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    take(bundle[0], None, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "locks/control.txt").write_text("evil==1\n")
    entry = next(entry for entry in manifest["files"] if entry["path"] == "locks/control.txt")
    entry |= {"size": 8, "sha256": hashlib.sha256(b"evil==1\n").hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="was altered: it says"):
        take(folder, None)
    manifest["digest"] = site_bundle.digest_of(manifest["files"])
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=f"{bundle[1]} was asked for"):
        take(folder, bundle[1])


@pytest.mark.parametrize(
    "name", ["../out", "/etc/x", "a/../../b", "manifest.json", "./manifest.json", "manifest.json/", "a//b", "a\n", "\udc80", ""]
)
def test_a_manifest_may_name_no_place_outside(name: str) -> None:
    files = [{"path": name, "size": 1, "sha256": "0" * 64}]
    with pytest.raises(BundleError, match="no place inside"):
        site_bundle.read_manifest(
            json.dumps({"schema": "align/bundle/v1", "digest": site_bundle.digest_of(files), "files": files}).encode(), None
        )


def test_another_python_is_refused(bundle: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_bundle.platform, "python_version_tuple", lambda: ("3", "9", "1"))
    with pytest.raises(BundleError, match=r"python 3\.11 \(here 3\.9\)"):
        site_bundle.Site(tmp_path / "site", None).install(bundle[0], None, None)


def recipe_of(**changed: object) -> Recipe:
    found = catalogue.recipe("quickstart")
    return found.model_copy(
        update={"base_source": found.base_source.model_copy(update=changed), "data": found.data.model_copy(update={"sources": ()})}
    )


def test_files_of_a_recipe_go_along_by_their_pins(
    wish: Callable[..., Wish], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "sources/model").mkdir(parents=True, exist_ok=True)
    (place / "sources/model/base.gguf").write_bytes(b"weights")
    pin = f"sha256:{hashlib.sha256(b'weights').hexdigest()}"
    monkeypatch.setattr(bundling, "recipe", lambda _: recipe_of(path="model/base.gguf", sha256=pin))
    make_bundle(wish("some"), tmp_path / "with.tar")
    take(tmp_path / "with.tar", None, tmp_path / "with")
    assert (tmp_path / "with/sources/model/base.gguf").read_bytes() == b"weights"
    for changed, words in (
        ({"path": "model/base.gguf", "sha256": f"sha256:{'0' * 64}"}, "is pinned"),
        ({"path": "model/none.gguf", "sha256": pin}, "is not there"),
        ({"path": "model/base.gguf", "sha256": None}, "not pinned by sha256"),
        ({"path": "/etc/hostname", "sha256": pin}, "below ALIGN_SOURCES"),
    ):
        monkeypatch.setattr(bundling, "recipe", lambda _, changed=changed: recipe_of(**changed))
        with pytest.raises(BundleRefused, match=words):
            make_bundle(wish("some"), tmp_path / "never.tar")
    assert not (tmp_path / "never.tar").exists()


def test_a_commit_or_a_package_that_is_not_there_is_named(
    wish: Callable[..., Wish], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BundleRefused, match="'nowhere' is no commit"):
        make_bundle(wish(commit="nowhere"), tmp_path / "x.tar")
    monkeypatch.setenv("PIP_FIND_LINKS", str(place / "nothing"))
    with pytest.raises(BundleRefused, match=r"(?s)could not bring every package.*No matching distribution found for"):
        make_bundle(wish(wheels="none"), tmp_path / "x.tar")


def test_wheels_that_were_brought_for_another_python_or_index_are_not_taken(
    wish: Callable[..., Wish], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundle(wish(wheels="kept"), tmp_path / "x.tar")
    kept = set((place / "kept").iterdir())
    monkeypatch.setenv("TORCH_INDEX", str(place / "nothing"))
    make_bundle(wish(wheels="kept"), tmp_path / "x.tar")
    assert len(kept) == 2
    assert len(set((place / "kept").iterdir()) - kept) == 2
    with pytest.raises(BundleRefused, match="no-python is no Python"):
        make_bundle(replace(wish(wheels="kept"), python=str(place / "no-python")), tmp_path / "x.tar")


def test_the_command_says_what_is_wrong_in_one_line(bundle: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", "verify", str(bundle[0])]) == 0
    assert capsys.readouterr().out == f"{bundle[1]} is whole\n"
    assert main(["bundle", "verify", str(bundle[0].with_name("no.tar"))]) == 1
    assert capsys.readouterr().err.startswith("align: ")


def test_the_program_of_the_site_needs_the_standard_library_alone(tmp_path: Path) -> None:
    shutil.copy(ROOT / "include/cli/site_bundle.py", tmp_path / "bundle.py")
    done = subprocess.run([sys.executable, "-I", "-S", tmp_path / "bundle.py", "--help"], text=True, capture_output=True, check=False)
    assert done.returncode == 0
