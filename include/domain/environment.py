"""The environment of a job, and its digest."""

import platform
from dataclasses import asdict, dataclass

from include.domain.canonical import check_digest, digest


@dataclass(frozen=True)
class Environment:
    """Lock file's sha256, operating system, machine type, Python major.minor (for example linux, x86_64, 3.11).

    image: of a container that jobs run in, its ``sha256:…``; None where they run in none.
    """

    lock: str
    system: str
    machine: str
    python: str
    image: str | None = None

    def __post_init__(self) -> None:
        if self.image is not None:
            check_digest(self.image, "environment.image")

    @property
    def digest(self) -> str:
        """Over what is there: without an image, as if there were no such field."""
        return digest("environment", {name: value for name, value in asdict(self).items() if value is not None})


def this_environment(lock: str) -> Environment:
    """The environment this process runs in, with the lock file's digest `lock`."""
    major_minor = ".".join(platform.python_version_tuple()[:2])
    return Environment(lock, platform.system().lower(), platform.machine(), major_minor)
