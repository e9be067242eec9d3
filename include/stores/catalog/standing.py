"""Whether a dossier's release still stands, by the ledger's rows alone: an approval and a canary let one release through."""

from dataclasses import dataclass

import sqlalchemy as sa

from include.stores.catalog.ledger import Entry, champions, read_entries, undone_by
from include.stores.catalog.tables_evidence import ledger


@dataclass(frozen=True)
class Standing:
    """released: the dossier's last release; undone: the rollback that undid it; champion: it is what made the present champion."""

    released: Entry | None
    undone: Entry | None
    champion: bool

    @property
    def spent(self) -> int:
        """Ledger row up to which approvals and canaries of the dossier are used up; 0: none is."""
        return 0 if self.released is None or self.champion else self.released.seq


def standing_of(connection: sa.Connection, dossier: str) -> Standing:
    """The standing of a dossier's last release; nothing where it was never released."""
    mine = read_entries(connection, ledger.c.subject == dossier, ledger.c.kind == "released")
    if not mine:
        return Standing(None, None, False)
    history = read_entries(connection, ledger.c.name == mine[-1].name)
    stack = champions(history)
    return Standing(mine[-1], undone_by(history, mine[-1]), bool(stack) and stack[-1].seq == mine[-1].seq)
