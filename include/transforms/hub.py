"""Rows from a hub repository, or from a local folder laid out like one, through `datasets`.

Only data files are read: a loading script is refused, none of the repository's code ever runs. A hub id must name its
revision by commit, or the same recipe would mean other rows tomorrow.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from include.transforms.errors import SourceError
from include.transforms.readers import plain_row
from include.transforms.rows import Quarantined, RawRow

_COMMIT = re.compile(r"[0-9a-f]{40}\Z")


def read_hub(repository: str, split: str, *, subset: str | None = None, revision: str | None = None) -> Iterator[RawRow | Quarantined]:
    """Rows of one split, numbered from 1.

    Raises:
        SourceError: a hub id without a commit, a repository that brings code, or one that cannot be read.
    """
    from datasets import load_dataset

    local = Path(repository).is_dir()
    if local and (scripts := sorted(path.name for path in Path(repository).glob("*.py"))):
        raise SourceError(f"{repository} holds {scripts[0]}: a repository with code of its own is refused; give its data files")
    if not local and not _COMMIT.match(revision or ""):
        raise SourceError(
            f"{repository}: revision {revision!r} is not a commit of 40 hexadecimal digits; a hub source is pinned by its commit"
        )
    with tempfile.TemporaryDirectory(prefix="align-hub-") as cache:
        try:
            rows = load_dataset(repository, name=subset, split=split, revision=None if local else revision, cache_dir=cache)
        except Exception as error:  # the library raises a dozen kinds, from network to schema: all mean that it cannot be read
            raise SourceError(f"{repository} ({split}) cannot be read through `datasets`: {error}") from error
        for number, value in enumerate(rows, start=1):
            yield plain_row(repository, number, value)
