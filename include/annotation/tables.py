"""The service's tables. Displays, labels and withdrawals are append-only (triggers refuse anything else); leases are not history.

`batches.mark` counts labels and withdrawals of one batch without gaps, in the order in which they were committed: it only
moves while the batch's row is locked. That is what makes a snapshot at a mark the same for ever.
"""

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, MetaData, String, Table, Text, UniqueConstraint, text

metadata = MetaData()

APPEND_ONLY = ("rubrics", "displays", "labels", "withdrawals")

rubrics = Table(
    "rubrics",
    metadata,
    Column("rubric_id", String(200), primary_key=True),
    Column("version", String(200), primary_key=True),
    Column("digest", String(71), nullable=False),
    Column("body", Text, nullable=False),
)

batches = Table(
    "batches",
    metadata,
    Column("batch_id", String(64), primary_key=True),
    Column("root_id", String(64), nullable=False, index=True),
    Column("idempotency_key", String(200), unique=True),
    Column("body_digest", String(71), nullable=False),
    Column("purpose", String(20), nullable=False),
    Column("rubric_id", String(200), nullable=False),
    Column("rubric_version", String(200), nullable=False),
    Column("mark", BigInteger, nullable=False),
    Column("created_at", String(40), nullable=False),
    Column("created_by", String(64), nullable=False),
    Column("closed_at", String(40)),
    Column("receipt", Text, nullable=False),
    Column("review", Text),
    Column("per_annotator", Integer),
    Column("not_by", Text),
)

tasks = Table(
    "tasks",
    metadata,
    Column("task_id", String(64), primary_key=True),
    Column("batch_id", String(64), ForeignKey("batches.batch_id"), nullable=False),
    Column("pool", String(20), nullable=False),
    Column("wanted", Integer),
    Column("filled", Boolean, nullable=False),
    Column("shuffle", BigInteger, nullable=False),
    Column("prompt_id", String(71), nullable=False),
    Column("prompt", Text, nullable=False),
    Column("a_id", String(200), nullable=False),
    Column("a_answer", Text, nullable=False),
    Column("b_id", String(200), nullable=False),
    Column("b_answer", Text, nullable=False),
    Column("gold", Text),
    UniqueConstraint("batch_id", "prompt_id", "a_id", "b_id", name="tasks_once_a_batch"),
    Index("tasks_to_hand_out", "batch_id", "pool", "filled", "shuffle"),
)

displays = Table(
    "displays",
    metadata,
    Column("task_id", String(64), ForeignKey("tasks.task_id"), primary_key=True),
    Column("annotator_id", String(64), primary_key=True),
    Column("left_side", String(1), nullable=False),
    Column("shown_at", String(40), nullable=False),
    Index("displays_of_an_annotator", "annotator_id", "shown_at"),
)

leases = Table(
    "leases",
    metadata,
    Column("task_id", String(64), ForeignKey("tasks.task_id"), primary_key=True),
    Column("annotator_id", String(64), primary_key=True),
    Column("batch_id", String(64), nullable=False),
    Column("until", String(40), nullable=False),
    Column("state", String(20), nullable=False),
    Index("leases_by_state", "batch_id", "state", "annotator_id"),
)

labels = Table(
    "labels",
    metadata,
    Column("label_id", String(64), primary_key=True),
    Column("batch_id", String(64), ForeignKey("batches.batch_id"), nullable=False),
    Column("mark", BigInteger, nullable=False),
    Column("task_id", String(64), ForeignKey("tasks.task_id"), nullable=False),
    Column("annotator_id", String(64), nullable=False),
    Column("annotator_kind", String(20), nullable=False),
    Column("verdict", String(20), nullable=False),
    Column("record", Text, nullable=False),
    Column("digest", String(71), nullable=False),
    Column("request_digest", String(71), nullable=False),
    Column("created_at", String(40), nullable=False),
    Column("supersedes", String(64), ForeignKey("labels.label_id"), unique=True),
    UniqueConstraint("batch_id", "mark", name="labels_one_a_mark"),
    Index("labels_of_a_task", "task_id", "annotator_id"),
    Index("labels_by_time", "created_at", "label_id"),
    Index(
        "labels_first_of_an_annotator",
        "task_id",
        "annotator_id",
        unique=True,
        sqlite_where=text("supersedes IS NULL"),
        postgresql_where=text("supersedes IS NULL"),
    ),
)

withdrawals = Table(
    "withdrawals",
    metadata,
    Column("label_id", String(64), ForeignKey("labels.label_id"), primary_key=True),
    Column("batch_id", String(64), ForeignKey("batches.batch_id"), nullable=False),
    Column("mark", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("withdrawn_at", String(40), nullable=False),
    Column("withdrawn_by", String(64), nullable=False),
    UniqueConstraint("batch_id", "mark", name="withdrawals_one_a_mark"),
)
