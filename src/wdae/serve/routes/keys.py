"""Keys of the API, and sessions of the page."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Path, Request, Response
from pydantic import ConfigDict, Field

from wdae.serve.access import COOKIE, csrf_token
from wdae.serve.database.tables import KeyRow
from wdae.serve.keys import SESSION_SECONDS
from wdae.serve.schemas import Schema
from wdae.serve.service import Admin, CurrentService

router = APIRouter(tags=["keys"])

_KEY: dict[str, Any] = {
    "id": "5e1f0a9c3b7d2846",
    "name": "the lab's camera",
    "role": "teach",
    "created": "2026-01-02T03:04:05+00:00",
    "last_used": None,
    "revoked": None,
}


def _example(value: dict[str, Any]) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [value]})


class NewKey(Schema):
    """A key to be made."""

    model_config = _example({"name": "the lab's camera", "role": "teach"})

    name: Annotated[str, Field(min_length=1, max_length=200)]
    role: Literal["read", "teach", "admin"]


class KeyOut(Schema):
    """A key, without itself."""

    model_config = _example(_KEY)

    id: str
    name: str
    role: str
    created: str
    last_used: str | None
    revoked: str | None


class MadeKey(KeyOut):
    """A new key, shown this once."""

    model_config = _example(_KEY | {"key": "wdae_q3J…"})

    key: str


class KeysOut(Schema):
    """All keys."""

    model_config = _example({"items": [_KEY]})

    items: list[KeyOut]


class Login(Schema):
    """A key, to be traded for a session."""

    model_config = _example({"key": "wdae_q3J…"})

    key: Annotated[str, Field(min_length=1, max_length=200)]


class SessionOut(Schema):
    """A session has begun: its cookie is set, and changes carry this token as X-CSRF-Token."""

    model_config = _example({"csrf": "9f86d081884c7d65"})

    csrf: str


@router.get("/keys")
def list_keys(service: CurrentService, me: Admin) -> KeysOut:
    """All keys, revoked ones too; what they are nobody can tell any more."""
    return KeysOut(items=[_out(row) for row in service.access.keys.all()])


@router.post("/keys", status_code=201)
def make_key(service: CurrentService, me: Admin, new: NewKey) -> MadeKey:
    """Make a key. It is in this answer and nowhere else."""
    row, text = service.access.keys.create(new.name, new.role)
    return MadeKey(**_out(row).model_dump(), key=text)


@router.delete("/keys/{k}", status_code=204)
def revoke_key(
    service: CurrentService,
    me: Admin,
    k: Annotated[str, Path(max_length=64, description="id of a key", examples=[_KEY["id"]])],
) -> None:
    """Let a key and its sessions count no longer, at once."""
    service.access.keys.revoke(k)


@router.post("/session", status_code=201)
async def log_in(service: CurrentService, request: Request, response: Response, login: Login) -> SessionOut:
    """Trade a key for a session: a cookie that scripts cannot read and other sites' pages do not send."""
    token = await run_sync(service.access.login, request, login.key)
    response.set_cookie(
        COOKIE,
        token,
        max_age=SESSION_SECONDS,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return SessionOut(csrf=csrf_token(token))


@router.delete("/session", status_code=204)
async def log_out(service: CurrentService, request: Request, response: Response) -> None:
    """End the session."""
    token = request.cookies.get(COOKIE)
    if token is not None:
        await service.access.identify(request)  # with the token that a change must carry
        await run_sync(service.access.keys.end_session, token)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")


def _out(row: KeyRow) -> KeyOut:
    return KeyOut.model_validate(row, from_attributes=True)
