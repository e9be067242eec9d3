"""Who gets no task of a batch."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("batches", sa.Column("not_by", sa.Text, nullable=True))
