"""MiniImageNet as people have it: images/ with three lists, one folder per class, or the cached pickles."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wdae.data.benchmark_folders import read_benchmark_folders
from wdae.data.findings import Findings, Picture, build_file_set, read_csv, uneven_counts
from wdae.data.image_set import ImageSet
from wdae.data.restricted_unpickler import load_pickle
from wdae.data.source import ArraySource
from wdae.data.splits import FILES, load_split
from wdae.errors import DataError, listed
from wdae.parts import Part

NAME = "mini-imagenet"
_PER_CLASS = 600


def read_mini_imagenet(root: Path) -> Findings:
    """Read whichever of the three forms lies in ``root``."""
    if any(root.glob("mini-imagenet-cache-*.pkl")):
        findings = _read_pickles(root)
    elif any((root / f"{split}.csv").is_file() for split in FILES):
        findings = _read_lists(root)
    else:
        findings = read_benchmark_folders(root, load_split(NAME))
    if findings.image_set is not None:
        findings.notes += uneven_counts(findings.image_set, _PER_CLASS)
    return findings


def _read_lists(root: Path) -> Findings:
    findings = Findings(NAME)
    images = root / "images"
    if not images.is_dir():
        raise DataError(f"{root}: the lists are there, the folder images/ with the pictures is not; add it")
    present = set(os.listdir(images))  # noqa: PTH208 (names are all that is wanted)
    pictures: list[Picture] = []
    for split, part in FILES.items():
        file = root / f"{split}.csv"
        if not file.is_file():
            findings.missing.append(f"the list {file.name}")
            continue
        absent = []
        for name, label in _rows(file):
            if name in present:
                pictures.append(Picture(label, part, f"{images}{os.sep}{name}"))
            else:
                absent.append(name)
        if absent:
            findings.missing.append(f"{len(absent)} pictures of {file.name}: {listed(absent)}")
    if pictures:
        findings.image_set = build_file_set(NAME, pictures)
        _compare_classes(findings, {picture.label: picture.part for picture in pictures})
    return findings


def _rows(file: Path) -> list[tuple[str, str]]:
    rows = list(read_csv(file))
    if not rows or [cell.strip() for cell in rows[0][:2]] != ["filename", "label"]:
        raise DataError(f"{file}: the first line must be 'filename,label'")
    short = [str(number) for number, row in enumerate(rows[1:], 2) if len(row) < 2]
    if short:
        raise DataError(f"{file}: lines without a label: {listed(short)}")
    return [(row[0].strip(), row[1].strip()) for row in rows[1:]]


def _read_pickles(root: Path) -> Findings:
    findings = Findings(NAME)
    arrays: list[npt.NDArray[np.uint8]] = []
    origins: list[str] = []
    where: list[tuple[int, int]] = []
    labels: list[int] = []
    parts: list[int] = []
    classes: dict[str, Part] = {}
    for split, part in FILES.items():
        file = root / f"mini-imagenet-cache-{split}.pkl"
        if not file.is_file():
            findings.missing.append(f"the file {file.name}")
            continue
        array, members = _check_cache(file, load_pickle(file))
        for name in sorted(members):
            if name in classes:
                raise DataError(
                    f"{file}: the class {name!r} is in {classes[name]} already; it belongs in one"
                )
            labels += [len(classes)] * len(members[name])
            parts += [part.code] * len(members[name])
            where += [(len(arrays), row) for row in members[name]]
            classes[name] = part
        arrays.append(array)
        origins.append(str(file))
    if where:
        findings.image_set = ImageSet(
            name=NAME,
            source=ArraySource(tuple(arrays), np.array(where, dtype=np.int64), tuple(origins)),
            labels=np.array(labels, dtype=np.int64),
            parts=np.array(parts, dtype=np.uint8),
            class_names=tuple(classes),
        )
        _compare_classes(findings, classes)
    return findings


def _check_cache(file: Path, content: Any) -> tuple[npt.NDArray[np.uint8], dict[str, list[int]]]:
    """The pictures and each class's rows, after making sure they are that."""
    try:
        array, members = np.asarray(content["image_data"]), dict(content["class_dict"])
        rows = {str(name): [int(row) for row in members[name]] for name in members}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{file}: expected a dictionary with image_data and class_dict (name → rows): {error!r}"
        ) from error
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3:
        raise DataError(
            f"{file}: image_data is {array.dtype} {list(array.shape)}; expected uint8 [n, height, width, 3]"
        )
    every = [row for name in rows for row in rows[name]]
    if any(not 0 <= row < len(array) for row in every) or len(set(every)) != len(every):
        raise DataError(f"{file}: class_dict names rows twice or beyond the {len(array)} pictures")
    return array, rows


def _compare_classes(findings: Findings, classes: dict[str, Part]) -> None:
    """Say what is missing of the usual split; a set with classes of its own has nothing to miss."""
    usual = load_split(NAME).part_of()
    if usual.keys().isdisjoint(classes):
        findings.notes.append("the classes are none of MiniImageNet's: taken as a set of your own")
        return
    absent = [name for name in usual if name not in classes]
    if absent:
        findings.missing.append(f"{len(absent)} of {len(usual)} classes: {listed(absent)}")
    moved = [f"{name} ({part.kind})" for name, part in usual.items() if classes.get(name, part) != part]
    if moved:
        findings.notes.append(f"{len(moved)} classes lie in another part than usual: {listed(moved)}")
