"""Which programs a private Slurm needs, and what is installed of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from local.process import LocalError

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CORE = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "sshd": "openssh-server",
         "ssh-keygen": "openssh-client"}  # fmt: skip
_ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core", "mariadb-install-db": "mariadb-server-core"}


def missing(accounting: bool = True) -> dict[str, str]:
    """Programs that are not installed → the Debian package that has them."""
    wanted = {**_CORE, **(_ACCOUNTING if accounting else {})}
    found = {program: package for program, package in wanted.items() if shutil.which(program, path=SEARCH_PATH) is None}
    if accounting and not any(Path("/usr/lib").glob("*/slurm*/accounting_storage_mysql.so")):
        found["accounting_storage_mysql.so"] = "slurm-wlm-mysql-plugin"
    return found


def require(accounting: bool) -> None:
    """Raise LocalError with the command that installs what is missing."""
    if absent := missing(accounting):
        packages = " ".join(sorted(set(absent.values())))
        raise LocalError(f"not installed: {', '.join(absent)}. Install with: apt-get install --no-install-recommends {packages}")


def require_plain(base: Path) -> None:
    """Raise LocalError for a path that slurm.conf cannot hold."""
    if not re.fullmatch(r"[A-Za-z0-9_./+-]+", str(base)):
        raise LocalError(
            f"slurm.conf takes no path with spaces or special characters, and this is one: {base}. Move the project to a plain path."
        )


def version() -> tuple[int, int]:
    """Major and minor version of the installed Slurm, (22, 5) for 22.05.8."""
    said = subprocess.run(["slurmctld", "-V"], text=True, capture_output=True, check=True, env={"PATH": SEARCH_PATH}).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    if found is None:
        raise LocalError(f"slurmctld -V said {said!r}, which names no version")
    return int(found[1]), int(found[2])
