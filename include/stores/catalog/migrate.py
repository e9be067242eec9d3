"""Brings the database to the newest revision, once, whoever comes first."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from include.stores.catalog.database import Database
from include.stores.errors import CatalogUnsafe

MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def newest_revision() -> str:
    """The revision that this code is written for."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    if head is None:
        raise CatalogUnsafe(f"there is no migration below {MIGRATIONS}: the installation is not complete")
    return str(head)


def current_revision(connection: sa.Connection) -> str | None:
    """The revision of the database, None for an empty one."""
    revision: str | None = MigrationContext.configure(connection).get_current_revision()
    return revision


def migrate(database: Database) -> None:
    """Upgrades to the newest revision in one transaction; two processes at once do it once.

    Raises:
        CatalogUnsafe: the database is of a newer release than this code.
    """
    newest = newest_revision()
    with database.read() as connection:
        if current_revision(connection) == newest:
            return
    with database.write("migrate") as connection:
        found = current_revision(connection)
        if found == newest:
            return
        known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
        if found is not None and found not in known:
            raise CatalogUnsafe(
                f"the catalog {database.shown} is at revision {found}, which this release does not know: it was made by a newer one"
            )
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
