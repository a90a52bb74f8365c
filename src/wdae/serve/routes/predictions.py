"""Predictions: of one picture, of several, of a stream."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, File, Query, Request, UploadFile
from fastapi.responses import StreamingResponse
from starlette.datastructures import UploadFile as Upload
from starlette.types import Receive, Scope, Send

from wdae.classifier.names import UNKNOWN
from wdae.errors import WdaeError
from wdae.serve.engine import Answer, Loaded, Question
from wdae.serve.problems import ProblemError
from wdae.serve.schemas import FilePrediction, Near, PredictionOut, Predictions, Probability
from wdae.serve.service import CurrentService, ModelId, Reader, Service
from wdae.serve.uploads import shown_name

router = APIRouter(prefix="/models/{m}/predictions", tags=["predictions"])


async def _question(
    top: Annotated[int, Query(ge=1, le=1000, description="classes to show")] = 5,
    only: Annotated[
        str | None,
        Query(
            max_length=10_000,
            description="the classes that come into question: added, base, or names apart by commas",
        ),
    ] = None,
    expect: Annotated[
        float | None, Query(gt=0, lt=1, description="share of pictures expected to be of added classes")
    ] = None,
    nearest: Annotated[int, Query(ge=0, le=100, description="examples to show")] = 5,
) -> Question:
    names = None if only is None else tuple(name.strip() for name in only.split(",") if name.strip())
    return Question(top, expect, names, nearest)


Asked = Annotated[Question, Depends(_question)]

_BINARY = {"type": "string", "format": "binary"}
ONE_PICTURE = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {"type": "object", "properties": {"file": _BINARY}, "required": ["file"]}
            },
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"picture": {"type": "string"}},
                    "required": ["picture"],
                },
                "example": {"picture": "/9j/4AAQSkZJRgABAQ…"},
            },
            "image/*": {"schema": _BINARY},
        },
    }
}


@router.post("", openapi_extra=ONE_PICTURE)
async def predict(
    service: CurrentService, me: Reader, m: ModelId, request: Request, question: Asked
) -> PredictionOut:
    """What is on a picture: a file of a form, its bytes as they are, or JSON with the picture as base64."""
    name, data = await one_picture(request)
    loaded = await ready(service, m)
    return prediction(await ask(service, loaded, name, data, question))


async def one_picture(request: Request) -> tuple[str, bytes]:
    """The picture of a request, with its name."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return "picture", _from_base64(await request.body())
    if kind == "multipart/form-data":
        async with request.form(max_files=1, max_fields=10) as form:
            found = form.get("file")
            if not isinstance(found, Upload):
                raise ProblemError("the form has no field 'file' with a picture")
            return shown_name(found.filename), await found.read()
    if kind.startswith("image/") or kind == "application/octet-stream":
        return "picture", await request.body()
    raise ProblemError(
        f"content type {kind[:60]!r}; give a form with the field 'file', a picture's bytes as image/…, or"
        " application/json with the picture as base64"
    )


def _from_base64(text: bytes) -> bytes:
    try:
        value: Any = json.loads(text)
        return base64.b64decode(value["picture"].partition("base64,")[2] or value["picture"], validate=True)
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error, RecursionError):
        raise ProblemError('this is no JSON with a picture; give {"picture": "… base64 …"}') from None


async def ready(service: Service, model: str) -> Loaded:
    """A model that is in memory, perhaps of an earlier revision; the batch looks for the latest."""
    found = service.engine.in_memory(model)
    return await run_sync(service.engine.current, model) if found is None else found


async def ask(service: Service, loaded: Loaded, name: str, data: bytes, question: Question) -> Answer:
    """What a model says of the bytes of a picture."""
    rule = loaded.starting.backbone.preprocessing
    read = partial(service.decoders.read, name, data, rule, keep=False)
    return await service.engine.answer(loaded.starting, loaded.id, read, question)


def prediction(answer: Answer) -> PredictionOut:
    """An answer as the API gives it."""
    found, loaded = answer.prediction, answer.loaded
    base = loaded.base_ids
    return PredictionOut(
        revision=loaded.revision,
        prediction=UNKNOWN if found.unknown else found.classes[0],
        unknown=found.unknown,
        probabilities=[
            Probability(class_=name, kind="base" if name in base else "added", probability=value)
            for name, value in zip(found.classes, found.probabilities, strict=True)
        ],
        nearest=[
            Near(picture=picture, class_=loaded.classes[loaded.placed[picture]], cosine=value)
            for picture, value in answer.nearest
        ],
    )


@dataclass(frozen=True)
class _Named:
    name: str
    data: bytes


async def _one_of(service: Service, loaded: Loaded, item: _Named, question: Question) -> FilePrediction:
    try:
        answer = await ask(service, loaded, item.name, item.data, question)
    except WdaeError as error:
        return FilePrediction(file=item.name, refused=str(getattr(error, "reason", error)))
    return FilePrediction(file=item.name, prediction=prediction(answer))


@router.post("/batch")
async def predict_batch(
    service: CurrentService,
    me: Reader,
    m: ModelId,
    question: Asked,
    files: Annotated[list[UploadFile], File()],
) -> Predictions:
    """What is on several pictures; one that cannot be read is refused by itself."""
    loaded = await ready(service, m)
    named = [_Named(shown_name(file.filename), await file.read()) for file in files]
    items = await asyncio.gather(*(_one_of(service, loaded, one, question) for one in named))
    return Predictions(items=items)


_STREAM_IN = {
    "requestBody": {
        "required": True,
        "content": {
            "application/x-ndjson": {
                "schema": {"type": "string"},
                "example": '{"file": "a.jpg", "picture": "/9j/4AAQ…"}\n',
            }
        },
    }
}
_STREAM_OUT: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "application/x-ndjson": {
                "schema": {"type": "string"},
                "example": '{"file": "a.jpg", "prediction": {"prediction": "okapi"}}\n',
            }
        }
    }
}
_AHEAD = 32  # pictures of a stream that are on their way at once
_LINE = 64 * 2**20


class _Lines(StreamingResponse):
    """Sent while the request is still being read, which listening for the caller's leaving would disturb."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.stream_response(send)


@router.post("/stream", openapi_extra=_STREAM_IN, responses=_STREAM_OUT, response_class=StreamingResponse)
async def predict_stream(
    service: CurrentService, me: Reader, m: ModelId, request: Request, question: Asked
) -> StreamingResponse:
    """JSON lines in, ``{"file": name, "picture": base64}``; JSON lines out, in the same order."""
    loaded = await ready(service, m)

    async def lines() -> AsyncIterator[bytes]:
        waiting: list[asyncio.Task[FilePrediction]] = []
        try:
            async for line in _lines(request):
                waiting.append(asyncio.create_task(_of_line(service, loaded, line, question)))
                if len(waiting) >= _AHEAD:
                    yield _as_line(await waiting.pop(0))
            while waiting:
                yield _as_line(await waiting.pop(0))
        finally:
            for task in waiting:
                task.cancel()

    return _Lines(lines(), media_type="application/x-ndjson")


async def _of_line(service: Service, loaded: Loaded, line: bytes, question: Question) -> FilePrediction:
    try:
        value = json.loads(line)
        name = shown_name(str(value.get("file", "picture")))
        data = _from_base64(line)
    except (ValueError, AttributeError, RecursionError, ProblemError) as error:
        said = str(error) if isinstance(error, ProblemError) else "this line is no JSON object"
        return FilePrediction(file="", refused=said)
    return await _one_of(service, loaded, _Named(name, data), question)


async def _lines(request: Request) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in request.stream():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(rest) > _LINE:
            raise ProblemError(f"a line has more than {_LINE} bytes")
    if rest.strip():
        yield rest


def _as_line(item: FilePrediction) -> bytes:
    return item.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"
