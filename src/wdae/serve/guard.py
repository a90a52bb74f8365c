"""What every request passes first: is it meant for us, does another site's page send it, is it too large."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wdae.printing import size_text
from wdae.serve.access import SAFE
from wdae.serve.limits import Limits
from wdae.serve.problems import problem
from wdae.serve.settings import Settings

_JSON_BYTES = 2**20  # of a body that holds no picture
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Guard:
    """ASGI middleware that refuses requests before anything of them is read, and bounds what is read."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.limits = app, settings.limits
        names = {"localhost", *settings.hosts}
        if not settings.hosts:
            names |= {settings.host, socket.gethostname()}
        self.names = {name.lower().rstrip(".") for name in names}
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a problem."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._refused(scope, headers)
        if refused is not None:
            status, detail = refused
            await problem(Request(scope), status, detail)(scope, receive, send)
            return
        most = most_bytes(self.limits, scope["path"], headers.get("content-type", ""))
        length = headers.get("content-length", "")
        claimed = int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0
        if claimed > most:
            await problem(Request(scope), 413, _too_large(most))(scope, receive, send)
            return
        if most == self.limits.import_bytes:
            claimed = 0  # goes to disk as it comes, not to memory
        if self._in_flight + claimed > self.limits.in_flight_bytes:
            busy = problem(
                Request(scope),
                503,
                "too much is being uploaded at once; try again",
                headers={"Retry-After": "2"},
            )
            await busy(scope, receive, send)
            return
        read = 0

        async def counting() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > most:
                    raise HTTPException(413, _too_large(most))
            return message

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    own.setdefault(name, value)
                if scope["path"].startswith("/api/"):
                    own.setdefault("Cache-Control", "no-store")
                    own.setdefault(
                        "Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox"
                    )
            await send(message)

        self._in_flight += claimed
        try:
            await self.app(scope, counting, sending)
        finally:
            self._in_flight -= claimed

    def _refused(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return 421, "this service does not go by that name; start it with --allow-host NAME"
        if not scope["path"].isprintable():
            return 404, "there is nothing at this address"
        if not scope["path"].startswith("/api/"):
            return None
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return 403, "pages of other sites may not use this service"
        origin = headers.get("origin")
        if scope["method"] not in SAFE and origin is not None and _host(origin) != hosts[0].lower():
            return 403, "pages of other sites may not change anything here"
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)  # a name that was made to point here (DNS rebinding) is no number
        except ValueError:
            return name.rstrip(".") in self.names
        return True


def most_bytes(limits: Limits, path: str, kind: str) -> int:
    """The most that a request's body may have, by what it is for.

    >>> most_bytes(Limits(), "/api/v1/models", "application/json")
    1048576
    """
    if path.endswith(("/jobs", "/models/import", "/predictions/stream")):
        return limits.import_bytes
    if kind.startswith("multipart/"):
        return limits.upload_bytes
    return 2 * limits.picture_bytes if "/predictions" in path or "/explanations" in path else _JSON_BYTES


def _too_large(most: int) -> str:
    return f"the request is too large; at most {size_text(most)} are accepted"


def _host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
