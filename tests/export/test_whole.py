"""ONNX files from a picture on: the library's pixels, answers and unknown, and back again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from PIL import Image

from wdae.backbones.preprocessing import Preprocessing
from wdae.classifier import Model, load, save
from wdae.classifier.embedded import embedded_model
from wdae.classifier.predictions import predictions
from wdae.cli.main import main
from wdae.errors import ModelError, WdaeError
from wdae.export import export_onnx
from wdae.export.about import facts_of
from wdae.export.graph import IR, OPSET, Builder
from wdae.export.preprocessing_graph import add_preprocessing
from wdae.export.whole import open_export

RULES: list[dict[str, Any]] = [
    {"image_size": 84},
    {"image_size": 64, "resize": 72, "interpolation": "bicubic"},
    {"image_size": 32, "resize": 36, "fit": "shortest", "interpolation": "bicubic"},
    {"image_size": 32, "resize": 37, "fit": "shortest", "rounding": "down"},
    {"image_size": 24, "resize": 28, "fit": "stretch", "interpolation": "lanczos"},
    {"image_size": 24, "interpolation": "box"},
    {"image_size": 24, "interpolation": "hamming", "value_range": 255.0},
]
SIZES = [(97, 131), (240, 160), (33, 33), (84, 84), (500, 375), (10, 300), (1, 1), (3, 2)]


def drawn(tall: int, wide: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    rng = np.random.default_rng((tall, wide, seed))
    coarse = Image.fromarray(rng.integers(0, 256, (6, 5, 3), np.uint8))
    smooth = np.asarray(coarse.resize((wide, tall), Image.Resampling.BICUBIC)).astype(int)
    return (smooth + rng.integers(-20, 21, smooth.shape)).clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def model() -> Model:
    learned = embedded_model()
    rows = torch.rand(5, learned.base.dim, generator=torch.Generator().manual_seed(0))
    learned.add({"okapi": rows[:3], "café «ß»": rows[3:]})
    return learned


@pytest.fixture(scope="module")
def file(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_onnx(model, tmp_path_factory.mktemp("export") / "m.onnx")


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_same_pixels(rule: dict[str, Any]) -> None:
    seen, graph = Preprocessing(mean=(0, 0, 0), std=(1, 1, 1), **rule), Builder()
    out = add_preprocessing(graph, "picture", seen)
    given = helper.make_tensor_value_info("picture", TensorProto.UINT8, ["h", "w", 3])
    found = helper.make_tensor_value_info(out, TensorProto.FLOAT, None)
    made = helper.make_graph(graph.nodes, "g", [given], [found], initializer=graph.tensors)
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)])
    proto.ir_version = IR
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for tall, wide in SIZES:
        picture = drawn(tall, wide)
        pixels = session.run(None, {"picture": picture})[0][0].transpose(1, 2, 0) * 255 / seen.value_range
        apart = np.abs(pixels - seen(picture))
        assert apart.max() < 1.01 and (apart > 0.01).mean() < 1e-3  # Pillow has a box's corners in 32 bits


def test_nearest_is_refused() -> None:
    with pytest.raises(ModelError, match="squares"):
        add_preprocessing(Builder(), "picture", Preprocessing(image_size=8, interpolation="nearest"))


def test_the_same_answers_in_a_process_without_this_library(model: Model, file: Path, tmp_path: Path) -> None:
    pictures = [drawn(tall, wide, seed) for tall, wide in SIZES for seed in (1, 2)]
    np.savez(tmp_path / "p.npz", *pictures)
    program = (
        "import json, sys, numpy as np, onnxruntime\n"
        f"session = onnxruntime.InferenceSession({str(file)!r})\n"
        f"for picture in np.load({str(tmp_path / 'p.npz')!r}).values():\n"
        "    wanted = ['name', 'probabilities', 'unknown']\n"
        "    name, chances, unknown = session.run(wanted, {'picture': picture})\n"
        "    print(json.dumps([str(name), chances.tolist(), bool(unknown)]))\n"
        "assert not {'wdae', 'torch', 'PIL'} & set(sys.modules)\n"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    backbone = model.backbone
    assert backbone is not None
    for line, picture in zip(output.stdout.splitlines(), pictures, strict=True):
        name, chances, unknown = json.loads(line)
        square = torch.from_numpy(backbone.preprocessing(picture).copy()).permute(2, 0, 1)[None]
        with torch.no_grad():
            features = backbone.network(backbone.preprocessing.prepare(square))
        want = predictions(model, features, len(model.names))[0]
        assert name == want.classes[0] and unknown == want.unknown
        told = dict(zip(want.classes, want.probabilities, strict=True))
        np.testing.assert_allclose(chances, [told[one] for one in model.names], atol=1e-4)


def test_what_a_file_says_of_itself(file: Path, model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    facts = facts_of(file)
    assert facts["labels"] == list(model.names) and facts["opset"] == OPSET and facts["n_base"] == 64
    assert facts["preprocessing"]["image_size"] == model.backbone.image_size  # type: ignore[union-attr]
    assert facts["unknown"]["false_alarms"] == 0.05 and "never seen" in facts["unknown"]["in_words"]
    assert facts["inputs"] == {"picture": ["height", "width", 3]} and facts["can_be_taught"]
    proto = onnx.load(str(file))
    assert proto.opset_import[0].version == OPSET
    assert b"/site-packages/" not in file.read_bytes()  # where it was made is nobody's business
    with pytest.raises(SystemExit) as left:
        main(["info", str(file)])
    assert not left.value.code and "okapi" in capsys.readouterr().out


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_smaller_files(model: Model, file: Path, tmp_path: Path, precision: Any) -> None:
    small = export_onnx(model, tmp_path / "s.onnx", precision=precision, lean=True)
    lean = export_onnx(model, tmp_path / "l.onnx", lean=True)
    share = small.stat().st_size / lean.stat().st_size
    assert share < (0.56 if precision == "float16" else 0.35)
    sessions = [onnxruntime.InferenceSession(str(one)) for one in (small, lean)]
    for tall, wide in SIZES[:3]:
        got, want = (one.run(["features"], {"picture": drawn(tall, wide)})[0] for one in sessions)
        near = 1e-2 if precision == "float16" else 0.1
        assert np.linalg.norm(got - want) < near * np.linalg.norm(want)
    with pytest.raises(ModelError, match="--lean"):
        open_export(small)


def test_questions(model: Model, tmp_path: Path) -> None:
    chosen = export_onnx(model, tmp_path / "o.onnx", only="added", expect=None, false_alarms=0.0, lean=True)
    session = onnxruntime.InferenceSession(str(chosen))
    names, unknown = session.run(["names", "unknown"], {"picture": drawn(50, 60)})
    assert names.tolist() == list(model.added) and not unknown


def test_opened_again(model: Model, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(model, tmp_path / "m")
    for start, name in ((file, "a"), (tmp_path / "m", "b")):
        with pytest.raises(SystemExit) as left:
            main(["learn", "--from", str(start), "-o", str(tmp_path / name)])
        assert not left.value.code
        again = load(tmp_path / name)
        rows = torch.rand(4, model.base.dim, generator=torch.Generator().manual_seed(2))
        torch.testing.assert_close(again.scores(rows), model.scores(rows))
        again.add({"zebra": rows[:1]})
        assert again.backbone is not None and again.backbone.name == "embedded"
    with pytest.raises(SystemExit):
        main(["learn", str(tmp_path), "--from", str(file), "-o", str(tmp_path / "c")])
    assert "leave" in capsys.readouterr().err


def test_what_is_no_export(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"hello")
    with pytest.raises(WdaeError, match=r"x\.onnx"):
        facts_of(tmp_path / "x.onnx")
    onnx.save(helper.make_model(helper.make_graph([], "g", [], [])), str(tmp_path / "y.onnx"))
    with pytest.raises(WdaeError, match="no export"):
        facts_of(tmp_path / "y.onnx")
