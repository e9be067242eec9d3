"""`make lock`: what the `.in` files ask for, resolved to exact versions. No address of an index is written."""

from __future__ import annotations

import os
import re

from local.layout import CLUSTER_LOCK, MEGATRON_NEXT_LOCK, PEERS_LOCK, Layout
from local.ports import write_atomically
from local.progress import run_logged, say, step
from local.python_environments import NEXT_PYTHON, PYTHON, find_uv, torch_source, uv_environment

_LOCKS = {
    "control.in": "requirements.txt",
    "dev.in": "requirements-dev.txt",
    "cluster.in": CLUSTER_LOCK,
    "peers.in": PEERS_LOCK,
    "megatron-next.in": MEGATRON_NEXT_LOCK,
}


def lock(layout: Layout, upgrade: bool = False) -> None:
    """Write the lock files. A new cluster lock re-keys every stage, as it is part of each environment's identity."""
    layout.shared.mkdir(exist_ok=True, mode=0o700)
    for source, target in _LOCKS.items():
        with step(f"resolving requirements/{source}"):
            path = layout.root / target
            before = path.read_text() if path.exists() else ""
            _resolve(layout, source, target, upgrade)
        if (layout.root / target).read_text() != before:
            say(f"{target} has changed" + ("; every stage gets a new key" if target == CLUSTER_LOCK else ""))


def _resolve(layout: Layout, source: str, target: str, upgrade: bool) -> None:
    env = uv_environment(layout)
    if target in (CLUSTER_LOCK, PEERS_LOCK, MEGATRON_NEXT_LOCK) and (torch := os.environ.get("TORCH_INDEX")):
        env |= torch_source(torch, extra=True)
    argv = [
        find_uv(layout), "pip", "compile", "--python-version", _python_of(target), "--no-header", "--no-annotate", "--quiet",
        *(["--upgrade"] if upgrade else []), "--output-file", target, f"requirements/{source}",
    ]  # fmt: skip
    run_logged(argv, log=layout.install_log, env=env, cwd=layout.root, advice="Do the .in files contradict each other?")
    path = layout.root / target
    write_atomically(path, portable(path.read_text(), asked=(layout.root / "requirements" / source).read_text()))


def _python_of(target: str) -> str:
    return NEXT_PYTHON if target == MEGATRON_NEXT_LOCK else PYTHON


def portable(text: str, asked: str = "") -> str:
    """A lock that holds for builds with and without a GPU: no local version of torch, and nothing that only its CUDA build needs.

    Args:
        asked: the requirements; what they name themselves stays.
    """
    named = {re.split(r"[=<>\[ ]", line)[0] for line in asked.splitlines() if line and line[0] not in "#-"}
    lines = [re.sub(r"^(torch==[^+\s]+)\+\S+", r"\1", line) for line in text.splitlines()]
    return "\n".join(line for line in lines if line.split("==")[0] in named or not re.match(r"(nvidia-|cuda-|triton==)", line)) + "\n"
