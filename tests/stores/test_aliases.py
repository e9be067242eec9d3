"""MLflow's aliases as a view of the ledger, against a real server."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

import pytest

from include.stores.catalog import Catalog
from include.stores.errors import RegistryError
from include.stores.registry import Drift, Registry
from tests.stores.test_registry import client_of, entry, stage_log
from tests.stores.things import deploy, dossier, release, some_digest

pytestmark = pytest.mark.timeout(400)
"""An MLflow server takes long to start on a busy machine."""


@pytest.fixture
def run_id(registry: Registry, sqlite_catalog: Catalog) -> str:
    return registry.log_run(stage_log(sqlite_catalog))


@pytest.fixture
def model_name() -> str:
    return f"helper-{uuid.uuid4().hex[:8]}"


def released(registry: Registry, catalog: Catalog, run_id: str, name: str, which: str) -> str:
    """A released deployment, registered; its aliases not yet set."""
    deployment = deploy(catalog, name, some_digest(f"weights of {which}"))
    registry.register(name, entry(run_id, which, deployment=deployment))
    release(catalog, deployment, name)
    return deployment


def test_repair_sets_the_champion_from_the_ledger(registry: Registry, sqlite_catalog: Catalog, run_id: str, model_name: str) -> None:
    released(registry, sqlite_catalog, run_id, model_name, "one")
    assert registry.aliases(model_name) == {}
    assert registry.repair(sqlite_catalog.ledger, model_name) == [Drift("champion", None, 1)]
    assert registry.aliases(model_name) == {"champion": 1}
    assert registry.repair(sqlite_catalog.ledger, model_name) == []


def test_an_alias_moved_by_hand_is_found_and_put_back(registry: Registry, sqlite_catalog: Catalog, run_id: str, model_name: str) -> None:
    released(registry, sqlite_catalog, run_id, model_name, "one")
    registry.register(model_name, entry(run_id, "sneaked in"))
    client = client_of(registry)
    client.set_registered_model_alias(model_name, "champion", "2")
    client.set_registered_model_alias(model_name, "canary", "2")
    client.set_registered_model_alias(model_name, "CHAMPION", "2")
    drift = registry.repair(sqlite_catalog.ledger, model_name)
    assert {(d.alias, d.was, d.now) for d in drift} == {("champion", 2, 1), ("canary", 2, None), ("CHAMPION", 2, None)}
    assert dict(client.get_registered_model(model_name).aliases) == {"champion": "1"}


def test_a_rollback_puts_the_previous_holder_back(registry: Registry, sqlite_catalog: Catalog, run_id: str, model_name: str) -> None:
    released(registry, sqlite_catalog, run_id, model_name, "one")
    released(registry, sqlite_catalog, run_id, model_name, "two")
    registry.repair(sqlite_catalog.ledger, model_name)
    assert registry.aliases(model_name)["champion"] == 2
    sqlite_catalog.releases.rollback(model_name, "run-1", "olga", "worse answers", verify=lambda _: True)
    assert registry.repair(sqlite_catalog.ledger, model_name) == [Drift("champion", 2, 1)]


def test_a_champion_that_mlflow_lost_is_reported_and_no_other_is_shown(
    registry: Registry, sqlite_catalog: Catalog, run_id: str, model_name: str
) -> None:
    deployment = deploy(sqlite_catalog, model_name, some_digest("w"))
    release(sqlite_catalog, deployment, model_name)
    registry.register(model_name, entry(run_id, "other"))
    client_of(registry).set_registered_model_alias(model_name, "champion", "1")
    (drift,) = registry.repair(sqlite_catalog.ledger, model_name)
    assert (drift.alias, drift.now) == ("champion", None)
    assert "register it again" in drift.problem
    assert registry.aliases(model_name) == {}


def test_an_aliased_version_is_not_deleted(registry: Registry, sqlite_catalog: Catalog, run_id: str, model_name: str) -> None:
    released(registry, sqlite_catalog, run_id, model_name, "one")
    registry.register(model_name, entry(run_id, "two"))
    registry.repair(sqlite_catalog.ledger, model_name)
    with pytest.raises(RegistryError, match="version 1 is champion"):
        registry.delete_version(model_name, 1)
    registry.delete_version(model_name, 2)
    assert registry.version_of(model_name, some_digest("two")) is None


def test_a_process_killed_between_ledger_and_alias_is_mended_by_doing_it_again(
    registry: Registry, sqlite_catalog: Catalog, run_id: str, model_name: str
) -> None:
    deployment = deploy(sqlite_catalog, model_name, some_digest("weights"))
    registry.register(model_name, entry(run_id, deployment=deployment))
    made = dossier(sqlite_catalog, deployment, model_name)
    sqlite_catalog.releases.ask(made.digest, "run", "olga")
    sqlite_catalog.releases.approve(made.digest, "anna", "fine")
    code = """
import json, os, signal, sys
from include.stores.catalog import Catalog
Catalog.open(sys.argv[1]).releases.release(sys.argv[2], json.loads(sys.argv[3]), "task")
os.kill(os.getpid(), signal.SIGKILL)
"""
    url = sqlite_catalog.database.url.render_as_string(hide_password=False)
    argv = [sys.executable, "-c", code, url, made.digest, json.dumps(dict(made.body))]
    assert subprocess.run(argv, timeout=60, check=False).returncode == -9
    assert registry.aliases(model_name) == {}
    sqlite_catalog.releases.release(made.digest, made.body, "task")
    assert registry.repair(sqlite_catalog.ledger, model_name) == [Drift("champion", None, 1)]
    assert len(sqlite_catalog.ledger.entries(name=model_name, kind="released")) == 1


def test_where_everything_is_as_it_should_be_mlflow_is_not_even_imported(
    registry: Registry, sqlite_catalog: Catalog, run_id: str, model_name: str
) -> None:
    """Importing it takes seconds, and a run that reuses every stage has nothing to write."""
    released(registry, sqlite_catalog, run_id, model_name, "one")
    registry.repair(sqlite_catalog.ledger, model_name)
    code = """
import sys
from include.stores.catalog import Catalog
from include.stores.registry import Registry
from tests.stores.test_registry import entry, stage_log
catalog, registry = Catalog.open(sys.argv[1]), Registry(sys.argv[2], sys.argv[3])
deployment = catalog.ledger.champion(sys.argv[4])
run_id = registry.log_run(stage_log(catalog))
print(run_id, registry.register(sys.argv[4], entry(run_id, deployment=deployment)), registry.repair(catalog.ledger, sys.argv[4]))
print("mlflow" in sys.modules)
"""
    url = sqlite_catalog.database.url.render_as_string(hide_password=False)
    argv = [sys.executable, "-c", code, url, registry.tracking.uri, registry.experiment, model_name]
    told = subprocess.run(argv, timeout=60, check=True, capture_output=True, text=True).stdout
    assert told == f"{run_id} 1 []\nFalse\n"
