"""What the commands share: how one is made, the catalog, and how a thing is named."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.domain.errors import AlignmentError

if TYPE_CHECKING:
    from include.stores.artifacts import ArtifactStore
    from include.stores.catalog import Catalog

REFS = "champion, champion:NAME (candidate and canary likewise), a digest, dataset:ID@3, deployment:DIGEST, label:ID, batch:ID or rubric:VERSION"


def command(
    commands: Any, name: str, run: Any, text: str, argument: tuple[str, str], *, optional: bool = False, json_too: bool = False
) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    made.add_argument(argument[0], help=argument[1], nargs="?" if optional else None)
    if json_too:
        made.add_argument("--json", action="store_true", help="as JSON")
    made.set_defaults(run=run)
    return made


def open_catalog() -> "Catalog":
    from include.stores.catalog import Catalog

    url = os.environ.get("ALIGN_CATALOG_URL")
    if not url:
        raise AlignmentError("ALIGN_CATALOG_URL is not set: name the catalog, or start the local stack (make demo)")
    return Catalog.open(url)


def mounted_store() -> "ArtifactStore":
    """The store as it is mounted here."""
    import fsspec

    from include.stores.artifacts import ArtifactStore

    root = os.environ.get("ALIGN_STORE_ROOT", "")
    if not Path(root).is_dir():
        raise AlignmentError(f"ALIGN_STORE_ROOT ({root or 'not set'}) is not a folder here: do this where the store is mounted")
    return ArtifactStore(fsspec.filesystem("file"), root)
