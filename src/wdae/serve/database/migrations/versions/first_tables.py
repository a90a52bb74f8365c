"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Up."""
    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("hash", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("created", sa.String(length=32), nullable=False),
        sa.Column("last_used", sa.String(length=32), nullable=True),
        sa.Column("revoked", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
        sa.UniqueConstraint("hash", name=op.f("uq_keys_hash")),
    )
    op.create_table(
        "models",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("starting", sa.String(length=64), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
        sa.UniqueConstraint("name", name=op.f("uq_models_name")),
    )
    op.create_table(
        "classes",
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("base", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["model"], ["models.id"], name=op.f("fk_classes_model"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("model", "id", name=op.f("pk_classes")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("model", sa.String(length=64), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("who", sa.String(length=200), nullable=False),
        sa.Column("created", sa.String(length=32), nullable=False),
        sa.Column("updated", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["model"], ["models.id"], name=op.f("fk_jobs_model"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_state_created"), ["state", "created"], unique=False)

    op.create_table(
        "pictures",
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("height", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("thumbnail", sa.LargeBinary(), nullable=False),
        sa.Column("created", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["model"], ["models.id"], name=op.f("fk_pictures_model"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("model", "id", name=op.f("pk_pictures")),
    )
    op.create_table(
        "revisions",
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("parent", sa.Integer(), nullable=False),
        sa.Column("state", sa.Integer(), nullable=False),
        sa.Column("at", sa.String(length=32), nullable=False),
        sa.Column("who", sa.String(length=200), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.Column("novel_share", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["model"], ["models.id"], name=op.f("fk_revisions_model"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("model", "number", name=op.f("pk_revisions")),
    )
    op.create_table(
        "class_names",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.Column("class", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("since", sa.Integer(), nullable=False),
        sa.Column("until", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["model", "class"],
            ["classes.model", "classes.id"],
            name=op.f("fk_class_names_model_class"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_class_names")),
    )
    with op.batch_alter_table("class_names", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_class_names_model_until"), ["model", "until"], unique=False)

    op.create_table(
        "features",
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.Column("picture", sa.String(length=64), nullable=False),
        sa.Column("backbone", sa.String(length=64), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["model", "picture"],
            ["pictures.model", "pictures.id"],
            name=op.f("fk_features_model_picture"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("model", "picture", "backbone", name=op.f("pk_features")),
    )
    op.create_table(
        "placements",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("model", sa.String(length=64), nullable=False),
        sa.Column("picture", sa.String(length=64), nullable=False),
        sa.Column("class", sa.String(length=64), nullable=False),
        sa.Column("since", sa.Integer(), nullable=False),
        sa.Column("until", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["model", "class"],
            ["classes.model", "classes.id"],
            name=op.f("fk_placements_model_class"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["model", "picture"],
            ["pictures.model", "pictures.id"],
            name=op.f("fk_placements_model_picture"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_placements")),
    )
    with op.batch_alter_table("placements", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_placements_model_picture"), ["model", "picture"], unique=False)
        batch_op.create_index(batch_op.f("ix_placements_model_until"), ["model", "until"], unique=False)


def downgrade() -> None:
    """Down."""
    with op.batch_alter_table("placements", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_placements_model_until"))
        batch_op.drop_index(batch_op.f("ix_placements_model_picture"))

    op.drop_table("placements")
    op.drop_table("features")
    with op.batch_alter_table("class_names", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_class_names_model_until"))

    op.drop_table("class_names")
    op.drop_table("revisions")
    op.drop_table("pictures")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_jobs_state_created"))

    op.drop_table("jobs")
    op.drop_table("classes")
    op.drop_table("models")
    op.drop_table("keys")
