"""Models of version 1 become models of version 2 with their next change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from wdae.classifier import changing, load
from wdae.classifier.store import ModelManifest
from wdae.methods.saved import load_method

V1 = Path(__file__).parents[1] / "fixtures" / "v1" / "models"


def test_every_version_is_written_or_has_an_upgrade() -> None:
    written = {2, 3}  # 3: models with an index of their classes
    assert not written & {*ModelManifest.UPGRADES}
    assert sorted({*ModelManifest.UPGRADES} | written) == list(range(1, ModelManifest.VERSION + 1))


@pytest.mark.parametrize("name", ["gnn", "gnn-refine-base", "mlp", "none"])
def test_a_change_upgrades_the_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(V1 / name, folder)
    before = load(folder)
    queries = torch.randn(5, before.base.dim, generator=torch.Generator().manual_seed(0))
    with changing(folder) as model:
        model.add({"another": queries[:2]})
        wanted = model.scores(queries)
    manifest = json.loads((folder / "model.json").read_text())
    assert manifest["version"] == 2 and "version_1" not in manifest
    assert not (folder / "ground.safetensors").exists() and "base.safetensors" in manifest["files"]
    assert load_method(folder / "method.safetensors").name == before.base.method.name
    assert torch.equal(load(folder).scores(queries), wanted)
    with changing(folder) as model:
        model.undo()
    assert torch.equal(load(folder).scores(queries), before.scores(queries))


def test_adding_opens_a_model_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has read a model changes it without reading it again, unless somebody else was quicker."""
    from wdae.classifier import store

    folder = tmp_path / "model"
    shutil.copytree(V1 / "gnn", folder)
    rows = torch.eye(load(folder).base.dim)
    read, times = store._read, []
    monkeypatch.setattr(store, "_read", lambda *a, **b: (times.append(1), read(*a, **b))[1])
    model = load(folder)
    with changing(folder, opened=model) as changed:
        changed.add({"first": rows[:1]})
    assert changed is model and len(times) == 1
    late = load(folder)
    with changing(folder) as other:
        other.add({"second": rows[1:2]})
    with changing(folder, opened=late) as changed:
        changed.add({"third": rows[2:3]})
    assert changed is not late and load(folder).added[-3:] == ("first", "second", "third")
