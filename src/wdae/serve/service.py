"""The parts of a running service, and what routes ask of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request

from wdae.serve.access import Access, Me, needs
from wdae.serve.database.connection import Database
from wdae.serve.engine import Engine
from wdae.serve.engine.starting import StartingModels
from wdae.serve.jobs import Jobs
from wdae.serve.pictures import PictureStore
from wdae.serve.problems import ProblemError
from wdae.serve.settings import Settings
from wdae.serve.uploads import Decoders


@dataclass(frozen=True)
class Service:
    """Everything that a request may need."""

    settings: Settings
    database: Database
    pictures: PictureStore
    starting: StartingModels
    engine: Engine
    decoders: Decoders
    access: Access
    jobs: Jobs

    @classmethod
    def open(cls, settings: Settings) -> Service:
        """Connect to what the settings name; the tables have been migrated."""
        database = Database(settings.database_url)
        pictures = PictureStore.open(settings.pictures_url)
        starting = StartingModels(pictures)
        decoders = Decoders(settings.limits)
        return cls(
            settings,
            database,
            pictures,
            starting,
            Engine(database, starting, readers=decoders.count),
            decoders,
            Access(settings, database),
            Jobs(database),
        )

    def close(self) -> None:
        """Let everything go."""
        self.engine.close()
        self.decoders.close()
        self.database.close()


async def _service(request: Request) -> Service:  # what is not async would wait for a thread
    found: Service = request.app.state.service
    return found


async def _expected(
    if_match: Annotated[
        str | None,
        Header(description="the revision that the change is meant for; another one is answered with 412"),
    ] = None,
) -> int | None:
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip().removeprefix("W/").strip('"')
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ProblemError(f"If-Match is {if_match!r:.40}; give the number of a revision")
    return int(text)


CurrentService = Annotated[Service, Depends(_service)]
IfMatch = Annotated[int | None, Depends(_expected)]
ModelId = Annotated[
    str, Path(alias="m", max_length=64, description="id of a model", examples=["4b1d5c0e8f7a2936"])
]
ClassId = Annotated[
    str, Path(alias="c", max_length=64, description="id of a class", examples=["7d0c2f1b9e8a4f66"])
]
PictureId = Annotated[
    str, Path(alias="p", max_length=64, description="id of a picture", examples=["9f86d081884c7d65"])
]
Offset = Annotated[int, Query(ge=0, le=10**9)]
Reader = Annotated[Me, needs("read")]
Teacher = Annotated[Me, needs("teach")]
Admin = Annotated[Me, needs("admin")]
