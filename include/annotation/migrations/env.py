"""Alembic runs inside the transaction that `Database.migrate` opened."""

from alembic import context

from include.annotation.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
