"""The scikit-learn estimator: fit on base classes, then add classes from a few examples each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from wdae.bank import FeatureBank
from wdae.classifier.head import Head
from wdae.classifier.labels import Array, as_array, check_kind, from_names, kind_of, like, to_names
from wdae.classifier.learn_job import LearnConfig
from wdae.classifier.learning import held_out_parts, learn_from_bank
from wdae.classifier.model import Model
from wdae.classifier.predictions import is_unknown
from wdae.errors import ModelError

_LABELS = "labels"  # where a model keeps the kind of its labels


class FewShotClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of feature vectors that learns new classes from a few examples, in milliseconds.

    ``fit`` learns the base classes: cosine weights, and a method that makes weights for new ones (wDAE-GNN+),
    trained as ``wdae train`` does where there are classes enough. ``add_classes`` then makes weights for new
    classes; base classes stay as they are. Vectors are compared by their direction: centre or scale tabular
    data first, with a Pipeline.

    Args:
        method: a trained method to teach with: the method, the folder of ``wdae train``, or
            "initial-estimate", which needs no training; by default one is trained.
        recipe: how to train it: a :class:`wdae.MetaRecipe`, its file, or keys in which it differs from
            wDAE-GNN+, such as ``{"training.steps": 100}``.
        held_out: share of each base class kept to calibrate on.
        refine_base: let base weights move too when classes are added, as in the paper; None: as the method
            has it.
        novel_share: share of the vectors to classify that is expected to be of added classes; less favours
            base classes. None: the largest with which five added classes cost base vectors no more than a
            limit. A matter of asking: set it after ``fit``, or give ``expect`` to ``predict``.
        max_classes: base classes that take part in training the denoiser; more are drawn from.
        false_alarm_rate: share of vectors of known classes that :meth:`is_unknown` may call unknown.
        random_state: every random choice follows from it.

    Attributes:
        classes_: all classes, base first (sorted), then added ones in the order in which they came.
        n_base_: how many of them are base classes.
        model_: the model itself, a :class:`wdae.classifier.Model`.
        denoiser_: what was trained, or why nothing was.
        figures_: accuracy, calibration errors and AUROC on held-out data.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> centres = rng.normal(size=(4, 16))
    >>> draw = lambda c, n: centres[c] + 0.3 * rng.normal(size=(n, 16))
    >>> X, y = np.concatenate([draw(c, 20) for c in range(3)]), np.repeat(["ant", "bee", "cat"], 20)
    >>> model = FewShotClassifier().fit(X, y).add_classes(draw(3, 2), ["okapi", "okapi"])
    >>> model.predict(draw(3, 2)).tolist(), model.classes_.tolist()
    (['okapi', 'okapi'], ['ant', 'bee', 'cat', 'okapi'])
    """

    def __init__(
        self,
        *,
        method: Any = None,
        recipe: Any = None,
        held_out: float = 0.2,
        refine_base: bool | None = None,
        novel_share: float | None = None,
        max_classes: int = 1000,
        false_alarm_rate: float = 0.05,
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.recipe = recipe
        self.held_out = held_out
        self.refine_base = refine_base
        self.novel_share = novel_share
        self.max_classes = max_classes
        self.false_alarm_rate = false_alarm_rate
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, base_weights: Any = None, base_scale: float | None = None) -> Self:
        """Learn the base classes.

        Args:
            X: features ``[M, D]``; rows of only zeros, which have no direction, are left out.
            y: their labels.
            base_weights: learned cosine weights ``[classes, D]`` in sorted order of the labels, where you
                have them; else they are learned. The share of X that is held out to calibrate on should then
                be one that they were not learned from.
            base_scale: the scale γ that belongs to them.
        """
        rows, labels = validate_data(
            self, as_array(X), as_array(y), dtype=[np.float32, np.float64], ensure_min_samples=2
        )
        check_classification_targets(labels)
        classes, positions = np.unique(labels, return_inverse=True)
        pointing = rows.any(axis=1)  # a vector of zeros has no direction to learn from
        if np.unique(positions[pointing]).size < len(classes):
            raise ModelError("a class has vectors of zeros only; leave it out, or compute them again")
        rows, column = rows[pointing], torch.from_numpy(positions[pointing].astype(np.int64))
        config = self._config()
        bank = FeatureBank.build(
            _narrow(rows),
            column,
            to_names(classes),
            held_out_parts(column, config.held_out, config.seed),
            base_weights=base_weights,
            cosine_scale=base_scale,
        )
        return self._learn(bank, config, self._info(kind_of(classes)))

    @classmethod
    def from_bank(cls, bank: FeatureBank, **options: Any) -> Self:
        """Learn from the base parts of a feature bank, its weights and, to calibrate, validation classes."""
        self = cls(**options)
        self.n_features_in_ = bank.dim
        return self._learn(bank, self._config(), self._info("text") | {"bank": bank.info})

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Self:
        """The estimator around a model on disk, written by :meth:`save` or by ``wdae learn``."""
        from wdae.classifier.store import load

        model = load(path)
        kept = model.base.info.get("estimator")
        kept = kept if isinstance(kept, dict) else {}
        known = {key: value for key, value in kept.items() if key in cls._get_param_names()}
        self = cls(**(known | options))
        self.n_features_in_ = model.base.dim
        return self._take(model)

    def save(self, path: str | Path) -> None:
        """Write the model to a new folder, or bring the folder it was written to up to date."""
        from wdae.classifier.store import save

        check_is_fitted(self, "model_")
        save(self.model_, path)

    def _config(self) -> LearnConfig:
        from wdae.config import load

        seed = self.random_state
        if not isinstance(seed, int) or isinstance(seed, bool):
            seed = int(check_random_state(seed).randint(2**31 - 1))
        return load(
            LearnConfig,
            None,
            {
                "seed": seed,
                "held_out": self.held_out,
                "refine_base": self.refine_base,
                "novel_share": self.novel_share,
                "max_classes": self.max_classes,
            },
        )

    def _info(self, kind: str) -> dict[str, Any]:
        """What a model keeps for the estimator that comes to load it."""
        options = {key: value for key, value in self.get_params().items() if key not in ("method", "recipe")}
        if not isinstance(self.random_state, int):
            options.pop("random_state")
        return {_LABELS: kind, "estimator": options}

    def _learn(self, bank: FeatureBank, config: LearnConfig, info: dict[str, Any]) -> Self:
        return self._take(learn_from_bank(bank, config, method=self.method, recipe=self.recipe, info=info))

    def _take(self, model: Model) -> Self:
        self.model_ = model
        self.n_base_ = len(model.base.names)
        self.denoiser_ = model.base.info.get("denoiser")
        self.figures_ = dict(model.base.calibration.figures)
        return self._renamed()

    def _renamed(self) -> Self:
        self.classes_: Array = from_names(self.model_.names, self._kind)
        return self

    @property
    def _kind(self) -> str:
        return str(self.model_.base.info.get(_LABELS, "text"))

    def add_classes(self, X: Any, y: Any) -> Self:
        """Learn new classes: any number of them, each from 1 or more examples; known labels are refused."""
        return self._add(X, y, update=False)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """New labels become new classes, known ones get more examples; the first call is :meth:`fit`.

        ``classes`` is accepted for scikit-learn's sake and not needed.
        """
        if not hasattr(self, "model_"):
            return self.fit(X, y)
        return self._add(X, y, update=True)

    def _add(self, X: Any, y: Any, update: bool) -> Self:
        check_is_fitted(self, "model_")
        rows, labels = validate_data(
            self, as_array(X), as_array(y), dtype=[np.float32, np.float64], reset=False
        )
        check_kind(labels, self._kind)
        features = torch.from_numpy(_narrow(rows))
        names = np.array(to_names(labels))
        groups = {name: features[torch.from_numpy(names == name)] for name in dict.fromkeys(names.tolist())}
        if not update:
            self.model_.refuse_known(groups, "partial_fit")
        self.model_.add(groups, update=update)
        return self._renamed()

    def remove_classes(self, labels: Any) -> Self:
        """Forget added classes; base classes cannot be removed."""
        check_is_fitted(self, "model_")
        self.model_.remove(to_names(np.atleast_1d(as_array(labels))))
        return self._renamed()

    def undo(self) -> Self:
        """Take the last change back; again, the one before it."""
        check_is_fitted(self, "model_")
        self.model_.undo()
        return self._renamed()

    def redo(self) -> Self:
        """Make the change again that was undone last."""
        check_is_fitted(self, "model_")
        self.model_.redo()
        return self._renamed()

    def _checked(self, X: Any) -> Tensor:
        check_is_fitted(self, "model_")
        rows = validate_data(self, as_array(X), dtype=[np.float32, np.float64], reset=False)
        return torch.from_numpy(_narrow(rows))

    def _head(self, expect: float | None = None, only: Any = None) -> Head:
        check_is_fitted(self, "model_")
        if only is not None and not isinstance(only, str):
            only = to_names(np.atleast_1d(as_array(only)))
        share = expect if expect is not None else None if only is not None else self.novel_share
        return self.model_.head_for(expect=share, only=only)

    def _scores(self, X: Any, expect: float | None = None, only: Any = None) -> Tensor:
        """Scores of all classes; -inf for those that do not come into question."""
        head = self._head(expect, only)
        scores = head.scores(self._checked(X))
        if only is None:
            return scores
        place = {name: i for i, name in enumerate(self.model_.names)}
        whole = scores.new_full((len(scores), len(place)), -torch.inf)
        whole[:, [place[name] for name in head.names]] = scores
        return whole

    def decision_function(self, X: Any, *, expect: float | None = None, only: Any = None) -> Any:
        """Calibrated scores ``[M, classes]`` (of two classes: the second's over the first's, ``[M]``)."""
        scores = self._scores(X, expect, only)
        if scores.shape[1] == 2:
            return like((scores[:, 1] - scores[:, 0]).numpy(), X)
        return like(scores.numpy(), X, self.classes_)

    def predict_proba(self, X: Any, *, expect: float | None = None, only: Any = None) -> Any:
        """Probabilities ``[M, classes]``; ``expect`` and ``only`` are those of :meth:`predict`."""
        probabilities = self._scores(X, expect, only).double().softmax(1).numpy()
        return like(probabilities, X, self.classes_)

    def predict(self, X: Any, *, expect: float | None = None, only: Any = None) -> Any:
        """The most probable class of each vector.

        Args:
            expect: share of the vectors that is expected to be of added classes; ``novel_share`` by default.
            only: the labels that come into question, ``"added"`` or ``"base"``; all by default.
        """
        head, features = self._head(expect, only), self._checked(X)
        best = head.best(features)
        names = self.classes_ if only is None else from_names(head.names, self._kind)
        return like(names[best.numpy()], X)

    def predict_set(self, X: Any, coverage: float = 0.95) -> Any:
        """Which classes the true one is among ``[M, classes]``, for a share of the vectors of known classes.

        Args:
            coverage: that share, of base and of added classes alike; from 0.5 to 0.99.
        """
        check_is_fitted(self, "model_")
        return like(self.model_.sets(self._checked(X), coverage).numpy(), X, self.classes_)

    def is_unknown(self, X: Any, false_alarm_rate: float | None = None) -> Any:
        """Whether a vector resembles every class less than nearly all vectors resemble their own.

        Args:
            false_alarm_rate: the share of vectors of known classes that may be called unknown wrongly; that
                of the constructor by default.
        """
        head, features = self._head(), self._checked(X)
        rate = self.false_alarm_rate if false_alarm_rate is None else false_alarm_rate
        return like(is_unknown(self.model_, head, features, head.scores(features), rate).numpy(), X)


def _narrow(rows: Array) -> Array:
    """Rows as float32."""
    narrow = np.ascontiguousarray(rows, dtype=np.float32)
    if rows.dtype != np.float32 and not np.isfinite(narrow).all():
        raise ModelError("features are too large for 32 bits; scale them down")
    return narrow
