"""Sessions of the page, leases of jobs, and deletions that are still to be carried out in the store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Up."""
    op.create_table(
        "sessions",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("created", sa.String(length=32), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["key"], ["keys.id"], name=op.f("fk_sessions_key"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_sessions")),
    )
    op.create_table(
        "deletions",
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.Column("picture", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("model", "picture", name=op.f("pk_deletions")),
    )
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("worker", sa.String(length=64), nullable=True))
        jobs.add_column(sa.Column("lease", sa.BigInteger(), nullable=False, server_default="0"))
        jobs.add_column(sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Down."""
    with op.batch_alter_table("jobs") as jobs:
        for name in ("attempts", "lease", "worker"):
            jobs.drop_column(name)
    op.drop_table("deletions")
    op.drop_table("sessions")
