"""Each layout people have on disk is read as what it is, and recognised without being output."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from wdae.data import LAYOUTS, load_split, open_dataset
from wdae.data.layouts import find, recognise
from wdae.errors import DataError
from wdae.parts import Part

MINI = load_split("mini-imagenet")
TIERED = load_split("tiered-imagenet")
FS = load_split("imagenet-fs")
SPLITS = {"train": "base", "val": "validation", "test": "novel"}


@pytest.fixture(scope="module")
def one_picture(tmp_path_factory) -> bytes:
    from PIL import Image

    path = tmp_path_factory.mktemp("one") / "one.png"
    Image.new("RGB", (4, 4), (10, 20, 30)).save(path)
    return path.read_bytes()


def fill(folder: Path, names: list[str], picture: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(picture)


def mini_lists(root: Path, picture: bytes) -> Path:
    for split, kind in SPLITS.items():
        rows = [(f"{wnid}{n:08d}.jpg", wnid) for wnid in getattr(MINI, kind) for n in range(2)]
        fill(root / "images", [name for name, _ in rows], picture)
        with (root / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("filename", "label"), *rows])
    return root


def check_mini(image_set, pictures: int) -> None:
    assert image_set.class_names == MINI.classes
    assert len(image_set) == 100 * pictures
    for part, classes in (
        (Part.BASE_TRAIN, range(64)),
        (Part.VALIDATION, range(64, 80)),
        (Part.NOVEL, range(80, 100)),
    ):
        assert image_set.classes_of(part) == list(classes)
    assert (np.bincount(image_set.labels) == pictures).all()


def test_mini_imagenet_lists(tmp_path, one_picture):
    root = mini_lists(tmp_path, one_picture)
    assert recognise(root) == "mini-imagenet"
    image_set = open_dataset(root)
    check_mini(image_set, 2)
    for row in (0, 77, 199):
        name = Path(image_set.describe(row)).name
        assert name.startswith(image_set.class_names[image_set.labels[row]])
    assert "100 classes do not have the usual 600 pictures" in image_set.notes[0]


@pytest.mark.parametrize("split_folders", [False, True])
def test_mini_imagenet_folders(tmp_path, one_picture, split_folders):
    for split, kind in SPLITS.items():
        for wnid in getattr(MINI, kind):
            fill(
                tmp_path / (split if split_folders else "") / wnid,
                ["a.jpg", "b.JPEG", "notes.txt", ".c.jpg"],
                one_picture,
            )
    assert recognise(tmp_path) == "mini-imagenet"
    check_mini(open_dataset(tmp_path), 2)


@pytest.mark.parametrize("split_folders", [False, True])
def test_tiered_imagenet_folders(tmp_path, one_picture, split_folders):
    for split, kind in SPLITS.items():
        for wnid in getattr(TIERED, kind):
            fill(tmp_path / (split if split_folders else "") / wnid, ["a.jpg"], one_picture)
    assert recognise(tmp_path) == "tiered-imagenet"
    image_set = open_dataset(tmp_path)
    assert len(image_set.class_names) == 608
    assert len(image_set.classes_of(Part.NOVEL)) == 160
    for name, group in zip(image_set.class_names, image_set.superclasses, strict=True):
        assert TIERED.superclasses[name] == group


@pytest.fixture(scope="module")
def ilsvrc(tmp_path_factory, one_picture) -> Path:
    root = tmp_path_factory.mktemp("ilsvrc")
    for wnid in FS.classes:
        fill(root / "train" / wnid, [f"{wnid}_1.JPEG", f"{wnid}_2.JPEG"], one_picture)
        fill(root / "val" / wnid, ["ILSVRC2012_val_00000001.JPEG"], one_picture)
    return root


@pytest.mark.parametrize("reading", ["names", "positions"])
def test_imagenet_fs(ilsvrc, reading):
    assert recognise(ilsvrc) == "imagenet-fs"
    image_set = open_dataset(ilsvrc, reading=reading)
    split = load_split("imagenet-fs", reading)
    assert image_set.class_names == (
        *sorted(split.base),
        *sorted(split.validation),
        *sorted(split.novel),
    )
    assert image_set.query_only.sum() == 1000
    for part, queries, support in (
        (Part.BASE_TRAIN, 0, 2 * 389),
        (Part.BASE_HELD_OUT, 389, 0),
        (Part.VALIDATION, 300, 600),
        (Part.NOVEL, 311, 622),
    ):
        here = image_set.query_only[image_set.rows(part)]
        assert (here.sum(), (~here).sum()) == (queries, support)
    for row in np.flatnonzero(image_set.query_only)[::100]:
        assert f"{os.sep}val{os.sep}" in image_set.describe(row)


def test_own_folders(class_folders):
    image_set = open_dataset(class_folders)
    assert image_set.class_names == ("cat", "dog", "okapi")
    assert image_set.classes_of(Part.BASE_TRAIN) == [0, 1, 2]
    assert open_dataset(class_folders, part="novel").classes_of(Part.NOVEL) == [0, 1, 2]
    assert image_set.read(0).shape == (24, 24, 3)


def test_own_folders_with_parts(tmp_path, one_picture):
    for place in ("base/cat", "base_held_out/cat", "base/dog", "val/mouse", "novel/okapi"):
        fill(tmp_path / place, ["1.png"], one_picture)
    fill(tmp_path / "scraps", ["x.png"], one_picture)
    image_set = open_dataset(tmp_path)
    assert image_set.class_names == ("cat", "dog", "mouse", "okapi")
    assert image_set.parts.tolist() == [0, 1, 0, 2, 3]
    assert "scraps" in image_set.notes[0]


def test_a_class_may_be_called_test(tmp_path, one_picture):
    fill(tmp_path / "test", ["1.png"], one_picture)
    fill(tmp_path / "exam", ["1.png"], one_picture)
    assert open_dataset(tmp_path).class_names == ("exam", "test")


def test_own_list(tmp_path, one_picture):
    fill(tmp_path / "far away", ["ä.png", "b.png", "c.png"], one_picture)
    elsewhere = tmp_path / "elsewhere.png"
    elsewhere.write_bytes(one_picture)
    file = tmp_path / "photos.csv"
    file.write_text(
        "Path, Label ,part\nfar away/ä.png,cat,base\nfar away/b.png,cat,base-held-out\n"
        f"far away/c.png,okapi,novel\n{elsewhere},dog,\n",
        encoding="utf-8-sig",
    )
    for given in (file, tmp_path):
        image_set = open_dataset(given, layout="csv")
        assert image_set.class_names == ("cat", "dog", "okapi")
        assert image_set.parts.tolist() == [0, 1, 0, 3]
    assert recognise(file) == "csv"
    assert open_dataset(file, part="validation").parts.tolist() == [0, 1, 2, 3]


def test_incomplete_sets_can_be_taken_as_they_are(tmp_path, one_picture):
    for wnid in MINI.classes[:70]:
        fill(tmp_path / wnid, ["a.jpg"], one_picture)
    with pytest.raises(DataError, match="30 of 100 classes"):
        open_dataset(tmp_path)
    image_set = open_dataset(tmp_path, allow_missing=True)
    assert len(image_set.class_names) == 70
    assert "30 of 100 classes" in image_set.notes[0]


def test_a_split_of_ones_own_is_kept_and_noted(tmp_path, one_picture):
    mini_lists(tmp_path, one_picture)
    train, val = (tmp_path / f"{name}.csv" for name in ("train", "val"))
    moved = MINI.base[0]
    lines = train.read_text().splitlines()
    val.write_text("\n".join([*val.read_text().splitlines(), *(line for line in lines if moved in line)]))
    train.write_text("\n".join(line for line in lines if moved not in line))
    image_set = open_dataset(tmp_path)
    assert moved in [image_set.class_names[label] for label in image_set.classes_of(Part.VALIDATION)]
    assert any("another part than usual" in note and moved in note for note in image_set.notes)


def test_layout_names():
    with pytest.raises(DataError, match="did you mean 'folders'"):
        find(Path(__file__).parent, "folder")
    assert set(LAYOUTS) >= {"mini-imagenet", "csv"}


@pytest.mark.skipif(
    not (Path(__file__).parents[3] / "shared" / "tools" / "unpack-mini-imagenet").is_file(),
    reason="MiniImageNet is not here",
)
def test_the_real_mini_imagenet(tmp_path):
    """A few of its real pictures, in the layout of its lists."""
    import zipfile

    archives = Path(__file__).parents[3] / "shared" / "data" / "mini-imagenet"
    wanted: dict[str, list[str]] = {}
    for archive in sorted(archives.glob("*.zip")):
        with zipfile.ZipFile(archive) as content:
            for name in content.namelist():
                kept = wanted.setdefault(Path(name).name[:9], [])
                if len(kept) < 2:
                    kept.append(Path(name).name)
                    content.extract(name, tmp_path)
    for split, kind in SPLITS.items():
        rows = [(name, wnid) for wnid in getattr(MINI, kind) for name in wanted[wnid]]
        with (tmp_path / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("filename", "label"), *rows])
    image_set = open_dataset(tmp_path)
    check_mini(image_set, 2)
    shapes = {image_set.read(row).shape for row in range(len(image_set))}
    assert shapes == {(84, 84, 3)}
