"""Runs migrations on the connection that :meth:`wdae.serve.database.connection.Database.migrate` gives."""

from __future__ import annotations

from alembic import context

from wdae.serve.database.tables import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
