"""Keys with roles, and the sessions that the page makes with them, in the service's database.

A key is 256 random bits, so that one round of SHA-256 hides it; the database has hashes alone.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from typing import Literal

from sqlalchemy import delete, select
from sqlalchemy.exc import SQLAlchemyError

from wdae.errors import RecipeError
from wdae.serve.database.connection import Database, now
from wdae.serve.database.tables import KeyRow, SessionRow
from wdae.serve.problems import NotFoundError, ProblemError

Role = Literal["read", "teach", "admin"]
ROLES: tuple[Role, ...] = ("read", "teach", "admin")
"""Each may do what those before it may."""
SESSION_SECONDS = 30 * 24 * 3600
_USED_EVERY = 60.0  # seconds between notes of a key's last use


class UnauthorizedError(ProblemError):
    """Nobody knows who asks."""

    status = 401

    def __init__(self, message: str) -> None:
        super().__init__(message, **{"WWW-Authenticate": "Bearer"})


class Keys:
    """The keys of a service and the sessions made with them, in its database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._noted: dict[str, float] = {}

    def create(self, name: str, role: str) -> tuple[KeyRow, str]:
        """A new key: its row, and the key itself, which is shown this once."""
        if role not in ROLES:
            raise RecipeError(f"a key has the role read, teach or admin, not {role!r:.40}")
        name = name.strip()
        if not name or len(name) > 200 or not name.isprintable():
            raise RecipeError("give a key a name of 1 to 200 printable letters, such as whose it is")
        text = f"wdae_{secrets.token_urlsafe(32)}"
        row = KeyRow(id=secrets.token_hex(8), name=name, hash=_hash(text), role=role, created=now())
        with self.database.writing() as session:
            session.add(row)
        return row, text

    def all(self) -> Sequence[KeyRow]:
        """All keys, the oldest first, revoked ones too."""
        with self.database.reading() as session:
            return session.scalars(select(KeyRow).order_by(KeyRow.created, KeyRow.id)).all()

    def exist(self) -> bool:
        """Whether anybody could come in with a key that may manage others."""
        return any(row.revoked is None and row.role == "admin" for row in self.all())

    def revoke(self, key: str) -> None:
        """Let a key and its sessions count no longer, at once and everywhere."""
        with self.database.writing() as session:
            row = session.get(KeyRow, key)
            if row is None:
                raise NotFoundError(f"there is no key {key!r:.80}")
            row.revoked = row.revoked or now()
            session.execute(delete(SessionRow).where(SessionRow.key == key))

    def find(self, text: str) -> KeyRow | None:
        """The key that counts with this text."""
        with self.database.reading() as session:
            return session.scalar(select(KeyRow).where(KeyRow.hash == _hash(text), KeyRow.revoked.is_(None)))

    def find_session(self, token: str) -> KeyRow | None:
        """The key that a session was made with, while both count."""
        with self.database.reading() as session:
            return session.scalar(
                select(KeyRow)
                .join(SessionRow, SessionRow.key == KeyRow.id)
                .where(
                    SessionRow.hash == _hash(token),
                    SessionRow.expires > int(time.time()),
                    KeyRow.revoked.is_(None),
                )
            )

    def start_session(self, text: str) -> str:
        """The token of a new session for the holder of a key."""
        row = self.find(text)
        if row is None:
            raise UnauthorizedError("this key is not known, or was revoked; ask for another one")
        token = secrets.token_urlsafe(32)
        at = int(time.time())
        with self.database.writing() as session:
            session.execute(delete(SessionRow).where(SessionRow.expires <= at))
            session.add(
                SessionRow(hash=_hash(token), key=row.id, created=now(), expires=at + SESSION_SECONDS)
            )
        return token

    def end_session(self, token: str) -> None:
        """Let a session count no longer."""
        with self.database.writing() as session:
            session.execute(delete(SessionRow).where(SessionRow.hash == _hash(token)))

    def note_use(self, key: str) -> None:
        """Remember when a key was used, to the minute; a database that cannot is no reason to fail."""
        at = time.monotonic()
        if at - self._noted.get(key, -_USED_EVERY) < _USED_EVERY:
            return
        self._noted[key] = at
        try:
            with self.database.writing() as session:
                row = session.get(KeyRow, key)
                if row is not None:
                    row.last_used = now()
        except SQLAlchemyError:
            self._noted.pop(key, None)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
