"""Who may do what, by key, by session or by address, and how often anybody may ask.

The page trades a key for a session: a cookie that scripts cannot read and that other sites' pages do not
send, with a token beside it that a change must carry. On a loopback address, where no other name is allowed,
nobody needs a key.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import shlex
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, Request, routing
from starlette.concurrency import run_in_threadpool

from wdae.errors import RecipeError
from wdae.serve.database.connection import Database
from wdae.serve.keys import ROLES, Keys, Role, UnauthorizedError
from wdae.serve.problems import ProblemError

if TYPE_CHECKING:
    from wdae.serve.settings import Settings

COOKIE = "wdae_session"
CSRF_HEADER = "X-CSRF-Token"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class ForbiddenError(ProblemError):
    """Who asks may not do this."""

    status = 403


class TooManyError(ProblemError):
    """Too many requests in too short a time."""

    status = 429


@dataclass(frozen=True)
class Me:
    """Who asks, and the token that a change from the page must carry."""

    name: str = "local"
    role: Role = "admin"
    id: str = ""
    csrf: str = ""

    def may(self, role: Role) -> bool:
        """Whether this role is enough.

        >>> Me(role="teach").may("read"), Me(role="teach").may("admin")
        (True, False)
        """
        return ROLES.index(self.role) >= ROLES.index(role)


def needs(role: Role) -> Any:
    """A dependency: who asks must have this role, or a higher one."""
    return Depends(_CHECKS[role])


def _check(role: Role) -> Callable[[Request], Awaitable[Me]]:
    async def check(request: Request) -> Me:
        access: Access = request.app.state.service.access
        me = await access.identify(request)
        if not me.may(role):
            raise ForbiddenError(
                f"this needs a key with the role {role}; the role of {me.name!r} is {me.role}"
            )
        return me

    check.role = role  # type: ignore[attr-defined]
    return check


_CHECKS = {role: _check(role) for role in ROLES}


class Access:
    """Tells who asks, by key, by session, or because the service is this machine's own."""

    def __init__(self, settings: Settings, database: Database) -> None:
        from limits import RateLimitItemPerSecond
        from limits.storage import MemoryStorage
        from limits.strategies import SlidingWindowCounterRateLimiter

        self.settings, self.keys = settings, Keys(database)
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._requests = RateLimitItemPerSecond(10 * settings.limits.requests, 10)
        self._failures = RateLimitItemPerSecond(20, 10)

    async def identify(self, request: Request) -> Me:
        """Who asks; an error where that is nobody, or where a page of another site makes the browser ask."""
        text, token = _bearer(request), request.cookies.get(COOKIE)
        address = request.client.host if request.client else "?"
        if text is None and token is None and (me := self._without_key(request)) is not None:
            if me.role != "admin":
                self.count(f"address {address}")
            return me
        self._refuse_guesser(address)
        row = None
        if text is not None:
            row = await run_in_threadpool(self.keys.find, text)
        elif token is not None:
            row = await run_in_threadpool(self.keys.find_session, token)
        if row is None:
            self._limiter.hit(self._failures, f"failure {address}")
            raise UnauthorizedError(
                "this needs a key: send it as 'Authorization: Bearer KEY', or give it to the page"
                if text is None and token is None
                else "this key or session is not known, has ended or was revoked"
            )
        self.count(f"key {row.id}")
        csrf = ""
        if text is None and token is not None:
            csrf = csrf_token(token)
            sent = request.headers.get(CSRF_HEADER, "")
            if request.method not in SAFE and not hmac.compare_digest(sent.encode(), csrf.encode()):
                raise ForbiddenError(
                    f"a change from the page carries its token as {CSRF_HEADER}; load it anew"
                )
        await run_in_threadpool(self.keys.note_use, row.id)
        return Me(row.name, _role(row.role), row.id, csrf)

    def _without_key(self, request: Request) -> Me | None:
        if is_local(self.settings):
            # What a proxy passes on does not come from this machine, whatever its address.
            forwarded = any(name in request.headers for name in _FORWARDED)
            return None if forwarded else Me()
        return Me("anybody", "teach") if self.settings.public >= 2 else None

    def count(self, who: str) -> None:
        """Count a request; too many are an error that says when to come back."""
        if not self._limiter.hit(self._requests, who):
            most = self.settings.limits.requests
            reset = self._limiter.get_window_stats(self._requests, who).reset_time
            wait = max(1, round(reset - time.time()))
            raise TooManyError(
                f"more than {most} requests a second over ten seconds; wait {wait} s",
                **{"Retry-After": str(wait)},
            )

    def _refuse_guesser(self, address: str) -> None:
        if not self._limiter.test(self._failures, f"failure {address}"):
            raise TooManyError(
                "too many requests with keys that are not known; wait 10 s", **{"Retry-After": "10"}
            )

    def login(self, request: Request, text: str) -> str:
        """The token of a new session."""
        address = request.client.host if request.client else "?"
        self._refuse_guesser(address)
        try:
            return self.keys.start_session(text)
        except UnauthorizedError:
            self._limiter.hit(self._failures, f"failure {address}")
            raise


def is_local(settings: Settings) -> bool:
    """Whether only this machine can reach the service, by no other name than its own."""
    return is_loopback(settings.host) and not settings.hosts


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_open_door(settings: Settings, keys: Keys) -> None:
    """Refuse to start where strangers could come in: without a key, and without ``--public`` said twice."""
    if is_local(settings) or settings.public >= 2 or keys.exist():
        return
    where = settings.host if not is_loopback(settings.host) else ", ".join(settings.hosts)
    once = "--public once is not enough: " if settings.public == 1 else ""
    kind = "key with the role admin" if keys.all() else "key"
    place = "--database …, as here" if settings.database else f"--data {shlex.quote(str(settings.data))}"
    raise RecipeError(
        f"{once}{where} can be reached by others, and there is no {kind} yet. Make one: wdae serve keys"
        f" create --name me --role admin {place}; or, if really anybody may teach, say --public twice"
    )


def csrf_token(session: str) -> str:
    """The token that changes in a session must carry: other sites cannot know it.

    >>> csrf_token("a") == csrf_token("a") != csrf_token("b")
    True
    """
    return hmac.new(session.encode(), b"wdae csrf", hashlib.sha256).hexdigest()


def _bearer(request: Request) -> str | None:
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    return text.strip() if kind.lower() == "bearer" else None


def _role(text: str) -> Role:
    return next(role for role in ROLES if role == text)


PUBLIC = frozenset(
    {
        ("GET", "/health"),
        ("GET", "/ready"),
        ("POST", "/api/v1/session"),
        ("DELETE", "/api/v1/session"),
    }
)
"""Routes that anybody may ask: they tell nothing, or check a key themselves."""


def rules(app: FastAPI) -> dict[tuple[str, str], Role]:
    """The role that each route of an app needs; a route that says none and is not public is our error."""
    found: dict[tuple[str, str], Role] = {}
    every = getattr(routing, "iter_route_contexts", lambda routes: routes)(app.routes)
    for route in every:
        dependant = getattr(route, "dependant", None)
        if dependant is None:  # the page's files, the description of the API
            continue
        roles = [role for one in dependant.dependencies if (role := getattr(one.call, "role", None))]
        for method in sorted(route.methods or ()):
            if roles:
                found[method, route.path] = max(roles, key=ROLES.index)
            elif (method, route.path) not in PUBLIC:
                raise LookupError(
                    f"{method} {route.path} says no role; add needs('read'), 'teach' or 'admin'"
                )
    return found
