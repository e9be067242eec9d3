"""Artifacts, datasets, runs and submissions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "artifact_locations",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("store", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("verified_at", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("digest", "store", "path", name=op.f("pk_artifact_locations")),
    )
    op.create_table(
        "artifacts",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("writer", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_artifacts")),
    )
    op.create_index(op.f("ix_artifacts_kind"), "artifacts", ["kind"], unique=False)
    op.create_table(
        "attempts",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("restart", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.Text(), nullable=True),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.Column("report", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("key", "name", name=op.f("pk_attempts")),
    )
    op.create_table(
        "dataset_versions",
        sa.Column("dataset_id", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("artifact", sa.Text(), nullable=False),
        sa.Column("row_kind", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Text(), nullable=False),
        sa.Column("filter_policy_version", sa.Text(), nullable=False),
        sa.Column("manifest_uri", sa.Text(), nullable=False),
        sa.Column("info", sa.Text(), nullable=False),
        sa.Column("writer", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("dataset_id", "version", name=op.f("pk_dataset_versions")),
        sa.UniqueConstraint("dataset_id", "content_hash", name=op.f("uq_dataset_versions_dataset_id_content_hash")),
    )
    op.create_index(op.f("ix_dataset_versions_content_hash"), "dataset_versions", ["content_hash"], unique=False)
    op.create_table(
        "edges",
        sa.Column("child", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("writer", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("child", "parent", "role", "writer", name=op.f("pk_edges")),
    )
    op.create_index("ix_edges_parent", "edges", ["parent"], unique=False)
    op.create_table(
        "incidents",
        sa.Column("incident_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("incident_id", name=op.f("pk_incidents")),
    )
    op.create_index(op.f("ix_incidents_key"), "incidents", ["key"], unique=False)
    op.create_table(
        "memberships",
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("label_id", sa.Text(), nullable=False),
        sa.Column("label_digest", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("content_hash", "label_id", name=op.f("pk_memberships")),
    )
    op.create_index("ix_memberships_batch_id", "memberships", ["batch_id"], unique=False)
    op.create_index("ix_memberships_label_id", "memberships", ["label_id"], unique=False)
    op.create_table(
        "owners",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("added_at", sa.Text(), nullable=False),
        sa.Column("dropped_at", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("key", "owner_id", name=op.f("pk_owners")),
    )
    op.create_table(
        "requests",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("asked_by", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("dag_run_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_requests")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_requests_idempotency_key")),
    )
    op.create_table(
        "run_inputs",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", "role", name=op.f("pk_run_inputs")),
    )
    op.create_index(op.f("ix_run_inputs_parent"), "run_inputs", ["parent"], unique=False)
    op.create_table(
        "run_outputs",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", "name", name=op.f("pk_run_outputs")),
    )
    op.create_index(op.f("ix_run_outputs_digest"), "run_outputs", ["digest"], unique=False)
    op.create_table(
        "stage_runs",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("program", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("committed_attempt", sa.Text(), nullable=True),
        sa.Column("committed_at", sa.Text(), nullable=True),
        sa.Column("report", sa.Text(), nullable=True),
        sa.Column("store", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_stage_runs")),
    )
    op.create_index(op.f("ix_stage_runs_stage"), "stage_runs", ["stage"], unique=False)
    op.create_table(
        "submissions",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("since", sa.Text(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("receipt", sa.Text(), nullable=True),
        sa.Column("view", sa.Text(), nullable=True),
        sa.Column("ending", sa.Boolean(), nullable=False),
        sa.Column("closed_at", sa.Text(), nullable=True),
        sa.Column("end", sa.Text(), nullable=True),
        sa.Column("closed_by", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("key", "n", name=op.f("pk_submissions")),
    )
    op.create_index(
        "uq_submissions_live",
        "submissions",
        ["key"],
        unique=True,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_table("artifact_locations")
    op.drop_table("artifacts")
    op.drop_table("attempts")
    op.drop_table("dataset_versions")
    op.drop_table("edges")
    op.drop_table("incidents")
    op.drop_table("memberships")
    op.drop_table("owners")
    op.drop_table("requests")
    op.drop_table("run_inputs")
    op.drop_table("run_outputs")
    op.drop_table("stage_runs")
    op.drop_table("submissions")
