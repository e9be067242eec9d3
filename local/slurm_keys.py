"""The keys of a private Slurm: munge's, and two pairs for SSH."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from local.ports import write_atomically


def make_keys(base: Path, comment: str, munge_key: bytes | None = None) -> None:
    """What is missing of them.

    Args:
        munge_key: another cluster's, for clusters that trust each other.
    """
    munge, ssh = base / "munge/munge.key", base / "ssh"
    if not munge.exists():
        munge.touch(mode=0o600)
    if munge.stat().st_size == 0:
        munge.write_bytes(munge_key or os.urandom(128))
    for name in ("host_ed25519", "id_ed25519"):
        if not (ssh / f"{name}.pub").exists():  # written after the private half
            (ssh / name).unlink(missing_ok=True)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", ssh / name], check=True)
    write_atomically(ssh / "authorized_keys", (ssh / "id_ed25519.pub").read_text(), mode=0o600)
