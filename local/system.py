"""Debian packages: installed through apt where that is allowed, else named in the command that installs them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from local import slurm_programs
from local.layout import Layout
from local.process import LocalError
from local.progress import run_logged, step
from local.python_environments import installed_uv

_BROWSER = {"chromium": "chromium", "chromedriver": "chromium-driver"}
_DATABASE_TOOLS = {"my_print_defaults": "mariadb-client-core"}  # mariadb-install-db calls it


def missing_packages(layout: Layout, browser: bool = False) -> list[str]:
    """Debian packages of the programs that are not there."""
    missing = set(slurm_programs.missing().values())
    if importlib.util.find_spec("ensurepip") is None and installed_uv(layout) is None:
        missing.add("python3-venv")  # with it pip brings uv
    wanted = {**_DATABASE_TOOLS, **(_BROWSER if browser else {})}
    missing |= {package for program, package in wanted.items() if shutil.which(program, path=slurm_programs.SEARCH_PATH) is None}
    return sorted(missing)


def install_packages(layout: Layout, browser: bool = False) -> None:
    """Install what is missing. Raises LocalError with the exact command where this user may not."""
    packages = missing_packages(layout, browser)
    if not packages:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    by_hand = f"sudo apt-get update && sudo {' '.join(command)}"
    if shutil.which("apt-get") is None:
        raise LocalError(
            f"this machine has no apt-get; the stack needs what Debian calls {' '.join(packages)}. Install these, then run this again."
        )
    prefix = _privilege()
    if prefix is None:
        raise LocalError(
            f"missing Debian packages, and this user may not install them. Run this, then the same command again:\n  {by_hand}"
        )
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with step(f"installing Debian packages: {' '.join(packages)}"):
        for argv in ([*prefix, "apt-get", "update"], [*prefix, *command]):
            run_logged(argv, log=layout.install_log, env=env, cwd=Path("/"), advice=f"By hand: {by_hand}")
    if left := missing_packages(layout, browser):
        raise LocalError(f"apt-get went through, and yet there is no sign of: {' '.join(left)}. By hand: {by_hand}")


def _privilege() -> list[str] | None:
    """What goes before apt-get: nothing for root, `sudo -n` where it asks for no password; None where neither works."""
    if os.getuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0:
        return ["sudo", "-n", "--preserve-env=DEBIAN_FRONTEND"]
    return None
