"""The catalog's database: where it may lie, migrations, transactions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from include.stores.catalog import Catalog, tables_evidence, tables_work
from include.stores.catalog.database import Database, file_system_of, stamp
from include.stores.catalog.migrate import current_revision, newest_revision
from include.stores.catalog.types import metadata
from include.stores.errors import CatalogUnsafe
from tests.stores.things import Clock, manifest

NFS = "/dev/vda / ext4 rw 0 0\nserver:/export {} nfs4 rw 0 0\n"


def test_sqlite_on_a_network_mount_is_refused_and_the_mount_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogUnsafe, match=rf"{tmp_path}, a network file system \(nfs4\).*PostgreSQL"):
        Database(f"sqlite:///{tmp_path}/catalog.db", mounts=NFS.format(tmp_path))


def test_a_mount_below_a_network_mount_counts_for_itself(tmp_path: Path) -> None:
    mounts = NFS.format(tmp_path) + f"tmpfs {tmp_path}/local tmpfs rw 0 0\n"
    database = Database(f"sqlite:///{tmp_path}/local/catalog.db", mounts=mounts)
    assert database.is_sqlite


def test_a_fuse_mount_of_sshfs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogUnsafe, match=r"fuse\.sshfs"):
        Database(f"sqlite:///{tmp_path}/c.db", mounts=f"me@there: {tmp_path} fuse.sshfs rw 0 0\n")


def test_a_mount_point_with_a_space_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "my disk").mkdir()
    mounts = "/dev/a / ext4 rw 0 0\n" + f"s:/e {tmp_path}/my\\040disk nfs rw 0 0\n"
    assert file_system_of(tmp_path / "my disk" / "c.db", mounts) == (f"{tmp_path}/my disk", "nfs")


def test_a_neighbour_whose_name_begins_alike_is_not_the_mount(tmp_path: Path) -> None:
    mounts = f"/dev/a / ext4 rw 0 0\ns:/e {tmp_path}/data nfs rw 0 0\n"
    assert file_system_of(tmp_path / "database" / "c.db", mounts)[1] == "ext4"


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://host/db"])
def test_a_database_that_cannot_keep_its_promises_is_refused(url: str) -> None:
    with pytest.raises(CatalogUnsafe):
        Database(url)


def test_the_password_is_not_in_a_message() -> None:
    assert "hunter2" not in Database("postgresql+psycopg://me:hunter2@nowhere/db").shown


def test_the_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    Catalog.open(f"sqlite:///{tmp_path}/catalog.db")
    assert os.stat(tmp_path / "catalog.db").st_mode & 0o777 == 0o600


def test_sqlite_runs_in_wal_mode(tmp_path: Path) -> None:
    catalog = Catalog.open(f"sqlite:///{tmp_path}/catalog.db")
    with catalog.database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_the_migrations_make_exactly_the_tables_that_the_code_knows(catalog: Catalog) -> None:
    assert tables_evidence.ledger.metadata is tables_work.artifacts.metadata
    with catalog.database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_opening_twice_migrates_once(catalog: Catalog, catalog_url: str) -> None:
    catalog.artifacts.register(manifest("one"))
    again = Catalog.open(catalog_url)
    with again.database.read() as connection:
        assert current_revision(connection) == newest_revision()
    assert again.artifacts.get(manifest("one").digest) is not None


def test_four_processes_opening_an_empty_database_at_once_all_succeed(catalog_url: str) -> None:
    code = "import sys; from include.stores.catalog import Catalog; Catalog.open(sys.argv[1]).ledger.append('note', {}, 'process')"
    running = [subprocess.Popen([sys.executable, "-c", code, catalog_url]) for _ in range(4)]
    assert [process.wait(60) for process in running] == [0, 0, 0, 0]
    assert Catalog.open(catalog_url).ledger.verify() == 4


def test_a_database_of_a_newer_release_is_refused(catalog: Catalog, catalog_url: str) -> None:
    with catalog.database.write("migrate") as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(CatalogUnsafe, match=r"9999.*newer"):
        Catalog.open(catalog_url)


def test_a_migration_that_dies_half_way_leaves_nothing(catalog_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from include.stores.catalog import migrate as module

    real = module.command.upgrade

    def upgrade_and_die(config: object, revision: str) -> None:
        real(config, "0001")
        raise KeyboardInterrupt

    monkeypatch.setattr(module.command, "upgrade", upgrade_and_die)
    with pytest.raises(KeyboardInterrupt):
        Catalog.open(catalog_url)
    monkeypatch.undo()
    assert sa.inspect(Database(catalog_url).engine).get_table_names() == []
    assert Catalog.open(catalog_url).ledger.verify() == 0


def test_the_migrations_can_be_taken_back(catalog: Catalog) -> None:
    from alembic import command

    from include.stores.catalog.migrate import _config

    config = _config()
    with catalog.database.write("migrate") as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert sa.inspect(catalog.database.engine).get_table_names() == ["alembic_version"]
    catalog.migrate()
    assert catalog.ledger.verify() == 0


def test_a_failed_transaction_leaves_nothing(catalog: Catalog) -> None:
    row = sa.insert(tables_work.incidents).values(incident_id="i", key="k", n=1, what="w", detail={}, at="t")

    def write_twice() -> None:
        with catalog.database.write("artifacts") as connection:
            connection.execute(row)
            connection.execute(row)

    with pytest.raises(sa.exc.IntegrityError):
        write_twice()
    with catalog.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(tables_work.incidents)).scalar() == 0


def test_times_are_fixed_width_so_that_text_order_is_time_order(clock: Clock) -> None:
    clock.moment = clock.moment.replace(microsecond=0)
    first = stamp(clock.moment)
    clock.forward(microseconds=1)
    assert len(first) == len(stamp(clock.moment))
    assert first < stamp(clock.moment)


def test_a_naive_time_is_refused(clock: Clock) -> None:
    with pytest.raises(ValueError, match="time zone"):
        stamp(clock.moment.replace(tzinfo=None))
