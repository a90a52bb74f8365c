"""An ONNX file as a backbone: batched, kept whole in the model, run only where it is named."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from made_trees import folders
from torch import Tensor, nn

from wdae.classifier import load
from wdae.classifier.picture_backbone import load_backbone
from wdae.cli.app import run_app
from wdae.cli.main import root
from wdae.errors import RecipeError, WdaeError
from wdae.export.about import facts_of

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

SEEN = {"mean": (0.5, 0.4, 0.3), "std": (0.5, 0.5, 0.25)}


class Net(nn.Module):
    """Two outputs: tokens that are no feature, and the feature."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.conv = nn.Conv2d(3, 7, 3, stride=2)
        with torch.no_grad():
            for value in self.conv.parameters():
                value.copy_(torch.randn(value.shape, generator=generator) / 3)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.conv(images)
        return maps.flatten(2).transpose(1, 2), maps.relu().mean((2, 3))


_MADE: dict[str, bytes] = {}


def exported(folder: Path, **how: Any) -> Path:
    """``folder/net.onnx``, written as :func:`export` does; each kind is made once."""
    if how.get("external_data"):
        return export(folder, **how)  # two files
    if str(how) not in _MADE:
        _MADE[str(how)] = export(folder, **how).read_bytes()
    (folder / "net.onnx").write_bytes(_MADE[str(how)])
    return folder / "net.onnx"


def export(folder: Path, *, batch: int | None = None, last: bool = False, **options: Any) -> Path:
    """``folder/net.onnx``; ``batch``: for that many pictures only; ``last``: colours come last."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            return self.net(images.permute(0, 3, 1, 2))  # type: ignore[no-any-return]

    path = folder / "net.onnx"
    items = torch.rand(batch or 2, *((16, 16, 3) if last else (3, 16, 16)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Turned() if last else Net(),
            (items,),
            str(path),
            input_names=["pixels"],
            output_names=["tokens", "feature"],
            dynamic_shapes=None if batch else ({0: torch.export.Dim("batch", min=1)},),
            dynamo=True,
            verbose=False,
            **{"external_data": False, **options},
        )
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    folders(folder, ["n1", "n2", "n3"], 6, seed=0)
    return folder


def pictures(photos: Path) -> list[Path]:
    return sorted(photos.rglob("*.*g"))


@pytest.mark.parametrize("made", [{}, {"batch": 1}, {"batch": 4}, {"last": True}, {"external_data": True}])
def test_features_are_the_networks(tmp_path: Path, photos: Path, made: dict[str, Any]) -> None:
    path = exported(tmp_path, **made)
    backbone = load_backbone(f"onnx:{path}", **SEEN)
    assert (backbone.image_size, backbone.dim) == (16, 7)
    rule, files, net = backbone.preprocessing, pictures(photos), Net()
    from wdae.data import FileSource

    source = FileSource(tuple(map(str, files)))
    batch = torch.stack([torch.from_numpy(rule(source.read(i)).copy()) for i in range(len(files))])
    with torch.no_grad():
        wanted = net(rule.prepare(batch.permute(0, 3, 1, 2)))[1]
    assert (backbone.features(files) - wanted).abs().max() < 1e-5


def test_a_model_keeps_the_file_and_needs_trust(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = exported(tmp_path)
    Path(f"{path}.json").write_text(json.dumps(SEEN | {"interpolation": "bicubic", "output": "feature"}))
    name, model = f"onnx:{path}", str(tmp_path / "m")
    learn = ["learn", str(photos), "-o", model, "--backbone", name, "--method", "initial-estimate"]
    assert run_app(root(), [*learn, "--device", "cpu"]) == 0
    photo = str(pictures(photos)[0])
    before = load_backbone(name).features([photo])
    path.unlink()
    assert run_app(root(), ["predict", model, photo]) == 2  # a graph of a stranger may ask for anything
    assert f"--trust {name}" in capsys.readouterr().err
    assert run_app(root(), ["predict", model, photo, "--trust", name, "--device", "cpu"]) == 0
    backbone = load(model, trust=name).backbone
    assert backbone is not None and backbone.preprocessing.interpolation == "bicubic"
    assert torch.equal(backbone.features([photo]), before)
    whole = str(tmp_path / "m.onnx")
    assert run_app(root(), ["export", model, "--to", "onnx", "-o", whole, "--trust", name]) == 0
    assert not facts_of(whole)["can_be_taught"]  # its backbone is a part of the graph


@pytest.mark.parametrize(
    ("given", "seen", "message"),
    [
        (None, {}, r"does not say how it wants its pictures \(mean, std\)"),
        ({"mean": [0, 0, 0], "std": [1, 1, 0]}, {}, "std"),
        ({"colour": 1}, SEEN, "unknown colour"),
        ({"output": "nothing"}, SEEN, "no output 'nothing'; it has: tokens, feature"),
    ],
)
def test_what_it_must_say(
    tmp_path: Path, given: dict[str, Any] | None, seen: dict[str, Any], message: str
) -> None:
    path = exported(tmp_path)
    if given is not None:
        Path(f"{path}.json").write_text(json.dumps(given))
    with pytest.raises(WdaeError, match=message):
        load_backbone(f"onnx:{path}", **seen)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such file"):
        load_backbone(f"onnx:{tmp_path / 'none.onnx'}", **SEEN)
    (tmp_path / "bad.onnx").write_bytes(b"not a graph")
    with pytest.raises(RecipeError, match="cannot open the graph"):
        load_backbone(f"onnx:{tmp_path / 'bad.onnx'}", **SEEN)


def test_bytes_in_a_model_read_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph whose weights are said to lie in a file beside it gets none, in whatever folder it is run."""
    exported(tmp_path)
    proto = onnx.load(str(tmp_path / "net.onnx"))
    onnx.save(
        proto, str(tmp_path / "torn.onnx"), save_as_external_data=True, location="data.bin", size_threshold=0
    )
    from wdae.backbones.onnx_file import OnnxNetwork

    content = torch.frombuffer(bytearray((tmp_path / "torn.onnx").read_bytes()), dtype=torch.uint8)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match="cannot open the graph"):
        OnnxNetwork(content).session()
