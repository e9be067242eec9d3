"""The ledger: append-only, chained, asked about now and about then."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest
import sqlalchemy as sa

from include.stores.catalog import Catalog
from include.stores.catalog.ledger import GENESIS, Entry
from include.stores.catalog.tables_evidence import APPEND_ONLY, ledger
from include.stores.errors import LedgerBroken, StoreError
from tests.stores.things import Clock, deploy, release, some_digest


def notes(catalog: Catalog, count: int = 3) -> list[Entry]:
    return [catalog.ledger.append("note", {"n": n}, "olga") for n in range(count)]


def tamper(catalog: Catalog, statement: str, **values: object) -> None:
    """Changes a row as somebody with the database's own rights can: by taking the trigger away first."""
    with catalog.database.engine.begin() as connection:
        if catalog.database.is_sqlite:
            connection.exec_driver_sql("DROP TRIGGER ledger_no_update")
            connection.exec_driver_sql("DROP TRIGGER ledger_no_delete")
        else:
            connection.exec_driver_sql("DROP TRIGGER ledger_append_only ON ledger")
        connection.execute(sa.text(statement), values)


def test_each_row_names_the_hash_of_the_one_before(catalog: Catalog) -> None:
    first, second, third = notes(catalog)
    assert (first.seq, first.previous) == (1, GENESIS)
    assert (second.previous, third.previous) == (first.hash, second.hash)
    assert catalog.ledger.verify() == 3
    assert catalog.ledger.head() == {"seq": 3, "hash": third.hash}


def test_an_empty_ledger_holds(catalog: Catalog) -> None:
    assert catalog.ledger.verify() == 0
    assert catalog.ledger.head() == {"seq": 0, "hash": GENESIS}


@pytest.mark.parametrize("statement", ["UPDATE ledger SET actor = 'eve'", "DELETE FROM ledger"])
def test_the_database_itself_refuses_to_change_a_row(catalog: Catalog, statement: str) -> None:
    notes(catalog)
    with pytest.raises(sa.exc.DBAPIError, match="ledger is append-only"), catalog.database.write("ledger") as connection:
        connection.execute(sa.text(statement))
    assert catalog.ledger.verify() == 3


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_every_append_only_table_has_its_trigger(catalog: Catalog, table: str) -> None:
    here = "SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
    query = f"SELECT tgname FROM pg_trigger WHERE tgrelid IN ({here})"  # noqa: S608 - nothing in it comes from outside
    if catalog.database.is_sqlite:
        query = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    with catalog.database.read() as connection:
        names = set(connection.exec_driver_sql(query).scalars())
    assert {f"{table}_no_update", f"{table}_no_delete"} <= names or f"{table}_append_only" in names


@pytest.mark.parametrize("catalog_url", ["postgresql"], indirect=True)
def test_truncating_the_ledger_is_refused(catalog: Catalog) -> None:
    notes(catalog)
    with pytest.raises(sa.exc.DBAPIError, match="append-only"), catalog.database.write("ledger") as connection:
        connection.execute(sa.text("TRUNCATE ledger"))


def test_a_changed_row_is_named(catalog: Catalog) -> None:
    notes(catalog, 4)
    tamper(catalog, "UPDATE ledger SET actor = :who WHERE seq = 2", who="eve")
    with pytest.raises(LedgerBroken, match=r"ledger row 2 \(note\) was changed"):
        catalog.ledger.verify()


def test_a_missing_row_is_named(catalog: Catalog) -> None:
    notes(catalog, 4)
    tamper(catalog, "DELETE FROM ledger WHERE seq = 3")
    with pytest.raises(LedgerBroken, match="ledger row 3 is missing"):
        catalog.ledger.verify()


def test_a_changed_row_with_a_fitting_hash_breaks_the_next_one(catalog: Catalog) -> None:
    entries = notes(catalog)
    forged = Entry(**{**vars(entries[1]), "actor": "eve"})
    tamper(catalog, "UPDATE ledger SET actor = 'eve', hash = :hash WHERE seq = 2", hash=forged.expected_hash())
    with pytest.raises(LedgerBroken, match="ledger row 3 names"):
        catalog.ledger.verify()


def test_a_cut_off_end_shows_against_an_exported_head(catalog: Catalog) -> None:
    notes(catalog)
    head = catalog.ledger.head()
    tamper(catalog, "DELETE FROM ledger WHERE seq = 3")
    assert catalog.ledger.verify() == 2
    with pytest.raises(LedgerBroken, match="end of the ledger was cut off"):
        catalog.ledger.verify_head(head)


def test_a_rewritten_end_shows_against_an_exported_head(catalog: Catalog) -> None:
    notes(catalog)
    head = catalog.ledger.head()
    catalog.ledger.verify_head(head)
    tamper(catalog, "DELETE FROM ledger WHERE seq = 3")
    catalog.ledger.append("note", {"n": "another"}, "eve")
    with pytest.raises(LedgerBroken, match="the ledger was rewritten"):
        catalog.ledger.verify_head(head)


def test_a_clock_that_goes_back_does_not_turn_the_order_round(catalog: Catalog, clock: Clock) -> None:
    catalog.ledger.append("note", {}, "olga")
    clock.forward(days=-3)
    second = catalog.ledger.append("note", {}, "olga")
    assert second.at == catalog.ledger.entries()[0].at
    assert catalog.ledger.verify() == 2


@pytest.mark.parametrize("kind", ["released", "approved", "candidate", "rolled_back"])
def test_release_events_are_not_written_by_hand(catalog: Catalog, kind: str) -> None:
    with pytest.raises(StoreError, match="not by hand"):
        catalog.ledger.append(kind, {"deployment": some_digest("x")}, "eve", name="helper")


def test_an_unknown_kind_and_a_missing_actor_are_refused(catalog: Catalog) -> None:
    with pytest.raises(StoreError, match="is none of"):
        catalog.ledger.append("gossip", {}, "olga")
    with pytest.raises(StoreError, match="needs an actor"):
        catalog.ledger.append("note", {}, "  ")


def test_processes_appending_at_once_make_one_unbroken_chain(catalog: Catalog, catalog_url: str) -> None:
    code = (
        "import sys\nfrom include.stores.catalog import Catalog\nc = Catalog.open(sys.argv[1])\n"
        "for n in range(20): c.ledger.append('note', {'n': n}, sys.argv[2])"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, catalog_url, f"p{i}"]) for i in range(3)]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    assert catalog.ledger.verify() == 60


def test_who_was_champion_then(catalog: Catalog, clock: Clock) -> None:
    deployments, days = [], []
    for day in range(4):
        days.append(clock.moment)
        clock.forward(hours=1)
        deployments.append(deploy(catalog, "helper", some_digest(f"weights {day}")))
        release(catalog, deployments[-1])
        clock.forward(hours=23)
    assert catalog.ledger.champion_at("helper", days[0]) is None
    found = [catalog.ledger.champion_at("helper", day + timedelta(days=1)) for day in days]
    assert found == deployments
    assert catalog.ledger.champion("helper") == deployments[-1]


def test_a_release_at_that_very_moment_counts(catalog: Catalog) -> None:
    from datetime import datetime

    deployment = deploy(catalog, "helper", some_digest("w"))
    release(catalog, deployment)
    at = datetime.fromisoformat(catalog.ledger.entries(kind="released")[0].at)
    assert catalog.ledger.champion_at("helper", at) == deployment
    assert catalog.ledger.champion_at("helper", at - timedelta(microseconds=1)) is None


def test_names_do_not_mix(catalog: Catalog) -> None:
    one, two = (deploy(catalog, name, some_digest(name)) for name in ("helper", "coder"))
    release(catalog, one, "helper")
    release(catalog, two, "coder")
    assert (catalog.ledger.champion("helper"), catalog.ledger.champion("coder")) == (one, two)
    assert catalog.ledger.names() == ["coder", "helper"]
    assert [e.name for e in catalog.ledger.history("coder")] == ["coder", "coder"]


def test_a_row_cannot_be_put_in_beside_another(catalog: Catalog) -> None:
    first = notes(catalog, 2)[0]
    fork = sa.insert(ledger).values(**{**vars(first), "seq": 9, "hash": "x"})
    with pytest.raises(sa.exc.IntegrityError), catalog.database.write("ledger") as connection:
        connection.execute(fork)
