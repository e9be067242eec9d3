"""Files that nobody needs after the process: in the attempt's own folder, where a job that is killed leaves nothing on its node."""

import atexit
import shutil
from pathlib import Path

from include.domain.layout import AttemptName
from include.runtime.job import Job
from include.runtime.supersede import attempts_in

FOLDER = "scratch"


def scratch(job: Job, name: str) -> Path:
    """A folder of this process alone, below ``scratch/`` of its attempt; it goes with the process.

    What an older attempt of the key left because it was killed is removed on the way.
    """
    if job.ranks.main:
        clear_older(job.out.parent, job.attempt)
    folder = job.out / FOLDER / str(job.ranks.rank) / name
    folder.mkdir(parents=True, exist_ok=True)
    atexit.register(_remove, job.out / FOLDER, folder)
    return folder


def clear_older(attempts: Path, own: str) -> None:
    """Removes the scratch of the attempts that `own` supersedes; a living one of them is stopping, and holds what it reads open."""
    mine = AttemptName.parse(own)
    for name in attempts_in(attempts):
        if mine.newer_than(name):
            shutil.rmtree(attempts / str(name) / FOLDER, ignore_errors=True)


def _remove(whole: Path, own: Path) -> None:
    """The process's own folder, and what is empty above it: of several ranks the last one finds it so."""
    shutil.rmtree(own, ignore_errors=True)
    for folder in (own.parent, whole):
        try:
            folder.rmdir()
        except OSError:
            return
