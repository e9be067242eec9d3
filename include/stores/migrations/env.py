"""Alembic's entry: migrates over the connection it is given, inside that connection's transaction.

By hand: ``Catalog.migrate()``. A new revision is a file in versions/ that is written by hand after ``script.py.mako``; the
tests compare what the revisions make with the tables that the code knows.
"""

import sqlalchemy as sa
from alembic import context

from include.stores.catalog import tables_evidence, tables_work
from include.stores.catalog.types import metadata

_ALL = (tables_work, tables_evidence)


def _run(connection: sa.Connection) -> None:
    context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is None:
    raise SystemExit("the migrations run through Catalog.migrate(), which holds the lock and the transaction")
_run(given)
