"""Files that nobody needs after the program: in the attempt's own folder, where a job that is killed leaves nothing on its node."""

import shutil
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec

from include.domain.layout import AttemptName
from include.runtime.job import Job
from include.runtime.supersede import attempts_in

FOLDER = "scratch"
P = ParamSpec("P")


def scratch(job: Job, name: str) -> Path:
    """A folder of this process alone, below ``scratch/`` of its attempt; `clears_scratch` removes it.

    What an older attempt of the key left because it was killed is removed on the way.
    """
    if job.ranks.main:
        clear_older(job.out.parent, job.attempt)
    folder = _own(job) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def clears_scratch(body: Callable[Concatenate[Job, P], None]) -> Callable[Concatenate[Job, P], None]:
    """A program's body that leaves no scratch of its process behind, however it ends; only a kill prevents it."""

    @wraps(body)
    def run(job: Job, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            body(job, *args, **kwargs)
        finally:
            shutil.rmtree(_own(job), ignore_errors=True)
            _remove_empty(job.out / FOLDER)

    return run


def clear_older(attempts: Path, own: str) -> None:
    """Removes the scratch of the attempts that `own` supersedes; a living one of them is stopping, and holds what it reads open."""
    mine = AttemptName.parse(own)
    for name in attempts_in(attempts):
        if mine.newer_than(name):
            shutil.rmtree(attempts / str(name) / FOLDER, ignore_errors=True)


def _own(job: Job) -> Path:
    return job.out / FOLDER / str(job.ranks.rank)


def _remove_empty(folder: Path) -> None:
    """Of several ranks the last one finds it empty."""
    try:
        folder.rmdir()
    except OSError:
        return
