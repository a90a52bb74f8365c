"""The database: sessions to read and to write, and its migrations."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

MIGRATIONS = Path(__file__).parent / "migrations"
NEWEST = "0003"
"""The migration that the code is written for."""
_WRITING = "wdae_writing"
_BUSY = 30_000  # milliseconds that a writer waits for another one on SQLite
_MIGRATING = 0x77646165  # the number of PostgreSQL's advisory lock: one program migrates at a time


def now() -> str:
    """The time, as tables have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def chunks(values: Iterable[str], size: int = 500) -> Iterator[list[str]]:
    """Ids as many at a time as a statement takes."""
    rest = iter(values)
    while some := list(islice(rest, size)):
        yield some


class Database:
    """A SQLite file, or a PostgreSQL database.

    A session that writes holds SQLite's write lock from its start (BEGIN IMMEDIATE), so that what it has
    read stays true; on PostgreSQL it locks the rows that it reads for that (SELECT ... FOR UPDATE).
    """

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        options: dict[str, Any] = {}
        if self.is_sqlite:
            if parsed.database:
                Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
            options = {"connect_args": {"timeout": 30}}
        else:
            options = {"connect_args": {"connect_timeout": 3}, "pool_pre_ping": True}
        self.engine: Engine = create_engine(url, pool_size=10, max_overflow=30, pool_timeout=10, **options)
        if self.is_sqlite:
            event.listen(self.engine, "connect", _prepare)
            event.listen(self.engine, "begin", _begin)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that only reads."""
        with Session(self.engine) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session that is committed when the body ends well."""
        engine = self.engine.execution_options(**{_WRITING: True})
        with Session(engine, expire_on_commit=False) as session, session.begin():
            yield session

    def first_row(self, query: str, *values: str) -> Any:
        """The first row of a query in SQLite's words, past SQLAlchemy, which takes longer than SQLite does.

        None where there is none, where the database is another one, and where it cannot be read: whoever asks
        again in the usual way is told why.
        """
        if not self.is_sqlite:
            return None
        try:
            own = self.engine.raw_connection()
            try:
                return own.cursor().execute(query, values).fetchone()
            finally:
                own.close()
        except PoolTimeoutError:  # asking again would wait as long once more
            raise
        except (sqlite3.Error, SQLAlchemyError):
            return None

    def migrate(self, revision: str = "head") -> None:
        """Bring the tables to a revision of theirs, up or down."""
        with self.engine.connect() as connection:
            if revision == "head" and _current(connection) == NEWEST:
                return
            connection.rollback()
            from alembic import command

            if not self.is_sqlite:
                connection.execute(text("SELECT pg_advisory_lock(:number)"), {"number": _MIGRATING})
                connection.commit()
            try:
                config = _config(connection)
                current = _current(connection)
                connection.rollback()
                if revision == "head" or _is_later(config, revision, current):
                    command.upgrade(config, revision)
                else:
                    command.downgrade(config, revision)
                connection.commit()
            finally:
                if not self.is_sqlite:
                    connection.execute(text("SELECT pg_advisory_unlock(:number)"), {"number": _MIGRATING})
                    connection.commit()

    def forget(self) -> None:
        """Let what was deleted be overwritten on disk, as far as this is ours to do (SQLite)."""
        if self.is_sqlite:
            with self.engine.connect() as connection:
                connection.exec_driver_sql("ROLLBACK")  # not from within a transaction
                connection.exec_driver_sql("PRAGMA busy_timeout=500")  # who reads just now is not waited for
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
                connection.exec_driver_sql(f"PRAGMA busy_timeout={_BUSY}")
                connection.exec_driver_sql("BEGIN")

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def _config(connection: Connection) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


def _is_later(config: Any, revision: str, current: str | None) -> bool:
    from alembic.script import ScriptDirectory

    if revision == "base":
        return False
    known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()][::-1]
    return current is None or known.index(revision) > known.index(current)


def _prepare(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # we begin transactions ourselves
    cursor = connection.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        f"busy_timeout={_BUSY}",
        "secure_delete=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    writing = connection.get_execution_options().get(_WRITING)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
