"""What is there: lineage, impact, gate reports, the ledger, stage runs."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from include.cli.command import REFS, command, open_catalog
from include.domain.errors import AlignmentError

if TYPE_CHECKING:
    from include.stores.catalog import Catalog


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


def _runs(options: argparse.Namespace) -> int:
    for run in open_catalog().runs.newest(options.stage):
        print(f"{run.created_at}  {run.stage:<13} {run.key}  {run.committed_attempt or 'not committed'}")
    return 0
