"""Which submissions are tasks of an array."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "array_parts",
        sa.Column("array_key", sa.Text(), nullable=False),
        sa.Column("array_n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("task", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("array_key", "array_n", "task", name=op.f("pk_array_parts")),
        sa.UniqueConstraint("key", "n", name=op.f("uq_array_parts_key_n")),
    )


def downgrade() -> None:
    op.drop_table("array_parts")
