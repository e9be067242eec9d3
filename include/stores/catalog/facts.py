"""What is known of a node of the graph: its kind, its names, and the facts that a tree shows beside it."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from include.stores.catalog.database import Row
from include.stores.catalog.erasures import erased_entry
from include.stores.catalog.graph import aliases_of
from include.stores.catalog.ledger import Entry, read_entries
from include.stores.catalog.releases import tainted_by
from include.stores.catalog.tables_evidence import deployments, gate_reports, label_events, ledger, taint
from include.stores.catalog.tables_work import artifacts, dataset_versions, memberships, run_outputs, stage_runs


def describe(connection: sa.Connection, ref: str) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """(kind, names, facts) of a node."""
    versions = connection.execute(
        sa.select(dataset_versions).where(sa.or_(dataset_versions.c.content_hash == ref, dataset_versions.c.artifact == ref))
    ).mappings().all()  # fmt: skip
    if versions:
        names = tuple(f"{v['dataset_id']}@{v['version']}" for v in versions)
        return "dataset", names, _dataset_facts(connection, versions[0])
    row = connection.execute(sa.select(deployments.c.name, deployments.c.body).where(deployments.c.digest == ref)).first()
    if row is not None:
        return "deployment", (row.name,), {**row.body, **_judged(connection, ref)}
    kind = connection.execute(sa.select(artifacts.c.kind).where(artifacts.c.digest == ref)).scalar()
    if kind is not None:
        query = sa.select(stage_runs.c.stage, run_outputs.c.name).join(run_outputs, run_outputs.c.key == stage_runs.c.key)
        found = connection.execute(query.where(run_outputs.c.digest == ref).order_by(stage_runs.c.stage)).all()
        facts = _ensemble_facts(connection, ref) if kind == "reward_model" else {}
        return kind, tuple(dict.fromkeys(f"{stage}/{name}" for stage, name in found)), facts
    report = connection.execute(sa.select(gate_reports).where(gate_reports.c.digest == ref).order_by("ordinal")).mappings().first()
    if report is not None:
        facts = {name: report[name] for name in ("verdict", "purpose", "gate_code", "deployment")}
        return "gate report", (str(report["body"].get("gates", ref)),), facts
    head, colon, rest = ref.partition(":")
    return (head if colon and head != "sha256" else "source"), (rest or ref,), {}


def _ensemble_facts(connection: sa.Connection, member: str) -> dict[str, Any]:
    """Of a reward model: the members of its ensemble, where it has others, and the gate that judged them together."""
    mine = sa.select(run_outputs.c.key).where(run_outputs.c.digest == member).order_by(run_outputs.c.key).limit(1).scalar_subquery()
    query = sa.select(run_outputs.c.name, run_outputs.c.digest).join(artifacts, artifacts.c.digest == run_outputs.c.digest)
    rows = connection.execute(query.where(run_outputs.c.key == mine, artifacts.c.kind == "reward_model")).all()
    members = {row.name: row.digest for row in rows}
    reports = _reports(connection, list(members.values()))
    return {name: value for name, value in (("ensemble", members if len(members) > 1 else {}), ("gate_reports", reports)) if value}


def _reports(connection: sa.Connection, judged: Sequence[str]) -> dict[str, str]:
    query = sa.select(gate_reports).where(gate_reports.c.deployment.in_(judged)).order_by("created_at", "digest")
    return {row["digest"]: f"{row['verdict']} ({row['purpose']}, {row['gate_code']})" for row in connection.execute(query).mappings()}


def _judged(connection: sa.Connection, deployment: str) -> dict[str, Any]:
    """Gate reports with their verdicts, and the ledger rows that approved and released a deployment."""
    reports = _reports(connection, [deployment])
    rows = read_entries(connection, ledger.c.kind.in_(("approved", "released", "rolled_back")))
    told = {f"row {e.seq}": f"{e.kind} by {e.actor}{_account(e)} at {e.at}" for e in rows if e.payload["deployment"] == deployment}
    return {name: value for name, value in (("gate_reports", reports), ("ledger", told)) if value}


def _account(entry: Entry) -> str:
    return " (demonstration account)" if entry.payload.get("account") == "demonstration" else ""


def _dataset_facts(connection: sa.Connection, version: Row) -> dict[str, Any]:
    info = version["info"]
    facts: dict[str, Any] = {k: info[k] for k in ("rows", "counts", "licences", "origins") if k in info}
    facts["filter_policy_version"] = version["filter_policy_version"]
    facts |= shares(info.get("origins") or {})
    if scored := (info.get("notes") or {}).get("scored_pairs"):
        facts["scored_pairs"] = scored
    held = memberships.c.content_hash == version["content_hash"]
    labels = connection.execute(sa.select(sa.func.count()).select_from(memberships).where(held)).scalar() or 0
    if labels:
        facts["labels"] = labels
        facts["rubrics"] = _count(connection, label_events.c.rubric_version, held)
        facts["annotators"] = _count(connection, label_events.c.annotator_kind, held)
        facts |= _taken_back(connection, held)
    return facts


def _taken_back(connection: sa.Connection, held: sa.ColumnElement[bool]) -> dict[str, int]:
    """How many of a dataset's labels were withdrawn, where any was."""
    both = memberships.join(label_events, label_events.c.label_id == memberships.c.label_id)
    query = sa.select(sa.func.count(sa.distinct(memberships.c.label_id))).select_from(both)
    withdrawn = connection.execute(query.where(held, label_events.c.kind == "withdrawn")).scalar() or 0
    return {"withdrawn_labels": withdrawn} if withdrawn else {}


def _count(connection: sa.Connection, column: sa.Column[str], held: sa.ColumnElement[bool]) -> dict[str, int]:
    """Labels of a dataset by a column of the event with which they were collected."""
    joined = sa.and_(
        label_events.c.label_id == memberships.c.label_id,
        label_events.c.label_digest == memberships.c.label_digest,
        label_events.c.kind == "collected",
    )
    query = sa.select(column, sa.func.count(sa.distinct(memberships.c.label_id))).select_from(memberships.join(label_events, joined))
    return {str(value): n for value, n in connection.execute(query.where(held).group_by(column).order_by(column))}


def shares(origins: Mapping[str, int]) -> dict[str, float]:
    """Imported and synthetic share of rows, from counts by origin (``external:…``, ``synthetic:…``, anything else is ours)."""
    total = sum(origins.values())
    if not total:
        return {}
    part = {kind: sum(n for origin, n in origins.items() if origin.startswith(kind)) / total for kind in ("external", "synthetic")}
    return {"imported_share": part["external"], "synthetic_share": part["synthetic"]}


def marks(connection: sa.Connection, ref: str) -> dict[str, str]:
    """{"tainted", "erased"} → why, by whom and when; empty for most nodes."""
    found = {}
    if (why := _tainted(connection, ref)) is not None:
        found["tainted"] = why
    for name in {ref} | aliases_of(connection, [ref]):
        if (gone := erased_entry(connection, name)) is not None:
            found["erased"] = f"{gone['why']} (by {gone['by']} at {gone['at']})"
    return found


def _tainted(connection: sa.Connection, ref: str) -> str | None:
    """Why this node is tainted; of a deployment also why something is that it came from."""
    if connection.execute(sa.select(deployments.c.digest).where(deployments.c.digest == ref)).first():
        return tainted_by(connection, ref)
    row = connection.execute(sa.select(taint.c.reason, taint.c.actor, taint.c.created_at).where(taint.c.ref == ref)).first()
    return f"{row.reason} (by {row.actor} at {row.created_at})" if row else None
