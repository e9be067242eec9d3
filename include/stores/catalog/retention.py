"""What may leave the store: which keys are committed, worked on or given up, by the catalog's word alone."""

from dataclasses import dataclass

import sqlalchemy as sa

from include.stores.catalog.database import Database
from include.stores.catalog.tables_work import artifact_locations, stage_runs, submissions


@dataclass(frozen=True)
class KeyState:
    """A key as far as its checkpoints are concerned.

    live: a submission of it is not closed, so that a job may be reading or writing; an array's tasks have their own.
    over_at: when its last submission was closed; None: the catalog knows of none.
    """

    key: str
    stage: str
    committed_at: str | None
    live: bool
    over_at: str | None

    @property
    def quiet_since(self) -> str | None:
        """The last thing the catalog knows to have happened to it; None while a job works on it, or where nothing is known."""
        known = [at for at in (self.committed_at, self.over_at) if at is not None]
        return max(known) if known and not self.live else None


class KeyStates:
    """Reading the tables stage_runs, submissions and artifact_locations."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def of(self, key: str) -> KeyState | None:
        """None for a key that this catalog never planned."""
        with self._db.read() as connection:
            run = connection.execute(sa.select(stage_runs).where(stage_runs.c.key == key)).mappings().first()
            closed = connection.execute(sa.select(submissions.c.closed_at).where(submissions.c.key == key)).scalars().all()
        if run is None:
            return None
        live = any(at is None for at in closed)
        return KeyState(key, run["stage"], run["committed_at"], live, max((at for at in closed if at is not None), default=None))

    def registered_in_checkpoints(self) -> frozenset[str]:
        """Paths of artifacts, in any store, that lie inside a run's checkpoints: nothing of ours registers one, so such a one is somebody's choice."""
        with self._db.read() as connection:
            query = sa.select(artifact_locations.c.path).where(artifact_locations.c.path.like("runs/%/attempts/%/checkpoints/%"))
            return frozenset(connection.execute(query).scalars())
