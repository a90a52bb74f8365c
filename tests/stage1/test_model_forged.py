"""Stage-1 models of strangers: no code is run, no memory is asked for that the file does not fill."""

import json
from pathlib import Path
from typing import Any

import pytest
from fuzz_mutations import seal

from wdae.backbones import build
from wdae.errors import ModelError, WdaeError
from wdae.stage1.model_file import load_model, save_model
from wdae.stage1.recognition_model import RecognitionModel
from wdae.storage.trust import trusting


@pytest.fixture
def model(tmp_path: Path) -> Path:
    card: dict[str, Any] = {"backbone": "conv4-64", "backbone_options": {"image_size": 16}}
    card |= {"class_names": ["a", "b"], "image_size": 16, "recipe": {}, "figures": {}}
    card |= {"mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]}
    save_model(tmp_path / "model", RecognitionModel(build("conv4-64", image_size=16), 2), card)
    return tmp_path / "model"


def forge(model: Path, **changes: Any) -> None:
    file = model / "model.json"
    file.write_text(json.dumps(seal(json.loads(file.read_text()) | changes)))


@pytest.mark.parametrize("version", [1, 2])
def test_a_factory_that_only_the_file_names_is_not_called(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    mark = tmp_path / "mark"
    forge(model, version=version, backbone="os:system", backbone_options={"command": f"touch {mark}"})
    with pytest.raises(ModelError, match="code that does not come with wdae"):
        load_model(model)
    (tmp_path / f"evil_mod_{version}.py").write_text(f"open({str(mark)!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    for name in (
        f"evil_mod_{version}:make",
        "timm:../evil",
        "transformers:./evil",
        "transformers:a/../b",
        "timm:hf_hub:x/y",
    ):
        forge(model, version=version, backbone=name, backbone_options={})
        with pytest.raises(ModelError, match="--trust"):
            load_model(model)
    assert not mark.exists()
    forge(model, backbone=f"evil_mod_{version}:make", backbone_options={})
    with pytest.raises(WdaeError, match="has no 'make'"):  # named by the user: imported, from here too
        load_model(model, trust=f"evil_mod_{version}:make")
    assert mark.exists()


def test_trust_is_for_one_name_and_one_block(model: Path) -> None:
    forge(model, backbone="no_such_module:make", backbone_options={})
    with trusting("no_such_module:make"), pytest.raises(WdaeError, match="cannot import"):
        load_model(model)
    with trusting("no_such_module:other"), pytest.raises(ModelError, match="--trust"):
        load_model(model)
    with pytest.raises(ModelError, match="--trust"):
        load_model(model)


@pytest.mark.parametrize(
    "changes",
    [
        {"backbone": "wide-resnet", "backbone_options": {"widen": 4000, "depth": 1000}},
        {"backbone": "wide-resnet", "backbone_options": {"widen": 10**9}},
        {"backbone_options": {"image_size": "16"}},
        {"backbone_options": {"image_size": -1}},
        {"backbone_options": {"image_size": [[1]]}},
        {"backbone_options": {"image_sise": 16}},
        {"backbone_options": []},
        {"backbone": "resnet12"},
        {"backbone": "no-such"},
        {"backbone": 7},
        {"class_names": ["a", "b", "c"]},
        {"class_names": "ab"},
        {"class_names": [1, 2]},
        {"image_size": 16.5},
        {"image_size": 10**9},
        {"mean": [0.5]},
        {"std": [0, 0, 0]},
        {"recipe": {"data": "x"}},
        {"recipe": {"data": {"held_out": "all"}}},
        {"files": {}},
        {"files": {"model.safetensors": {"bytes": 5}}},
        {"files": {"../model.safetensors": {"bytes": 5, "sha256": "0" * 64}}},
        {"more": 1},
    ],
)
def test_forged_cards_are_refused(model: Path, changes: dict[str, Any]) -> None:
    forge(model, **changes)
    with pytest.raises(WdaeError):
        load_model(model)


def test_a_link_in_place_of_the_weights(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.rename(model.parent / "elsewhere")
    weights.symlink_to(model.parent / "elsewhere")
    with pytest.raises(WdaeError, match="is a link"):
        load_model(model)
