"""Classifiers of large models, fitted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Up."""
    op.create_table(
        "heads",
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["model"], ["models.id"], name=op.f("fk_heads_model"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_heads")),
    )


def downgrade() -> None:
    """Down."""
    op.drop_table("heads")
