"""The Python environments: one for the control plane, one for the jobs of the cluster. Made with uv, built in place."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from local import folders
from local.layout import CLUSTER_LOCK, MEGATRON_NEXT_LOCK, PEERS_LOCK, Layout
from local.ports import write_atomically
from local.process import LocalError
from local.progress import run_logged, say, step

PYTHON = "3.11"
NEXT_PYTHON = "3.12"
"""What megatron-core needs from 0.17 on."""
_CONTROL = ("requirements.txt",)
_DEVELOPMENT = ("requirements.txt", "requirements-dev.txt")


def find_uv(layout: Layout) -> str:
    """uv as it is installed, or brought into `.local/tools` by pip."""
    if found := installed_uv(layout):
        return found
    with step("bringing uv, which installs Python packages"):
        advice = "Bring uv by hand (pip install uv, or apt-get install python3-venv python3-pip), then run this again."
        for argv in (
            [sys.executable, "-m", "venv", str(layout.tools)],
            [str(layout.tools / "bin/python"), "-m", "pip", "install", "-q", "uv"],
        ):
            run_logged(argv, log=layout.install_log, env=os.environ, cwd=layout.root, advice=advice)
    return str(layout.tools / "bin/uv")


def installed_uv(layout: Layout) -> str | None:
    """A uv that answers; a shim of a version manager may not."""
    for candidate in (shutil.which("uv"), shutil.which(str(layout.tools / "bin/uv"))):
        if candidate and subprocess.run([candidate, "--version"], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def uv_environment(layout: Layout) -> dict[str, str]:
    """The environment of uv: what pip is told about other sources of packages holds for uv too.

    Addresses go through the environment, as they may carry a password.
    """
    env = {**os.environ, "UV_PYTHON_INSTALL_DIR": str(layout.shared / "python"), "UV_NO_PROGRESS": "1"}
    env.setdefault("UV_HTTP_TIMEOUT", "180")
    links = _pip_setting("find-links")
    if links:
        env.setdefault("UV_FIND_LINKS", ",".join(links))
    index = [address for address in _pip_setting("index-url") if address.startswith("http")]
    if index:
        env.setdefault("UV_DEFAULT_INDEX", index[0])
    extra = [address for address in _pip_setting("extra-index-url") if address.startswith("http")]
    if extra:
        env.setdefault("UV_INDEX", " ".join(extra))
        env.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")  # what pip does with several indexes
    return env


def _pip_setting(name: str) -> list[str]:
    """A setting of pip's, from its variable or its configuration."""
    if value := os.environ.get(f"PIP_{name.upper().replace('-', '_')}"):
        return value.split()
    found = subprocess.run([sys.executable, "-m", "pip", "config", "get", f"global.{name}"], text=True, capture_output=True, check=False)
    return found.stdout.split() if found.returncode == 0 else []


def make_control_environment(layout: Layout, development: bool = False) -> None:
    """`.local/venv`: Airflow, MLflow and all of the control plane; with `development` also what tests and checks need."""
    files = [layout.root / name for name in (_DEVELOPMENT if development else _CONTROL)]
    marker = layout.venv / "installed.json"
    wanted = {path.name: _sha256(path) for path in [*files, layout.root / "pyproject.toml"]}
    have = json.loads(marker.read_text()) if marker.exists() else {}
    if wanted.items() <= have.items() and layout.python.exists():
        return
    uv, env = find_uv(layout), uv_environment(layout)
    with step(f"installing the control plane ({', '.join(path.name for path in files)}) into {_shown(layout, layout.venv)}"):
        _make_venv(layout, uv, env, layout.venv)
        _install(layout, uv, env, layout.venv, files)
        # The entry point that tells Airflow of the Slurm provider; editable, as a copy would shadow plugins/.
        editable = [uv, "pip", "install", "--python", str(layout.python), "--no-deps", "--no-build-isolation", "--editable", "."]
        run_logged(editable, log=layout.install_log, env=env, cwd=layout.root, advice="Is pyproject.toml as it was?")
    write_atomically(marker, json.dumps(wanted, indent=1))


def make_cluster_environment(layout: Layout) -> None:
    """The environment of the jobs, named by the hash of its lock file, complete once its marker is there."""
    place = layout.built_cluster_environment
    if not (place / "environment.json").exists():
        uv, env = find_uv(layout), uv_environment(layout)
        with step(f"installing the programs of the cluster ({CLUSTER_LOCK}) into {_shown(layout, place)}"):
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if place.exists():
                folders.make_writable(place)
            _make_venv(layout, uv, env, place)
            _install_torch(layout, uv, env, place)
            _install(layout, uv, env, place, [layout.root / CLUSTER_LOCK])
            _finish(layout, place)
    if layout.cluster_environment != place and not layout.cluster_environment.exists():
        layout.cluster_environment.parent.mkdir(parents=True, exist_ok=True)
        layout.cluster_environment.symlink_to(place)


def make_peers_environment(layout: Layout) -> None:
    """`.local/venv-peers`: other trainers, which parity tests and benchmarks compare with. Nothing else needs it."""
    _make_side_environment(layout, layout.peers_environment, PEERS_LOCK, PYTHON, "the trainers to compare with")


def make_megatron_next_environment(layout: Layout) -> None:
    """`.local/venv-megatron-next`: what Megatron's programs and their tests need on the next Python. Nothing else needs it."""
    _make_side_environment(layout, layout.megatron_next_environment, MEGATRON_NEXT_LOCK, NEXT_PYTHON, "the next Megatron-core")


def _make_side_environment(layout: Layout, place: Path, lock_name: str, python: str, what: str) -> None:
    """An environment that no stage uses, made from one lock; not made again while that stays as it was."""
    lock, marker = layout.root / lock_name, place / "installed.json"
    wanted = {lock.name: _sha256(lock)}
    if marker.exists() and json.loads(marker.read_text()) == wanted:
        return
    uv, env = find_uv(layout), uv_environment(layout)
    with step(f"installing {what} ({lock_name}) into {_shown(layout, place)}"):
        _make_venv(layout, uv, env, place, python)
        _install_torch(layout, uv, env, place, python)
        _install(layout, uv, env, place, [lock])
    write_atomically(marker, json.dumps(wanted, indent=1))


def _finish(layout: Layout, place: Path) -> None:
    shutil.copyfile(layout.root / CLUSTER_LOCK, place / CLUSTER_LOCK)
    ask = "import json, platform, torch; print(json.dumps({'python': platform.python_version(), 'torch': torch.__version__}))"
    versions = json.loads(subprocess.run([place / "bin/python", "-c", ask], text=True, capture_output=True, check=True).stdout)
    facts = {"lock_sha256": layout.cluster_lock_hash, "machine": platform.machine(), "system": platform.system().lower(), **versions}
    write_atomically(place / "environment.json", json.dumps(facts, indent=1, sort_keys=True))
    folders.make_read_only(place)


def _install_torch(layout: Layout, uv: str, env: dict[str, str], place: Path, python: str = PYTHON) -> None:
    """torch alone from TORCH_INDEX (a folder, a page of links or an index), so that a machine without GPU need not load CUDA."""
    source = os.environ.get("TORCH_INDEX")
    if not source:
        if not env.get("UV_FIND_LINKS") and not Path("/dev/nvidia0").exists():
            say("  no GPU here, and torch will bring CUDA: TORCH_INDEX=<index or folder of CPU builds> would save some GB")
        return
    pin = next((line for line in (layout.root / CLUSTER_LOCK).read_text().splitlines() if line.startswith("torch==")), None)
    if pin is None:
        raise LocalError(f"{CLUSTER_LOCK} pins no torch==…: run `make lock`")
    argv = [uv, "pip", "install", "--python", str(place / "bin/python"), "--no-deps", pin]
    advice = f"Does TORCH_INDEX hold {pin} for Python {python}?"
    run_logged(argv, log=layout.install_log, env={**env, **torch_source(source)}, cwd=layout.root, advice=advice)


def torch_source(source: str, extra: bool = False) -> dict[str, str]:
    """uv's variables for a TORCH_INDEX: a folder, a page of links, or an index (`extra`: beside the usual one)."""
    if Path(source).is_dir() or source.endswith((".html", ".htm")):
        return {"UV_FIND_LINKS": source}
    return {"UV_INDEX": source, "UV_INDEX_STRATEGY": "unsafe-best-match"} if extra else {"UV_DEFAULT_INDEX": source}


def _make_venv(layout: Layout, uv: str, env: dict[str, str], place: Path, version: str = PYTHON) -> None:
    if (place / "bin/python").exists() and (place / "pyvenv.cfg").exists():
        return
    python = _installed_python(version) or version
    argv = [uv, "venv", "--allow-existing", "--python", python, str(place)]
    run_logged(argv, log=layout.install_log, env=env, cwd=layout.root, advice=f"Is there a Python {version}, or may uv load one?")


def _installed_python(version: str) -> str | None:
    """A Python of this version: the running one, or pyenv's, whose shims answer only where it is chosen; uv finds others by itself."""
    if ".".join(platform.python_version_tuple()[:2]) == version:
        return str(Path(sys.executable).resolve())
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return next((str(found) for found in sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))), None)


def _install(layout: Layout, uv: str, env: dict[str, str], place: Path, files: list[Path]) -> None:
    requirements = [argument for path in files for argument in ("-r", str(path))]
    argv = [uv, "pip", "install", "--python", str(place / "bin/python"), "--compile-bytecode", *requirements]
    run_logged(
        argv,
        log=layout.install_log,
        env=env,
        cwd=layout.root,
        advice="Once the cause is gone, run the same again: it goes on where it was.",
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _shown(layout: Layout, path: Path) -> str:
    return str(path.relative_to(layout.root)) if path.is_relative_to(layout.root) else str(path)
