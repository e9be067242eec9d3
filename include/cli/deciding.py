"""Decisions that only a person can take; each stands in the ledger with its reason."""

import argparse
import getpass
import os
from typing import Any

from include.cli.command import REFS, command, open_catalog


def add_to(commands: Any) -> None:
    resolve = command(commands, "resolve", _resolve, "says what became of a job whose end is unknown", ("key", "stage key, sha256:…"))
    resolve.add_argument("how", choices=("lost", "ended"), help="lost: it is gone; ended: it was seen to end")
    _why(resolve)
    bad = command(
        commands, "taint", _taint, "marks something as bad, for ever: nothing that came from it is released any more", ("ref", REFS)
    )
    _why(bad)


def _why(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--why", required=True, help="stands in the ledger")
    parser.add_argument("--who", help="who decides; by default the user of this shell")


def _who(options: argparse.Namespace) -> str:
    return options.who or getpass.getuser()


def _resolve(options: argparse.Namespace) -> int:
    from include.stores.catalog.receipts import CatalogReceipts

    open_catalog()
    who = _who(options)
    done = CatalogReceipts(os.environ["ALIGN_CATALOG_URL"]).resolve(options.key, options.how, who, options.why)
    print(f"submission {done.n} of {options.key} is {options.how}, says {who}; clear the task to go on")
    return 0


def _taint(options: argparse.Namespace) -> int:
    from include.stores.catalog.render import render_impact

    catalog = open_catalog()
    ref = catalog.lineage.node_of(catalog.ledger.full_ref(options.ref))
    new = catalog.releases.taint(ref, options.why, _who(options))
    print(f"{ref} is tainted{'' if new else ' since before; the reason given then stands'}\n")
    print(render_impact(catalog.lineage.impact(ref)))
    return 0
