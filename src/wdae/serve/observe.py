"""Request ids, structured logs and Prometheus metrics."""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUESTS = Counter("wdae_requests_total", "Requests", ["method", "route", "status"])
SECONDS = Histogram(
    "wdae_request_seconds",
    "Time from a request to its answer",
    ["method", "route"],
    buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
)
BATCH = Histogram(
    "wdae_batch_pictures", "Pictures that a backbone saw at once", buckets=(1, 2, 4, 8, 16, 32, 64)
)
PREDICTIONS = Counter("wdae_predictions_total", "Pictures that were classified")
TAUGHT = Counter("wdae_examples_total", "Examples that were taught")
IN_FLIGHT = Gauge("wdae_requests_in_flight", "Requests being answered", multiprocess_mode="livesum")

_HEADER = "X-Request-ID"
_SANE = re.compile(r"[\w.-]{1,64}", re.ASCII)
_current: ContextVar[str] = ContextVar("request", default="")
_log = logging.getLogger("wdae.serve.request")


def request_id() -> str:
    """The id of the request that is being answered; in its answer, its log lines and its problems."""
    return _current.get()


class Observed:
    """ASGI middleware: gives each request an id, counts and logs it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and note how it ended."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        came = Headers(scope=scope).get(_HEADER, "")
        own = came if _SANE.fullmatch(came) else secrets.token_hex(8)
        _current.set(own)
        status, start = 500, time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[_HEADER] = own
            await send(message)

        IN_FLIGHT.inc()
        try:
            await self.app(scope, receive, sending)
        finally:
            IN_FLIGHT.dec()
            took, route = time.perf_counter() - start, getattr(scope.get("route"), "path", "other")
            REQUESTS.labels(scope["method"], route, status).inc()
            SECONDS.labels(scope["method"], route).observe(took)
            facts = {"method": scope["method"], "path": scope["path"], "status": status}
            _log.info("request", extra={"facts": facts | {"ms": round(1000 * took, 1)}})


class JsonLines(logging.Formatter):
    """A log line as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, request id, message and facts."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id():
            line["request_id"] = request_id()
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


def log_as_json() -> None:
    """Let everything of the service be logged to stderr, a JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("wdae.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel("INFO")
