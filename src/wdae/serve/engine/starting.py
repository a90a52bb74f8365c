"""Starting models: the model folders that models of the service begin with, known by their digests."""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from wdae.backbones.graphs import GraphBackbone, has_runtime, start
from wdae.classifier import picture_backbone
from wdae.classifier.embedded import LITE_READY, embedded_model, lite_model
from wdae.classifier.light.manifest import ModelManifest
from wdae.classifier.model import Model
from wdae.classifier.picture_backbone import PictureBackbone, of_stage1
from wdae.classifier.store import load, save
from wdae.errors import DataError, nearest
from wdae.serve.pictures import PictureStore
from wdae.serve.problems import ConflictError
from wdae.storage import manifest as manifests
from wdae.storage.tensors import open_tensors

READY = ("resnet12", *LITE_READY)
"""Models that are ready to use."""


@dataclass(frozen=True, eq=False)
class Starting:
    """A model as it was before the service taught it anything."""

    digest: str
    model: Model
    backbone: PictureBackbone
    backbone_digest: str

    @cached_property
    def graph(self) -> GraphBackbone | None:
        """The backbone as onnxruntime runs it, where that is installed and there is a graph of it."""
        own = self.backbone
        if own.tensors is None or not has_runtime():
            return None
        weights = {name: tensor.numpy() for name, tensor in own.tensors.items()}
        return start(own.name, own.card["backbone_options"], weights, own.preprocessing)


_KNOWN: dict[str, Starting] = {}
"""By digest; services of one process share them."""
_READY: dict[str, Starting] = {}
"""Those that come with the package, by name."""
_LOCK = threading.Lock()


class StartingModels:
    """The starting models of a store, read once each."""

    def __init__(self, store: PictureStore) -> None:
        self._store = store

    def keep(self, model: Model) -> Starting:
        """Keep a model's base knowledge and backbone as something to start from."""
        if model.backbone is None:
            raise DataError(
                "this model was learned from features and has no backbone for pictures; give one that was"
                " learned from pictures, or with --backbone"
            )
        new = Model(model.base)
        new.backbone = _whole(model.backbone)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "model"
            save(new, folder)
            digest = _digest(folder)
            if not self._store.has_starting(digest):
                self._store.put_starting(digest, zipped(folder))
        return _remembered(digest, new)

    def named(self, name: str) -> Starting:
        """A ready model by its name, or any by its digest."""
        if name in READY:
            known = _READY.get(name)
            if known is None or not self._store.has_starting(known.digest):
                made = embedded_model() if name == "resnet12" else lite_model(name)
                known = _READY[name] = self.keep(made if known is None else known.model)
            return known
        try:
            return self.get(name)
        except ConflictError:
            raise DataError(f"there is no starting model {name!r:.80}{nearest(name, READY)}") from None

    def get(self, digest: str) -> Starting:
        """A starting model by its digest."""
        if (found := _KNOWN.get(digest)) is not None:
            return found
        try:
            packed = self._store.get_starting(digest)
        except KeyError:
            raise ConflictError(
                f"the starting model {digest:.16} is not in the picture store; restore the store's backup"
            ) from None
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "model"
            with zipfile.ZipFile(io.BytesIO(packed)) as archive:  # our own file, flat
                archive.extractall(folder)
            return _remembered(digest, load(folder))


def _remembered(digest: str, model: Model) -> Starting:
    assert model.backbone is not None
    made = Starting(digest, model, model.backbone, _backbone_digest(model.backbone))
    with _LOCK:
        return _KNOWN.setdefault(digest, made)


def _whole(backbone: PictureBackbone) -> PictureBackbone:
    """The backbone with its weights: a later wdae, which may ship another one, reads it all the same."""
    if backbone.tensors is not None:
        return backbone
    assert backbone.network is not None  # built here, which tells whether it is the one that ships now
    shipped = of_stage1(picture_backbone.BACKBONE)
    card = {key: shipped.card[key] for key in ("backbone", "backbone_options")}
    return PictureBackbone(card | backbone.preprocessing.facts(), shipped.tensors)


def zipped(folder: Path) -> bytes:
    """A flat folder as a zip, the same bytes for the same files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for file in sorted(folder.iterdir()):
            if not file.name.startswith("."):
                archive.writestr(zipfile.ZipInfo(file.name), file.read_bytes())
    return out.getvalue()


def _digest(folder: Path) -> str:
    """Of the tensors and the settings: neither times nor the order in which a file has them counts."""
    manifest = manifests.read(ModelManifest, folder)
    card = None if manifest.backbone is None else manifest.backbone.model_dump(mode="json")
    found = hashlib.sha256(json.dumps([manifest.base_classes, manifest.scale, card], sort_keys=True).encode())
    for name in sorted(manifest.files):
        tensors, facts = open_tensors(folder / name)
        found.update(json.dumps([name, facts], sort_keys=True).encode())
        _update(found, tensors)
    return found.hexdigest()


def _backbone_digest(backbone: PictureBackbone) -> str:
    found = hashlib.sha256(json.dumps(backbone.preprocessing.facts(), sort_keys=True).encode())
    _update(found, backbone.tensors or {})
    return found.hexdigest()


def _update(found: hashlib._Hash, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in sorted(tensors.items()):
        found.update(name.encode())
        found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
