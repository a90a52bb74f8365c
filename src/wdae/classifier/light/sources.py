"""What people give to be classified: pictures, folders of pictures, files of features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wdae.backbones.graphs import has_runtime
from wdae.calibration.familiarity import Array
from wdae.classifier.light.folder import ModelFolder
from wdae.data.decode import SUFFIXES
from wdae.data.findings import left_out, why_not
from wdae.errors import DataError, ModelError
from wdae.printing import warn
from wdae.runs.progress import progress

if TYPE_CHECKING:
    from wdae.classifier.picture_backbone import PictureBackbone

FEATURE_SUFFIXES = frozenset({".npz", ".npy", ".safetensors", ".csv", ".tsv", ".h5", ".hdf5"})
_FEW = 256  # pictures that are not worth starting torch for, though there is a GPU


def is_feature_file(path: Path) -> bool:
    """Whether a path is a file of features, by its suffix."""
    return path.suffix.lower() in FEATURE_SUFFIXES and path.is_file()


def stream_items(
    folder: ModelFolder, sources: Sequence[Path], unreadable: list[str], device: str = "auto"
) -> Iterator[tuple[list[str], Array]]:
    """Names and features of everything given, a batch at a time; pictures are read as they are needed.

    Args:
        unreadable: gets what cannot be read, each with the reason.
        device: where features are computed; a GPU, and backbones of others, need torch.
    """
    if not sources:
        raise DataError("nothing to classify; give pictures, folders of pictures, or a file of features")
    for source in sources:
        if is_feature_file(source):
            from wdae.classifier.inputs import read_features

            found = read_features(source).numpy()
            for start in range(0, len(found), 1024):
                some = found[start : start + 1024]
                yield [f"{source} row {start + i}" for i in range(len(some))], some
    files = find_pictures([source for source in sources if not is_feature_file(source)])
    if not files:
        return
    if folder.manifest.backbone is None:
        raise no_backbone()
    light = folder.backbone() if _is_light(device, len(files)) else None
    with progress(len(files), "classifying", "pictures") as bar:
        for rows, features, faults in light.embed(files) if light else _by_torch(folder, files, device):
            if rows:
                yield [files[row] for row in rows], features
            unreadable += faults.values()
            bar.update(len(rows) + len(faults))


def no_backbone() -> ModelError:
    """The error where pictures are given to a model that takes features."""
    return ModelError(
        "this model was learned from features and has no backbone for pictures; give a file of features"
        f" ({', '.join(sorted(FEATURE_SUFFIXES))})"
    )


def _is_light(device: str, count: int) -> bool:
    """Whether pictures are embedded without torch: on the CPU, or where there are few."""
    idle_gpu = device == "auto" and count > _FEW and Path("/dev/nvidiactl").exists()
    return has_runtime() and device in ("auto", "cpu") and not idle_gpu


def _by_torch(
    folder: ModelFolder, files: Sequence[str], device: str
) -> Iterator[tuple[list[int], Array, dict[int, str]]]:
    from wdae.classifier.picture_backbone import files_as_set
    from wdae.classifier.store import load

    backbone: PictureBackbone | None = load(folder.path, verify=False).on(device).backbone
    assert backbone is not None
    images, left = files_as_set(files), set(range(len(files)))
    for piece in backbone.embed(images, skip_broken=True):
        rows = piece.rows.tolist()
        left -= set(rows)
        yield rows, piece.features.numpy(), {}
    yield [], np.zeros((0, 0), np.float32), {row: why_not(images, row) for row in sorted(left)}


def find_pictures(sources: Sequence[Path]) -> list[str]:
    """The picture files among files and, at any depth, in folders."""
    files: list[str] = []
    for source in sources:
        if source.is_dir():
            every = sorted(p for p in source.rglob("*") if p.is_file() and not p.name.startswith("."))
            inside = [str(p) for p in every if p.suffix.lower() in SUFFIXES]
            others = [str(p) for p in every if p.suffix.lower() not in SUFFIXES]
            if not inside:
                rest = f"; {left_out(others)}" if others else ""
                raise DataError(f"{source} has no pictures; accepted: {', '.join(sorted(SUFFIXES))}{rest}")
            if others:
                warn(f"warning: {left_out(others)}")
            files += inside
        else:
            files.append(str(source))
    return files
