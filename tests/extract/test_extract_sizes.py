"""Features averaged over sizes and crops: the right mean, the right pictures, resumed rightly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from made_trees import folders
from stage1_samples import Interrupted, extraction
from torch.nn import functional as F

from wdae.backbones import Backbone
from wdae.backbones import embed as embedding
from wdae.backbones.embed import embed, embed_crops
from wdae.bank import FeatureBank
from wdae.cli.main import main
from wdae.config import load
from wdae.config.augment import AugmentConfig
from wdae.config.shipped import EMBEDDED_BACKBONE
from wdae.data import ImageSet, PixelArray, open_dataset, pixels
from wdae.data.augment import augment
from wdae.data.splits import load_split
from wdae.errors import DataError, ModelError, RecipeError
from wdae.extract.config import ExtractConfig
from wdae.extract.run import extract
from wdae.parts import Part
from wdae.runtime.distributed import Team
from wdae.runtime.randomness import derive_seed
from wdae.stage1.model_file import load_model
from wdae.storage.files import sha256

ALONE = Team(0, 1, torch.device("cpu"))


def _features(tmp_path: Path, name: str, **changes: Any) -> FeatureBank:
    extract(extraction(tmp_path, **changes), tmp_path / name, ALONE)
    return FeatureBank.open(tmp_path / name)


@pytest.mark.parametrize("flip_average", [False, True])
def test_several_sizes_are_averaged(tmp_path: Path, flip_average: bool) -> None:
    small, large = (_features(tmp_path, f"{size}", size=size, flip_average=flip_average) for size in (16, 24))
    both = _features(tmp_path, "both", sizes=(16, 24), flip_average=flip_average)
    wanted = (F.normalize(small.features, dim=1) + F.normalize(large.features, dim=1)) / 2
    assert torch.allclose(both.features, wanted, atol=1e-6)
    assert not torch.allclose(F.normalize(small.features, dim=1), wanted, atol=1e-3)
    assert torch.equal(both.labels, small.labels)
    assert torch.equal(both.parts, small.parts)
    streamed = _features(tmp_path, "streamed", sizes=(16, 24), flip_average=flip_average, stream=True)
    assert torch.allclose(streamed.features, wanted, atol=1e-5)
    assert [bank.info["sizes"] for bank in (small, large, both)] == [[16], [24], [16, 24]]


def test_one_size_is_as_the_backbone_gives_it(tmp_path: Path) -> None:
    own, given, listed = (
        _features(tmp_path, name, **changes)
        for name, changes in (("own", {}), ("given", {"size": 16}), ("listed", {"sizes": (16,)}))
    )
    for bank in (given, listed):
        assert torch.equal(bank.features, own.features)
        assert bank.info == own.info
    config = extraction(tmp_path)
    assert config.trained is not None
    model, images = load_model(config.trained), open_dataset(config.data)
    chunk = pixels(images, 16, cache_dir=config.cache_dir).tensor()
    look = AugmentConfig(size=16, mean=tuple(model.card["mean"]), std=tuple(model.card["std"]))
    plain = embed(model.network.backbone, chunk, look, device=ALONE.device, batch=7, precision="float32")
    assert torch.allclose(own.features, plain, atol=1e-6)
    assert not torch.allclose(plain.norm(dim=1), torch.ones(len(plain)), atol=1e-2)


@pytest.mark.parametrize("stream", [False, True])
def test_an_unreadable_picture_is_left_out_at_every_size(tmp_path: Path, stream: bool) -> None:
    extraction(tmp_path)
    (tmp_path / "pictures" / "novel" / "novel-0" / "3.png").write_bytes(b"no picture")
    small, large, both = (
        _features(tmp_path, name, sizes=sizes, skip_broken=True, stream=stream)
        for name, sizes in (("small", (16,)), ("large", (24,)), ("both", (16, 24)))
    )
    assert len(both.labels) == 79
    wanted = (F.normalize(small.features, dim=1) + F.normalize(large.features, dim=1)) / 2
    assert torch.allclose(both.features, wanted, atol=1e-6)


def test_rows_that_differ_between_sizes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wdae.extract import job as module

    def one_lost(images: ImageSet, size: int, **options: Any) -> PixelArray:
        array = pixels(images, size, **options)
        keep = slice(None) if size == 16 else slice(1, None)
        return replace(array, data=array.data[keep], kept=array.kept[keep])

    monkeypatch.setattr(module, "pixels", one_lost)
    with pytest.raises(
        DataError, match=r"1 pictures \(the first: number 0\) could be read at 16 or 24 pixels"
    ):
        extract(extraction(tmp_path, sizes=(16, 24)), tmp_path / "bank", ALONE)


def test_chunks_of_other_sizes_are_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two, three = extraction(tmp_path, sizes=(16, 24)), extraction(tmp_path, sizes=(16, 20, 24))
    calls = Interrupted(monkeypatch, "embed", stop_at=4)
    for name in ("same", "other"):
        calls.made = []
        with pytest.raises(KeyboardInterrupt):
            extract(two, tmp_path / name, ALONE)
    # The second chunk was cut short at its second size: it is made again, the first is not.
    calls.go_on()
    extract(two, tmp_path / "same", ALONE)
    assert calls.made == [(32, 16), (32, 24), (16, 16), (16, 24)]
    calls.go_on()
    extract(three, tmp_path / "other", ALONE)
    assert calls.made == [(count, side) for count in (32, 32, 16) for side in (16, 20, 24)]
    extract(three, tmp_path / "fresh", ALONE)
    other, fresh = (FeatureBank.open(tmp_path / name) for name in ("other", "fresh"))
    assert torch.equal(other.features, fresh.features)


def test_sizes_by_command(tmp_path: Path) -> None:
    config = extraction(tmp_path)
    words = [
        "extract",
        "--data",
        f"{config.data}",
        "--backbone",
        f"{config.trained}",
        "--precision",
        "float32",
    ]
    words += ["--cache_dir", f"{config.cache_dir}"]
    spellings = (["--sizes", "16", "24"], ["--sizes", "16,24"], ["--sizes", "16", "--sizes", "24"])
    for number, spelling in enumerate(spellings):
        with pytest.raises(SystemExit) as end:
            main([*words, *spelling, "-o", f"{tmp_path / f'bank-{number}'}"])
        assert end.value.code == 0
        assert FeatureBank.open(tmp_path / f"bank-{number}").info["sizes"] == [16, 24]


def test_crops_are_averaged_and_count_as_one_more_side(tmp_path: Path) -> None:
    small, large = (_features(tmp_path, f"{size}", size=size) for size in (16, 24))
    many = _features(tmp_path, "many", sizes=(16, 24), crops=3, crop_area=(0.3, 0.6), chunk=50)
    config = extraction(tmp_path)
    assert config.trained is not None
    model, images = load_model(config.trained), open_dataset(config.data)
    whole = pixels(images, 24, cache_dir=config.cache_dir).tensor()
    look = AugmentConfig(
        size=16,
        crop="resized",
        area=(0.3, 0.6),
        brightness=0,
        contrast=0,
        saturation=0,
        mean=tuple(model.card["mean"]),
        std=tuple(model.card["std"]),
    )
    seen = []
    for start in (0, 50):
        drawn = torch.Generator().manual_seed(derive_seed(0, "crops", start))
        crops = [augment(whole[start : start + 50], look, drawn) for _ in range(3)]
        with torch.no_grad():
            seen.append(sum(F.normalize(model.network.backbone(crop), dim=1) for crop in crops) / 3)
    parts = (small.features, large.features, torch.cat(seen))
    wanted = sum(F.normalize(part, dim=1) for part in parts) / 3
    assert torch.allclose(many.features, wanted, atol=1e-5)
    assert not torch.allclose(F.normalize(parts[2], dim=1), F.normalize(parts[0], dim=1), atol=1e-2)
    assert many.info["crops"] == 3
    assert many.info["crop_area"] == [0.3, 0.6]
    assert "crops" not in small.info
    other = _features(tmp_path, "other", sizes=(16, 24), crops=3, crop_area=(0.3, 0.6), chunk=50, batch=7)
    assert torch.allclose(other.features, many.features, atol=1e-5)


@pytest.mark.parametrize("stream", [False, True])
def test_crops_are_of_their_own_picture_where_one_is_left_out(tmp_path: Path, stream: bool) -> None:
    extraction(tmp_path)
    (tmp_path / "pictures" / "base" / "base-1" / "9.png").write_bytes(b"no picture")
    plain, mirrored, cropped = (
        _features(tmp_path, name, skip_broken=True, stream=stream, **changes)
        for name, changes in (
            ("plain", {}),
            ("mirrored", {"flip_average": True}),
            ("cropped", {"crops": 1, "crop_area": (1.0, 1.0)}),
        )
    )
    assert len(cropped.labels) == 79
    # A crop that shows everything is the picture itself, or its mirror image.
    wanted = torch.stack([F.normalize(plain.features, dim=1), mirrored.features])
    near = (cropped.features - wanted).abs().amax(dim=2) < 1e-5
    assert near.any(dim=0).all()
    assert near.any(dim=1).all()


def test_crops_are_cut_in_full_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, real = extraction(tmp_path), embedding.eager_features
    assert config.trained is not None
    backbone, seen = load_model(config.trained).network.backbone, []

    def kept(backbone: Backbone, pictures: torch.Tensor) -> torch.Tensor:
        seen.append(pictures)
        return real(backbone, pictures)

    monkeypatch.setattr(embedding, "eager_features", kept)
    chunk = pixels(open_dataset(config.data), 24, cache_dir=config.cache_dir).tensor()[:8]
    look = AugmentConfig(size=16, crop="resized", brightness=0, contrast=0, saturation=0)
    drawn = [torch.Generator().manual_seed(0) for _ in range(2)]
    embed_crops(backbone, chunk, look, 2, drawn[0], device=ALONE.device, precision="bf16")
    for pictures in seen:
        assert torch.equal(pictures, augment(chunk, look, drawn[1]))
    assert len(seen) == 2


def test_chunks_of_other_crops_are_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Interrupted(monkeypatch, "embed_crops")
    with pytest.raises(KeyboardInterrupt):
        extract(extraction(tmp_path, crops=2), tmp_path / "bank", ALONE)
    calls.go_on()
    extract(extraction(tmp_path, crops=2, crop_area=(0.5, 1.0)), tmp_path / "bank", ALONE)
    assert calls.made == [(32, 16), (32, 16), (16, 16)]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"size": 16, "sizes": [16, 24]}, "give either 'size' or 'sizes'"),
        ({"sizes": [16, 4]}, "'sizes' must be at least 8 each, got 4"),
        ({"sizes": [16, 24, 16]}, "'sizes' must differ, got 16, 24, 16"),
        ({"crop_area": [0.8, 0.5]}, "'crop_area' is two shares in 0 … 1"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(RecipeError, match=fault):
        load(ExtractConfig, None, {"data": "d", "model": "m"} | changes)


def test_the_backbone_inside_the_package_is_named_embedded(tmp_path: Path) -> None:
    """It knows its classes by WordNet number, as MiniImageNet does; what it held out is told apart."""
    split = load_split("mini-imagenet")
    folders(tmp_path / "data" / "base", split.base, 1, seed=0)
    folders(tmp_path / "data" / "novel", split.novel[:2], 1, seed=1)
    keys: dict[str, Any] = {"data": tmp_path / "data", "backbone": "embedded", "layout": "folders"}
    keys |= {"cache_dir": tmp_path}
    extract(ExtractConfig(**keys, held_out=0), tmp_path / "bank", ALONE)
    bank = FeatureBank.open(tmp_path / "bank")
    assert bank.n_base == 64 and bank.base_weights is not None and bank.dim == 400
    assert (bank.info["precision"], bank.info["sizes"]) == ("float32", [72])
    assert bank.info["model_sha256"] == sha256(EMBEDDED_BACKBONE / "model.safetensors")
    with pytest.raises(ModelError, match="has learned from some of them"):
        extract(ExtractConfig(**keys, held_out=1, seed=3), tmp_path / "other", ALONE)
    folders(tmp_path / "own" / "base", ["n00000001", "n00000002"], 3, seed=2)
    keys |= {"data": tmp_path / "own"}
    extract(ExtractConfig(**keys, held_out=1), tmp_path / "owned", ALONE)
    own = FeatureBank.open(tmp_path / "owned")
    assert (own.n_base, own.base_weights, own.counts(Part.BASE_HELD_OUT)) == (2, None, [1, 1])
    assert own.info["model_sha256"] == bank.info["model_sha256"] and "recipe" not in own.info
    keys |= {"data": tmp_path / "data"}
    (tmp_path / "data" / "base" / split.base[0]).rename(tmp_path / "data" / "base" / "n00000001")
    with pytest.raises(ModelError, match=f"differing: n00000001, {split.base[0]}"):
        extract(ExtractConfig(**keys, held_out=0), tmp_path / "third", ALONE)
