"""The practitioner's bars that do not depend on the machine, on a synthetic bank and real files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from tiny_backbone import paint

from wdae.bank import FeatureBank
from wdae.classifier import Model
from wdae.classifier.picture_backbone import PictureBackbone, files_as_set, load_backbone
from wdae.data.decode import Pixels
from wdae.data.source import FileSource
from wdae.estimator import FewShotClassifier
from wdae.parts import Part
from wdae.synthetic import synthetic_bank


@pytest.fixture(scope="module")
def bank() -> FeatureBank:
    return synthetic_bank(40, 10, 25, 40, 48, seed=7, held_out_per_class=12)


@pytest.fixture(scope="module")
def fitted(bank: FeatureBank) -> FewShotClassifier:
    return FewShotClassifier.from_bank(bank, recipe={"denoiser.hidden": 64, "training.steps": 80})


def test_base_classes_are_kept_when_twenty_are_added(bank: FeatureBank, fitted: FewShotClassifier) -> None:
    held_out, pool = bank.select(Part.BASE_HELD_OUT), bank.select(Part.NOVEL)
    model = Model(fitted.model_.base)
    before = model.scores(held_out.features).argmax(1) == held_out.labels
    model.add({f"new {i}": pool.of_class(i)[:5] for i in range(20)})
    after = model.scores(held_out.features)[:, :40].argmax(1) == held_out.labels
    assert float(before.double().mean() - after.double().mean()) <= 0.005


@pytest.mark.parametrize("n_shot", [1, 5])
def test_best_on_all_classes_beside_what_else_one_would_do(
    bank: FeatureBank, fitted: FewShotClassifier, n_shot: int
) -> None:
    train, held_out, pool = (bank.select(part) for part in (Part.BASE_TRAIN, Part.BASE_HELD_OUT, Part.NOVEL))
    generator = torch.Generator().manual_seed(n_shot)
    totals: dict[str, list[float]] = {}
    for _ in range(6):
        classes = torch.randperm(25, generator=generator)[:5].tolist()
        names = np.array([f"new {c}" for c in classes])
        order = [torch.randperm(40, generator=generator) for _ in classes]
        shots = torch.cat([pool.of_class(c)[o[:n_shot]] for c, o in zip(classes, order, strict=True)])
        queries = torch.cat([pool.of_class(c)[o[n_shot:]] for c, o in zip(classes, order, strict=True)])
        base_names = np.array(train.names)
        X = torch.cat([train.features, shots]).numpy()
        y = np.concatenate([base_names[train.labels], names.repeat(n_shot)])
        tests = [
            (queries.numpy(), names.repeat(40 - n_shot)),
            (held_out.features.numpy(), base_names[held_out.labels]),
        ]
        fitted.add_classes(shots.numpy(), names.repeat(n_shot))
        rivals = {
            "ours": fitted,
            "logistic regression": LogisticRegression(C=10, class_weight="balanced", max_iter=100).fit(X, y),
            "nearest neighbour": KNeighborsClassifier(1).fit(X, y),
            "nearest centroid": NearestCentroid().fit(X, y),
        }
        for name, rival in rivals.items():
            both = [float((rival.predict(rows) == labels).mean()) for rows, labels in tests]
            totals.setdefault(name, []).append(sum(both) / 2)
        fitted.undo()
    means = {name: float(np.mean(values)) for name, values in totals.items()}
    assert max(means, key=lambda name: means[name]) == "ours", means


@dataclass(frozen=True)
class CountedSource(FileSource):
    """Counts the pictures that are read."""

    read_so_far: list[int] = field(default_factory=list)

    def read(self, index: int, at_least: int | None = None) -> Pixels:
        self.read_so_far.append(index)
        return super().read(index, at_least)


def test_many_pictures_are_never_in_memory_together(tmp_path: Path) -> None:
    from dataclasses import replace

    eye: PictureBackbone = load_backbone("tiny_backbone:factory")
    folder = paint(tmp_path, ["red", "blue"], 100)
    images = files_as_set(sorted(folder.glob("*/*.png")))
    source = CountedSource(images.source.files)  # type: ignore[attr-defined]
    stream = eye.embed(replace(images, source=source), batch=16, workers=0)
    first = next(stream)
    assert len(first.rows) == 16 and len(source.read_so_far) <= 32
    assert 16 + sum(len(piece.rows) for piece in stream) == 200
