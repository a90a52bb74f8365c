"""Exports give what the model gives, and run without this library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from tiny_backbone import paint

from wdae.bank import FeatureBank
from wdae.classifier import Model, learn, save
from wdae.classifier.learning import learn_from_bank
from wdae.classifier.picture_backbone import PictureBackbone
from wdae.classifier.predictions import predictions
from wdae.cli.main import main
from wdae.errors import ModelError
from wdae.export import export_linear, export_onnx, export_torchscript
from wdae.nn.cosine import unit
from wdae.parts import Part
from wdae.synthetic import synthetic_bank

WHITENED = {"space.power": 0.7, "space.centre": 0.3, "space.shrink": 0.8}


@pytest.fixture(scope="module", params=[{}, WHITENED], ids=["", "whitened"])
def model(small_bank: FeatureBank, request: pytest.FixtureRequest) -> Model:
    short = {"denoiser.hidden": 16, "training.steps": 5, "evaluation.step_episodes": 20}
    learned = learn(small_bank, recipe=short | request.param)
    assert not request.param or (learned.head.space is not None and learned.head.space.whiten is not None)
    pool = small_bank.select(Part.NOVEL)
    learned.add({"okapi": pool.of_class(0)[:1], "café «ß»": pool.of_class(1)[:4]})
    return learned


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model with a real convolutional backbone, as ``wdae learn`` makes it."""
    from wdae import backbones
    from wdae.classifier.picture_bank import picture_bank
    from wdae.data import hold_out, open_dataset

    photos = paint(tmp_path_factory.mktemp("photos"), ["red", "green", "blue"], 6)
    torch.manual_seed(0)
    backbone = PictureBackbone.of(backbones.build("conv4-64", image_size=16), "conv4-64", {"image_size": 16})
    bank = picture_bank(hold_out(open_dataset(photos), 1, 0), backbone)
    learned = learn(bank)
    learned.backbone = backbone
    return learned


def queries(model: Model, n: int) -> torch.Tensor:
    return 3 * torch.randn(n, model.base.dim, generator=torch.Generator().manual_seed(n))


def test_linear_in_ten_lines_of_numpy(model: Model, tmp_path: Path) -> None:
    export_linear(model, tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", "np") as file:
        weight, bias = file.get_tensor("weight"), file.get_tensor("bias")
        power, centre = file.get_tensor("power"), file.get_tensor("centre")
        whiten = file.get_tensor("whiten") if "whiten" in file.keys() else np.eye(len(centre))  # noqa: SIM118
        labels = json.loads(file.metadata()["labels"])
    x = queries(model, 50).numpy()
    z = np.sign(x) * np.abs(x) ** power
    z = (z / np.linalg.norm(z, axis=1, keepdims=True) - centre) @ whiten
    scores = z / np.linalg.norm(z, axis=1, keepdims=True) @ weight.T + bias
    np.testing.assert_allclose(scores, model.scores(queries(model, 50)).numpy(), atol=1e-4)
    assert labels == list(model.names) and labels[-1] == "café «ß»"


def test_sets_of_classes_can_be_told_from_the_file_alone(tmp_path: Path) -> None:
    bank = synthetic_bank(16, 6, 2, 40, 16, seed=0, held_out_per_class=20)
    learned = learn(bank, method="initial-estimate")
    learned.add({f"new {c}": bank.select(Part.NOVEL).of_class(c)[:5] for c in range(2)})
    export_linear(learned, tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", "np") as file:
        weight, bias = file.get_tensor("weight"), file.get_tensor("bias")
        least = json.loads(file.metadata()["sets"])["0.90"]
    x = bank.select(Part.NOVEL).features.numpy()
    chances = np.exp(x @ weight.T + bias)
    chances /= chances.sum(1, keepdims=True)
    inside = chances >= [least["base"]] * 16 + least["added"]
    inside[np.arange(len(x)), chances.argmax(1)] = True
    np.testing.assert_array_equal(inside, learned.sets(torch.from_numpy(x), 0.9).numpy())
    export_linear(learned, tmp_path / "other.safetensors", expect=0.9)
    with safe_open(tmp_path / "other.safetensors", "np") as file:
        assert "sets" not in file.metadata()


def test_onnx_classifier(model: Model, tmp_path: Path) -> None:
    export_onnx(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert [i.name for i in session.get_inputs()] == ["features"]
    for n in (1, 3, 64):
        scores, chances, unknown = session.run(None, {"features": queries(model, n).numpy()})
        wanted = [one.unknown for one in predictions(model, queries(model, n))]
        assert unknown.tolist() == wanted
        np.testing.assert_allclose(scores, model.scores(queries(model, n)).numpy(), atol=1e-4)
        np.testing.assert_allclose(chances.sum(1), 1, atol=1e-5)
    labels = json.loads(session.get_modelmeta().custom_metadata_map["labels"])
    assert labels == list(model.names)


def test_onnx_tells_pictures_of_nothing(small_bank: FeatureBank, tmp_path: Path) -> None:
    """Beside an added class of them as well, and none of them where no false alarm is allowed."""
    dim = small_bank.dim
    generator = torch.Generator().manual_seed(9)
    nothing = unit(torch.ones(dim) + 0.3 * torch.randn(60, dim, generator=generator))
    model = learn_from_bank(small_bank, method="initial-estimate", outliers={"noise": nothing[:40]})
    pool = small_bank.select(Part.NOVEL)
    model.add({"okapi": pool.of_class(0)[:4]})
    for name, rate in (("a", 0.05), ("b", 0.05), ("c", 0.0)):
        if name == "b":
            model.add({"noise": nothing[:2]})
        export_onnx(model, tmp_path / f"{name}.onnx", false_alarms=rate)
        session = onnxruntime.InferenceSession(tmp_path / f"{name}.onnx")
        rows = torch.cat([nothing[40:], pool.features])
        unknown = session.run(None, {"features": rows.numpy()})[2]
        assert unknown.tolist() == [one.unknown for one in predictions(model, rows, false_alarms=rate)]
        assert (unknown[:20].mean() > 0.9) == (name == "a") and (unknown.any() == (rate > 0))


def test_onnx_from_squares_on(seeing: Model, tmp_path: Path) -> None:
    export_onnx(seeing, tmp_path / "m.onnx", "squares")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert session.get_inputs()[0].name == "images"
    pictures = torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    assert seeing.backbone is not None
    mean, std = (torch.tensor(seeing.backbone.card[k]).view(1, 3, 1, 1) for k in ("mean", "std"))
    with torch.no_grad():
        features = seeing.backbone.network((pictures - mean) / std)
    scores, _ = session.run(None, {"images": pictures.numpy()})
    np.testing.assert_allclose(scores, seeing.scores(features).numpy(), atol=1e-4)
    export_onnx(seeing, tmp_path / "c.onnx", "classifier")
    assert onnxruntime.InferenceSession(tmp_path / "c.onnx").get_inputs()[0].name == "features"


def test_torchscript_in_a_process_without_this_library(seeing: Model, tmp_path: Path) -> None:
    items = {"whole": torch.rand(3, 3, 16, 16), "classifier": queries(seeing, 3)}
    for part, some in items.items():
        export_torchscript(seeing, tmp_path / f"{part}.pt", part)  # type: ignore[arg-type]
        torch.save(some, tmp_path / f"{part}-items.pt")
    program = (
        "import json, sys, torch\n"
        f"for part in {[*items]!r}:\n"
        "    extra = {'labels': ''}\n"
        f"    model = torch.jit.load(f'{tmp_path}/{{part}}.pt', _extra_files=extra)\n"
        f"    scores, chances = model(torch.load(f'{tmp_path}/{{part}}-items.pt'))\n"
        "    print(json.dumps([json.loads(extra['labels']), scores.tolist()]))\n"
        "assert 'wdae' not in sys.modules\n"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in output.stdout.splitlines()]
    assert [labels for labels, _ in found] == [list(seeing.names)] * 2
    np.testing.assert_allclose(found[1][1], seeing.scores(items["classifier"]).numpy(), atol=1e-4)


def test_a_model_without_backbone_has_no_whole(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no backbone to export"):
        export_torchscript(model, tmp_path / "m.pt", "whole")
    assert list(tmp_path.iterdir()) == []


def test_the_command(model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(model, tmp_path / "model")
    for kind, name in (("linear", "model.safetensors"), ("torchscript", "model.pt"), ("onnx", "model.onnx")):
        with pytest.raises(SystemExit) as left:
            main(["export", str(tmp_path / "model"), "--to", kind])
        assert not left.value.code
        assert (tmp_path / name).stat().st_size > 1000
        assert "26 classes" in capsys.readouterr().out
