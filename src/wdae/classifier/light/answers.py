"""What a model says of vectors, in numpy."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wdae.calibration.familiarity import Array, Familiarity, powered, unit
from wdae.classifier.names import UNKNOWN
from wdae.errors import ModelError
from wdae.methods.records import WAYS, interpolate
from wdae.printing import csv_cell, json_text, printable

SEPARATOR = " | "
"""Between the classes of a set, in a column."""


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes with their probabilities, the best first."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    unknown: bool
    candidates: int | None = None
    """Of very many classes, how many an index found to be scored; the others' share is estimated."""
    likely: tuple[str, ...] | None = None
    """Where a coverage was asked for: the classes that the true one is among, the likeliest first."""

    def fields(self, name: str) -> list[str]:
        """The item, "known" or "unknown", for each class its name and probability; then the set, if any."""
        shown = [(c, f"{p:.1%}") for c, p in zip(self.classes, self.probabilities, strict=True)]
        found = [name, UNKNOWN if self.unknown else "known", *(text for pair in shown for text in pair)]
        return found if self.likely is None else [*found, str(len(self.likely)), SEPARATOR.join(self.likely)]

    def as_line(self, name: str) -> str:
        """For people, and for cut and awk: tab-separated, the same columns for every item."""
        return "\t".join(map(printable, self.fields(name)))

    def as_csv(self, name: str) -> str:
        """For spreadsheets: a line of the table that :func:`csv_heading` heads."""
        shown = [
            text for c, p in zip(self.classes, self.probabilities, strict=True) for text in (c, f"{p:.6f}")
        ]
        likely = [] if self.likely is None else [len(self.likely), SEPARATOR.join(self.likely)]
        return csv_line([name, int(self.unknown), *shown, *likely])

    def as_json(self, name: str) -> str:
        """For programs: one line."""
        found = [
            {"class": c, "probability": round(p, 6)}
            for c, p in zip(self.classes, self.probabilities, strict=True)
        ]
        more: dict[str, Any] = {} if self.candidates is None else {"candidates": self.candidates}
        more |= {} if self.likely is None else {"set": self.likely}
        return json_text({"item": name, "unknown": self.unknown, "predictions": found, **more})


def csv_heading(top: int, sets: bool = False) -> str:
    """The first line of predictions as CSV.

    >>> csv_heading(2)
    'item,unknown,class,probability,class_2,probability_2'
    >>> csv_heading(1, sets=True)
    'item,unknown,class,probability,set_size,set'
    """
    marks = ["", *(f"_{i}" for i in range(2, top + 1))]
    shown = (f"{word}{mark}" for mark in marks for word in ("class", "probability"))
    return csv_line(["item", "unknown", *shown, *(("set_size", "set") if sets else ())])


def csv_line(cells: Iterable[Any]) -> str:
    """Cells as a line of CSV, without its end."""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([csv_cell(value) for value in cells])
    return out.getvalue()


@dataclass(frozen=True, eq=False)
class Space:
    """The space that features are compared in: :class:`wdae.nn.space.FeatureSpace`."""

    power: float
    centre: Array
    whiten: Array | None

    def __call__(self, features: Array) -> Array:
        """Features ``[M, D]`` brought into the space, unit rows."""
        rows = powered(features, self.power) - self.centre
        return unit(rows if self.whiten is None else rows @ self.whiten)


@dataclass(frozen=True, eq=False)
class Answers:
    """The classifier that a state of a model comes down to: :class:`wdae.classifier.Head`, with the unknown.

    Attributes:
        matrix: weights with their gains ``[C, D]``, base classes first.
        offsets: of scores ``[C]``; those of added classes include their ``prior`` ``[n]``.
        best_scores: quantiles of the best score on base pictures, by which older models know the unknown.
        familiarity: by which the others do.

    >>> answers = Answers(("cat", "dog"), 2, 9 * np.eye(2), np.zeros(2), np.zeros(0))
    >>> answers.predictions(np.array([[0.6, 0.8]]))[0].classes
    ('dog',)
    """

    names: tuple[str, ...]
    n_base: int
    matrix: Array
    offsets: Array
    prior: Array
    space: Space | None = None
    best_scores: tuple[float, ...] = ()
    familiarity: Familiarity | None = None

    def asked(self, *, expect: float | None = None, only: Iterable[str] | None = None) -> Answers:
        """For a question of its own: :meth:`wdae.classifier.Model.head_for`."""
        chosen = self if only is None else self._among(set(only))
        if expect is None:
            return chosen
        n_added, n_base = len(chosen.prior), chosen.n_base
        prior = np.zeros(n_added, np.float32)
        if n_added and n_base:
            part = min(1.0, n_added / WAYS)  # logarithms are added up: products of tiny shares would be zero
            prior += np.float32(
                math.log(expect) + math.log(part / n_added * n_base) - math.log1p(-part * expect)
            )
        return chosen._with_prior(prior)

    def _among(self, wanted: set[str]) -> Answers:
        rows = np.array([i for i, name in enumerate(self.names) if name in wanted], np.int64)
        base, added = rows[rows < self.n_base], rows[rows >= self.n_base] - self.n_base
        equal, known = self._with_prior(np.zeros_like(self.prior)), self.familiarity
        return replace(
            equal,
            names=tuple(self.names[i] for i in rows.tolist()),
            n_base=len(base),
            matrix=self.matrix[rows],
            offsets=equal.offsets[rows],
            prior=equal.prior[added],
            familiarity=None if known is None else known.among(base, added),
        )

    def _with_prior(self, prior: Array) -> Answers:
        offsets = self.offsets.copy()
        offsets[self.n_base :] += prior - self.prior
        return replace(self, offsets=offsets, prior=prior)

    def scores(self, features: Array) -> Array:
        """Calibrated scores ``[M, C]`` of features ``[M, D]``; their softmax are probabilities."""
        if features.ndim != 2 or features.shape[1] != self.matrix.shape[1]:
            raise ModelError(
                f"features have shape {list(features.shape)}, the model works on [pictures,"
                f" {self.matrix.shape[1]}]; use the backbone that the model was learned with"
            )
        if not np.isfinite(features).all():
            raise ModelError("features have NaN or infinite values; compute them again")
        vectors = unit(features) if self.space is None else self.space(features)
        return np.asarray(vectors @ self.matrix.T + self.offsets)

    def is_unknown(self, features: Array, scores: Array, false_alarms: float) -> npt.NDArray[np.bool_]:
        """Which of the features ``[M, D]``, of these scores ``[M, C]``, resemble no class ``[M]``."""
        if self.familiarity is not None:
            return self.familiarity.is_unknown(features, false_alarms)
        if not self.best_scores or false_alarms == 0:
            return np.zeros(len(features), np.bool_)
        likelier = np.concatenate([np.zeros(self.n_base, self.prior.dtype), self.prior])
        best = (scores - likelier).max(1)
        return np.asarray(best < interpolate(self.best_scores, false_alarms), dtype=np.bool_)

    def predictions(self, features: Array, top: int = 1, false_alarms: float = 0.05) -> list[Prediction]:
        """The ``top`` classes of each of the features ``[M, D]``."""
        with np.errstate(all="ignore"):
            scores = self.scores(features)
            unknown = self.is_unknown(features, scores, false_alarms)
            chances = np.exp(scores.astype(np.float64) - scores.max(1, keepdims=True))
            chances /= chances.sum(1, keepdims=True)
        best = np.argsort(-chances, axis=1, kind="stable")[:, :top]
        return [
            Prediction(tuple(self.names[c] for c in row), tuple(float(chance[c]) for c in row), bool(no))
            for row, chance, no in zip(best.tolist(), chances, unknown, strict=True)
        ]
