"""The ledger's head, kept outside the catalog with each release and rollback: a ledger whose end was cut off, or that was rewritten, shows."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from include.stores.artifacts import ArtifactStore
from include.stores.catalog.ledger import Ledger

FOLDER = "reports/ledger"
_NAME = re.compile(r"(\d{12})\.json\Z")


def export_head(store: ArtifactStore, ledger: Ledger) -> dict[str, Any]:
    """Writes {"seq", "hash"} of the newest row to the store, under its number, and gives it."""
    head = ledger.head()
    store.put_json(f"{FOLDER}/{head['seq']:012d}.json", head)
    return head


def newest_head(store: ArtifactStore) -> dict[str, Any] | None:
    """The exported head of the highest row, or None when none was exported yet."""
    names = [name for name in store.listdir(FOLDER) if _NAME.match(name)]
    return dict(store.read_json(f"{FOLDER}/{max(names)}")) if names else None


def verify_ledger(store: ArtifactStore, ledger: Ledger, others: Iterable[Mapping[str, Any]] = ()) -> dict[str, int]:
    """Recomputes the whole chain and holds it against the newest exported head (every earlier one is in its past), and against `others`.

    Returns {"rows", "exported"}: the number of rows, and the highest row that a head was exported of; 0: none was.

    Raises:
        LedgerBroken: a row does not fit, the end is missing, or the past is another one.
    """
    rows, newest = ledger.verify(), newest_head(store)
    heads = [*([] if newest is None else [newest]), *others]
    for head in heads:
        ledger.verify_head(head)
    return {"rows": rows, "exported": max((int(head["seq"]) for head in heads), default=0)}
