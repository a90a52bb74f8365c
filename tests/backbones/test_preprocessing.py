"""A backbone sees its pictures as it was trained to: the same pixels as the library it comes from."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from made_trees import folders
from PIL import Image
from torch import Tensor, nn

from wdae.backbones.external import of_timm, of_transformers
from wdae.backbones.preprocessing import Preprocessing, refuse_other
from wdae.classifier import load
from wdae.classifier.picture_backbone import PictureBackbone, load_backbone
from wdae.cli.app import run_app
from wdae.cli.main import root
from wdae.config.augment import AugmentConfig
from wdae.data.augment import prepare
from wdae.data.decode import fit
from wdae.errors import ModelError, RecipeError, WdaeError

SIZES = ((37, 53), (224, 224), (300, 201), (90, 640), (83, 84))


def picture(height: int, width: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Smooth shapes and noise, so that filters and borders show."""
    rng = np.random.default_rng(height * 1000 + width)
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / (5 + c)) + np.cos(y / (7 + c)) for c in range(3)], -1)
    return np.clip(128 + 45 * waves + rng.normal(0, 25, waves.shape), 0, 255).astype(np.uint8)


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    files = []
    for height, width in SIZES:
        file = tmp_path / f"{height}x{width}.png"
        Image.fromarray(picture(height, width)).save(file)
        files.append(file)
    return files


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float(((ours - theirs).norm(dim=1) / theirs.norm(dim=1)).max())


@pytest.mark.parametrize("size", SIZES)
def test_the_default_rule_is_what_it_always_was(size: tuple[int, int]) -> None:
    rule, pixels = Preprocessing(image_size=84), picture(*size)
    assert rule.is_plain and rule.at_least == 168
    assert not rule.changed(interpolation="bicubic").is_plain  # decoded whole, as libraries do
    assert np.array_equal(rule(pixels), fit(pixels, 84))
    batch = torch.from_numpy(rule(pixels).copy()).permute(2, 0, 1)[None]
    assert torch.equal(rule.prepare(batch), prepare(batch, AugmentConfig(size=84)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rounding", ["even", "down"])
@pytest.mark.parametrize("how", ["bilinear", "bicubic", "lanczos"])
def test_resize_then_cut(size: tuple[int, int], rounding: Any, how: Any) -> None:
    """The slow, obvious way: resize all of it, then cut whole pixels out."""
    rule = Preprocessing(image_size=56, resize=64, fit="shortest", rounding=rounding, interpolation=how)
    image = Image.fromarray(picture(*size))
    short = min(image.size)
    wide, tall = (int(64 * side / short) for side in image.size)
    resized = np.asarray(image.resize((wide, tall), Image.Resampling[how.upper()]))
    cut = round if rounding == "even" else math.floor
    top, left = cut((tall - 56) / 2), cut((wide - 56) / 2)
    wanted = resized[top : top + 56, left : left + 56].astype(int)
    assert np.array_equal(rule(np.asarray(image)), wanted)


def test_a_strip_takes_no_memory() -> None:
    rule = Preprocessing(image_size=224, resize=256, fit="shortest")
    assert rule(np.zeros((1, 2_000_000, 3), np.uint8)).shape == (224, 224, 3)  # resized whole: 393 GB
    strip = picture(8, 20_000)
    wide = strip[:, 9_500:10_500]  # the one is cut first, the other after
    assert np.abs(rule(strip).astype(int) - rule(wide).astype(int)).mean() < 2


def test_values_and_range() -> None:
    batch = torch.full((1, 3, 4, 4), 51, dtype=torch.uint8)
    rule = Preprocessing(image_size=4, mean=(1.0, 2.0, 3.0), std=(2.0, 2.0, 2.0), value_range=255.0)
    assert rule.prepare(batch)[0, :, 0, 0].tolist() == pytest.approx([25.0, 24.5, 24.0])


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"image_size": 0}, "image_size"),
        ({"image_size": 8, "std": [1, 1, 0]}, "std"),
        ({"image_size": 8, "mean": [0.5]}, "mean"),
        ({"image_size": 8, "resize": 4}, "less than image_size"),
        ({"image_size": 8, "interpolation": "cubic"}, "'bicubic'"),
    ],
)
def test_impossible_rules(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Preprocessing.of(facts)


def test_options_change_it() -> None:
    rule = Preprocessing(image_size=224, resize=256, fit="shortest")
    assert rule.changed() == rule
    assert rule.changed(side=112).resize == 128
    changed = rule.changed(crop=1.0, mean=(0.5, 0.5, 0.5), interpolation="lanczos")
    assert (changed.resize, changed.mean, changed.interpolation) == (224, (0.5, 0.5, 0.5), "lanczos")
    with pytest.raises(RecipeError, match="crop is 2"):
        rule.changed(crop=2.0)
    with pytest.raises(ModelError, match=r"a and b do not see pictures alike.*a: 224 px.*b: 112 px"):
        refuse_other(rule, "a", rule.changed(side=112), "b")


# --- transformers ----------------------------------------------------------------------------------------

_PROCESSORS = {
    "ViTImageProcessor": {
        "size": {"height": 32, "width": 32},
        "resample": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
    "BitImageProcessor": {
        "size": {"shortest_edge": 41},
        "crop_size": {"height": 32, "width": 32},
        "resample": 3,
        "image_mean": [0.4, 0.5, 0.6],
        "image_std": [0.2, 0.3, 0.25],
    },
    "ConvNextImageProcessor": {"size": {"shortest_edge": 32}, "crop_pct": 0.8, "resample": 3},
}


@pytest.mark.parametrize("kind", _PROCESSORS)
def test_transformers_as_its_own_processor(kind: str, photos: list[Path], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra dev")
    folder = tmp_path / "net"
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32
    )
    transformers.ViTModel(config).save_pretrained(folder)
    processor = _processor(transformers, kind)(**_PROCESSORS[kind])
    processor.save_pretrained(folder)
    backbone = load_backbone(f"transformers:{folder}")
    assert backbone.image_size == 32
    model = transformers.AutoModel.from_pretrained(folder).eval()
    pixels = [np.asarray(Image.open(file)) for file in photos]
    with torch.no_grad():
        seen = [model(**processor(one, return_tensors="pt")).pooler_output for one in pixels]
    assert relative(backbone.features(photos), torch.cat(seen)) < 1e-3


def _processor(transformers: ModuleType, kind: str) -> Any:
    """The one that works on Pillow's pictures, wherever this version of the library has it."""
    for name in (kind, f"{kind}Pil"):
        found = getattr(transformers, name, None)
        try:
            if found is not None and found() is not None:
                return found
        except ImportError:  # the variant that needs torchvision
            continue
    pytest.skip(f"this transformers has no {kind} that works without torchvision")


def test_processors_that_make_no_squares_are_refused() -> None:
    class Processor:
        size = {"shortest_edge": 224}  # noqa: RUF012

    with pytest.raises(RecipeError, match="no squares of one size"):
        of_transformers(Processor())


# --- timm ------------------------------------------------------------------------------------------------


class Averages(nn.Module):
    """Average colours of a grid: features that show every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(8)

    def forward(self, images: Tensor) -> Tensor:
        return self.pool(images).flatten(1)


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A stand-in for timm: one model, whose data configuration the test may change."""
    config: dict[str, Any] = {
        "input_size": (3, 48, 48),
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "crop_mode": "center",
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.4, 0.3),
    }

    def create_model(name: str, pretrained: bool, num_classes: int) -> nn.Module:
        if name != "tiny":
            raise RuntimeError(f"Unknown model ({name})")
        model = Averages()
        model.pretrained_cfg = config  # type: ignore[assignment]
        return model

    stand_in = ModuleType("timm")
    stand_in.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", stand_in)
    return config


@pytest.mark.parametrize("mode", ["center", "squash"])
def test_timm_by_its_data_configuration(timm: dict[str, Any], photos: list[Path], mode: str) -> None:
    timm["crop_mode"] = mode
    backbone = load_backbone("timm:tiny")
    assert (backbone.mean, backbone.std) == (timm["mean"], timm["std"])
    model, wanted = Averages(), []
    for file in photos:
        image, size = Image.open(file), math.floor(48 / 0.9)
        short = min(image.size)
        shape = [int(size * side / short) for side in image.size] if mode == "center" else [size, size]
        image = image.resize((shape[0], shape[1]), Image.Resampling.BICUBIC)
        left, top = (round((side - 48) / 2) for side in shape)
        values = torch.from_numpy(np.array(image.crop((left, top, left + 48, top + 48)))).float() / 255
        normalised = (values - torch.tensor(timm["mean"])) / torch.tensor(timm["std"])
        wanted.append(model(normalised.permute(2, 0, 1)[None]))
    assert relative(backbone.features(photos), torch.cat(wanted)) < 1e-3


def test_what_timm_cannot_make(timm: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="timm cannot make 'huge': Unknown model"):
        load_backbone("timm:huge")
    with pytest.raises(RecipeError, match="crop_mode 'border'"):
        of_timm(timm | {"crop_mode": "border"})


def test_a_broken_torchvision_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    folders(tmp_path / "photos", ["n1", "n2"], 4, seed=0)
    words = ["learn", str(tmp_path / "photos"), "-o", str(tmp_path / "m"), "--backbone", "timm:resnet18"]
    assert run_app(root(), words) == 2
    said = capsys.readouterr().err
    assert "torchvision::nms does not exist" in said and "Traceback" not in said
    assert len([line for line in said.splitlines() if line.startswith("error:")]) == 1


# --- factories -------------------------------------------------------------------------------------------

_OWN = """
from torch import nn
class Net(nn.Module):
    image_size, mean, std, interpolation = 16, (0.5, 0.5, 0.5), [0.25, 0.25, 0.25], "bicubic"
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        nn.init.constant_(self.conv.weight, 0.1)
        nn.init.zeros_(self.conv.bias)
    def forward(self, x):
        return self.conv(x).mean((2, 3))
def net():
    return Net()
"""


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """In a folder that is not on Python's path, its factory not yet imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(folder))])
        patch.delitem(sys.modules, "eyes_of_mine", raising=False)
        yield


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a factory and photos in it, and a model ``m`` that was learned with them."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "eyes_of_mine.py").write_text(_OWN)
    folders(folder / "photos", ["n1", "n2", "n3"], 6, seed=0)
    words = ["learn", "photos", "-o", "m", "--backbone", "eyes_of_mine:net", "--method", "initial-estimate"]
    with working_in(folder):
        assert run_app(root(), [*words, "--crop", "0.8", "--device", "cpu"]) == 0
    return folder


@pytest.fixture
def at_work(learned: Path) -> Iterator[Path]:
    """That folder, to work in."""
    with working_in(learned):
        yield learned


def test_a_factory_in_the_working_folder(at_work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "eyes_of_mine:net"
    card = load("m", trust=name).backbone
    assert isinstance(card, PictureBackbone)
    rule = card.preprocessing
    assert (rule.image_size, rule.resize, rule.interpolation) == (16, 20, "bicubic")
    assert (rule.mean, rule.std) == ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    photo = str(next((at_work / "photos" / "n1").iterdir()))
    assert run_app(root(), ["predict", "m", photo, "--trust", name]) == 0
    sys.modules.pop("eyes_of_mine", None)
    assert run_app(root(), ["predict", "m", photo]) == 2  # a file names it: that is no trust
    assert "--trust eyes_of_mine:net" in capsys.readouterr().err
    assert "eyes_of_mine" not in sys.modules and str(at_work) not in sys.path


def test_features_and_backbone_that_see_otherwise(at_work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extract = ["extract", "--data", "photos", "--backbone", "eyes_of_mine:net", "-o", "bank"]
    assert run_app(root(), [*extract, "--precision", "float32"]) == 0
    learn = ["learn", "bank", "--backbone", "eyes_of_mine:net", "--method", "initial-estimate", "-o"]
    assert run_app(root(), [*learn, "m1", "--mean", "0", "0", "0"]) == 2
    said = capsys.readouterr().err
    assert "do not see pictures alike" in said and "mean 0.5 0.5 0.5" in said and "mean 0 0 0" in said
    assert run_app(root(), [*learn, "m2"]) == 0
    from wdae.bank import FeatureBank

    bank = FeatureBank.open("bank")
    files = sorted((at_work / "photos" / "n1").iterdir())
    seen = load("m2", trust="eyes_of_mine:net").backbone.features(files)  # type: ignore[union-attr]
    rows = bank.features[bank.labels == bank.class_names.index("n1")]
    assert torch.cdist(seen, rows).min(1).values.max() < 1e-5


def test_a_side_that_the_network_does_not_take(at_work: Path) -> None:
    with pytest.raises(ModelError, match="takes no pictures of 2 px"):
        load_backbone("eyes_of_mine:net", side=2)


def test_absent_libraries_keep_their_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(WdaeError, match="pip install timm"):
        load_backbone("timm:resnet18")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_is_not_there(at_work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = str(next((at_work / "photos" / "n1").iterdir()))
    name = "eyes_of_mine:net"
    assert run_app(root(), ["learn", "photos", "-o", "n", "--backbone", name, "--device", "cuda"]) == 2
    assert "no usable GPU" in capsys.readouterr().err
    for command in (["predict", "m", photo], ["add", "m", "--class", "d", photo]):
        assert run_app(root(), [*command, "--trust", name, "--device", "cuda:3"]) == 2
        assert "no usable GPU" in capsys.readouterr().err
        assert run_app(root(), [*command, "--trust", name, "--device", "auto"]) == 0
