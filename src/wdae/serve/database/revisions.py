"""Changes of a model: each is a revision, and undoing one is another revision, so nothing is ever lost.

A change closes what it ends (``until``) and opens what it begins (``since``), with the model's row locked.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import and_, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql import ColumnElement

from wdae.classifier.names import shorten
from wdae.serve import deletion
from wdae.serve.database.connection import Database, chunks, now
from wdae.serve.database.tables import (
    ClassName,
    ClassRow,
    FeatureRow,
    HeadRow,
    ModelRow,
    PictureRow,
    Placement,
    Revision,
)
from wdae.serve.problems import ConflictError, NotFoundError, StaleError


def new_id() -> str:
    """An id that nobody can guess."""
    return secrets.token_hex(8)


def model_row(session: Session, model: str, *, lock: bool = False) -> ModelRow:
    """The row of a model, perhaps locked until the end of the transaction."""
    wanted = select(ModelRow).where(ModelRow.id == model)
    row = session.scalar(wanted.with_for_update() if lock else wanted)
    if row is None:
        raise _no_model(model)
    return row


_LATEST = select(ModelRow.revision, ModelRow.starting).where(ModelRow.id == bindparam("model"))
_LATEST_SQLITE = str(_LATEST.compile(dialect=sqlite.dialect()))


def latest(database: Database, model: str) -> tuple[int, str]:
    """The revision that a model has now, and the digest of its starting model; asked for every answer."""
    row = database.first_row(_LATEST_SQLITE, model)
    if row is None:
        with database.engine.connect() as connection:
            row = connection.execute(_LATEST, {"model": model}).one_or_none()
    if row is None:
        raise _no_model(model)
    return row[0], row[1]


def _no_model(model: str) -> NotFoundError:
    return NotFoundError(f"there is no model {shorten(model)!r}; GET /api/v1/models lists those there are")


def alive(table: type[ClassName] | type[Placement], model: str, at: int) -> ColumnElement[bool]:
    """The rows of a model that held at a revision."""
    return and_(table.model == model, table.since <= at, or_(table.until.is_(None), table.until > at))


def names_at(session: Session, model: str, at: int) -> dict[str, str]:
    """The classes that were there at a revision: id to name, in the order in which they came."""
    rows = session.execute(
        select(ClassName.class_id, ClassName.name).where(alive(ClassName, model, at)).order_by(ClassName.id)
    )
    return {row[0]: row[1] for row in rows}


class RevisionChange:
    """A revision in the making."""

    def __init__(self, session: Session, row: ModelRow, who: str, action: str) -> None:
        self.session, self.row, self.who, self.action = session, row, who, action
        self.model, self.before, self.number = row.id, row.revision, row.revision + 1
        self.summary: dict[str, Any] = {}
        self.is_change = False
        latest = session.get(Revision, (self.model, self.before))
        self.parent = latest.state if latest else 0
        self.novel_share = latest.novel_share if latest else None
        self.state = self.number

    def names(self) -> dict[str, str]:
        """The classes there are: id to name."""
        return names_at(self.session, self.model, self.number)

    def open_class(self, name: str, base_id: str | None = None) -> str:
        """A new class of this name; ``base_id`` is the id of the base class that it is."""
        class_id = base_id or new_id()
        if self.session.get(ClassRow, (self.model, class_id)) is None:
            self.session.add(ClassRow(model=self.model, id=class_id, base=base_id is not None))
            self.session.flush()
        self._open(ClassName, [{"class_id": class_id, "name": name}])
        return class_id

    def rename(self, class_id: str, name: str) -> None:
        """Call a class otherwise from now on."""
        self._close(ClassName, ClassName.class_id, [class_id])
        self._open(ClassName, [{"class_id": class_id, "name": name}])

    def close_classes(self, class_ids: Iterable[str]) -> None:
        """Take classes out, with their examples."""
        class_ids = list(class_ids)
        self._close(ClassName, ClassName.class_id, class_ids)
        self._close(Placement, Placement.class_id, class_ids)

    def placed(self, pictures: Iterable[str] | None = None) -> dict[str, str]:
        """Which of the pictures, or of all, are examples of which class: picture to class id."""
        wanted = (
            select(Placement.picture, Placement.class_id)
            .where(Placement.model == self.model, Placement.until.is_(None))
            .order_by(Placement.id)
        )
        if pictures is None:
            return {row[0]: row[1] for row in self.session.execute(wanted)}
        found: dict[str, str] = {}
        for some in chunks(pictures):
            for picture, class_id in self.session.execute(wanted.where(Placement.picture.in_(some))):
                found[picture] = class_id
        return found

    def place(self, pictures: Mapping[str, str]) -> None:
        """Make pictures examples of classes: picture to class id; elsewhere they are none any more."""
        self._close(Placement, Placement.picture, pictures)
        self._open(Placement, [{"picture": picture, "class_id": c} for picture, c in pictures.items()])

    def take_out(self, pictures: Iterable[str]) -> None:
        """Pictures that are examples no more."""
        self._close(Placement, Placement.picture, pictures)

    def return_to(self, number: int) -> None:
        """Bring the state of a revision back."""
        target = self.session.get(Revision, (self.model, number)) if number else None
        if number and target is None:
            raise NotFoundError(f"there is no revision {number}; give 0 (as it started) to {self.before}")
        for table, columns in ((ClassName, ("class_id", "name")), (Placement, ("picture", "class_id"))):
            of = [getattr(table, column) for column in columns]
            rows = {
                key: {
                    tuple(row)
                    for row in self.session.execute(select(*of).where(alive(table, self.model, at)))
                }
                for key, at in (("now", self.before), ("then", number))
            }
            gone = rows["now"] - rows["then"]
            self._close(table, of[0], [row[0] for row in gone])
            back = select(*of).where(alive(table, self.model, number)).order_by(table.id)
            missing = rows["then"] - rows["now"]
            ordered = [tuple(row) for row in self.session.execute(back) if tuple(row) in missing]
            self._open(table, [dict(zip(columns, row, strict=True)) for row in ordered])
        self.novel_share = target.novel_share if target else None
        self.state = target.state if target else 0
        self.is_change = True

    def _open(self, table: type[ClassName] | type[Placement], rows: list[dict[str, Any]]) -> None:
        if rows:
            known = {"model": self.model, "since": self.number, "until": None}
            self.session.execute(insert(table), [row | known for row in rows])
            self.is_change = True

    def _close(
        self,
        table: type[ClassName] | type[Placement],
        column: InstrumentedAttribute[str],
        values: Iterable[str],
    ) -> None:
        for some in chunks(values):
            of = and_(table.model == self.model, table.until.is_(None), column.in_(some))
            # What this very revision has opened never was: it goes without a trace.
            self.session.execute(delete(table).where(of, table.since == self.number))
            done = self.session.execute(update(table).where(of).values(until=self.number))
            self.is_change |= bool(done.rowcount)  # type: ignore[attr-defined]

    def finish(self) -> int:
        """Write the revision, where anything has changed; the number of the latest one."""
        if not self.is_change:
            return self.before
        self.session.add(
            Revision(
                model=self.model,
                number=self.number,
                parent=self.parent,
                state=self.state,
                at=now(),
                who=self.who,
                action=self.action,
                summary=self.summary,
                novel_share=self.novel_share,
            )
        )
        self.row.revision = self.number
        return self.number


@contextmanager
def changing(
    database: Database, model: str, who: str, action: str, expected: int | None = None
) -> Iterator[RevisionChange]:
    """Change a model; others who want to change it wait.

    Args:
        expected: the revision that the caller has seen; another one is an error.
    """
    with database.writing() as session:
        row = model_row(session, model, lock=True)
        if expected is not None and row.revision != expected:
            raise StaleError(
                f"the model is at revision {row.revision}, not {expected}: somebody has changed it since;"
                " look at it again, then repeat the change with If-Match: "
                f"{row.revision}"
            )
        change = RevisionChange(session, row, who, action)
        yield change
        change.finish()


def undo_target(session: Session, model: str, revision: int) -> int:
    """The revision whose state one step back is."""
    latest = session.get(Revision, (model, revision))
    here = latest.state if latest else 0
    if not here:
        raise ConflictError("nothing to undo: the model is as it started")
    made = session.get(Revision, (model, here))
    assert made is not None
    return made.parent


def redo_target(session: Session, model: str, revision: int) -> int:
    """The revision whose state one step forth is: what was undone last."""
    latest = session.get(Revision, (model, revision))
    here = latest.state if latest else 0
    after = session.scalar(
        select(func.max(Revision.number)).where(
            Revision.model == model, Revision.parent == here, Revision.state == Revision.number
        )
    )
    if after is None:
        raise ConflictError("nothing to redo: no change was taken back since")
    return after


def delete_pictures(session: Session, model: str, pictures: Iterable[str]) -> list[str]:
    """Remove pictures for good, from every revision; those that there were."""
    gone: list[str] = []
    for some in chunks(pictures):
        of = and_(PictureRow.model == model, PictureRow.id.in_(some))
        gone += session.scalars(select(PictureRow.id).where(of))
        for table in (Placement, FeatureRow):
            session.execute(delete(table).where(table.model == model, table.picture.in_(some)))
        session.execute(delete(PictureRow).where(of))
    session.execute(delete(HeadRow).where(HeadRow.model == model))  # which was made from them, too
    deletion.note(session, model, gone)
    return gone
