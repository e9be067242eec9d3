"""Checkpoints that nothing needs any more, on a schedule: told by default, removed where the site says after how long."""

import os
from datetime import timedelta
from typing import Any

from include.flows import services
from include.flows.errors import FlowError

DAYS = "ALIGN_PRUNE_AFTER_DAYS"
"""So many days after the last thing that happened to a run its checkpoints may go; not set: nothing is removed unasked."""


def apply_retention(older_than_days: float | None, apply: bool | None, who: str) -> dict[str, Any]:
    """One pass over the cluster's store. What is left out is as DAYS says: its age, and whether anything is removed at all."""
    from include.stores.pruning import Rules, prune

    days, stated = older_than_days, os.environ.get(DAYS, "")
    if days is None and stated:
        try:
            days = float(stated)
        except ValueError as error:
            raise FlowError(f"{DAYS} is {stated!r}: give a number of days, or leave it out") from error
    rules = Rules() if days is None else Rules(timedelta(days=days))
    really = bool(stated) if apply is None else apply
    size = prune(services.catalog(), services.store(), rules, who, apply=really, say=lambda line: print(line, flush=True))
    return {"bytes": size, "removed": really}
