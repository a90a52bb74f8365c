"""The page: the files that ``page/`` builds, sent with headers that let nothing in from elsewhere."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "page"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types svelte-trusted-html",
    )
)
"""What the page may load: files of this service, and pictures that the reader chose (``blob:``)."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # kept, but asked about: names carry no version
    "Vary": "Accept-Encoding",
}

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page, in memory: its bytes, plain and compressed, and what it is."""

    plain: bytes
    kind: str

    @property
    def tag(self) -> str:
        """Its ETag."""
        return f'"{hashlib.sha256(self.plain).hexdigest()[:20]}"'


def page_files() -> dict[str, PageFile]:
    """The files by their name; none where the page was not built.

    >>> "index.html" in page_files()
    True
    """
    return {
        path.name: PageFile(path.read_bytes(), _KINDS[path.suffix])
        for path in sorted(FOLDER.glob("*"))
        if path.suffix in _KINDS
    }


def _sender(file: PageFile) -> Callable[[Request], Awaitable[Response]]:
    tag, small = file.tag, gzip.compress(file.plain, mtime=0)

    async def send(request: Request) -> Response:
        headers = {**HEADERS, "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        packed = "gzip" in request.headers.get("accept-encoding", "")
        if packed:
            headers["Content-Encoding"] = "gzip"
        return Response(small if packed else file.plain, media_type=file.kind, headers=headers)

    return send


def mount_page(app: FastAPI) -> None:
    """Serve the page at ``/``, and its files beside it."""
    for name, file in page_files().items():
        path = "/" if name == "index.html" else f"/{name}"
        app.add_route(path, _sender(file), methods=["GET"], include_in_schema=False)
