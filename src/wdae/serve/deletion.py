"""Deleting for good, so that it is: a note in the database first, then the file, then the note.

The same notes are made before a picture is put into the store and taken back when it has become an example:
what a killed process left there, acknowledged to nobody, is removed too.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from wdae.serve.database.connection import Database, chunks
from wdae.serve.database.tables import Deletion, ModelRow, PictureRow
from wdae.serve.pictures import PictureStore

EVERYTHING = "*"
"""Instead of a picture's id: the model is gone, and all its pictures go."""
_AT_ONCE = 500


def note(session: Session, model: str, pictures: Iterable[str]) -> None:
    """Note that these are to be removed from the store, unless they are examples by then."""
    rows = [{"model": model, "picture": picture} for picture in dict.fromkeys(pictures)]
    if rows:
        kind = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
        session.execute(kind.insert(Deletion).on_conflict_do_nothing(), rows)


def take_back(session: Session, model: str, pictures: Iterable[str]) -> None:
    """These are to stay."""
    for some in chunks(pictures):
        session.execute(delete(Deletion).where(Deletion.model == model, Deletion.picture.in_(some)))


def carry_out(database: Database, store: PictureStore, model: str | None = None) -> int:
    """Remove what is noted, of one model or of all; how many pictures went.

    The model is locked meanwhile: a picture that somebody is teaching again is either an example already, and
    stays, or will be put into the store anew.
    """
    gone = 0
    noted = select(Deletion.model).distinct()
    with database.reading() as session:
        models = session.scalars(noted if model is None else noted.where(Deletion.model == model)).all()
    for one in models:
        with database.writing() as session:
            session.execute(select(ModelRow.id).where(ModelRow.id == one).with_for_update())
            pictures = session.scalars(
                select(Deletion.picture).where(Deletion.model == one).limit(_AT_ONCE)
            ).all()
            kept = set(
                session.scalars(
                    select(PictureRow.id).where(PictureRow.model == one, PictureRow.id.in_(pictures))
                )
            )
            for picture in pictures:
                if picture == EVERYTHING:
                    store.delete_model(one)
                elif picture not in kept:
                    store.delete(one, picture)
                    gone += 1
            take_back(session, one, pictures)
        if len(pictures) == _AT_ONCE:
            gone += carry_out(database, store, one)
    if gone or models:
        database.forget()
    return gone
