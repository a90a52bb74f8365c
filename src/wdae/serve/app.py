"""The application: routes, errors, logs, the page."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anyio.to_thread import run_sync
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from threadpoolctl import threadpool_limits

from wdae.serve import deletion, problems
from wdae.serve.access import rules
from wdae.serve.guard import Guard
from wdae.serve.jobs import Runner
from wdae.serve.observe import Observed, log_as_json
from wdae.serve.page_files import mount_page
from wdae.serve.routes import (
    classes,
    examples,
    health,
    history,
    insight,
    jobs,
    keys,
    models,
    predictions,
    transfer,
)
from wdae.serve.service import Service
from wdae.serve.settings import Settings
from wdae.serve.work import KINDS
from wdae.version import __version__

API = "/api/v1"
ROUTERS = (  # in the order in which they are tried
    predictions.router,
    health.router,
    models.router,
    classes.router,
    examples.router,
    history.router,
    insight.router,
    transfer.router,
    jobs.router,
    keys.router,
)


def create_app(settings: Settings | None = None) -> FastAPI:
    """The service, by its settings or by those that the environment has (worker processes)."""
    chosen = settings or Settings.from_environment()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = service = Service.open(chosen)
        service.decoders.start()
        runner = Runner(
            service, service.jobs, KINDS, lambda: deletion.carry_out(service.database, service.pictures)
        )
        runner.start()
        if settings is None:
            gc.freeze()  # what is there now stays; a search of all of it would hold requests up
        yield
        await run_sync(runner.stop)
        service.close()

    if settings is None:
        log_as_json()
        threadpool_limits(1, "blas")  # numpy's: requests have a core each, and their matrices are small
    app = FastAPI(
        title="wdae",
        version=__version__,
        summary="Teach a trained classifier new classes from a few pictures each.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
        separate_input_output_schemas=False,
        responses={
            "4XX": {"model": problems.Problem, "description": "A problem (RFC 9457)"},
            "5XX": {"model": problems.Problem, "description": "A problem of the service (RFC 9457)"},
        },
    )
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router, prefix=API)
    app.include_router(health.open_router)
    app.add_middleware(Guard, settings=chosen)
    app.add_middleware(Observed)
    mount_page(app)
    rules(app)  # a route without a role does not start
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """OpenAPI 3.1, with the example of a schema at every operation that takes or gives it."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        schemas = document["components"]["schemas"]
        for operations in document["paths"].values():
            for operation in operations.values():
                bodies = [operation.get("requestBody", {}), *operation.get("responses", {}).values()]
                for status in ("4XX", "5XX"):
                    content = operation["responses"].get(status, {}).get("content", {})
                    if "application/json" in content:
                        content[problems.MEDIA_TYPE] = content.pop("application/json")
                for media in (media for body in bodies for media in body.get("content", {}).values()):
                    name = media.get("schema", {}).get("$ref", "").rpartition("/")[2]
                    found = schemas.get(name, {}).get("examples")
                    if found and "example" not in media:
                        media["example"] = found[0]
        app.openapi_schema = document
    return app.openapi_schema
