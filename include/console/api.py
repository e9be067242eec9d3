"""The same answers as JSON: lineage, impact, releases, gate reports, the ledger."""

from typing import Any

from fastapi import APIRouter

from include.console import rights
from include.console.reading import catalog, ledger_rows, releases

router = APIRouter(prefix="/v1")


@router.get("/lineage", dependencies=[rights.DECISIONS])
def lineage(ref: str) -> dict[str, Any]:
    """The tree behind `ref`: a digest, champion:NAME, dataset:ID@3, deployment:DIGEST."""
    opened = catalog()
    tree: dict[str, Any] = opened.lineage.trace(opened.ledger.full_ref(ref)).to_json()
    return tree


@router.get("/impact")
def impact(ref: str) -> dict[str, Any]:
    """Everything that came from `ref`, which may also be label:ID or batch:ID."""
    opened = catalog()
    found: dict[str, Any] = opened.lineage.impact(opened.ledger.full_ref(ref)).to_json()
    return found


@router.get("/cost")
def cost(ref: str) -> dict[str, Any]:
    """Job and GPU seconds of every stage run that `ref` came from, of all attempts and of those before the last."""
    opened = catalog()
    found: dict[str, Any] = opened.costs.of(opened.ledger.full_ref(ref)).to_json()
    return found


@router.get("/compare")
def compare(ref: str, other: str) -> dict[str, Any]:
    """What differs between two things: settings and pins by stage, data, gates, cost."""
    from include.stores.catalog.compare import compare

    opened = catalog()
    found: dict[str, Any] = compare(opened, opened.ledger.full_ref(ref), opened.ledger.full_ref(other)).to_json()
    return found


@router.get("/releases")
def released() -> list[dict[str, Any]]:
    """Every registered name with its aliases, as the ledger has them."""
    return releases(catalog())


@router.get("/audits", dependencies=[rights.DECISIONS])
def audits(week: str | None = None) -> list[dict[str, Any]]:
    """Audits of annotation, the latest interval first; `week`: of that ISO week, such as 2026-W10."""
    found = catalog().audits
    rows = found.newest() if week is None else found.of_week(week)
    return [{"digest": row.digest, "writer": row.writer, "report": dict(row.body)} for row in rows]


@router.get("/ledger", dependencies=[rights.DECISIONS])
def ledger(name: str | None = None) -> dict[str, Any]:
    """The ledger's rows, and whether each fits the one before."""
    return ledger_rows(catalog(), name)
