"""What the console reads: the catalog alone, so that it answers also when MLflow or the cluster are away."""

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.console.errors import ConsoleError

if TYPE_CHECKING:
    from include.stores.catalog import Catalog


@lru_cache(maxsize=1)
def catalog() -> "Catalog":
    from include.stores.catalog import Catalog

    url = os.environ.get("ALIGN_CATALOG_URL")
    if not url:
        raise ConsoleError("ALIGN_CATALOG_URL is not set for the API server")
    return Catalog.open(url)


def releases(opened: "Catalog") -> list[dict[str, Any]]:
    """Of each name its aliases, and why they are tainted where they are."""
    found = []
    for name in opened.ledger.names():
        aliases = opened.ledger.aliases(name)
        tainted = {alias: why for alias, digest in aliases.items() if digest and (why := opened.releases.tainted(digest))}
        found.append({"name": name, "aliases": aliases, "tainted": tainted})
    return found


def ledger_rows(opened: "Catalog", name: str | None) -> dict[str, Any]:
    verified = opened.ledger.verify()
    entries = opened.ledger.entries(name=name) if name else opened.ledger.entries()
    rows = [
        {
            "seq": e.seq,
            "at": e.at,
            "kind": e.kind,
            "name": e.name,
            "subject": e.subject,
            "actor": e.actor,
            "payload": dict(e.payload),
            "hash": e.hash,
        }
        for e in entries
    ]
    return {"verified_rows": verified, "head": opened.ledger.head(), "rows": rows}


def validation_file(name: str, path: str) -> Path:
    """A page of a validation, confined to its folder.

    Raises:
        NotFound: there is none, or the path leads elsewhere.
    """
    from include.stores.errors import NotFound

    if "\0" in name + path:
        raise NotFound("there is no such page of a validation")
    root = Path(os.environ.get("ALIGN_WORK") or Path(os.environ.get("ALIGN_HOME", ".")) / ".local" / "work") / "validation"
    folder, wanted = (root / name).resolve(), (root / name / path).resolve()
    if folder.parent != root.resolve() or not wanted.is_relative_to(folder) or not wanted.is_file():
        raise NotFound(f"there is no page {path} of validation {name}")
    return wanted


def has_pages(name: str) -> bool:
    """Whether Great Expectations wrote pages of a validation (where it could not run, there are none)."""
    from include.stores.errors import NotFound

    try:
        return validation_file(name, "index.html").is_file()
    except NotFound:
        return False
