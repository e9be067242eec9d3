"""What the labels of an interval said of annotators and rubrics."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "annotation_audits",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("since", sa.Text(), nullable=False),
        sa.Column("until", sa.Text(), nullable=False),
        sa.Column("rubric", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("writer", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_annotation_audits")),
    )
    op.create_index(op.f("ix_annotation_audits_since"), "annotation_audits", ["since"], unique=False)
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER annotation_audits_no_{verb.lower()} BEFORE {verb} ON annotation_audits "
                "BEGIN SELECT RAISE(ABORT, 'annotation_audits is append-only'); END"
            )
        return
    op.execute(
        "CREATE TRIGGER annotation_audits_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON annotation_audits "
        "FOR EACH STATEMENT EXECUTE FUNCTION align_append_only()"
    )


def downgrade() -> None:
    op.drop_table("annotation_audits")
