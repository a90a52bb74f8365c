"""Models of very many classes: an index proposes base classes, and everything else is as in a small model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from wdae import WDAE, Denoiser
from wdae.classifier.base_knowledge import BaseKnowledge
from wdae.classifier.light.manifest import INDEX
from wdae.classifier.model import Model
from wdae.classifier.predictions import predictions
from wdae.classifier.store import changing, load, save
from wdae.errors import ModelError, StorageError
from wdae.methods.calibration import Calibration
from wdae.nn.cosine import unit

pytest.importorskip("usearch")
N, D = 3000, 24


def rows(n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(60, D, generator=torch.Generator().manual_seed(99))
    which = torch.randint(60, (n,), generator=generator)
    return unit(centres[which] + torch.randn(n, D, generator=generator))


def models() -> tuple[Model, Model]:
    """The same classes with an index and without."""
    network = Denoiser(D, 16, generator=torch.Generator().manual_seed(1)).eval()
    balance = Calibration(12.0, slopes={5: 1.1}, offsets={5: 0.4}, familiarity=tuple(range(5)))
    method = WDAE(network, 12.0, {5: 0.5}, balance=balance, refine_base=False)
    names = [f"class {i}" for i in range(N)]
    base = [BaseKnowledge.of_weights(names, rows(N, 0), method, many=many) for many in (1, N + 1)]
    assert base[0].index is not None and base[1].index is None
    return Model(base[0]), Model(base[1])


def five() -> dict[str, Tensor]:
    return {f"new {i}": rows(5, 10 + i) for i in range(5)}


def test_answers_are_those_of_all_classes() -> None:
    large, small = models()
    queries = torch.cat([large.base.weights[:40] + 0.1 * rows(40, 3), torch.cat(list(five().values()))])
    for model in (large, small):
        model.add(five())
        model.add({"class 7": rows(60, 30)}, update=True)  # a base class whose weight moves
    a, b = (predictions(model, queries, top=3) for model in (large, small))
    assert [p.classes for p in a] == [p.classes for p in b]
    assert [p.unknown for p in a] == [p.unknown for p in b]
    assert all(p.candidates == 64 + 1 + 5 for p in a) and all(p.candidates is None for p in b)
    found, true = (torch.tensor([p.probabilities for p in some]) for some in (a, b))
    torch.testing.assert_close(found, true, atol=0.02, rtol=0.1)  # the share of the rest is estimated
    assert torch.equal(large.head.best(queries), small.head.best(queries))
    torch.testing.assert_close(large.scores(queries), small.scores(queries), atol=1e-4, rtol=0)
    assert json.loads(a[0].as_json("x"))["candidates"] == 70
    assert "candidates" not in json.loads(b[0].as_json("x"))
    a, b = (predictions(model, queries, only="added") for model in (large, small))
    assert [p.classes for p in a] == [p.classes for p in b] and a[0].candidates is None


def test_a_file_maps_the_index_and_a_change_leaves_it_alone(tmp_path: Path) -> None:
    large, _ = models()
    folder = tmp_path / "model"
    save(large, folder)
    manifest = json.loads((folder / "model.json").read_text())
    assert manifest["version"] == 3 and manifest["base_classes"] == []
    assert manifest["index"]["recall"] >= 0.98 and manifest["index"]["neighbours"] == 10
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir() if file.name != "model.json"}
    with changing(folder) as model:
        model.add(five())
    large.add(five())
    again = load(folder)
    assert again.names == large.names and again.base.index is not None
    assert {name: (folder / name).stat().st_mtime_ns for name in before} == before
    queries = rows(50, 4)
    a, b = (predictions(model, queries, top=2) for model in (again, large))
    assert [p.classes for p in a] == [p.classes for p in b]
    again.undo()
    assert again.names == again.base.names


def test_a_forged_index_is_refused(tmp_path: Path) -> None:
    from wdae.storage import manifest as manifests

    large, _ = models()
    save(large, tmp_path / "model")
    file = tmp_path / "model" / INDEX
    data = bytearray(file.read_bytes())
    data[8 + N * D * 2 + 64 + 40 + 2 * N + 10 + 4 + 3] = 0xFF  # the first link of the first class
    file.write_bytes(data)
    with pytest.raises(StorageError, match="altered"):
        load(tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    content = json.loads(path.read_text())
    content["files"][INDEX] = manifests.entry(file)
    content.pop("sha256")
    content["sha256"] = manifests.digest(content)
    path.write_text(json.dumps(content))
    with pytest.raises(StorageError, match="index"):
        load(tmp_path / "model")


def test_one_name_for_each_weight() -> None:
    method = WDAE(Denoiser(D, 4).eval())
    with pytest.raises(ModelError, match="2 names for 3 class weights"):
        BaseKnowledge.of_weights(["a", "b"], rows(3, 0), method)
