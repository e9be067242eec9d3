"""Tables of what was measured, judged, asked and decided: labels, measurements, gates, dossiers, the ledger."""

import sqlalchemy as sa

from include.stores.catalog.types import json_value, metadata, number, text

APPEND_ONLY = ("ledger", "approvals", "gate_reports", "dossiers", "measurements", "label_events", "annotation_audits")
"""Triggers abort every UPDATE and DELETE on these."""

label_events = sa.Table(
    "label_events", metadata,
    text("event_id", primary_key=True), text("label_id", index=True), text("kind"), text("batch_id", null=True, index=True),
    text("label_digest", null=True), text("rubric_version", null=True), text("annotator_kind", null=True), text("actor"),
    json_value("detail"), text("at"),
)  # fmt: skip

snapshots = sa.Table(
    "snapshots", metadata,
    text("run_id", primary_key=True), text("name", primary_key=True), json_value("high_water_mark"), text("digest"), text("uri"),
    json_value("body"), text("created_at"),
)  # fmt: skip

suppressions = sa.Table(
    "suppressions", metadata,
    text("keyed_hash", primary_key=True), text("reason"), text("actor"), text("created_at"),
)  # fmt: skip

taint = sa.Table(
    "taint", metadata,
    text("ref", primary_key=True), text("reason"), text("actor"), text("created_at"), number("ledger_seq"),
)  # fmt: skip

measurements = sa.Table(
    "measurements", metadata,
    text("measurement_id", primary_key=True), text("deployment", index=True), text("suite_digest"), text("metric"), text("scorer"),
    text("generation"), text("backend"), text("hardware"), text("run_key"), text("attempt"), text("items_uri"), text("items_digest"),
    number("n"), json_value("summary"), text("measured_at"),
)  # fmt: skip

gate_reports = sa.Table(
    "gate_reports", metadata,
    text("digest", primary_key=True), text("purpose", primary_key=True), text("as_of", primary_key=True), text("deployment", index=True),
    text("verdict"), text("gate_code"), text("policies_digest"), json_value("body"), number("ordinal"), text("created_at"),
)  # fmt: skip

annotation_audits = sa.Table(
    "annotation_audits", metadata,
    text("digest", primary_key=True), text("since", index=True), text("until"), text("rubric", null=True), text("status"),
    json_value("body"), text("writer"), text("created_at"),
)  # fmt: skip

deployments = sa.Table(
    "deployments", metadata,
    text("digest", primary_key=True), text("name"), json_value("body"), text("created_at"),
)  # fmt: skip

dossiers = sa.Table(
    "dossiers", metadata,
    text("digest", primary_key=True), text("name"), text("deployment", index=True), text("champion", null=True),
    number("approvals_needed"), sa.Column("demonstration", sa.Boolean, nullable=False), json_value("body"), text("created_at"),
)  # fmt: skip

decisions = sa.Table(
    "decisions", metadata,
    text("dossier", primary_key=True), number("round", primary_key=True), text("state"), text("decided_by", null=True),
    text("why", null=True), text("created_at"), text("decided_at", null=True),
)  # fmt: skip
"""Each time a dossier is put before people is a round; an answer stands until a run asks anew."""

askers = sa.Table(
    "askers", metadata,
    text("dossier", primary_key=True), number("round", primary_key=True), text("run_id", primary_key=True), text("asked_by"),
    text("created_at"),
)  # fmt: skip

approvals = sa.Table(
    "approvals", metadata,
    text("dossier", primary_key=True), number("round", primary_key=True), text("person", primary_key=True), text("account"),
    text("comment"), number("ledger_seq"), text("created_at"),
)  # fmt: skip

ledger = sa.Table(
    "ledger", metadata,
    number("seq", primary_key=True), text("kind"), text("name"), text("subject"), json_value("payload"), text("actor"), text("at"),
    text("previous"), text("hash"),
    sa.UniqueConstraint("previous"),
    sa.Index("ix_ledger_name", "name"),
    sa.Index("ix_ledger_subject", "subject"),
)  # fmt: skip
"""Append-only; each row's hash covers the row and the hash of the one before."""
