"""The ledger held against what was kept of it elsewhere."""

import argparse
from typing import Any

from include.cli.command import mounted_store, open_catalog
from include.domain.errors import AlignmentError


def add_to(commands: Any) -> None:
    text = "holds the ledger against the heads of it that were kept with each release and rollback"
    verify = commands.add_parser("verify", help=text, description=text)
    verify.add_argument("--head", action="append", default=[], metavar="SEQ:HASH", help="one more that you kept, such as from a task's log")
    verify.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> int:
    from include.stores.heads import FOLDER, verify_ledger

    ledger, store = open_catalog().ledger, mounted_store()
    found = verify_ledger(store, ledger, [_head(text) for text in options.head])
    if not found["exported"] and ledger.entries(kind="released"):
        kept = store.full(FOLDER)
        raise AlignmentError(f"{found['rows']} rows fit, but no head was kept in {kept}: whether rows are missing at the end is unknown")
    print(f"{found['rows']} rows, each fits the one before; they hold row {found['exported']}, the newest whose head was kept")
    return 0


def _head(text: str) -> dict[str, Any]:
    seq, _, hash_ = text.partition(":")
    if not seq.isdigit() or not hash_:
        raise AlignmentError(f"--head {text!r}: expected SEQ:HASH, as in 12:sha256:…")
    return {"seq": int(seq), "hash": hash_}
