"""Tables of what exists and what was run: artifacts, edges, datasets, runs, submissions, owners, requests.

Times are fixed-width UTC text. Digests are ``sha256:<hex>``.
"""

import sqlalchemy as sa

from include.stores.catalog.types import json_value, metadata, number, text

artifacts = sa.Table(
    "artifacts", metadata,
    text("digest", primary_key=True), text("kind", index=True), number("size_bytes"), json_value("manifest"), text("writer", null=True),
    text("created_at"),
)  # fmt: skip

artifact_locations = sa.Table(
    "artifact_locations", metadata,
    text("digest", primary_key=True), text("store", primary_key=True), text("path", primary_key=True), text("uri"),
    text("verified_at", null=True),
)  # fmt: skip

edges = sa.Table(
    "edges", metadata,
    text("child", primary_key=True), text("parent", primary_key=True), text("role", primary_key=True), text("writer", primary_key=True),
    text("created_at"),
    sa.Index("ix_edges_parent", "parent"),
)  # fmt: skip
"""`writer` is the attempt that wrote the child, bound when it was written: a later try of the same task is another writer."""

dataset_versions = sa.Table(
    "dataset_versions", metadata,
    text("dataset_id", primary_key=True), number("version", primary_key=True), text("content_hash", index=True), text("artifact"),
    text("row_kind"), text("schema_version"), text("filter_policy_version"), text("manifest_uri"), json_value("info"), text("writer"),
    text("created_at"),
    sa.UniqueConstraint("dataset_id", "content_hash"),
)  # fmt: skip

memberships = sa.Table(
    "memberships", metadata,
    text("content_hash", primary_key=True), text("label_id", primary_key=True), text("label_digest"), text("batch_id", null=True),
    sa.Index("ix_memberships_label_id", "label_id"),
    sa.Index("ix_memberships_batch_id", "batch_id"),
)  # fmt: skip

stage_runs = sa.Table(
    "stage_runs", metadata,
    text("key", primary_key=True), text("stage", index=True), text("program"), json_value("spec"), text("committed_attempt", null=True),
    text("committed_at", null=True), json_value("report", null=True), text("store", null=True), text("created_at"),
)  # fmt: skip

run_inputs = sa.Table(
    "run_inputs", metadata,
    text("key", primary_key=True), text("role", primary_key=True), text("parent", index=True),
)  # fmt: skip

run_outputs = sa.Table(
    "run_outputs", metadata,
    text("key", primary_key=True), text("name", primary_key=True), text("digest", index=True), text("path"),
)  # fmt: skip

attempts = sa.Table(
    "attempts", metadata,
    text("key", primary_key=True), text("name", primary_key=True), number("n"), number("job_id"), number("restart"), text("cluster"),
    text("state"), text("started_at", null=True), text("ended_at", null=True), sa.Column("gpu_seconds", sa.Double, nullable=False),
    json_value("report", null=True),
)  # fmt: skip

submissions = sa.Table(
    "submissions", metadata,
    text("key", primary_key=True), number("n", primary_key=True), text("since"), number("gpus"), json_value("receipt", null=True),
    json_value("view", null=True), sa.Column("ending", sa.Boolean, nullable=False), text("closed_at", null=True),
    json_value("end", null=True), text("closed_by", null=True),
    sa.Index(
        "uq_submissions_live", "key", unique=True,
        sqlite_where=sa.text("closed_at IS NULL"), postgresql_where=sa.text("closed_at IS NULL"),
    ),
)  # fmt: skip
"""One live submission a key, over all clusters: the partial unique index says so."""

submission_connections = sa.Table(
    "submission_connections", metadata,
    text("key", primary_key=True), number("n", primary_key=True), text("conn_id"),
)  # fmt: skip
"""Over which connection a submission is sent, kept before anything is: the first that is named stays."""

array_parts = sa.Table(
    "array_parts", metadata,
    text("array_key", primary_key=True), number("array_n", primary_key=True), number("task", primary_key=True), text("key"), number("n"),
    sa.UniqueConstraint("key", "n"),
)  # fmt: skip
"""An array holds several keys: submission `n` of `key` is task number `task` of submission `array_n` of the array."""

owners = sa.Table(
    "owners", metadata,
    text("key", primary_key=True), text("owner_id", primary_key=True), json_value("owner"), text("added_at"), text("dropped_at", null=True),
)  # fmt: skip

incidents = sa.Table(
    "incidents", metadata,
    text("incident_id", primary_key=True), text("key", index=True), number("n"), text("what"), json_value("detail"), text("at"),
)  # fmt: skip

requests = sa.Table(
    "requests", metadata,
    number("number", primary_key=True), text("idempotency_key"), json_value("body"), text("asked_by"), text("state"),
    text("dag_run_id", null=True), text("created_at"), text("changed_at"),
    sa.UniqueConstraint("idempotency_key"),
)  # fmt: skip
