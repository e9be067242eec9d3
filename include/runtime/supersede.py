"""A job that sees a newer attempt of its key stops: it could do no harm, but it would waste the machine."""

from collections.abc import Iterator
from pathlib import Path

from include.domain.errors import RecordError
from include.domain.layout import AttemptName


def attempts_in(folder: Path) -> Iterator[AttemptName]:
    """The attempts whose folders lie in `folder`; anything else there is passed over."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        try:
            name = AttemptName.parse(path.name)
        except RecordError:
            continue
        yield name


def newer_attempt(attempts: Path, own: str) -> str | None:
    """The name of an attempt that supersedes `own`, or None."""
    mine = AttemptName.parse(own)
    newer = sorted(name for name in attempts_in(attempts) if name.newer_than(mine))
    return str(newer[-1]) if newer else None
