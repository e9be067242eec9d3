"""Room in the store."""

import argparse
import getpass
from datetime import timedelta
from functools import partial
from typing import Any

from include.cli.command import mounted_store, open_catalog


def add_to(commands: Any) -> None:
    text = "what checkpoints and caches nothing needs any more; removes nothing without --apply"
    prune = commands.add_parser("prune", help=text, description=text)
    prune.add_argument("--apply", action="store_true", help="removes them, and writes each removal into the ledger")
    prune.add_argument("--older-than", type=float, default=14.0, metavar="DAYS", help="so long nothing happened to their run (14)")
    prune.add_argument("--keep", type=int, default=2, help="the newest whole checkpoints that stay of a run that may go on (2)")
    prune.add_argument("--who", help="who does it; by default the user of this shell")
    prune.set_defaults(run=_prune)


def _prune(options: argparse.Namespace) -> int:
    from include.stores.pruning import Rules, prune

    rules = Rules(timedelta(days=options.older_than), options.keep)
    prune(open_catalog(), mounted_store(), rules, options.who or getpass.getuser(), apply=options.apply, say=partial(print, flush=True))
    return 0
