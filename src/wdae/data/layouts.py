"""Which reader reads what: recognise a folder by what lies in it, and open it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from wdae.data.findings import Findings, folders_in, left_out, part_named, pictures_in
from wdae.data.folders import read_csv_list, read_folders
from wdae.data.image_set import ImageSet
from wdae.data.imagenet_fs import read_imagenet_fs
from wdae.data.mini_imagenet import read_mini_imagenet
from wdae.data.remote import is_remote, is_tars, read_bucket, read_tars
from wdae.data.splits import Reading, load_split
from wdae.data.tiered_imagenet import read_tiered_imagenet
from wdae.errors import DataError, nearest
from wdae.parts import Part
from wdae.printing import warn

LAYOUTS = ("mini-imagenet", "tiered-imagenet", "imagenet-fs", "folders", "csv", "webdataset")


def open_dataset(
    path: str | Path,
    layout: str = "auto",
    *,
    reading: Reading = "names",
    part: str | Part = Part.BASE_TRAIN,
    allow_missing: bool = False,
) -> ImageSet:
    """Open a set of pictures.

    Args:
        path: a folder, a CSV file, tars of WebDataset, or an address in a bucket (``s3://bucket/folder``).
        layout: one of ``LAYOUTS``; ``auto`` recognises it.
        reading: of ImageNet-FS's split, see :data:`wdae.data.splits.Reading`.
        part: what pictures of your own are for, where neither folders nor list say it.
        allow_missing: take a benchmark with classes or pictures missing; what is missing becomes a note.

    Raises:
        DataError: there is nothing to read, or something is missing; all of it is named.

    >>> import tempfile
    >>> place = tempfile.TemporaryDirectory()
    >>> from PIL import Image
    >>> root = Path(place.name)
    >>> for name in ("cat", "dog"):
    ...     (root / name).mkdir()
    ...     Image.new("RGB", (20, 16), "red").save(root / name / "1.png")
    >>> images = open_dataset(root)
    >>> images.class_names, len(images)
    (('cat', 'dog'), 2)
    """
    findings = find(path, layout, reading=reading, part=part)
    if findings.others:
        warn(f"warning: {path}: {left_out(findings.others)}")
    if findings.image_set is None:
        raise DataError(f"{path} ({findings.layout}): no pictures; missing: {'; '.join(findings.missing)}")
    if findings.missing and not allow_missing:
        raise DataError(
            f"{path} ({findings.layout}): missing: {'; '.join(findings.missing)}. Add what is missing,"
            " or take empty folders out; wdae pretrain, extract and reproduce accept the set as it is with"
            " allow_missing"
        )
    return replace(findings.image_set, notes=(*findings.missing, *findings.notes))


def find(
    path: str | Path,
    layout: str = "auto",
    *,
    reading: Reading = "names",
    part: str | Part = Part.BASE_TRAIN,
) -> Findings:
    """As :func:`open_dataset`, but what is missing is reported instead of refused."""
    here = part_named(part)
    if here is None:
        raise DataError(f"unknown part {part!r}{nearest(part, [known.value for known in Part])}")
    if is_remote(path):
        return read_bucket(path, here)
    root = Path(path)
    if not root.exists():
        raise DataError(f"{root} does not exist; give a folder of pictures, a CSV file or tars")
    if layout == "auto":
        layout = recognise(root)
    readers: dict[str, Callable[[], Findings]] = {
        "mini-imagenet": lambda: read_mini_imagenet(root),
        "tiered-imagenet": lambda: read_tiered_imagenet(root),
        "imagenet-fs": lambda: read_imagenet_fs(root, reading),
        "folders": lambda: read_folders(root, here),
        "csv": lambda: read_csv_list(_list_file(root), here),
        "webdataset": lambda: read_tars(root, here),
    }
    if layout not in readers:
        raise DataError(f"unknown layout {layout!r}{nearest(layout, (*LAYOUTS, 'auto'))}")
    if root.is_file() and layout not in ("csv", "webdataset"):
        raise DataError(f"{root} is a file; the layout {layout} is a folder")
    return readers[layout]()


def recognise(root: Path) -> str:
    """The layout of what lies in ``root``."""
    if root.is_file():
        if root.suffix.lower() == ".csv":
            return "csv"
        if is_tars(root):
            return "webdataset"
        raise DataError(f"{root} is neither a folder nor a CSV file")
    if any(root.glob("mini-imagenet-cache-*.pkl")):
        return "mini-imagenet"
    if any(root.glob("*_images_png.pkl")):
        return "tiered-imagenet"
    if (root / "images").is_dir() and any(
        (root / f"{name}.csv").is_file() for name in ("train", "val", "test")
    ):
        return "mini-imagenet"
    if is_tars(root):
        return "webdataset"
    names = folders_in(root)
    inside = {name: set(folders_in(root / name)) for name in names if part_named(name) is not None}
    classes = set().union(*inside.values()) if inside else set(names)
    in_both = inside.get("train", set()) & inside.get("val", set())
    thousand = set(load_split("imagenet-fs").classes)
    if len(in_both & thousand) > len(thousand) / 2:
        return "imagenet-fs"
    if classes and all(re.fullmatch(r"n\d{8}", name) for name in classes):
        for benchmark in ("mini-imagenet", "tiered-imagenet"):
            usual = set(load_split(benchmark).classes)
            if classes <= usual and len(classes) > len(usual) / 2:
                return benchmark
    if not classes and len(list(root.glob("*.csv"))) == 1:
        return "csv"
    if names:
        return "folders"
    if pictures_in(root):
        raise DataError(
            f"{root}: its pictures have no class; put those of each class into a folder of its own"
        )
    raise DataError(
        f"{root}: nothing recognised in it; expected a folder per class, a CSV list, or MiniImageNet,"
        " tieredImageNet or ILSVRC2012 as they are usually laid out"
    )


def _list_file(root: Path) -> Path:
    if root.is_file():
        return root
    lists = sorted(root.glob("*.csv"))
    if len(lists) != 1:
        raise DataError(f"{root}: {len(lists)} CSV files; name the one to read")
    return lists[0]
