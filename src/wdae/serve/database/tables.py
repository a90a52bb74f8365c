"""The tables. What a model knew at revision r is what has ``since ≤ r < until``."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}

Id = String(64)


class Base(DeclarativeBase):
    """What all tables have in common: names for their constraints, so that migrations can drop them."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map = {dict[str, Any]: JSON}  # noqa: RUF012


class ModelRow(Base):
    """A model: a starting model, known by its digest, and the number of its latest revision."""

    __tablename__ = "models"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    starting: Mapped[str] = mapped_column(Id)
    revision: Mapped[int] = mapped_column(default=0)
    created: Mapped[str] = mapped_column(String(32))


class ClassRow(Base):
    """A class that was taught; its id outlives its names. Base classes have rows once they get examples."""

    __tablename__ = "classes"

    model: Mapped[str] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"), primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    base: Mapped[bool] = mapped_column(default=False)


class ClassName(Base):
    """What a class was called, from one revision to another; a class exists while it has a name."""

    __tablename__ = "class_names"
    __table_args__ = (
        ForeignKeyConstraint(["model", "class"], ["classes.model", "classes.id"], ondelete="CASCADE"),
        Index(None, "model", "until"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    model: Mapped[str] = mapped_column(Id)
    class_id: Mapped[str] = mapped_column("class", Id)
    name: Mapped[str] = mapped_column(String(200))
    since: Mapped[int]
    until: Mapped[int | None]


class PictureRow(Base):
    """A picture, known by the hash of the bytes that are kept of it."""

    __tablename__ = "pictures"

    model: Mapped[str] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"), primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True)
    width: Mapped[int]
    height: Mapped[int]
    size: Mapped[int] = mapped_column("bytes")
    thumbnail: Mapped[bytes] = mapped_column(LargeBinary)
    created: Mapped[str] = mapped_column(String(32))


class FeatureRow(Base):
    """What a backbone made of a picture: float32 numbers."""

    __tablename__ = "features"
    __table_args__ = (
        ForeignKeyConstraint(["model", "picture"], ["pictures.model", "pictures.id"], ondelete="CASCADE"),
    )

    model: Mapped[str] = mapped_column(Id, primary_key=True)
    picture: Mapped[str] = mapped_column(Id, primary_key=True)
    backbone: Mapped[str] = mapped_column(Id, primary_key=True)
    vector: Mapped[bytes] = mapped_column(LargeBinary)


class Placement(Base):
    """That a picture was an example of a class, from one revision to another."""

    __tablename__ = "placements"
    __table_args__ = (
        ForeignKeyConstraint(["model", "picture"], ["pictures.model", "pictures.id"], ondelete="CASCADE"),
        ForeignKeyConstraint(["model", "class"], ["classes.model", "classes.id"], ondelete="CASCADE"),
        Index(None, "model", "until"),
        Index(None, "model", "picture"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    model: Mapped[str] = mapped_column(Id)
    picture: Mapped[str] = mapped_column(Id)
    class_id: Mapped[str] = mapped_column("class", Id)
    since: Mapped[int]
    until: Mapped[int | None]


class Revision(Base):
    """A change of a model: who, when, what. Its state is that of revision ``state``, itself unless undone."""

    __tablename__ = "revisions"

    model: Mapped[str] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    parent: Mapped[int]
    state: Mapped[int]
    at: Mapped[str] = mapped_column(String(32))
    who: Mapped[str] = mapped_column(String(200))
    action: Mapped[str] = mapped_column(String(32))
    summary: Mapped[dict[str, Any]]
    novel_share: Mapped[float | None]


class HeadRow(Base):
    """The fitted classifier of a model of many examples; its digest is of the state and the content."""

    __tablename__ = "heads"

    model: Mapped[str] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    content: Mapped[bytes] = mapped_column(LargeBinary)


class KeyRow(Base):
    """A key of the API, hashed."""

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    hash: Mapped[str] = mapped_column(String(128), unique=True)
    role: Mapped[str] = mapped_column(String(16))
    created: Mapped[str] = mapped_column(String(32))
    last_used: Mapped[str | None] = mapped_column(String(32))
    revoked: Mapped[str | None] = mapped_column(String(32))


class SessionRow(Base):
    """A session of the page, made with a key; its token hashed."""

    __tablename__ = "sessions"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    key: Mapped[str] = mapped_column(ForeignKey("keys.id", ondelete="CASCADE"))
    created: Mapped[str] = mapped_column(String(32))
    expires: Mapped[int] = mapped_column(BigInteger)


class Deletion(Base):
    """A picture that is deleted for good and may still lie in the store; who finds this removes it."""

    __tablename__ = "deletions"

    model: Mapped[str] = mapped_column(Id, primary_key=True)
    picture: Mapped[str] = mapped_column(Id, primary_key=True)


class JobRow(Base):
    """Work that takes longer than a request."""

    __tablename__ = "jobs"
    __table_args__ = (Index(None, "state", "created"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    kind: Mapped[str] = mapped_column(String(32))
    model: Mapped[str | None] = mapped_column(ForeignKey("models.id", ondelete="CASCADE"))
    state: Mapped[str] = mapped_column(String(16))
    done: Mapped[int] = mapped_column(default=0)
    total: Mapped[int] = mapped_column(default=0)
    message: Mapped[str] = mapped_column(Text, default="")
    payload: Mapped[dict[str, Any]]
    result: Mapped[dict[str, Any] | None]
    who: Mapped[str] = mapped_column(String(200))
    created: Mapped[str] = mapped_column(String(32))
    updated: Mapped[str] = mapped_column(String(32))
    worker: Mapped[str | None] = mapped_column(String(64))
    lease: Mapped[int] = mapped_column(BigInteger, default=0)
    attempts: Mapped[int] = mapped_column(default=0)
