"""Models that come and go as folders: download, ONNX, import."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sqlalchemy import select
from torch import Tensor

from wdae.classifier.model import Model
from wdae.classifier.picture_backbone import THUMBNAIL
from wdae.classifier.store import load, save
from wdae.data.decode import decode, fit
from wdae.errors import DataError, StorageError
from wdae.serve.database.connection import now
from wdae.serve.database.revisions import changing
from wdae.serve.database.tables import FeatureRow, PictureRow
from wdae.serve.engine import Loaded, built
from wdae.serve.engine.starting import zipped
from wdae.serve.service import Service
from wdae.serve.uploads.archives import unpack

_EXPORT = "from wdae.cli.main import main; main()"
_PATIENCE = 300  # seconds that an export may take
_FILES = 100_000


def with_pictures(service: Service, loaded: Loaded) -> Model:
    """The model with small pictures of its examples, as ``wdae add`` keeps them."""
    thumbnails: dict[str, Tensor] = {}
    wanted = select(PictureRow.id, PictureRow.thumbnail).where(PictureRow.model == loaded.id)
    with service.database.reading() as session:
        for picture, data in session.execute(wanted.execution_options(yield_per=500)):
            if picture in loaded.placed and data:
                thumbnails[picture] = torch.from_numpy(fit(decode(data), THUMBNAIL).copy())
    return built(
        loaded.starting,
        loaded.classes,
        loaded.placed,
        loaded.features,
        loaded.model.history.novel_share(),
        thumbnails,
    )


def packed(service: Service, loaded: Loaded) -> bytes:
    """The model's folder as a zip; it opens with ``wdae.load``."""
    with tempfile.TemporaryDirectory() as place:
        save(with_pictures(service, loaded), Path(place) / "model")
        return zipped(Path(place) / "model")


def as_onnx(loaded: Loaded) -> bytes:
    """The model as an ONNX file, written by a process of its own: the exporter changes global state."""
    with tempfile.TemporaryDirectory() as place:
        folder, file = Path(place) / "model", Path(place) / "model.onnx"
        save(built(loaded.starting, loaded.classes, loaded.placed, loaded.features, None), folder)
        share = loaded.model.history.novel_share()
        expect = [] if share is None else ["--expect", f"new={share}"]
        command = ["export", str(folder), "--to", "onnx", "-o", str(file), *expect]
        try:
            done = subprocess.run(
                [sys.executable, "-c", _EXPORT, *command], capture_output=True, text=True, timeout=_PATIENCE
            )
        except subprocess.TimeoutExpired:
            raise StorageError(
                f"exporting to ONNX takes longer than {_PATIENCE} seconds; download the model as a folder,"
                " then run: wdae export MODEL --to onnx"
            ) from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["exporting to ONNX failed"]
            raise StorageError(lines[-1].removeprefix("error: "))
        return file.read_bytes()


def unpacked(service: Service, file: Path) -> Model:
    """The model in a zip from a stranger; nothing in it is run."""
    limits = service.settings.limits
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        unpack(file, folder, files=_FILES, all_bytes=limits.import_bytes)
        model = load(folder)
        if model.backbone is None or (model.backbone.tensors is not None and ":" in model.backbone.name):
            raise DataError(
                "this model takes features, or names a backbone of others, which is not run here; give one"
                " that was learned from pictures with a backbone of wdae"
            )
        return model


def teach_examples(service: Service, model: str, who: str, given: Model) -> None:
    """Give a new model the examples that an imported one had been taught."""
    loaded = service.engine.current(model)
    with changing(service.database, model, who, "import") as change:
        counts: dict[str, int] = {}
        for name in given.state:
            class_id = change.open_class(name, loaded.base_ids.get(name))
            pictures: dict[str, str] = {}
            for example in given.examples_of(name):
                picture, data = _kept(example.feature, example.picture)
                if picture in pictures or change.session.get(PictureRow, (model, picture)) is not None:
                    continue
                side = 0 if example.picture is None else example.picture.shape[0]
                if data:
                    service.pictures.put(model, picture, data)
                row = PictureRow(model=model, id=picture, width=side, height=side, size=len(data))
                row.thumbnail, row.created = data, now()
                change.session.add(row)
                change.session.flush()
                vector = example.feature.numpy().astype("<f4").tobytes()
                digest = loaded.starting.backbone_digest
                change.session.add(FeatureRow(model=model, picture=picture, backbone=digest, vector=vector))
                pictures[picture] = class_id
            change.session.flush()
            change.place(pictures)
            counts[class_id] = len(pictures)
        change.novel_share = given.history.novel_share()
        change.is_change |= change.novel_share is not None
        change.summary = {"classes": counts}


def _kept(feature: Tensor, small: Tensor | None) -> tuple[str, bytes]:
    """Id and bytes of an example's small picture; without one, an id by its feature."""
    if small is None:
        return hashlib.sha256(feature.numpy().tobytes()).hexdigest(), b""
    out = io.BytesIO()
    Image.fromarray(np.asarray(small)).save(out, "JPEG", quality=95)
    data = out.getvalue()
    return hashlib.sha256(data + feature.numpy().tobytes()).hexdigest(), data
