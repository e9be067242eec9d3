"""What is there: lineage, impact, gate reports, the ledger, stage runs."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from include.cli.command import REFS, command, open_catalog
from include.domain.errors import AlignmentError

if TYPE_CHECKING:
    from include.stores.catalog import Catalog
    from include.stores.catalog.audits import AuditRow


def add_to(commands: Any) -> None:
    lineage = command(commands, "lineage", _lineage, "where something came from", ("ref", REFS), json_too=True)
    lineage.add_argument("--all", action="store_true", help="each writing of the same content on a line of its own")
    command(commands, "impact", _impact, "everything that came from something", ("ref", REFS), json_too=True)
    command(commands, "cost", _cost, "what something has cost: job and GPU hours of all it came from", ("ref", REFS), json_too=True)
    beside = command(commands, "compare", _compare, "two things side by side: settings, data, gates, cost", ("ref", REFS), json_too=True)
    beside.add_argument("other", help="the same kinds of names")
    command(commands, "gates", _gates, "gate reports of a DAG run, of a deployment or of a champion", ("ref", "a DAG run's id, or " + REFS))
    command(
        commands, "ledger", _ledger, "checks the ledger's chain and shows the history of a name", ("name", "registered name"), optional=True
    )
    audit = command(
        commands,
        "audit",
        _audit,
        "what the labels of a week said of annotators and rubrics; the newest, unless one is named",
        ("digest", "a report's digest"),
        optional=True,
        json_too=True,
    )
    audit.add_argument("--week", metavar="2026-W10", help="the week by its ISO number")
    audit.add_argument("--list", action="store_true", help="which there are, the latest interval first")
    command(commands, "runs", _runs, "stage runs by key, newest first", ("stage", "one stage only"), optional=True)


def _lineage(options: argparse.Namespace) -> int:
    from include.stores.catalog.render import render_node

    catalog = open_catalog()
    node = catalog.lineage.trace(catalog.ledger.full_ref(options.ref))
    print(json.dumps(node.to_json(), indent=1, ensure_ascii=False) if options.json else render_node(node, every_writing=options.all))
    return 0


def _impact(options: argparse.Namespace) -> int:
    from include.stores.catalog.render import render_impact

    catalog = open_catalog()
    found = catalog.lineage.impact(catalog.ledger.full_ref(options.ref))
    print(json.dumps(found.to_json(), indent=1, ensure_ascii=False) if options.json else render_impact(found))
    return 0


def _cost(options: argparse.Namespace) -> int:
    from include.stores.catalog.cost import render_cost

    catalog = open_catalog()
    found = catalog.costs.of(catalog.ledger.full_ref(options.ref))
    print(json.dumps(found.to_json(), indent=1) if options.json else render_cost(found))
    return 0


def _compare(options: argparse.Namespace) -> int:
    from include.stores.catalog.compare import compare, render_comparison

    catalog = open_catalog()
    found = compare(catalog, catalog.ledger.full_ref(options.ref), catalog.ledger.full_ref(options.other))
    print(json.dumps(found.to_json(), indent=1, ensure_ascii=False) if options.json else render_comparison(found))
    return 0


def _gates(options: argparse.Namespace) -> int:
    from include.gates.render import table
    from include.gates.results import report_from

    catalog = open_catalog()
    deployment = _deployment_of(catalog, options.ref)
    reports = catalog.measurements.reports_of(deployment)
    if not reports:
        raise AlignmentError(f"no gate report of {deployment} is in the catalog")
    for report in reports:
        print(f"{report.purpose} {report.digest} ({report.created_at}): {report.verdict}")
        print(table(report_from(report.body)), end="\n\n")
    return 0


def _deployment_of(catalog: "Catalog", ref: str) -> str:
    """The deployment that a run asked to release, or that `ref` names."""
    dossier = catalog.releases.asked_in(ref)
    if dossier is not None:
        return str(catalog.releases.dossier(dossier).deployment)
    return str(catalog.lineage.resolve(catalog.ledger.full_ref(ref)))


def _ledger(options: argparse.Namespace) -> int:
    catalog = open_catalog()
    rows, head = catalog.ledger.verify(), catalog.ledger.head()
    print(f"{rows} rows, each fits the one before; head {head['hash']}")
    for entry in catalog.ledger.entries(name=options.name) if options.name else catalog.ledger.entries():
        print(f"{entry.seq:>5}  {entry.at}  {entry.kind:<16} {entry.name or '–'}  {entry.actor}  {_short(entry.payload)}")
    return 0


def _short(payload: Any) -> str:
    wanted = {k: v for k, v in payload.items() if k in ("deployment", "person", "comment", "account", "why", "reason", "ref")}
    return "  ".join(f"{k}={str(v)[:40]}" for k, v in wanted.items())


def _audit(options: argparse.Namespace) -> int:
    from include.data.audit_text import audit_text

    found = _audits(options)
    if not found:
        raise AlignmentError("no audit is in the catalog" + (f" of week {options.week}" if options.week else "") + ": run audit_annotation")
    if options.list:
        for row in found:
            print(f"{row.since}  {row.until}  {row.status:<20} {row.digest}  {'all rubrics' if row.rubric is None else ascii(row.rubric)}")
        return 0
    row = found[0]
    print(
        json.dumps(dict(row.body), indent=1, ensure_ascii=False)
        if options.json
        else f"{audit_text(row.body)}\nReport {row.digest}, written by {row.writer}"
    )
    if len(found) > 1 and options.week:
        print("Also of this week: " + ", ".join(other.digest for other in found[1:]), file=sys.stderr)
    return 0


def _audits(options: argparse.Namespace) -> "list[AuditRow]":
    audits = open_catalog().audits
    if options.digest:
        return [audits.get(options.digest)]
    return audits.of_week(options.week) if options.week else audits.newest()


def _runs(options: argparse.Namespace) -> int:
    for run in open_catalog().runs.newest(options.stage):
        print(f"{run.created_at}  {run.stage:<13} {run.key}  {run.committed_attempt or 'not committed'}")
    return 0
