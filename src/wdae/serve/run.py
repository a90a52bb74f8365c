"""Start the service."""

from __future__ import annotations

import os
import tempfile

import uvicorn
from sqlalchemy import select

from wdae.printing import say
from wdae.serve.access import refuse_open_door
from wdae.serve.app import create_app
from wdae.serve.database.connection import Database
from wdae.serve.database.tables import ModelRow
from wdae.serve.keys import Keys
from wdae.serve.routes.models import keep_model
from wdae.serve.service import Service
from wdae.serve.settings import Settings

FIRST = "my first model"
_KEPT = 75  # seconds that an idle connection is kept: longer than proxies do, or a request meets a closed one
_GRACE = 30  # seconds that requests have to end in when the service is stopped


def prepare(settings: Settings) -> None:
    """Bring the database up to date, and make a first model where there is none."""
    database = Database(settings.database_url)
    database.migrate()
    with database.reading() as session:
        empty = session.scalar(select(ModelRow.id).limit(1)) is None
    database.close()
    if empty:
        service = Service.open(settings)
        keep_model(service, FIRST, service.starting.named(settings.starting))
        service.close()


def check_door(settings: Settings) -> None:
    """Refuse to start where strangers could come in."""
    database = Database(settings.database_url)
    try:
        database.migrate()
        refuse_open_door(settings, Keys(database))
    finally:
        database.close()


def serve(settings: Settings) -> None:
    """Run the service until it is stopped; requests that it has taken are answered first."""
    check_door(settings)
    prepare(settings)
    settings.to_environment()
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    say(f"wdae is at http://{shown}:{settings.port}/ (data in {settings.data}; Ctrl-C ends it)")
    if settings.workers > 1 and "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp(prefix="wdae-metrics-")
    app = "wdae.serve.app:create_app" if settings.workers > 1 else create_app
    uvicorn.run(
        app,
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
        timeout_keep_alive=_KEPT,
    )
