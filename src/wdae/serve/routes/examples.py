"""Examples: teach, look at, move, take out; and their pictures."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, File, Form, Query, Response, UploadFile
from sqlalchemy import select

from wdae.classifier.names import shorten
from wdae.serve.database.tables import PictureRow
from wdae.serve.engine import Loaded
from wdae.serve.problems import NotFoundError, ProblemError
from wdae.serve.schemas import AddedExample, Changed, Example, Examples, Move, RefusedFile, Removal, Taught
from wdae.serve.service import (
    ClassId,
    CurrentService,
    IfMatch,
    ModelId,
    Offset,
    PictureId,
    Reader,
    Service,
    Teacher,
)
from wdae.serve.teaching import Shown, Teaching
from wdae.serve.uploads import Refused, shown_name

router = APIRouter(prefix="/models/{m}", tags=["examples"])
NOTHING = "nothing was taught: all pictures were refused"
JPEG: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}}
}


@router.post("/examples", status_code=201, responses={200: {"model": Taught, "description": NOTHING}})
async def teach(
    response: Response,
    service: CurrentService,
    me: Teacher,
    m: ModelId,
    expected: IfMatch,
    files: Annotated[list[UploadFile], File(description="pictures")],
    class_: Annotated[str | None, Form(alias="class", description="the class of all of them")] = None,
    classes: Annotated[list[str] | None, Form(description="or the class of each of them")] = None,
) -> Taught:
    """Teach a model: pictures, and the class of each, which is made where there is none of that name.

    A picture that cannot be read is refused by itself, and the others go on: 201, or 200 where all of them
    were refused.
    """
    names = classes if classes is not None else [class_ or ""] * len(files)
    if len(names) != len(files) or (class_ is None) == (classes is None):
        raise ProblemError(
            f"{len(files)} files and {len(classes or [])} classes; give one field 'class' for all of them,"
            " or a field 'classes' for each"
        )
    loaded, teaching = await run_sync(service.engine.current, m), Teaching(service, m, me.name, expected)
    teaching.refuse_names(loaded, names)
    found = await asyncio.gather(
        *(read_shown(service, loaded, file, name) for file, name in zip(files, names, strict=True))
    )
    shown = [one for one in found if isinstance(one, Shown)]
    outcome = await run_sync(teaching.teach, shown)
    if not outcome.added:
        response.status_code = 200
    refused = [(one.name, one.reason) for one in found if isinstance(one, Refused)] + outcome.refused
    return Taught(
        revision=outcome.revision,
        added=[
            AddedExample(picture=picture, class_=name, class_id=class_id, file=file)
            for picture, name, class_id, file in outcome.added
        ],
        refused=[RefusedFile(file=file, reason=reason) for file, reason in refused],
        notes=outcome.notes,
    )


async def read_shown(service: Service, loaded: Loaded, file: UploadFile, name: str) -> Shown | Refused:
    """A file as a picture with its feature, or why not."""
    shown = shown_name(file.filename)
    data = await file.read()
    rule = loaded.starting.backbone.preprocessing
    try:
        read = partial(service.decoders.read, shown, data, rule)
        return Shown(shown, name, *await service.engine.features(loaded.starting, read))
    except Refused as error:
        return error


@router.patch("/examples")
def move_examples(service: CurrentService, me: Teacher, m: ModelId, move: Move, expected: IfMatch) -> Changed:
    """Make examples those of another class."""
    return Changed(revision=Teaching(service, m, me.name, expected).move(move.pictures, move.to))


@router.delete("/examples")
def remove_examples(
    service: CurrentService, me: Teacher, m: ModelId, removal: Removal, expected: IfMatch
) -> Changed:
    """Take examples out; ``forever``: from history and storage too."""
    teaching = Teaching(service, m, me.name, expected)
    return Changed(revision=teaching.remove(removal.pictures, removal.forever))


@router.get("/classes/{c}/examples", tags=["classes"])
def list_examples(
    service: CurrentService,
    me: Reader,
    m: ModelId,
    c: ClassId,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Examples:
    """The examples that a class was given."""
    loaded = service.engine.current(m)
    if c not in loaded.names:
        raise NotFoundError(f"there is no class {shorten(c)!r}; GET …/classes lists those there are")
    pictures = [picture for picture, class_id in loaded.placed.items() if class_id == c]
    some = pictures[offset : offset + limit]
    columns = (PictureRow.id, PictureRow.width, PictureRow.height, PictureRow.created)
    with service.database.reading() as session:
        rows = session.execute(select(*columns).where(PictureRow.model == m, PictureRow.id.in_(some)))
        found = {row.id: row for row in rows}
    items = [
        Example(picture=p, width=found[p].width, height=found[p].height, created=found[p].created)
        for p in some
        if p in found
    ]
    return Examples(revision=loaded.revision, total=len(pictures), items=items)


@router.get("/pictures/{p}", response_class=Response, responses=JPEG)
def picture(service: CurrentService, me: Reader, m: ModelId, p: PictureId) -> Response:
    """A picture, as it is kept: upright, without metadata."""
    _row(service, m, p)
    try:
        return _image(service.pictures.get(m, p))
    except KeyError:
        raise NotFoundError("the picture store has lost this picture; restore its backup") from None


@router.get("/pictures/{p}/thumbnail", response_class=Response, responses=JPEG)
def thumbnail(service: CurrentService, me: Reader, m: ModelId, p: PictureId) -> Response:
    """A small version of a picture."""
    return _image(_row(service, m, p).thumbnail)


def _row(service: Service, model: str, picture: str) -> PictureRow:
    with service.database.reading() as session:
        row = session.get(PictureRow, (model, picture))
    if row is None:
        raise NotFoundError(f"there is no picture {shorten(picture, 20)!r} of this model")
    return row


def _image(data: bytes) -> Response:
    headers = {
        "Cache-Control": "private, max-age=31536000, immutable",
        "X-Content-Type-Options": "nosniff",
        "Content-Disposition": "inline",
    }
    return Response(data, headers=headers, media_type="image/jpeg")
