"""Features and banks that cannot be used: each is refused with what came and what to do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from wdae.bank import FeatureBank, class_means
from wdae.bank.importing import import_bank, import_parts
from wdae.errors import BankError, StorageError, WdaeError
from wdae.parts import Part
from wdae.storage.tensors import save_tensors
from wdae.synthetic import synthetic_bank

GOOD: dict[str, Any] = {
    "features": torch.ones(6, 3),
    "labels": [0, 0, 1, 1, 2, 2],
    "class_names": ["cat", "dog", "okapi"],
    "parts": ["base-train"] * 4 + ["novel"] * 2,
}


def spoilt(row: int, value: float) -> torch.Tensor:
    features = torch.ones(6, 3)
    features[row] = value
    return features


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": spoilt(3, float("nan"))}, r"1 of 6 .* NaN or infinite values: row 3 \(class 'dog'\)"),
        ({"features": spoilt(4, float("-inf"))}, r"NaN or infinite values: row 4 \(class 'okapi'\)"),
        ({"features": spoilt(0, 0.0)}, r"only zeros: row 0 \(class 'cat'\)"),
        ({"features": spoilt(1, 1e-30)}, r"only zeros: row 1"),
        ({"features": spoilt(1, 3e38)}, r"too large to measure: row 1"),
        ({"features": torch.zeros(6, 3)}, r"6 of 6 .* row 4 \(class 'okapi'\) and 1 more; remove"),
        ({"features": torch.ones(6)}, r"shape \[6\]; a bank takes \[images, feature size\]"),
        ({"features": torch.ones(6, 0)}, r"shape \[6, 0\]"),
        ({"features": torch.ones(6, 3, dtype=torch.int64)}, "give floating point"),
        ({"features": torch.ones(6, 3, dtype=torch.int8)}, "need a scale for each vector"),
        ({"scales": torch.ones(6)}, "only they have one"),
        ({"features": torch.ones(6, 3).to(torch.int8), "scales": torch.zeros(6)}, "only zeros"),
        ({"features": torch.ones(6, 3).to(torch.int8), "scales": torch.ones(5)}, r"scales have shape \[5\]"),
        ({"labels": [0, 0, 1, 1, 2]}, r"labels have shape \[5\]; 6 features need \[6\]"),
        ({"labels": [0, 0, 1, 1, 2, 3]}, r"0 … 2 for 3 class names; out of range: 3 \(row 5\)"),
        ({"labels": [-1, 0, 1, 1, 2, 2]}, r"out of range: -1 \(row 0\)"),
        ({"labels": [0.0, 0, 1, 1, 2, 2]}, "give whole numbers"),
        ({"class_names": ["cat", "dog", "cat"]}, "given more than once: 'cat'"),
        ({"parts": ["base-train"] * 5 + ["novel"]}, r"given as more: 'okapi' \(base and novel\)"),
        ({"parts": [0, 1, 2, 0, 3, 3]}, r"'dog' \(base and validation\)"),
        ({"parts": ["base-trian"] * 6}, "unknown part 'base-trian'; did you mean 'base-train'"),
        ({"parts": [0, 0, 0, 0, 4, 4]}, r"accepted: 0 \(base-train\)"),
        ({"parts": [0] * 5}, r"parts have shape \[5\]"),
        ({"base_weights": torch.ones(2, 4)}, r"shape \[2, 4\], the features have size 3; give \[2, 3\]"),
        ({"base_weights": torch.ones(3, 3)}, "3 base weights for 2 base classes"),
        ({"base_weights": torch.zeros(2, 3)}, "faulty rows: 0, 1"),
        ({"base_weights": torch.ones(2, 3), "cosine_scale": -1.0}, "must be a positive number"),
        ({"info": {"when": object()}}, "JSON"),
    ],
)
def test_what_cannot_be_a_bank_is_refused(change: dict[str, Any], message: str) -> None:
    FeatureBank.build(**GOOD)
    with pytest.raises(BankError, match=message):
        FeatureBank.build(**(GOOD | change))


def test_questions_a_bank_cannot_answer() -> None:
    bank = FeatureBank.build(**GOOD)
    with pytest.raises(BankError, match="no validation images; it has: base-train, novel"):
        bank.select(Part.VALIDATION)
    held_only = FeatureBank.build(torch.ones(1, 2), [0], ["cat"], "base-held-out")
    with pytest.raises(BankError, match="1 base classes have no base-train images: 'cat'"):
        class_means(held_only)
    with pytest.raises(BankError, match="no base classes"):
        class_means(FeatureBank.build(torch.ones(1, 2), [0], ["cat"], "novel"))


def test_features_that_half_precision_cannot_hold(tmp_path: Path) -> None:
    for value in (1e6, 1e-9):
        bank = FeatureBank.build(**(GOOD | {"features": spoilt(2, value)}))
        with pytest.raises(BankError, match="row 2 is too large or too small for float16"):
            bank.save(tmp_path / "bank", dtype="float16")
        bank.save(tmp_path / f"bank-{value}", dtype="int8")
    with pytest.raises(BankError, match="accepted: float32, float16, int8"):
        bank.save(tmp_path / "bank", dtype="int4")  # type: ignore[arg-type]
    assert not (tmp_path / "bank").exists()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    synthetic_bank(4, 1, 2, 6, 8, held_out_per_class=1).save(tmp_path / "bank")
    return tmp_path / "bank"


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def cut(path: Path, n_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:-n_bytes])


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def swap_names(manifest: dict[str, Any]) -> None:
    manifest["class_names"].reverse()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: cut(f / "bank.safetensors", 1), "truncated or altered: .* bytes, written as"),
        (lambda f: flip(f / "bank.safetensors", -100), "checksum does not match"),
        (lambda f: (f / "bank.safetensors").unlink(), "bank.safetensors is missing"),
        (lambda f: (f / "manifest.json").unlink(), "not a feature bank"),
        (lambda f: cut(f / "manifest.json", 5), "truncated or altered: not valid JSON"),
        (lambda f: change_manifest(f, lambda m: m.update(version=3)), "format 3, newer than 2.*upgrade"),
        (lambda f: change_manifest(f, lambda m: m.update(version="x")), "format version is 'x'"),
        (lambda f: change_manifest(f, lambda m: m.update(format="other")), "not the manifest"),
        (lambda f: change_manifest(f, swap_names), "manifest.json is altered"),
    ],
)
def test_a_harmed_bank_is_refused(saved: Path, harm: Callable[[Path], None], message: str) -> None:
    FeatureBank.open(saved)
    harm(saved)
    with pytest.raises(StorageError, match=message):
        FeatureBank.open(saved)


def test_no_byte_of_a_bank_can_change_unnoticed(saved: Path) -> None:
    path = saved / "bank.safetensors"
    for place in range(0, path.stat().st_size, 97):
        flip(path, place)
        with pytest.raises(StorageError):
            FeatureBank.open(saved)
        flip(path, place)
    FeatureBank.open(saved)


def test_an_existing_folder_is_not_written_over(saved: Path) -> None:
    before = (saved / "manifest.json").read_bytes()
    with pytest.raises(StorageError, match="exists already"):
        FeatureBank.open(saved).save(saved)
    assert (saved / "manifest.json").read_bytes() == before


def test_a_bank_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="does not exist; make one with `wdae extract`"):
        FeatureBank.open(tmp_path / "none")


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path / "f.npz", **arrays)
    return path / "f.npz"


X = np.ones((20, 4), np.float32)
Y = np.repeat(np.arange(10), 2)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"features": X}, {}, "has no labels; give them with --labels"),
        ({"labels": Y}, {}, r"no array of features; it has labels \[20\]"),
        ({"a": X, "b": X, "labels": Y}, {}, "which array are the features"),
        ({"features": X, "labels": Y[:9]}, {}, "9 labels for 20 features"),
        ({"features": X, "labels": Y - 1}, {}, "labels must be 0 or more"),
        ({"features": X, "labels": Y + 0.5}, {}, "give class names or whole numbers"),
        (
            {"features": X, "labels": Y, "class_names": list("abc")},
            {},
            "for 3 class names they must lie in 0 … 2",
        ),
        ({"features": X, "labels": np.array(list("ab") * 10), "classes": ["a"]}, {}, "the first 'b'"),
        ({"features": X, "labels": Y}, {"novel": ["11"]}, "no class is called '11'"),
        ({"features": X, "labels": Y}, {"novel": ["8..10"]}, "not a range of classes"),
        ({"features": X, "labels": Y}, {"novel": ["1"], "validation": ["0..1"]}, "validation and as novel"),
        ({"features": X, "labels": Y}, {"novel": ["1"], "all_base": True}, "give one of the two"),
        ({"features": X, "labels": Y}, {"novel": ["1"], "held_out": 2}, "holding out 2 leaves none"),
        ({"features": X, "labels": Y}, {"novel": ["1"], "held_out": -1}, "give 0 or more"),
        ({"features": X, "labels": Y // 4}, {}, "3 classes are too few"),
        ({"features": X, "labels": Y, "parts": Y * 0}, {"novel": ["1"]}, "leave out the options"),
        ({"features": X, "labels": Y, "base_weights": X[:3]}, {}, "base weights for 3 of 10 classes"),
        ({"features": X, "labels": Y, "base_weights": X[:3]}, {"novel": ["9"]}, "3 base weights for 9"),
        ({"features": X, "labels": Y, "base_weights": X[:9, :2]}, {"novel": ["9"]}, r"shape \[9, 2\]"),
        ({"features": X, "labels": Y, "count": 21}, {}, "count is 21, but there are 20"),
        ({"features": X.astype("U3"), "labels": Y}, {}, "give numbers"),
        ({"features": X * np.nan, "labels": Y}, {}, "NaN or infinite"),
        ({"features": X.astype(object), "labels": Y}, {}, "cannot read"),  # would need unpickling
    ],
)
def test_imports_that_cannot_be(
    tmp_path: Path, arrays: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BankError, match=message):
        import_bank(npz(tmp_path, **arrays), **options)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("f.csv", "a,b\n1,2\n", "no column called 'label'"),
        ("f.csv", "label,b\nx,2\ny,two\n", "line 3, column 'b': 'two' is not a number"),
        ("f.csv", "label,b\nx,2,3\n", "line 2 has 3 columns, the header has 2"),
        ("f.csv", "label,b\n", r"shape \[0, 1\]|too few|no "),
        ("f.csv", "", "no column called"),
        ("f.npz", "not a zip", "cannot read"),
        ("f.npy", "", "cannot read"),
        ("f.safetensors", "short", "truncated or altered"),
        ("f.h5", "short", "cannot read"),
        ("f.pkl", "x", "unknown kind of file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(WdaeError, match=message):
        import_bank(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BankError, match="does not exist"):
        import_bank(tmp_path / "none.npz")
    with pytest.raises(BankError, match="is a folder"):
        import_bank(tmp_path)


def test_files_of_parts_that_do_not_fit(tmp_path: Path) -> None:
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    save_tensors(one, {"features": torch.ones(2, 2, 3)})
    save_tensors(two, {"features": torch.ones(2, 2, 4)})
    with pytest.raises(BankError, match="differ in feature size"):
        import_parts({Part.BASE_TRAIN: one, Part.NOVEL: two})
    with pytest.raises(BankError, match="base and novel"):
        import_parts({Part.BASE_TRAIN: one, Part.NOVEL: one})
