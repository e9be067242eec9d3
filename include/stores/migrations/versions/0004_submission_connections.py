"""Over which connection a submission is sent."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "submission_connections",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("conn_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", "n", name=op.f("pk_submission_connections")),
    )


def downgrade() -> None:
    op.drop_table("submission_connections")
