"""Batches, tasks, displays, leases, labels, withdrawals; history can't be changed."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

APPEND_ONLY = ("rubrics", "displays", "labels", "withdrawals")


def upgrade() -> None:
    _batches()
    _tasks()
    _shown()
    _labels()
    _withdrawals()
    for table in APPEND_ONLY:
        _refuse_changes(table)


def _text(name: str, length: int, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=nullable)


def _batches() -> None:
    op.create_table(
        "rubrics",
        sa.Column("rubric_id", sa.String(200), primary_key=True),
        sa.Column("version", sa.String(200), primary_key=True),
        _text("digest", 71),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "batches",
        sa.Column("batch_id", sa.String(64), primary_key=True),
        _text("root_id", 64),
        sa.Column("idempotency_key", sa.String(200), unique=True),
        _text("body_digest", 71),
        _text("purpose", 20),
        _text("rubric_id", 200),
        _text("rubric_version", 200),
        sa.Column("mark", sa.BigInteger, nullable=False),
        _text("created_at", 40),
        _text("created_by", 64),
        _text("closed_at", 40, nullable=True),
        sa.Column("receipt", sa.Text, nullable=False),
    )
    op.create_index("ix_batches_root_id", "batches", ["root_id"])


def _tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("task_id", sa.String(64), primary_key=True),
        sa.Column("batch_id", sa.String(64), sa.ForeignKey("batches.batch_id"), nullable=False),
        _text("pool", 20),
        sa.Column("wanted", sa.Integer),
        sa.Column("filled", sa.Boolean, nullable=False),
        sa.Column("shuffle", sa.BigInteger, nullable=False),
        _text("prompt_id", 71),
        sa.Column("prompt", sa.Text, nullable=False),
        _text("a_id", 200),
        sa.Column("a_answer", sa.Text, nullable=False),
        _text("b_id", 200),
        sa.Column("b_answer", sa.Text, nullable=False),
        sa.Column("gold", sa.Text),
        sa.UniqueConstraint("batch_id", "prompt_id", "a_id", "b_id", name="tasks_once_a_batch"),
    )
    op.create_index("tasks_to_hand_out", "tasks", ["batch_id", "pool", "filled", "shuffle"])


def _shown() -> None:
    for name, columns in (
        ("displays", [_text("left_side", 1), _text("shown_at", 40)]),
        ("leases", [_text("batch_id", 64), _text("until", 40), _text("state", 20)]),
    ):
        op.create_table(
            name,
            sa.Column("task_id", sa.String(64), sa.ForeignKey("tasks.task_id"), primary_key=True),
            sa.Column("annotator_id", sa.String(64), primary_key=True),
            *columns,
        )
    op.create_index("displays_of_an_annotator", "displays", ["annotator_id", "shown_at"])
    op.create_index("leases_by_state", "leases", ["batch_id", "state", "annotator_id"])


def _labels() -> None:
    op.create_table(
        "labels",
        sa.Column("label_id", sa.String(64), primary_key=True),
        sa.Column("batch_id", sa.String(64), sa.ForeignKey("batches.batch_id"), nullable=False),
        sa.Column("mark", sa.BigInteger, nullable=False),
        sa.Column("task_id", sa.String(64), sa.ForeignKey("tasks.task_id"), nullable=False),
        _text("annotator_id", 64),
        _text("annotator_kind", 20),
        _text("verdict", 20),
        sa.Column("record", sa.Text, nullable=False),
        _text("digest", 71),
        _text("request_digest", 71),
        _text("created_at", 40),
        sa.Column("supersedes", sa.String(64), sa.ForeignKey("labels.label_id"), unique=True),
        sa.UniqueConstraint("batch_id", "mark", name="labels_one_a_mark"),
    )
    op.create_index("labels_of_a_task", "labels", ["task_id", "annotator_id"])
    first = sa.text("supersedes IS NULL")
    op.create_index(
        "labels_first_of_an_annotator",
        "labels",
        ["task_id", "annotator_id"],
        unique=True,
        sqlite_where=first,
        postgresql_where=first,
    )


def _withdrawals() -> None:
    op.create_table(
        "withdrawals",
        sa.Column("label_id", sa.String(64), sa.ForeignKey("labels.label_id"), primary_key=True),
        sa.Column("batch_id", sa.String(64), sa.ForeignKey("batches.batch_id"), nullable=False),
        sa.Column("mark", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        _text("withdrawn_at", 40),
        _text("withdrawn_by", 64),
        sa.UniqueConstraint("batch_id", "mark", name="withdrawals_one_a_mark"),
    )


def _refuse_changes(table: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        _refuse_changes_postgresql(table)
        return
    for action in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        )


def _refuse_changes_postgresql(table: str) -> None:
    op.execute(
        "CREATE OR REPLACE FUNCTION annotation_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION annotation_append_only()"
    )


def downgrade() -> None:
    raise NotImplementedError("labels are never thrown away by a downgrade: restore a backup instead")
