import json
from pathlib import Path

import numpy as np
import pytest
import torch

from wdae.bank import FeatureBank
from wdae.bank.importing import import_bank, import_parts
from wdae.parts import Part
from wdae.storage.tensors import save_tensors
from wdae.synthetic import synthetic_bank

WORDS = ["bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay", "kea"]


@pytest.fixture
def features() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(100, 6)).astype(np.float32)


@pytest.fixture
def labels() -> np.ndarray:
    return np.random.default_rng(1).permutation(np.repeat(np.arange(10), 10))


def kinds(bank: FeatureBank) -> dict[str, list[str]]:
    return {
        part.value: [bank.class_names[c] for c in bank.classes_of(part)] for part in Part if bank.has(part)
    }


def write(
    tmp_path: Path, suffix: str, features: np.ndarray, labels: np.ndarray
) -> tuple[Path, dict[str, Path]]:
    """The same features and labels in each layout."""
    path, more = tmp_path / f"f{suffix}", {}
    words = np.array(WORDS)[labels]
    if suffix == ".npz":
        np.savez(path, X=features, y=words)
    elif suffix == ".npy":
        np.save(path, features)
        more["labels"] = tmp_path / "labels.txt"
        more["labels"].write_text("\n".join(words))
    elif suffix == ".safetensors":
        tensors = {"features": torch.from_numpy(features), "labels": torch.from_numpy(labels)}
        save_tensors(path, tensors, {"classes": ",".join(WORDS)})
    elif suffix in (".csv", ".tsv"):
        comma = "," if suffix == ".csv" else "\t"
        lines = [comma.join(["Label", *(f"f{i}" for i in range(6))])]
        lines += [
            comma.join([w, *(repr(float(x)) for x in row)]) for w, row in zip(words, features, strict=True)
        ]
        path.write_text("\n".join(lines) + "\n")
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:  # as the paper's authors write it: longer than what counts
            file["all_features"] = np.concatenate([features, np.zeros((50, 6), np.float32)])
            file["all_labels"] = np.concatenate([labels, np.zeros(50, int)])
            file["count"] = np.array([100])
        more["names"] = tmp_path / "names.json"
        more["names"].write_text(json.dumps(WORDS))
    return path, more


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors", ".csv", ".tsv", ".h5"])
def test_every_layout_gives_the_same_bank(
    suffix: str, tmp_path: Path, features: np.ndarray, labels: np.ndarray
) -> None:
    path, more = write(tmp_path, suffix, features, labels)
    bank = import_bank(path, validation=["dog"], novel=["bee", "kea"], held_out=3, **more)  # type: ignore[arg-type]
    assert bank.class_names == tuple(WORDS)
    np.testing.assert_array_equal(bank.features.numpy(), features)
    np.testing.assert_array_equal(bank.labels.numpy(), labels)
    base = ["cat", "eel", "fox", "gnu", "hen", "ibis", "jay"]
    assert kinds(bank) == {
        "base-train": base,
        "base-held-out": base,
        "validation": ["dog"],
        "novel": ["bee", "kea"],
    }
    assert bank.info["source"] == path.name
    for label in map(WORDS.index, base):  # the last of each class are held out
        of_class = bank.parts[bank.labels == label].tolist()
        assert of_class == [Part.BASE_TRAIN.code] * 7 + [Part.BASE_HELD_OUT.code] * 3


def test_features_and_labels_alone_give_a_usable_bank(
    tmp_path: Path, features: np.ndarray, labels: np.ndarray
) -> None:
    np.savez(tmp_path / "f.npz", features=features, labels=labels * 7)
    bank = import_bank(tmp_path / "f.npz")
    assert bank.class_names == tuple(str(7 * label) for label in range(10))
    assert [len(names) for names in kinds(bank).values()] == [6, 6, 2, 2]
    assert bank.counts(Part.BASE_HELD_OUT) == [2] * 6
    assert kinds(import_bank(tmp_path / "f.npz")) == kinds(bank)
    assert kinds(import_bank(tmp_path / "f.npz", seed=1)) != kinds(bank)
    assert list(kinds(import_bank(tmp_path / "f.npz", all_base=True, held_out=0))) == ["base-train"]


def test_parts_in_the_file_count(tmp_path: Path, features: np.ndarray, labels: np.ndarray) -> None:
    parts = np.where(labels < 5, "base_train", "novel")
    np.savez(tmp_path / "f.npz", features=features, labels=labels, parts=parts)
    bank = import_bank(tmp_path / "f.npz")
    assert [len(names) for names in kinds(bank).values()] == [5, 5]
    lines = ["label,part,a,b", "x,base-train,1,2", "y,novel,3,4", "x,base-held-out,5,6"]
    (tmp_path / "f.csv").write_text("\n".join(lines))
    assert import_bank(tmp_path / "f.csv").parts.tolist() == [0, 3, 1]


def test_base_weights_for_the_base_or_for_all_classes(
    tmp_path: Path, features: np.ndarray, labels: np.ndarray
) -> None:
    np.savez(tmp_path / "f.npz", features=features, labels=labels)
    weights = np.random.default_rng(2).normal(size=(10, 6)).astype(np.float32)
    np.save(tmp_path / "all.npy", weights)
    np.savez(tmp_path / "base.npz", weight=weights[[0, 1, 3]], cosine_scale=np.array([12.5]))
    novel = ["2", "4..9"]
    for name in ("all.npy", "base.npz"):
        bank = import_bank(tmp_path / "f.npz", base_weights=tmp_path / name, novel=novel)
        np.testing.assert_array_equal(bank.base_weights, weights[[0, 1, 3]])
    assert bank.cosine_scale == 12.5
    assert import_bank(tmp_path / "f.npz", base_weights=tmp_path / "all.npy").n_base == 10


def test_int8_with_scales_is_kept(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(-127, 128, (10, 4, 6), generator=generator).to(torch.int8)
    scales = torch.rand(10, 4, generator=generator).half()
    save_tensors(tmp_path / "f.safetensors", {"features": values, "feature_scale": scales})
    bank = import_bank(tmp_path / "f.safetensors", novel=["8..9"], validation=["7"], held_out=1)
    assert torch.equal(bank.features, values.view(40, 6))
    assert torch.equal(bank.scales, scales.float().view(40))  # type: ignore[arg-type]
    assert bank.labels.tolist() == [c for c in range(10) for _ in range(4)]
    assert bank.counts(Part.BASE_TRAIN) == [3] * 7


def test_half_precision_is_kept_and_bfloat16_read(
    tmp_path: Path, features: np.ndarray, labels: np.ndarray
) -> None:
    np.savez(tmp_path / "f.npz", features=features.astype(np.float16), labels=labels)
    assert import_bank(tmp_path / "f.npz").features.dtype == torch.float16
    tensors = {"features": torch.from_numpy(features).bfloat16(), "labels": torch.from_numpy(labels)}
    save_tensors(tmp_path / "f.safetensors", tensors)
    assert torch.equal(import_bank(tmp_path / "f.safetensors").features, tensors["features"].float())


def test_a_file_for_each_part(tmp_path: Path, features: np.ndarray) -> None:
    names = {Part.BASE_TRAIN: ["cat", "dog"], Part.BASE_HELD_OUT: ["dog", "cat"], Part.NOVEL: ["bee", "ant"]}
    for i, (part, words) in enumerate(names.items()):
        labels = np.array(words * 5)
        np.savez(tmp_path / f"{part.value}.npz", features=features[10 * i : 10 * i + 10], labels=labels)
    bank = import_parts({part: tmp_path / f"{part.value}.npz" for part in names})
    assert bank.class_names == ("ant", "bee", "cat", "dog")
    np.testing.assert_array_equal(bank.features, features[:30])
    spelt = [bank.class_names[label] for label in bank.labels]
    assert spelt == ["cat", "dog"] * 5 + ["dog", "cat"] * 5 + ["bee", "ant"] * 5
    assert bank.parts.tolist() == [0] * 10 + [1] * 10 + [3] * 10


def test_a_block_of_classes_with_weights_in_int8(tmp_path: Path) -> None:
    """``[class, image, dim]``, a scale for each image, names in the header, weights of the base classes."""
    made = synthetic_bank(12, 4, 4, 20, 16, seed=2, spread=0.5, held_out_per_class=0)
    rows = made.features.float()
    scales = (rows.abs().amax(1) / 127).half()
    tensors = {
        "features": (rows / scales.float()[:, None]).round().clamp(-127, 127).to(torch.int8).view(20, 20, 16),
        "feature_scale": scales.view(20, 20),
        "base_weights": made.base_weights,
        "cosine_scale": torch.tensor([14.0]),
    }
    names = [f"n{i:08}" for i in range(20)]
    save_tensors(tmp_path / "f.safetensors", tensors, {"classes": ",".join(names)})
    bank = import_bank(tmp_path / "f.safetensors", validation=["12..15"], novel=["16..19"], held_out=5)
    assert (bank.n_base, bank.dim, list(bank.class_names)) == (12, 16, names)
    assert bank.counts(Part.BASE_TRAIN) == [15] * 12
    assert bank.cosine_scale == 14.0
    assert bank.base_weights is not None
    held = bank.select(Part.BASE_HELD_OUT)
    scores = held.features @ torch.nn.functional.normalize(bank.base_weights, dim=1).T
    assert (scores.argmax(1) == held.labels).float().mean() > 0.9  # rows, weights and labels belong together
