"""What a model says of vectors, and how often it is right, class by class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from wdae.calibration.familiarity import Familiarity
from wdae.calibration.probabilities import calibration_error
from wdae.calibration.unknown import Added, Detector
from wdae.classifier.head import Head
from wdae.classifier.light.answers import Answers, Space, csv_line
from wdae.classifier.light.answers import Prediction as Prediction
from wdae.classifier.model import Model, same_pictures
from wdae.classifier.names import chosen, shorten, unknown_classes
from wdae.errors import RecipeError
from wdae.evaluation.curve import Curve, base_novel_curve
from wdae.methods.calibration import HALF, log_odds
from wdae.nn.cosine import unit
from wdae.printing import cell, counted

_SHOWN = 3
CANDIDATES = 64
"""Base classes that are scored where an index finds them."""
_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99)


def predictions(
    model: Model,
    features: Tensor,
    top: int = 1,
    false_alarms: float = 0.05,
    *,
    expect: float | None = None,
    only: str | Iterable[str] | None = None,
    coverage: float | None = None,
) -> list[Prediction]:
    """The ``top`` classes of each of the features ``[M, D]``.

    Args:
        false_alarms: share of pictures of known classes, base or added, that may be called unknown wrongly;
            0: none is ever.
        expect: share of pictures that is expected to be of added classes; as the model has it by default.
        only: the classes that come into question (:meth:`wdae.classifier.Model.head_for`).
        coverage: say also which classes the true one is among, for this share of pictures
            (:meth:`wdae.classifier.Model.sets`).

    >>> from wdae import embedded_model
    >>> model = embedded_model()
    >>> predictions(model, 3 * model.head.learned[:1])[0].classes == model.names[:1]
    True
    """
    if top < 1:
        raise RecipeError(f"at least 1 class is shown, got top {top}")
    head = model.head_for(expect=expect, only=only)
    features = model.check_features(features)
    if head.index is None:
        scores, which, scored = head.scores(features), None, None
        best = scores.double().softmax(1).topk(min(top, scores.shape[1]), dim=1)
        named = best.indices
    else:
        scores, which, rest = head.candidates(features, max(CANDIDATES, top))
        scored = which.shape[1]
        chances = torch.cat([scores, rest.unsqueeze(1)], 1).double().softmax(1)[:, :-1]
        best = chances.topk(min(top, scored), dim=1)
        named = which.gather(1, best.indices)
    unknown = is_unknown(model, head, features, scores, false_alarms, which).tolist()
    likely = [None] * len(features) if coverage is None else _likely(model, head, features, coverage, only)
    rows = zip(named.tolist(), best.values.tolist(), unknown, likely, strict=True)
    return [
        Prediction(tuple(head.names[c] for c in classes), tuple(values), no, scored, some)
        for classes, values, no, some in rows
    ]


def _likely(
    model: Model, head: Head, features: Tensor, coverage: float, only: str | Iterable[str] | None
) -> list[tuple[str, ...]]:
    """The names of the classes in the set of each of the features, the likeliest first."""
    inside, order = (
        model.sets(features, coverage, only=only),
        head.scores(features).argsort(1, descending=True),
    )
    return [
        tuple(head.names[c] for c in row[some[row]].tolist()) for row, some in zip(order, inside, strict=True)
    ]


def answers_of(model: Model) -> Answers:
    """What a model answers now, as arrays alone."""
    head, base, space, known = model.head, model.base, None, None
    if head.space is not None:
        whiten = None if head.space.whiten is None else head.space.whiten.numpy()
        space = Space(head.space.power, head.space.centre.numpy(), whiten)
    if base.detector is not None:
        kept = {
            name: t.float() if t.is_floating_point() else t for name, t in base.detector.tensors().items()
        }
        arrays = {name: tensor.numpy() for name, tensor in kept.items()}
        added = _added(model, base.detector, list(model.added))
        known = Familiarity(
            arrays,
            arrays["means"],
            arrays["counts"],
            added.means.numpy(),
            added.shots.numpy(),
            added.ordinary.numpy(),
            arrays.get("profiles"),
            added.profiles.numpy() if "profiles" in arrays else None,
        )
    curve = tuple(base.calibration.familiarity)
    matrix, offsets, prior = (tensor.numpy() for tensor in (head.matrix, head.offsets, head.prior))
    return Answers(head.names, head.n_base, matrix, offsets, prior, space, curve, known)


@dataclass(frozen=True, eq=False)
class TorchAnswers:
    """A model asked as :class:`wdae.classifier.light.answers.Answers` is, for one that needs torch."""

    model: Model
    expect: float | None = None
    only: Sequence[str] | None = None
    coverage: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The classes in question."""
        return self.model.head_for(only=self.only).names

    def asked(self, *, expect: float | None = None, only: Sequence[str] | None = None) -> TorchAnswers:
        """For a question of its own."""
        return replace(self, expect=expect, only=only)

    def predictions(self, features: Any, top: int = 1, false_alarms: float = 0.05) -> list[Prediction]:
        """The ``top`` classes of each of the features ``[M, D]``, an array."""
        rows = torch.from_numpy(features)
        asked: dict[str, Any] = {"expect": self.expect, "only": self.only, "coverage": self.coverage}
        return predictions(self.model, rows, top, false_alarms, **asked)


FIGURES = {
    "accuracy": "accuracy on all of these",
    "calibration_error": "calibration error",
    "base_before_adding": "base accuracy before classes were added",
    "base_among_base": "base accuracy, among base classes",
    "base_among_all": "base accuracy, among all classes",
    "added_among_added": "added accuracy, among added classes",
    "added_among_all": "added accuracy, among all classes",
    "area_base_added": "area below the curve of base against added",
}
"""The figures of a measurement, in words."""
PLAIN = ("calibration_error", "area_base_added")
"""Those that are no shares of pictures."""


@dataclass(frozen=True, eq=False)
class TradeOff:
    """What base and added classes lose and gain as more pictures of added ones are expected.

    Attributes:
        curve: accuracies among all classes, by an offset of the added classes' scores.
        shift: by share of pictures expected to be of added classes, that offset.
        now: base and added accuracy as the model was asked.
        kept: whether base pictures are those that the model keeps, since none were given.
    """

    curve: Curve
    now: tuple[float, float]
    shift: Mapping[float, float]
    kept: bool = False

    def rows(self) -> list[dict[str, float]]:
        """Accuracies of base and added pictures among all classes, by share."""
        points = {share: self.curve.at(shift) for share, shift in self.shift.items()}
        return [{"expect": share, "base": p.base, "added": p.novel} for share, p in points.items()]

    def csv(self) -> str:
        """Every point of the curve."""
        lines = [csv_line(["offset", "base", "added"]), *(csv_line(point) for point in self.curve.points)]
        return "\n".join(lines) + "\n"

    def rich(self) -> Any:
        """A table for the terminal."""
        from rich.table import Table

        base = "base (pictures that it keeps)" if self.kept else "base"
        table = Table(title="Base against added, among all classes", title_justify="left")
        for heading in ("--expect new=", base, "added"):
            table.add_column(heading, justify="right")
        for row in self.rows():
            table.add_row(f"{row['expect']:g}", f"{row['base']:.1%}", f"{row['added']:.1%}")
        table.add_row("as asked", *(f"{accuracy:.1%}" for accuracy in self.now), style="bold")
        return table


@dataclass(frozen=True, eq=False)
class Measurement:
    """Results on labelled examples.

    Attributes:
        names: the model's classes.
        confusion: ``[C, C]`` counts, true class by predicted class.
        figures: accuracies and errors by name; base figures only where base classes were given.
        trade_off: where pictures of added classes were given, and of base classes or the model keeps some.
    """

    names: tuple[str, ...]
    confusion: Tensor
    figures: dict[str, float]
    trade_off: TradeOff | None = None

    def rows(self) -> list[dict[str, Any]]:
        """One row for each class that was given: count, accuracy, and what it was taken for."""
        rows = []
        for c in (self.confusion.sum(1) > 0).nonzero()[:, 0].tolist():
            line = self.confusion[c]
            count = int(line.sum())
            others = line.clone()
            others[c] = 0
            best = others.topk(min(_SHOWN, len(others)))
            taken = {
                self.names[k]: n
                for k, n in zip(best.indices.tolist(), best.values.tolist(), strict=True)
                if n
            }
            rows.append(
                {"class": self.names[c], "count": count, "accuracy": int(line[c]) / count, "taken_for": taken}
            )
        return rows

    def as_json(self) -> dict[str, Any]:
        """JSON values, with the confusion matrix over the classes that occur."""
        seen = ((self.confusion.sum(1) + self.confusion.sum(0)) > 0).nonzero()[:, 0].tolist()
        found = {} if self.trade_off is None else {"trade_off": self.trade_off.rows()}
        return {
            "figures": self.figures,
            **found,
            "classes": self.rows(),
            "confusion": {
                "names": [self.names[c] for c in seen],
                "counts": self.confusion[seen][:, seen].tolist(),
            },
        }

    def csv(self) -> str:
        """The confusion matrix: a row for each true class, a column for each predicted one."""
        matrix = self.as_json()["confusion"]
        lines = [csv_line(["true \\ predicted", *matrix["names"]])]
        for name, counts in zip(matrix["names"], matrix["counts"], strict=True):
            lines.append(csv_line([name, *counts]))
        return "\n".join(lines) + "\n"

    def rich(self) -> Any:
        """A table for the terminal."""
        from rich.table import Table

        table = Table(title="Per class", title_justify="left")
        for heading in ("class", "count", "accuracy", "taken for"):
            table.add_column(heading, justify="right" if heading in ("count", "accuracy") else "left")
        for row in self.rows():
            taken = ", ".join(f"{shorten(n, 24)} × {k}" for n, k in row["taken_for"].items())
            name = cell(shorten(row["class"]))
            table.add_row(name, str(row["count"]), f"{row['accuracy']:.1%}", cell(taken))
        return table


def measure(
    model: Model,
    examples: Mapping[str, Tensor],
    *,
    expect: float | None = None,
    only: str | Iterable[str] | None = None,
) -> Measurement:
    """Classify labelled examples ``{name: [k, D]}``; every name must be a class that comes into question.

    ``expect`` and ``only`` are those of :meth:`wdae.classifier.Model.head_for`.
    """
    head = model.head_for(expect=expect, only=only)
    place = {name: i for i, name in enumerate(head.names)}
    examples = {model.called(name): rows for name, rows in examples.items()}
    refuse_others(model, examples, only)
    labels = torch.cat([torch.full((len(rows),), place[name]) for name, rows in examples.items()])
    features = model.check_features(torch.cat(list(examples.values())))
    scores = head.scores(features)
    predicted = scores.argmax(1)
    n_classes, n_base = len(place), head.n_base
    confusion = torch.bincount(labels * n_classes + predicted, minlength=n_classes**2).view(n_classes, -1)
    right = predicted == labels
    figures = {
        "accuracy": float(right.double().mean()),
        "calibration_error": calibration_error(scores.double().softmax(1), labels),
    }
    base = labels < n_base
    if bool(base.any()):
        learned = Model(model.base).head_for(only=None if only is None else head.names[:n_base])
        before = learned.scores(features[base]).argmax(1) == labels[base]
        among = scores[base][:, :n_base].argmax(1) == labels[base]
        figures |= {
            "base_before_adding": float(before.double().mean()),
            "base_among_base": float(among.double().mean()),
            "base_among_all": float(right[base].double().mean()),
        }
    if bool((~base).any()):
        added = scores[~base][:, n_base:].argmax(1) + n_base == labels[~base]
        figures["added_among_added"] = float(added.double().mean())
        figures["added_among_all"] = float(right[~base].double().mean())
    trade_off = _trade_off(model, head, features, labels)
    if trade_off is not None:
        figures["area_base_added"] = trade_off.curve.area
    return Measurement(head.names, confusion, figures, trade_off)


def refuse_others(model: Model, names: Iterable[str], only: str | Iterable[str] | None = None) -> None:
    """Raise where one of the names of labelled pictures is no class that comes into question."""
    known = model.names if only is None else tuple(chosen(only, model.base.names, model.added))
    there = set(known)
    missing = [name for name in names if name not in there]
    if missing:
        what, advice = "class of the model", "; add it to the model, or leave its pictures out"
        if only is not None:
            what, advice = "class in question", "; leave its pictures out"
        if len(missing) > 1:
            advice += f", and those of {counted(len(missing) - 1, 'other class', 'other classes')}"
        raise unknown_classes(missing, known, what, advice)


def given_before(model: Model, examples: Mapping[str, Tensor]) -> int:
    """How many of labelled features ``{name: [k, D]}`` are examples that their class was given."""
    n = 0
    for name, rows in examples.items():
        known = model.examples_of(model.called(name))
        if known:
            of_them = torch.stack([one.feature for one in known])
            n += int(same_pictures(unit(model.check_features(rows)), of_them).any(1).sum())
    return n


def _trade_off(model: Model, head: Head, features: Tensor, labels: Tensor) -> TradeOff | None:
    """From labelled features; where none are of base classes, with those that the model keeps."""
    is_base, held_out = labels < head.n_base, model.base.held_out
    if bool(is_base.all()) or not head.n_base:
        return None
    half, kept = head.expecting(HALF), not bool(is_base.any())
    scores = half.scores(features)
    if kept:
        if held_out is None or head.n_base < len(model.base.names):
            return None
        scores = torch.cat([scores, model.base.unlearned(half).linear(held_out.features.float())])
        labels = torch.cat([labels, held_out.labels])
    shift = {
        share: float((log_odds(torch.full_like(half.prior, share), head.n_base) - half.prior)[0])
        for share in _SHARES
    }
    asked = scores + torch.nn.functional.pad(head.prior - half.prior, (head.n_base, 0))
    right = asked.argmax(1) == labels
    now = tuple(float(right[some].double().mean()) for some in (labels < head.n_base, labels >= head.n_base))
    return TradeOff(base_novel_curve(scores, labels, head.n_base), (now[0], now[1]), shift, kept)


def is_unknown(
    model: Model,
    head: Head,
    features: Tensor,
    scores: Tensor,
    false_alarms: float,
    classes: Tensor | None = None,
) -> Tensor:
    """Which of the features ``[M, D]`` resemble none of the classes in question, ``[M]``.

    Args:
        head: the classes in question (:meth:`wdae.classifier.Model.head_for`).
        scores: what it gives the features ``[M, C]``; older models, which have no detector, go by the best.
        false_alarms: share of pictures of known classes that may be called unknown wrongly; 0: none ever is.
        classes: whose scores they are ``[M, C]``, where they are those of candidates.
    """
    detector = model.base.detector
    if detector is None:
        return head.familiarity(scores, classes) < model.base.calibration.threshold(false_alarms)
    if not 0 <= false_alarms <= 1:
        raise RecipeError(f"a false-alarm rate lies between 0 and 1, got {false_alarms}")
    base = None
    if classes is not None:
        base = classes[classes < head.n_base].unique()
    elif head.n_base < len(model.base.names):
        known = set(head.names)
        found = [i for i, name in enumerate(model.base.names) if name in known]
        base = torch.tensor(found, dtype=torch.int64)
    named = set(head.names[head.n_base :])
    added = _added(model, detector, [name for name in model.added if name in named])
    threshold = detector.threshold(false_alarms, [int(k) for k in added.shots.tolist()])
    return detector.familiarity(features, added, base) < threshold


def _added(model: Model, detector: Detector, names: list[str]) -> Added:
    """Added classes as the detector knows them; kept with the model as long as they have these examples."""
    state = model.state
    rows = tuple(state[name] for name in names)
    if model.known is None or model.known[0] != rows:
        examples = [torch.stack([e.feature for e in model.examples_of(name)]) for name in names]
        model.known = (rows, detector.added(examples))
    return model.known[1]
