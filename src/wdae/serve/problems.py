"""Errors as problem documents (RFC 9457), in the library's own sentences."""

from __future__ import annotations

import http
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import DataError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.exceptions import HTTPException

from wdae.errors import MissingExtraError, StorageError, WdaeError, first_line
from wdae.serve.observe import request_id

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = 5
"""Seconds after which to ask again when the database is away."""

_log = logging.getLogger("wdae.serve")


class ProblemError(WdaeError):
    """An error with a status of its own."""

    status = 400

    def __init__(self, message: str, **headers: str) -> None:
        super().__init__(message)
        self.headers = headers


class NotFoundError(ProblemError):
    """There is nothing of that id."""

    status = 404


class ConflictError(ProblemError):
    """The model is not in a state in which this can be done."""

    status = 409


class StaleError(ProblemError):
    """Somebody else has changed the model since (If-Match)."""

    status = 412


class Problem(BaseModel):
    """A problem document (RFC 9457)."""

    type: str = Field("about:blank", examples=["about:blank"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["there is no model 'q7'; GET /api/v1/models lists them"])
    instance: str = Field(examples=["/api/v1/models/q7"])
    request_id: str = Field(examples=["3f2b8c1d9a704e55"])
    errors: list[dict[str, Any]] | None = Field(None, description="what is wrong with which field")


def problem(request: Request, status: int, detail: str, **more: Any) -> JSONResponse:
    """The answer that says what is wrong."""
    headers = more.pop("headers", None)
    content = Problem(
        title=http.HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        instance=request.url.path,
        request_id=request_id(),
        **more,
    )
    return JSONResponse(content.model_dump(exclude_none=True), status, headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Make every error of the app a problem document."""

    @app.exception_handler(WdaeError)
    async def _ours(request: Request, error: WdaeError) -> JSONResponse:
        if isinstance(error, ProblemError):
            return problem(request, error.status, str(error), headers=error.headers or None)
        if isinstance(error, StorageError) and isinstance(error.__cause__, OSError):
            _log.error("storage: %s", error)
            message = (
                "there is no room to keep this, or the store cannot be reached; the service's log says more"
            )
            return problem(request, 507, message, headers={"Retry-After": str(RETRY_AFTER)})
        return problem(request, 501 if isinstance(error, MissingExtraError) else 422, str(error))

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        faults = [
            {"where": ".".join(map(str, fault["loc"])), "what": fault["msg"]} for fault in error.errors()
        ]
        message = "; ".join(f"{fault['where']}: {fault['what']}" for fault in faults[:5])
        return problem(request, 422, message, errors=faults)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        return problem(request, error.status_code, str(error.detail), headers=error.headers)

    @app.exception_handler(OperationalError)
    @app.exception_handler(NoConnection)
    @app.exception_handler(DBAPIError)
    async def _database(request: Request, error: Exception) -> JSONResponse:
        away = isinstance(error, OperationalError | NoConnection) or (
            isinstance(error, DBAPIError) and error.connection_invalidated
        )
        if isinstance(error, DataError):
            return problem(request, 422, "some text or number in this is not one that a database can keep")
        _log.error("database: %s", first_line(error))
        if not away:
            return problem(request, 500, "the database refused this; the log of the service says why")
        detail = f"the database cannot be reached; try again in {RETRY_AFTER} seconds"
        return problem(request, 503, detail, headers={"Retry-After": str(RETRY_AFTER)})

    @app.exception_handler(Exception)
    async def _defect(request: Request, error: Exception) -> JSONResponse:
        _log.exception("defect", exc_info=error)
        detail = "this is a defect of the service; its log has more under the request id"
        return problem(request, 500, detail)
