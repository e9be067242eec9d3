"""Labels, measurements, gates, decisions and the append-only ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

APPEND_ONLY = ("ledger", "approvals", "gate_reports", "dossiers", "measurements", "label_events")


def _append_only(table: str) -> None:
    """Triggers that abort UPDATE and DELETE (and TRUNCATE, where there is one)."""
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
        return
    op.execute(
        f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION align_append_only()"
    )


def _append_only_function() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION align_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
        )


def upgrade() -> None:
    op.create_table(
        "approvals",
        sa.Column("dossier", sa.Text(), nullable=False),
        sa.Column("round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("ledger_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("dossier", "round", "person", name=op.f("pk_approvals")),
    )
    op.create_table(
        "askers",
        sa.Column("dossier", sa.Text(), nullable=False),
        sa.Column("round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("asked_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("dossier", "round", "run_id", name=op.f("pk_askers")),
    )
    op.create_table(
        "decisions",
        sa.Column("dossier", sa.Text(), nullable=False),
        sa.Column("round", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("decided_by", sa.Text(), nullable=True),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("decided_at", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("dossier", "round", name=op.f("pk_decisions")),
    )
    op.create_table(
        "deployments",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_deployments")),
    )
    op.create_table(
        "dossiers",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("deployment", sa.Text(), nullable=False),
        sa.Column("champion", sa.Text(), nullable=True),
        sa.Column("approvals_needed", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("demonstration", sa.Boolean(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_dossiers")),
    )
    op.create_index(op.f("ix_dossiers_deployment"), "dossiers", ["deployment"], unique=False)
    op.create_table(
        "gate_reports",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("as_of", sa.Text(), nullable=False),
        sa.Column("deployment", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("gate_code", sa.Text(), nullable=False),
        sa.Column("policies_digest", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "purpose", "as_of", name=op.f("pk_gate_reports")),
    )
    op.create_index(op.f("ix_gate_reports_deployment"), "gate_reports", ["deployment"], unique=False)
    op.create_table(
        "label_events",
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("label_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=True),
        sa.Column("label_digest", sa.Text(), nullable=True),
        sa.Column("rubric_version", sa.Text(), nullable=True),
        sa.Column("annotator_kind", sa.Text(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_label_events")),
    )
    op.create_index(op.f("ix_label_events_batch_id"), "label_events", ["batch_id"], unique=False)
    op.create_index(op.f("ix_label_events_label_id"), "label_events", ["label_id"], unique=False)
    op.create_table(
        "ledger",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("at", sa.Text(), nullable=False),
        sa.Column("previous", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_ledger")),
        sa.UniqueConstraint("previous", name=op.f("uq_ledger_previous")),
    )
    op.create_index("ix_ledger_name", "ledger", ["name"], unique=False)
    op.create_index("ix_ledger_subject", "ledger", ["subject"], unique=False)
    op.create_table(
        "measurements",
        sa.Column("measurement_id", sa.Text(), nullable=False),
        sa.Column("deployment", sa.Text(), nullable=False),
        sa.Column("suite_digest", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("scorer", sa.Text(), nullable=False),
        sa.Column("generation", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("hardware", sa.Text(), nullable=False),
        sa.Column("run_key", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Text(), nullable=False),
        sa.Column("items_uri", sa.Text(), nullable=False),
        sa.Column("items_digest", sa.Text(), nullable=False),
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("measured_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("measurement_id", name=op.f("pk_measurements")),
    )
    op.create_index(op.f("ix_measurements_deployment"), "measurements", ["deployment"], unique=False)
    op.create_table(
        "snapshots",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("high_water_mark", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "name", name=op.f("pk_snapshots")),
    )
    op.create_table(
        "suppressions",
        sa.Column("keyed_hash", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("keyed_hash", name=op.f("pk_suppressions")),
    )
    op.create_table(
        "taint",
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("ledger_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("ref", name=op.f("pk_taint")),
    )
    _append_only_function()
    for table in APPEND_ONLY:
        _append_only(table)


def downgrade() -> None:
    op.drop_table("approvals")
    op.drop_table("askers")
    op.drop_table("decisions")
    op.drop_table("deployments")
    op.drop_table("dossiers")
    op.drop_table("gate_reports")
    op.drop_table("label_events")
    op.drop_table("ledger")
    op.drop_table("measurements")
    op.drop_table("snapshots")
    op.drop_table("suppressions")
    op.drop_table("taint")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION align_append_only()")
