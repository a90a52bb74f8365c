"""``wdae serve``: a page and an API to teach models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import cyclopts
from cyclopts import Parameter

from wdae.errors import MissingExtraError
from wdae.printing import say

if TYPE_CHECKING:
    from wdae.serve.keys import Keys

DATA = Path("wdae-data")


app = cyclopts.App(name="serve", help="Start a page to teach models on, and an API; manage its keys.")
keys = cyclopts.App(name="keys", help="Keys of a service: who may read, teach, manage.")
app.command(keys)


@app.default
def serve(
    *,
    data: Path = DATA,
    database: str | None = None,
    pictures: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    limit: tuple[str, ...] = (),
    allow_host: tuple[str, ...] = (),
    public: Annotated[int, Parameter(count=True, negative=())] = 0,
    starting: str = "resnet12",
) -> None:
    """Start a page to teach models on, and an API for programs: wdae serve, then open the link.

    Models, pictures and history are kept in a folder; with --database and --pictures in PostgreSQL and S3,
    for a team and several machines.

    Parameters
    ----------
    data
        The folder that everything is kept in.
    database
        postgresql://user@host/name instead of a SQLite file in the data folder.
    pictures
        s3://bucket/prefix, or another folder, instead of one in the data folder.
    host
        The address to listen at; any but this machine's own needs a key.
    port
        The port to listen at.
    workers
        Processes.
    limit
        NAME=NUMBER, one of the limits: picture_bytes, upload_files, requests, model_bytes, ...; may be given
        several times.
    allow_host
        A name that people reach the service by, such as that of a proxy before it; may be given several
        times. With one a key is needed at any address.
    public
        Say it twice to let everybody in without a key.
    starting
        The ready model that the first model starts from: resnet12 or lite0.
    """
    with _extra():
        from wdae.serve.limits import Limits
        from wdae.serve.run import serve as run
        from wdae.serve.settings import Settings

    run(
        Settings(
            data=data,
            database=database,
            pictures=pictures,
            host=host,
            port=port,
            workers=workers,
            hosts=allow_host,
            limits=Limits.of(limit),
            public=public,
            starting=starting,
        )
    )


@keys.command
def create(
    *,
    name: str,
    role: Literal["read", "teach", "admin"] = "teach",
    data: Path = DATA,
    database: str | None = None,
) -> None:
    """Make a key and show it, this once; the service knows its hash alone.

    Parameters
    ----------
    name
        Whose it is.
    role
        read: ask; teach: change models too; admin: make and delete models, and manage keys.
    data
        The service's data folder.
    database
        The service's database, where it is not in the data folder.
    """
    with _keys(data, database) as known:
        row, text = known.create(name, role)
    say(f"key {row.id} of {row.name!r}, role {row.role}. Keep it well, it is not shown again:")
    say(text)


@keys.command(name="list")
def list_(*, data: Path = DATA, database: str | None = None) -> None:
    """List the keys: id, role, when each was made, used and revoked, name.

    Parameters
    ----------
    data
        The service's data folder.
    database
        The service's database, where it is not in the data folder.
    """
    with _keys(data, database) as known:
        for row in known.all():
            state = f"revoked {row.revoked}" if row.revoked else f"last used {row.last_used or 'never'}"
            say(f"{row.id}  {row.role:5}  made {row.created}  {state}  {row.name}")


@keys.command
def revoke(key: str, /, *, data: Path = DATA, database: str | None = None) -> None:
    """Let a key count no longer, at once.

    Parameters
    ----------
    key
        Its id, as wdae serve keys list shows it.
    data
        The service's data folder.
    database
        The service's database, where it is not in the data folder.
    """
    with _keys(data, database) as known:
        known.revoke(key)
    say(f"key {key} counts no longer")


@contextmanager
def _keys(data: Path, database: str | None) -> Iterator[Keys]:
    with _extra():
        from wdae.serve.database.connection import Database
        from wdae.serve.keys import Keys
        from wdae.serve.settings import Settings
    opened = Database(Settings(data=data, database=database).database_url)
    try:
        opened.migrate()
        yield Keys(opened)
    finally:
        opened.close()


@contextmanager
def _extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(error.name or "fastapi", "serve", "wdae serve") from None
