"""The ledger held against the heads of it that were kept elsewhere, in the store and on MLflow's versions."""

from typing import Any

from include.flows import services


def check_ledger(*names: str) -> dict[str, int]:
    """Recomputes the chain and compares it with what was kept of it, MLflow's tags of these registered names among it.

    Raises:
        LedgerBroken: the ledger was changed, or its end was cut off.
    """
    from include.stores.heads import verify_ledger

    found = verify_ledger(services.store(), services.catalog().ledger, [head for name in names for head in _heads_on_versions(name)])
    kept = f"row {found['exported']}" if found["exported"] else "none yet"
    print(f"The ledger's {found['rows']} rows fit; newest head kept elsewhere: {kept}")
    return found


def _heads_on_versions(name: str) -> list[dict[str, Any]]:
    """Those that MLflow's versions carry; while it is away the store's stand alone, so that a rollback does not wait for it."""
    from include.stores.errors import RegistryError

    try:
        return list(services.registry().heads(name))
    except RegistryError as error:
        print(f"The heads on {name}'s versions were not looked at: {error}")
        return []


def check_whole_ledger() -> dict[str, int]:
    """The same with the tags of every name that the ledger knows."""
    return check_ledger(*services.catalog().ledger.names())


def keep_head() -> dict[str, Any]:
    """Keeps the head of now in the store; the papers of the version carry it too."""
    from include.stores.heads import export_head

    return export_head(services.store(), services.catalog().ledger)
