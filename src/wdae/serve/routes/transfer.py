"""Take a model with you, and bring one: the model's folder as a zip, ONNX."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Response, UploadFile

from wdae.serve.database.revisions import model_row
from wdae.serve.routes.models import describe, keep_model
from wdae.serve.schemas import ModelOut, Name
from wdae.serve.service import Admin, CurrentService, ModelId, Reader, Service
from wdae.serve.transfer import as_onnx, packed, teach_examples, unpacked

router = APIRouter(prefix="/models", tags=["take it with you"])
_BINARY = {"schema": {"type": "string", "format": "binary"}}


def _gives(media_type: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {media_type: _BINARY}}}


def _download(service: Service, model: str, data: bytes, suffix: str, media_type: str) -> Response:
    with service.database.reading() as session:
        name = model_row(session, model).name
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"
    headers = {
        "Content-Disposition": f'attachment; filename="{plain}{suffix}"',
        "X-Content-Type-Options": "nosniff",
    }
    return Response(data, headers=headers, media_type=media_type)


@router.get("/{m}/download", response_class=Response, responses=_gives("application/zip"))
def download(service: CurrentService, me: Reader, m: ModelId) -> Response:
    """The model's folder as a zip; unpacked it opens with ``wdae.load`` and every command of wdae."""
    return _download(service, m, packed(service, service.engine.current(m)), ".zip", "application/zip")


@router.get("/{m}/export.onnx", response_class=Response, responses=_gives("application/octet-stream"))
def export_onnx(service: CurrentService, me: Reader, m: ModelId) -> Response:
    """The model as an ONNX file: pictures in, scores and probabilities out, class names inside."""
    return _download(service, m, as_onnx(service.engine.current(m)), ".onnx", "application/octet-stream")


@router.post("/import", status_code=201)
def import_model(
    service: CurrentService,
    me: Admin,
    file: Annotated[UploadFile, File(description="a zip of a model's folder")],
    name: Annotated[Name | None, Form()] = None,
) -> ModelOut:
    """Make a model of a folder of wdae, zipped; what it was taught can be changed here as anything else."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model.zip"
        with path.open("wb") as out:
            shutil.copyfileobj(file.file, out)
        given = unpacked(service, path)
    chosen = name or Path(file.filename or "imported").stem[:200] or "imported"
    model = keep_model(service, chosen, service.starting.keep(given))
    try:
        teach_examples(service, model, me.name, given)
    except Exception:
        with service.database.writing() as session:
            session.delete(model_row(session, model))
        raise
    return describe(service, model)
