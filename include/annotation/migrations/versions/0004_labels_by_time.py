"""Labels are found by when they were given."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_index("labels_by_time", "labels", ["created_at", "label_id"])
