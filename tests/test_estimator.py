"""The scikit-learn face: manners, kinds of data, and classes that come later."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from wdae.bank import FeatureBank
from wdae.errors import ModelError
from wdae.estimator import FewShotClassifier
from wdae.parts import Part
from wdae.synthetic import synthetic_bank

QUICK: dict[str, Any] = {
    "recipe": {
        "denoiser.hidden": 16,
        "training.steps": 10,
        "training.validation_episodes": 20,
        "evaluation.step_episodes": 40,
        "space.choice_episodes": 20,
    }
}


def blobs(n_classes: int, n: int, seed: int = 0, dim: int = 16) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(26, dim))
    rows = np.concatenate([centres[c] + 0.4 * rng.normal(size=(n, dim)) for c in range(n_classes)])
    return rows, np.repeat([f"class {chr(97 + c)}" for c in range(n_classes)], n)


def test_check_estimator() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = check_estimator(FewShotClassifier(), on_fail=None)
    failed = [(o["check_name"], o["exception"]) for o in outcomes if o["status"] == "failed"]
    assert failed == []
    assert sum(o["status"] == "passed" for o in outcomes) > 40


def test_adding_removing_and_undoing() -> None:
    X, y = blobs(10, 12)
    new = y >= "class i"
    model = FewShotClassifier(**QUICK).fit(X[~new], y[~new])
    base = model.predict(X[~new])
    assert (base == y[~new]).mean() > 0.95
    model.add_classes(X[new][:14], y[new][:14])  # 12 of i, 2 of j
    assert model.classes_.tolist() == [*np.unique(y[~new]), "class i", "class j"]
    assert (model.predict(X[new]) == y[new]).mean() > 0.9
    assert (model.predict(X[~new]) == y[~new]).mean() > 0.9
    model.remove_classes("class i")
    assert "class i" not in model.predict(X).tolist()
    model.undo().undo()
    np.testing.assert_array_equal(model.predict(X[~new]), base)
    with pytest.raises(ModelError, match="nothing to undo"):
        model.undo()
    with pytest.raises(ModelError, match="exists already; to give it more examples use partial_fit"):
        model.add_classes(X[:2], y[:2])


def test_partial_fit_adds_classes_and_examples() -> None:
    X, y = blobs(8, 10)
    model = FewShotClassifier(**QUICK).partial_fit(X[:60], y[:60])
    once = clone(model).fit(X[:60], y[:60])
    model.partial_fit(X[60:62], y[60:62]).partial_fit(X[62:64], y[62:64])
    once.add_classes(X[60:64], y[60:64])
    np.testing.assert_array_equal(model.predict_proba(X), once.predict_proba(X))
    assert model.model_.shots("class g") == 4
    model.partial_fit(X[:1], y[:1])
    assert model.model_.shots("class a") == 1 and len(model.classes_) == 7


def test_probabilities_and_scores_agree() -> None:
    X, y = blobs(7, 10)
    model = FewShotClassifier(**QUICK).fit(X, y)
    scores, chances = model.decision_function(X), model.predict_proba(X)
    assert scores.shape == chances.shape == (70, 7)
    np.testing.assert_allclose(chances.sum(1), 1)
    np.testing.assert_allclose(
        np.log(chances) - scores, (np.log(chances) - scores)[:, :1].repeat(7, 1), atol=1e-4
    )
    assert (model.classes_[chances.argmax(1)] == model.predict(X)).all()


def test_the_same_kind_comes_out_as_went_in() -> None:
    X, y = blobs(6, 10)
    frame = pd.DataFrame(X, index=[f"row {i}" for i in range(60)], columns=[f"f{i}" for i in range(16)])
    model = FewShotClassifier(**QUICK).fit(frame, pd.Series(y, index=frame.index))
    assert model.feature_names_in_[0] == "f0"
    output = model.predict(frame)
    assert isinstance(output, pd.Series) and output.index.equals(frame.index)
    chances = model.predict_proba(frame)
    assert isinstance(chances, pd.DataFrame) and list(chances.columns) == list(model.classes_)

    numbers = np.unique(y, return_inverse=True)[1]
    tensor = torch.from_numpy(X).float()
    other = FewShotClassifier(**QUICK).fit(tensor, torch.from_numpy(numbers))
    assert isinstance(other.predict(tensor), torch.Tensor)
    assert isinstance(other.predict_proba(tensor), torch.Tensor)
    assert isinstance(other.is_unknown(tensor), torch.Tensor)
    assert (other.predict(tensor).numpy() == other.predict(X)).all()
    assert isinstance(other.predict(X), np.ndarray) and other.classes_.dtype.kind == "i"
    with pytest.raises(ModelError, match="of kind integer, the new ones of kind text"):
        other.add_classes(X[:1], ["okapi"])


def test_in_a_pipeline_and_a_grid_search() -> None:
    X, y = blobs(6, 10)
    pipeline = make_pipeline(StandardScaler(), FewShotClassifier())
    search = GridSearchCV(pipeline, {"fewshotclassifier__method": [None, "initial-estimate"]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.8
    assert cross_val_score(pipeline, X, y, cv=2).mean() > 0.8


def test_sets_cover_vectors_of_known_classes() -> None:
    bank = synthetic_bank(12, 0, 0, 60, 16, seed=0, held_out_per_class=30)
    model = FewShotClassifier.from_bank(bank, method="initial-estimate")
    held_out = bank.select(Part.BASE_HELD_OUT)
    inside = model.predict_set(held_out.features.numpy(), coverage=0.8)
    assert inside.shape == (360, 12) and inside.dtype == bool
    assert 0.77 < inside[np.arange(360), held_out.labels.numpy()].mean() < 0.9


def test_what_is_unlike_everything_is_unknown() -> None:
    X, y = blobs(10, 40)
    model = FewShotClassifier(**QUICK).fit(X, y)
    held_out = np.concatenate([blobs(10, 40, seed=seed)[0] for seed in (1, 2, 3, 4)])
    strange = np.random.default_rng(5).normal(size=(200, 16))
    assert model.is_unknown(held_out, 0.05).mean() < 0.12  # the threshold rests on 80 held-out vectors
    assert model.is_unknown(strange, 0.05).mean() > 0.5
    assert not model.is_unknown(held_out, 0.0).any()
    assert model.figures_["auroc_unknown"] > 0.8


def test_saved_and_loaded_it_predicts_the_same(tmp_path: Path) -> None:
    X, y = blobs(8, 10)
    numbers = np.unique(y, return_inverse=True)[1]
    model = FewShotClassifier(**QUICK).fit(X[:70], numbers[:70]).add_classes(X[70:73], numbers[70:73])
    model.save(tmp_path / "model")
    back = FewShotClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(model.predict_proba(X), back.predict_proba(X))
    assert back.classes_.tolist() == list(range(8)) and back.classes_.dtype.kind == "i"
    assert back.get_params() == model.get_params() | {"recipe": None}  # what was trained is in the model
    back.undo()
    back.save(tmp_path / "model")
    assert FewShotClassifier.load(tmp_path / "model").classes_.tolist() == list(range(7))


def test_from_a_bank(small_bank: FeatureBank) -> None:
    model = FewShotClassifier.from_bank(small_bank, **QUICK)
    held_out = small_bank.select(Part.BASE_HELD_OUT)
    names = np.array(held_out.names)[held_out.labels.numpy()]
    assert model.score(held_out.features.numpy(), names) == pytest.approx(
        model.figures_["accuracy_base"], abs=1e-9
    )


def test_given_weights_are_used() -> None:
    X, y = blobs(6, 10)
    weights = np.random.default_rng(0).normal(size=(6, 16))
    model = FewShotClassifier(**QUICK).fit(X, y, base_weights=weights, base_scale=12.0)
    got = model.model_.base.weights.numpy()
    np.testing.assert_allclose(got, weights / np.linalg.norm(weights, axis=1, keepdims=True), rtol=1e-5)


def test_digits_with_new_digits() -> None:
    """Embeddings of another kind: raw pixels of digits, three of which come later, five shots each."""
    X, y = load_digits(return_X_y=True)
    train, test = slice(0, 1200), slice(1200, None)
    scaler = StandardScaler().fit(X[train][y[train] < 7])
    rows = scaler.transform(X)
    base = y[train] < 7
    model = FewShotClassifier(recipe={"training.steps": 30}).fit(rows[train][base], y[train][base])
    shots = np.concatenate([np.flatnonzero(y[train] == digit)[:5] for digit in (7, 8, 9)])
    model.add_classes(rows[train][shots], y[train][shots])
    assert model.classes_.tolist() == list(range(10))
    right = model.predict(rows[test]) == y[test]
    new = y[test] >= 7
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    known = np.concatenate([np.flatnonzero(base), shots])
    rival = NearestCentroid().fit(unit[known], y[known]).predict(unit[test]) == y[test]
    ours, theirs = ((r[~new].mean() + r[new].mean()) / 2 for r in (right, rival))
    assert ours > theirs and right[~new].mean() > 0.85
    assert 0 <= model.figures_["ece_base"] < 0.1


def test_not_fitted() -> None:
    for call in (
        lambda m: m.predict(np.ones((2, 3))),
        lambda m: m.add_classes(np.ones((2, 3)), [1, 2]),
        lambda m: m.undo(),
        lambda m: m.save("x"),
    ):
        with pytest.raises(NotFittedError):
            call(FewShotClassifier())


def test_random_state_decides_everything() -> None:
    X, y = blobs(8, 10)
    one, two, three = (
        FewShotClassifier(**QUICK, random_state=s).fit(X, y).predict_proba(X) for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, three)
