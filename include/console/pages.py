"""Pages for people: releases, lineage, impact, a dossier with its gates, the ledger, and the pages of a validation."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse
from fastapi.templating import Jinja2Templates

from include.console import rights
from include.console.audit_marks import audit_marks
from include.console.errors import status_of
from include.console.reading import catalog, has_pages, ledger_rows, releases, validation_file
from include.domain.errors import AlignmentError
from include.gates.render import table
from include.gates.results import report_from

router = APIRouter(default_response_class=HTMLResponse)
_templates = Jinja2Templates(directory=str(Path(__file__).parent / "templates"))


def moment(value: Any) -> str:
    """A stored time as people read it, to the second."""
    text = str(value or "")
    return f"{text[:10]} {text[11:19]} UTC" if text[10:11] == "T" else text


def plain(value: Any) -> str:
    """A setting as people read it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain(item)}" for name, item in value.items()) or "none"
    return "none" if value in (None, "") else str(value)


_templates.env.filters.update(moment=moment, plain=plain)

VALIDATION_POLICY = "sandbox allow-scripts allow-popups"
"""Pages of Great Expectations show values of the data and run scripts: in an origin of their own they reach nothing of Airflow's."""


def _page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    return _templates.TemplateResponse(request, template, values, status_code=status)


def problem(request: Request, error: Exception) -> HTMLResponse:
    """The page that says why there is none."""
    return _page(request, "problem.html", status_of(error), problem=str(error))


@router.get("/")
def home(request: Request) -> HTMLResponse:
    return _page(request, "home.html", releases=releases(catalog()))


@router.get("/lineage", dependencies=[rights.DECISIONS])
def lineage(request: Request, ref: str = "", every: bool = False) -> HTMLResponse:
    """The tree behind `ref`; `every`: each writing of the same content."""
    from include.stores.catalog.render import render_node

    opened = catalog()
    return _tree(
        request,
        "Lineage",
        "lineage",
        ref,
        lambda: render_node(opened.lineage.trace(opened.ledger.full_ref(ref or "champion")), every_writing=every),
    )


@router.get("/impact")
def impact(request: Request, ref: str = "") -> HTMLResponse:
    from include.stores.catalog.render import render_impact

    opened = catalog()
    return _tree(request, "Impact", "impact", ref, lambda: render_impact(opened.lineage.impact(opened.ledger.full_ref(ref))) if ref else "")


@router.get("/compare")
def compare(request: Request, ref: str = "", other: str = "") -> HTMLResponse:
    """Two things side by side."""
    from include.stores.catalog.compare import compare, render_comparison

    opened = catalog()

    def text() -> str:
        return render_comparison(compare(opened, opened.ledger.full_ref(ref), opened.ledger.full_ref(other))) if ref and other else ""

    return _tree(request, "Compare", "compare", ref, text, other=other)


def _tree(request: Request, title: str, action: str, ref: str, text: Any, **more: Any) -> HTMLResponse:
    try:
        shown, why, status = text(), None, 200
    except AlignmentError as error:
        shown, why, status = "", str(error), status_of(error) if ref else 200  # opened from the menu: nothing was asked for yet
    return _page(request, "tree.html", status, title=title, action=action, ref=ref, text=shown, problem=why, **more)


@router.get("/deployments/{digest}", dependencies=[rights.DECISIONS])
def deployment(request: Request, digest: str) -> HTMLResponse:
    """All that was judged and decided about a deployment, and what it has cost."""
    from include.stores.catalog.cost import render_cost

    opened = catalog()
    body = opened.releases.deployment(digest)
    reports = [(row, table(report_from(row.body))) for row in opened.measurements.reports_of(digest)]
    rows = [row for row in ledger_rows(opened, None)["rows"] if row["payload"].get("deployment") == digest]
    dossiers = [(found, opened.releases.decision(found.digest)) for found in opened.releases.dossiers_of(digest)]
    facts: dict[str, Any] = {"tainted": opened.releases.tainted(digest), "cost": render_cost(opened.costs.of(f"deployment:{digest}"))}
    return _page(request, "deployment.html", digest=digest, body=body, reports=reports, rows=rows, dossiers=dossiers, **facts)


@router.get("/ledger", dependencies=[rights.DECISIONS])
def ledger(request: Request, name: str | None = None) -> HTMLResponse:
    return _page(request, "ledger.html", name=name, **ledger_rows(catalog(), name))


@router.get("/audits", dependencies=[rights.DECISIONS])
def audits(request: Request, digest: str = "") -> HTMLResponse:
    """The latest audit of annotation, or the one of this digest, and which others there are."""
    from include.data.audit_text import audit_text, plain

    found = catalog().audits
    rows = found.newest()
    row = found.get(digest) if digest else rows[0] if rows else None
    text = audit_text(row.body) if row else ""
    return _page(request, "audits.html", row=row, rows=rows, text=text, drawn=audit_marks(row.body) if row else [], shown=plain)


@router.get("/validation/{name}/", dependencies=[rights.VALUES])
def validation_report(request: Request, name: str) -> HTMLResponse:
    """What was expected of the data and what was seen, table by table; Great Expectations' own pages need the internet for their looks."""
    report = json.loads(validation_file(name, "report.json").read_text("utf-8"))
    tables: dict[str, list[dict[str, Any]]] = {}
    for check in report["checks"]:
        tables.setdefault(check["table"], []).append(check)
    return _page(request, "validation.html", name=name, report=report, tables=tables, pages=has_pages(name))


@router.get("/validation/{name}/{path:path}", response_class=FileResponse, dependencies=[rights.VALUES])
def validation(name: str, path: str) -> FileResponse:
    return FileResponse(validation_file(name, path), headers={"Content-Security-Policy": VALIDATION_POLICY})
