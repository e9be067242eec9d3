"""The ledger held against the heads of it that were kept elsewhere, in the store and on MLflow's versions."""

from typing import Any

from include.flows import services


def check_ledger(*names: str) -> dict[str, int]:
    """Recomputes the chain and compares it with what was kept of it, MLflow's tags of these registered names among it.

    Raises:
        LedgerBroken: the ledger was changed, or its end was cut off.
    """
    from include.stores.heads import verify_ledger

    ledger, registry = services.catalog().ledger, services.registry()
    heads = [head for name in names for head in registry.heads(name)]
    found = verify_ledger(services.store(), ledger, heads)
    kept = f"row {found['exported']}" if found["exported"] else "none yet"
    print(f"The ledger's {found['rows']} rows fit; newest head kept elsewhere: {kept}")
    return found


def check_whole_ledger() -> dict[str, int]:
    """The same with the tags of every name that the ledger knows."""
    return check_ledger(*services.catalog().ledger.names())


def keep_head() -> dict[str, Any]:
    """Keeps the head of now in the store; the papers of the version carry it too."""
    from include.stores.heads import export_head

    return export_head(services.store(), services.catalog().ledger)
