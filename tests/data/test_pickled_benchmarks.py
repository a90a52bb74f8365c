"""The pickles people hand around, in their exact layouts, of Python 2 and 3 and of old and new numpy."""

from __future__ import annotations

import pickle
import pickletools
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from wdae.data import open_dataset, pixels
from wdae.data.restricted_unpickler import load_pickle
from wdae.errors import DataError
from wdae.parts import Part

SPLITS = ("train", "val", "test")


def as_python_2(value: object) -> bytes:
    """Nearly the pickle that Python 2 and its numpy would have written: protocol 2, old module names."""
    data = pickle.dumps(value, protocol=2)
    return data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_containers_of_every_protocol(tmp_path, protocol):
    value = {
        "uint8": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big-endian": np.arange(3, dtype=">i4"),
        "text": np.array(["a", "bcd"]),
        "objects": np.array(["x", 3], dtype=object),
        "bytes": b"\x00\xff",
        "scalar": np.float32(1.5),
        "nested": [(1, 2.5, None, True), {"s": {1, 2}}, OrderedDict(a=1)],
        "empty": np.zeros((0, 3)),
        "bool": np.array([True, False]),
    }
    file = tmp_path / "value.pkl"
    file.write_bytes(pickle.dumps(value, protocol=protocol))
    got = load_pickle(file)
    assert list(got) == list(value)
    for name, expected in value.items():
        if isinstance(expected, np.ndarray):
            assert np.asarray(got[name]).dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
            assert np.array_equal(got[name], expected), name
        else:
            assert got[name] == expected


def test_the_old_module_names(tmp_path):
    file = tmp_path / "old.pkl"
    file.write_bytes(as_python_2(np.arange(4)))
    assert "numpy.core.multiarray" in "".join(str(arg) for _, arg, _ in pickletools.genops(file.read_bytes()))
    assert np.array_equal(load_pickle(file), np.arange(4))


def test_byte_strings_of_python_2(tmp_path):
    """A hand-made protocol-2 pickle: {'k': array of the str '\\x01\\xfe'} as only Python 2 writes it."""
    file = tmp_path / "two.pkl"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x02\x01\xfetb"
    )
    file.write_bytes(b"\x80\x02}U\x01k" + array + b"s.")
    got = load_pickle(file)
    assert got["k"].tolist() == [1, 254]


@pytest.fixture
def mini_pickles(tmp_path, draw) -> Path:
    root = tmp_path / "mini"
    root.mkdir()
    for split, n_classes in zip(SPLITS, (3, 2, 2), strict=True):
        images = np.stack([draw(i, 84, 84) for i in range(4 * n_classes)])
        members = {f"{split} {c}": list(range(c, 4 * n_classes, n_classes)) for c in range(n_classes)}
        content = {"image_data": images, "class_dict": members}
        (root / f"mini-imagenet-cache-{split}.pkl").write_bytes(as_python_2(content))
    return root


def test_mini_imagenet_pickles(mini_pickles, draw, tmp_path):
    image_set = open_dataset(mini_pickles)
    assert image_set.class_names == ("train 0", "train 1", "train 2", "val 0", "val 1", "test 0", "test 1")
    assert [image_set.classes_of(part) for part in Part] == [[0, 1, 2], [], [3, 4], [5, 6]]
    assert np.array_equal(image_set.read(5), draw(4, 84, 84))  # second picture of class "train 1"
    assert image_set.describe(5).endswith("mini-imagenet-cache-train.pkl[4]")
    array = pixels(image_set, 84, cache_dir=tmp_path / "cache")
    assert np.array_equal(array.data[5], draw(4, 84, 84))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("class_dict"), "image_data and class_dict"),
        (
            lambda c: c.update(image_data=c["image_data"].astype(float)),
            r"float64 \[12, 84, 84, 3\]; expected uint8",
        ),
        (lambda c: c["class_dict"].update({"train 0": [0, 99]}), "beyond the 12 pictures"),
        (lambda c: c["class_dict"].update({"train 0": [1]}), "rows twice"),
    ],
)
def test_mini_imagenet_pickles_that_are_something_else(mini_pickles, change, message):
    file = mini_pickles / "mini-imagenet-cache-train.pkl"
    content = pickle.loads(file.read_bytes())
    change(content)
    file.write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match=message) as caught:
        open_dataset(mini_pickles)
    assert str(file) in str(caught.value)


def test_a_class_in_two_pickles(mini_pickles):
    for split in ("val", "test"):
        file = mini_pickles / f"mini-imagenet-cache-{split}.pkl"
        content = pickle.loads(file.read_bytes())
        content["class_dict"] = {"okapi": content["class_dict"][f"{split} 0"]}
        file.write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match=r"cache-test.pkl: the class 'okapi' is in validation already"):
        open_dataset(mini_pickles)


@pytest.fixture
def tiered_pickles(tmp_path, draw, encode) -> Path:
    root = tmp_path / "tiered"
    root.mkdir()
    for split, words in zip(
        SPLITS, (["crane", "drake"], ["crane", "tench"], ["pizza", "okapi, Okapia johnstoni"]), strict=True
    ):
        pictures = [np.frombuffer(encode(draw(i, 84, 84)), np.uint8)[:, None] for i in range(4)]
        labels = {
            "label_specific": np.array([0, 1, 0, 1]),
            "label_general": np.array([1, 0, 1, 0]),
            "label_specific_str": words,
            "label_general_str": [f"{split} birds", f"{split} things"],
        }
        (root / f"{split}_images_png.pkl").write_bytes(as_python_2(pictures))
        (root / f"{split}_labels.pkl").write_bytes(as_python_2(labels))
    return root


def test_tiered_imagenet_pickles(tiered_pickles, draw, tmp_path):
    with pytest.raises(DataError, match="train has 2 classes of the usual 351"):
        open_dataset(tiered_pickles)
    image_set = open_dataset(tiered_pickles, allow_missing=True)
    assert image_set.class_names == (
        "crane (train things)",
        "drake",
        "crane (val things)",
        "tench",
        "pizza",
        "okapi, Okapia johnstoni",
    )
    assert image_set.superclasses[1] == "train birds"
    assert image_set.labels.tolist() == [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5]
    assert [image_set.classes_of(part) for part in Part] == [[0, 1], [], [2, 3], [4, 5]]
    assert np.array_equal(image_set.read(6), draw(2, 84, 84))
    array = pixels(image_set, 84, cache_dir=tmp_path / "cache")
    assert np.array_equal(array.data[6], draw(2, 84, 84))


def test_tiered_labels_of_another_set(tiered_pickles):
    labels = {"label_specific": np.array([0]), "label_general": np.array([0])}
    labels |= {"label_specific_str": ["a"], "label_general_str": ["b"]}
    (tiered_pickles / "val_labels.pkl").write_bytes(pickle.dumps(labels))
    with pytest.raises(DataError, match=r"val_labels.pkl: has labels for 1 pictures, there are 4"):
        open_dataset(tiered_pickles)
