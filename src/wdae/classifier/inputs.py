"""What people give on the command line: folders of pictures, loose pictures, files of features."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from wdae.classifier.light.sources import find_pictures, is_feature_file, no_backbone
from wdae.classifier.model import Model
from wdae.classifier.picture_backbone import PictureBackbone, files_as_set
from wdae.data.findings import why_not
from wdae.errors import DataError, listed
from wdae.printing import warn
from wdae.runs.progress import progress


@dataclass
class Examples:
    """Features by class ``[k, D]``, where each came from, and small pictures where there are any."""

    features: dict[str, Tensor] = field(default_factory=dict)
    sources: dict[str, list[str]] = field(default_factory=dict)
    pictures: dict[str, Tensor] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)


def read_examples(
    model: Model,
    sources: Sequence[Path],
    class_name: str | None,
    *,
    skip_broken: bool = False,
    option: str = "",
    check: Callable[[Collection[str]], None] | None = None,
) -> Examples:
    """Labelled examples: of one class from loose pictures, or of many from a folder or a file.

    Args:
        sources: with ``class_name``, pictures or folders of pictures of that class; without, one folder with
            a folder per class, or one file of features with labels.
        skip_broken: leave unreadable pictures out (``dropped`` names them, each with the reason).
        option: the option of the command that names the class of all pictures, where it has one, for advice.
        check: is given the names of the classes before any picture is read, and raises where they will not
            do.
    """
    by_option = f", or {option} and files" if option else ""
    if not sources:
        raise DataError(f"nothing to learn from; give a folder with a folder per class{by_option}")
    if class_name is not None:
        class_name = model.called(class_name.strip() or class_name)
        if check is not None:
            check([class_name])
        if len(sources) == 1 and is_feature_file(sources[0]):
            rows = read_features(sources[0])
            names = [f"{sources[0]} row {i}" for i in range(len(rows))]
            return Examples({class_name: rows}, {class_name: names})
        for source in sources:
            _refuse_class_folders(source, class_name)
        files = find_pictures(sources)
        return _embedded(model, files, [class_name] * len(files), skip_broken)
    if len(sources) > 1:
        raise DataError(
            f"{len(sources)} files or folders, and no class for them; give one folder with a folder per"
            f" class{by_option}"
        )
    source = sources[0]
    if is_feature_file(source):
        return _labelled_features(model, source)
    files, labels = _class_folders(source, option)
    labels = [model.called(label) for label in labels]
    if check is not None:
        check(dict.fromkeys(labels))
    return _embedded(model, files, labels, skip_broken)


def read_features(path: Path) -> Tensor:
    """The features of a file, with or without labels, ``[M, D]``."""
    from wdae.bank.arrays import read_arrays
    from wdae.bank.labelled import find_features

    return torch.from_numpy(find_features(read_arrays(path), path, ndims=(2,)).astype("float32"))


def _backbone(model: Model) -> PictureBackbone:
    if model.backbone is None:
        raise no_backbone()
    return model.backbone


def _embedded(model: Model, files: Sequence[str], labels: Sequence[str], skip_broken: bool) -> Examples:
    images = files_as_set(files)
    found = Examples()
    features: dict[str, list[Tensor]] = {}
    pictures: dict[str, list[Tensor]] = {}
    seen: set[int] = set()
    with progress(len(files), "reading pictures", "pictures") as bar:
        for piece in _backbone(model).embed(images, skip_broken=skip_broken):
            for i, row in enumerate(piece.rows.tolist()):
                features.setdefault(labels[row], []).append(piece.features[i])
                pictures.setdefault(labels[row], []).append(piece.thumbnails[i])
                found.sources.setdefault(labels[row], []).append(images.describe(row))
                seen.add(row)
            bar.update(len(piece.rows))
    dropped = {row: why_not(images, row) for row in range(len(images)) if row not in seen}
    found.dropped = list(dropped.values())
    empty = sorted(set(labels) - set(features))
    if empty:
        first = next(reason for row, reason in dropped.items() if labels[row] == empty[0])
        raise DataError(f"class {empty[0]!r} has 0 readable pictures; give at least 1. The first: {first}")
    found.features = {name: torch.stack(features[name]) for name in dict.fromkeys(labels)}
    found.pictures = {name: torch.stack(pictures[name]) for name in dict.fromkeys(labels)}
    return found


def _labelled_features(model: Model, path: Path) -> Examples:
    from wdae.bank.encoding import decode
    from wdae.bank.labelled import read_labelled

    read = read_labelled(path)
    rows = decode(read.features, read.scales)
    labels = torch.from_numpy(read.labels)
    found = Examples()
    names: dict[str, list[int]] = {}
    for number in labels.unique().tolist():
        names.setdefault(model.called(read.names[number]), []).append(number)
    for name, numbers in names.items():
        at = torch.isin(labels, torch.tensor(numbers)).nonzero()[:, 0]
        found.features[name] = rows[at]
        found.sources[name] = [f"{path} row {i}" for i in at.tolist()]
    return found


def _refuse_class_folders(root: Path, name: str) -> None:
    """A folder of class folders is not one class, though one is named: most likely a slip."""
    from wdae.data.findings import folders_in, pictures_in

    inside = folders_in(root) if root.is_dir() else []
    filled = [folder for folder in inside if pictures_in(root / folder)]
    if filled:
        raise DataError(
            f"{root} holds folders with pictures ({listed(filled)}), and --class {name} would make one class"
            f" of them all; leave --class out to make a class of each, or give the folders of {name!r}"
        )


def _class_folders(root: Path, option: str) -> tuple[list[str], list[str]]:
    from wdae.data.findings import folders_in, left_out, pictures_in

    if not root.is_dir():
        if not root.exists():
            raise DataError(f"{root} does not exist")
        advice = f"say its class with {option} NAME" if option else "give a folder with a folder per class"
        if root.suffix.lower() == ".zip":
            advice = "unpack it, and give the folder"
        raise DataError(f"{root} is one file; {advice}")
    names = folders_in(root)
    if not names:
        if pictures_in(root):
            say = f"say their class with {option} NAME, or " if option else ""
            raise DataError(
                f"{root} has pictures but no class folders; {say}put them into a folder named after their"
                " class"
            )
        raise DataError(f"{root} is empty; expected one folder per class with its pictures inside")
    files: list[str] = []
    labels: list[str] = []
    others: list[str] = []
    for name in names:
        here = pictures_in(root / name, others)
        if not here:
            rest = f"; {left_out(others)}" if others else ""
            raise DataError(
                f"class {name!r} has 0 pictures in {root / name}; give at least 1 (jpg, png, webp){rest}"
            )
        files += here
        labels += [name.strip() or name] * len(here)
    if others:
        warn(f"warning: {left_out(others)}")
    return files, labels
