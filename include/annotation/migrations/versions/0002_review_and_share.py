"""Who is listed for review, and how many tasks of a batch one annotator is given at most."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("batches", sa.Column("review", sa.Text, nullable=True))
    op.add_column("batches", sa.Column("per_annotator", sa.Integer, nullable=True))
