"""Jobs: a zip of pictures to teach or to classify, a model to learn; with progress as it is made."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, File, Form, Path, Query, Request, UploadFile
from fastapi.responses import StreamingResponse
from sse_starlette import EventSourceResponse, ServerSentEvent

from wdae.classifier.names import check_name
from wdae.serve.database.tables import JobRow
from wdae.serve.jobs import DONE, ENDED, new_job_id
from wdae.serve.problems import ConflictError, ProblemError
from wdae.serve.schemas import JobOut, JobsOut
from wdae.serve.service import Admin, CurrentService, ModelId, Offset, Reader, Service, Teacher
from wdae.serve.uploads.archives import count_files

router = APIRouter(tags=["jobs"])

_EVERY = 0.5  # seconds between looks at a job that is watched
JobId = Annotated[str, Path(max_length=64, description="id of a job", examples=["0a1b2c3d4e5f60718293a4b5"])]
Zip = Annotated[UploadFile, File(description="a zip of pictures")]


@router.post("/models/{m}/jobs", status_code=202)
async def start_job(
    service: CurrentService,
    me: Teacher,
    m: ModelId,
    file: Zip,
    kind: Annotated[Literal["import_zip", "predict_many"], Form()],
    class_: Annotated[
        str | None,
        Form(alias="class", max_length=200, description="of all pictures; else their folders' names"),
    ] = None,
    top: Annotated[int, Form(ge=1, le=1000, description="classes to show of each picture")] = 5,
) -> JobOut:
    """Teach the pictures of a zip (``import_zip``), or classify them (``predict_many``)."""
    await run_sync(service.engine.current, m)
    payload: dict[str, Any] = {"question": {"top": top, "nearest": 0}} if kind == "predict_many" else {}
    if kind == "import_zip" and class_ is not None:
        payload["class"] = check_name(class_)
    return await run_sync(_start, service, me.name, kind, m, payload, file)


@router.post("/jobs", status_code=202)
async def learn_model(
    service: CurrentService,
    me: Admin,
    file: Zip,
    name: Annotated[str, Form(min_length=1, max_length=200, description="of the model to be")],
    kind: Annotated[Literal["learn"], Form()] = "learn",
) -> JobOut:
    """Learn a model from a zip with a folder of pictures per class; of twelve or more, with a denoiser."""
    return await run_sync(_start, service, me.name, kind, None, {"name": name, "backbone": "embedded"}, file)


def _start(
    service: Service, who: str, kind: str, model: str | None, payload: dict[str, Any], file: UploadFile
) -> JobOut:
    job = new_job_id()
    with tempfile.NamedTemporaryFile(prefix="wdae-upload-") as copy:
        shutil.copyfileobj(file.file, copy, 2**20)
        copy.flush()
        total = count_files(FilePath(copy.name), service.settings.limits.import_files)
        if total == 0:
            raise ProblemError("the zip has no files")
        service.pictures.put_incoming(job, FilePath(copy.name))
    return _out(service.jobs.add(kind, model, payload, who, total=total, id=job))


@router.get("/jobs")
def list_jobs(
    service: CurrentService,
    me: Reader,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> JobsOut:
    """Jobs, the newest first."""
    return JobsOut(items=[_out(row) for row in service.jobs.some(offset, limit)])


@router.get("/jobs/{j}")
def get_job(service: CurrentService, me: Reader, j: JobId) -> JobOut:
    """A job: how far it is, and what it gave."""
    return _out(service.jobs.get(j))


_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "text/event-stream": {"schema": {"type": "string"}, "example": "event: progress\ndata: {…}\n\n"}
        }
    }
}


@router.get("/jobs/{j}/events", response_class=EventSourceResponse, responses=_EVENTS)
async def watch_job(service: CurrentService, me: Reader, j: JobId, request: Request) -> EventSourceResponse:
    """A job's progress as server-sent events, each the job as JSON, until it has ended."""
    first = await run_sync(service.jobs.get, j)

    async def events() -> AsyncIterator[ServerSentEvent]:
        row, shown = first, ""
        while True:
            text = _out(row).model_dump_json()
            if text != shown:
                yield ServerSentEvent(text, event="progress", id=row.updated)
                shown = text
            if row.state in ENDED or await request.is_disconnected():
                return
            await asyncio.sleep(_EVERY)
            row = await run_sync(service.jobs.get, j)

    return EventSourceResponse(events())


_LINES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"application/x-ndjson": {"schema": {"type": "string"}, "example": '{"file": "a.jpg"}\n'}}
    }
}


@router.get("/jobs/{j}/result", response_class=StreamingResponse, responses=_LINES)
def job_result(service: CurrentService, me: Reader, j: JobId) -> StreamingResponse:
    """What ``predict_many`` gave: a line of JSON for each picture, in the zip's order."""
    row = service.jobs.get(j)
    if row.kind != "predict_many" or row.state != DONE:
        raise ConflictError(f"a job {row.kind} that is {row.state} has no lines to give; {row.message}")

    def lines() -> Iterator[bytes]:
        yield from service.pictures.parts(j)

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@router.delete("/jobs/{j}", status_code=204)
def end_job(service: CurrentService, me: Teacher, j: JobId) -> None:
    """Cancel a job; one that has ended is removed, with what it gave."""
    row = service.jobs.get(j)
    if row.state not in ENDED:
        service.jobs.cancel(j)
    else:
        service.pictures.delete_parts(j)
        service.jobs.remove(j)
    service.pictures.delete_incoming(j)


def _out(row: JobRow) -> JobOut:
    return JobOut.model_validate(row, from_attributes=True)
