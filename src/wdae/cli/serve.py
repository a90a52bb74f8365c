"""``wdae serve``: a page and an API to teach models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from wdae.errors import MissingExtraError


def serve(
    *,
    data: Path = Path("wdae-data"),
    database: str | None = None,
    pictures: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
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
    workers
        Processes.
    public
        Say it twice to let everybody in without a key.
    starting
        The ready model that the first model starts from: resnet12 or lite0.
    """
    try:
        from wdae.serve.run import serve as run
    except ImportError as error:
        raise MissingExtraError(error.name or "fastapi", "serve", "wdae serve") from None
    from wdae.serve.settings import Settings

    run(
        Settings(
            data=data,
            database=database,
            pictures=pictures,
            host=host,
            port=port,
            workers=workers,
            public=public,
            starting=starting,
        )
    )
