"""tieredImageNet: one folder per class, or the image and label pickles of its authors."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from wdae.data.benchmark_folders import read_benchmark_folders
from wdae.data.findings import Findings
from wdae.data.image_set import ImageSet
from wdae.data.restricted_unpickler import load_pickle
from wdae.data.source import EncodedSource
from wdae.data.splits import FILES, load_split
from wdae.errors import DataError

NAME = "tiered-imagenet"


def read_tiered_imagenet(root: Path) -> Findings:
    """Read whichever of the two forms lies in ``root``."""
    if any(root.glob("*_images_png.pkl")):
        return _read_pickles(root)
    return read_benchmark_folders(root, load_split(NAME))


def _read_pickles(root: Path) -> Findings:
    """The authors' files: a list of PNG-encoded pictures beside a dictionary of labels and words for them.

    Classes are called by their words here, as the files hold no WordNet ids.
    """
    findings = Findings(NAME)
    items: list[Any] = []
    names: list[str] = []
    origins: list[str] = []
    labels: list[int] = []
    parts: list[int] = []
    classes: list[tuple[str, str]] = []
    expected = load_split(NAME)
    for (split, part), usual in zip(
        FILES.items(), (expected.base, expected.validation, expected.novel), strict=True
    ):
        files = [root / f"{split}_images_png.pkl", root / f"{split}_labels.pkl"]
        gone = [file.name for file in files if not file.is_file()]
        if gone:
            findings.missing += [f"the file {name}" for name in gone]
            continue
        pictures = _check_pictures(files[0], load_pickle(files[0]))
        numbers, words = _check_labels(files[1], load_pickle(files[1]), len(pictures))
        if len(words) != len(usual):
            findings.missing.append(f"{split} has {len(words)} classes of the usual {len(usual)}")
        items += pictures
        names += [f"{files[0]}[{row}]" for row in range(len(pictures))]
        origins += map(str, files)
        labels += [len(classes) + number for number in numbers]
        parts += [part.code] * len(pictures)
        classes += words
    if items:
        findings.image_set = ImageSet(
            name=NAME,
            source=EncodedSource(tuple(items), tuple(names), tuple(origins)),
            labels=np.array(labels, dtype=np.int64),
            parts=np.array(parts, dtype=np.uint8),
            class_names=_distinct(classes),
            superclasses=tuple(group for _, group in classes),
        )
    return findings


def _check_pictures(file: Path, content: Any) -> list[Any]:
    if not isinstance(content, (list, tuple)) or not content:
        raise DataError(f"{file}: expected a list of encoded pictures, found {type(content).__name__}")
    for row, item in enumerate(content):
        if not (isinstance(item, bytes) or (isinstance(item, np.ndarray) and item.dtype == np.uint8)):
            raise DataError(f"{file}[{row}]: expected the bytes of a picture, found {type(item).__name__}")
    # Plain arrays: the unpickler's own kind would not go to another process.
    return [np.asarray(item) if isinstance(item, np.ndarray) else item for item in content]


def _check_labels(file: Path, content: Any, count: int) -> tuple[list[int], list[tuple[str, str]]]:
    """Each picture's class number, and each class's words with its superclass's."""
    try:
        numbers = np.asarray(content["label_specific"]).astype(np.int64).ravel()
        groups = np.asarray(content["label_general"]).astype(np.int64).ravel()
        words = [_text(word) for word in content["label_specific_str"]]
        group_words = [_text(word) for word in content["label_general_str"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{file}: expected a dictionary with label_specific, label_general and their _str: {error!r}"
        ) from error
    if len(numbers) != count or len(groups) != count:
        raise DataError(f"{file}: has labels for {len(numbers)} pictures, there are {count}")
    for values, limit in ((numbers, len(words)), (groups, len(group_words))):
        if values.min() < 0 or values.max() >= limit:
            raise DataError(f"{file}: labels must lie in 0 … {limit - 1}, the number of words for them")
    group_of = dict(zip(numbers.tolist(), groups.tolist(), strict=True))
    return numbers.tolist(), [
        (word, group_words[group_of[number]] if number in group_of else "")
        for number, word in enumerate(words)
    ]


def _text(word: Any) -> str:
    return word.decode("latin1") if isinstance(word, bytes) else str(word)


def _distinct(classes: list[tuple[str, str]]) -> tuple[str, ...]:
    """Words for every class; two that share one (some cranes fly, some lift) get their superclass too."""
    times = Counter(word for word, _ in classes)
    longer = [word if times[word] == 1 else f"{word} ({group})" for word, group in classes]
    again = Counter(longer)
    return tuple(name if again[name] == 1 else f"{name} #{number}" for number, name in enumerate(longer))
