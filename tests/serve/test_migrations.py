from __future__ import annotations

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.orm import Session

from wdae.serve.database.connection import MIGRATIONS, NEWEST, Database
from wdae.serve.database.tables import (
    Base,
    ClassName,
    ClassRow,
    FeatureRow,
    JobRow,
    KeyRow,
    ModelRow,
    PictureRow,
    Placement,
    Revision,
)
from wdae.serve.settings import Settings


@pytest.fixture
def database(request: pytest.FixtureRequest, both: Settings) -> Database:
    return Database(both.database_url)


def contents(database: Database) -> dict[str, list[tuple[object, ...]]]:
    """What the tables of the first migration hold, in the columns that they had then."""
    columns = {
        "models": "id, name, starting, revision",
        "classes": "model, id",
        "class_names": 'model, "class", name, since',
        "pictures": "model, id, bytes, thumbnail",
        "features": "model, picture, vector",
        "placements": 'model, picture, "class", since',
        "revisions": "model, number, state, action",
        "keys": "id, name, hash",
        "jobs": "id, kind, state, done",
    }
    with database.engine.connect() as connection:
        return {
            table: [tuple(row) for row in connection.execute(text(f"SELECT {names} FROM {table}"))]
            for table, names in columns.items()
        }


def test_up_and_down_with_data_in_them(database: Database) -> None:
    assert ScriptDirectory(str(MIGRATIONS)).get_current_head() == NEWEST
    database.migrate()
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []  # what migrations make is what the code uses
    at, times = "2026-01-02T03:04:05+00:00", {"created": "2026-01-02T03:04:05+00:00"}
    with Session(database.engine) as session, session.begin():
        session.add(ModelRow(id="m", name="mine", starting="d", revision=1, **times))
        session.flush()
        session.add(ClassRow(model="m", id="c", base=False))
        session.add(PictureRow(model="m", id="p", width=1, height=1, size=9, thumbnail=b"\x00\xff", **times))
        session.add(
            Revision(
                model="m", number=1, parent=0, state=1, at=at, who="me", action="teach",
                summary={"classes": {"c": 1}}, novel_share=0.25,
            )
        )  # fmt: skip
        session.flush()
        session.add(ClassName(model="m", class_id="c", name="okapi", since=1, until=None))
        session.add(Placement(model="m", picture="p", class_id="c", since=1, until=None))
        session.add(FeatureRow(model="m", picture="p", backbone="b", vector=b"\x01\x02"))
        session.add(KeyRow(id="k", name="key", hash="h", role="read", **times))
        session.add(
            JobRow(id="j", kind="learn", model="m", state="done", payload={}, who="me", updated=at, **times)
        )
    before = contents(database)
    assert all(before.values())
    database.migrate("0001")
    assert contents(database) == before
    database.migrate()
    assert contents(database) == before
    with Session(database.engine) as session, session.begin():
        session.delete(session.get(ModelRow, "m"))
    left = contents(database)
    assert [table for table, rows in left.items() if rows] == ["keys"]  # all else goes with its model
    database.migrate("base")
    assert set(inspect(database.engine).get_table_names()) <= {"alembic_version"}
    database.migrate()
    database.close()
