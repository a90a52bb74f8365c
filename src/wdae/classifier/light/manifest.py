"""``model.json``: what a model's folder says of itself. docs/formats.md describes the format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from wdae.backbones.preprocessing import BackboneCard
from wdae.classifier.history import Kind
from wdae.methods.records import CalibrationRecord, DenoiserRecord, Share
from wdae.storage import manifest as manifests
from wdae.storage.manifest import Manifest
from wdae.storage.records import ClassNames, Count, Info, Record, Size, Text

BASE, METHOD, BACKBONE = "base.safetensors", "method.safetensors", "backbone.safetensors"
INDEX = "index.usearch"
"""Of very many base classes; their names are in the base file then, and not in the manifest."""
_LONGEST = 1_000  # letters of a base class's name
BASE_1 = "ground.safetensors"
"""Version 1 had base classes and denoiser in one file, and the method's settings in the manifest."""


class ChangeRecord(Record):
    """A change of the model's history."""

    number: Count
    parent: Count
    kind: Kind
    time: Text
    added: dict[str, tuple[Count, ...]]
    removed: tuple[str, ...]
    novel_share: Share | None = None


class HistoryRecord(Record):
    """All changes, and the number of the one that the model stands at."""

    head: Count
    changes: tuple[ChangeRecord, ...]


class ExampleFile(Record):
    """The file of the examples that a change brought."""

    file: manifests.FileName
    rows: Count
    sources: tuple[Text, ...]


class DenoiserOfVersion1(Record):
    """The settings of a denoiser as version 1 had them in the manifest."""

    network: DenoiserRecord
    steps: dict[Size, float]
    neighbours: Size
    inverse_temperature: float


class MethodOfVersion1(Record):
    """The settings of a method as version 1 had them in the manifest."""

    calibration: CalibrationRecord
    refine_base: bool
    denoiser: DenoiserOfVersion1 | None


class IndexRecord(Record):
    """How an index was made, and what share of the nearest classes it finds."""

    library: Text
    connectivity: Size
    expansion_add: Size
    expansion_search: Size
    recall: Annotated[float, Field(ge=0, le=1)]
    neighbours: Size
    sample: Size


class ModelManifest(Manifest):
    """``model.json``: what lies in a model's folder. Models without an index are written as version 2."""

    FORMAT: ClassVar[str] = "wdae-model"
    VERSION: ClassVar[int] = 3
    FILE: ClassVar[str] = "model.json"
    NOUN: ClassVar[str] = "a model"
    REMEDY: ClassVar[str] = "; make one with: wdae learn -o MODEL"

    base_classes: ClassNames
    dim: Size
    scale: Annotated[float, Field(gt=0)]
    backbone: BackboneCard | None
    info: Info
    history: HistoryRecord
    examples: tuple[ExampleFile, ...]
    version_1: MethodOfVersion1 | None = None
    index: IndexRecord | None = None


def names_in(letters: Any) -> tuple[str, ...]:
    """The base classes of a file that has them as text, uint8 ``[letters]``, a line each."""
    if letters.dtype != "uint8" or letters.ndim != 1:
        raise ValueError("names that are no text")
    names = tuple(letters.tobytes().decode().split("\n"))
    if len(set(names)) < len(names) or max(map(len, names)) > _LONGEST:
        raise ValueError("names that are too long, or given twice")
    return names


def _upgrade_1(value: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A folder is upgraded in memory when it is read, and on disk with its next change."""
    settings = {key: value.pop(key) for key in MethodOfVersion1.model_fields}
    return {**value, "scale": settings["calibration"]["gain"], "version_1": settings}


ModelManifest.UPGRADES = {1: _upgrade_1}


def is_model(path: str | Path) -> bool:
    """Whether a folder holds a model, as far as its manifest goes."""
    return manifests.is_kind(ModelManifest, path)
