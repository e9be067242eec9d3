"""The environment of a job, and its digest where there is no container image."""

import platform
from dataclasses import asdict, dataclass

from include.domain.canonical import digest


@dataclass(frozen=True)
class Environment:
    """Lock file's sha256, operating system, machine type, Python major.minor (for example linux, x86_64, 3.11)."""

    lock: str
    system: str
    machine: str
    python: str

    @property
    def digest(self) -> str:
        return digest("environment", asdict(self))


def this_environment(lock: str) -> Environment:
    """The environment this process runs in, with the lock file's digest `lock`."""
    major_minor = ".".join(platform.python_version_tuple()[:2])
    return Environment(lock, platform.system().lower(), platform.machine(), major_minor)
