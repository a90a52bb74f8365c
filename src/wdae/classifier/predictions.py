"""What a model says about one vector: the likeliest classes, and whether it resembles none of them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wdae.classifier.model import Model
from wdae.errors import RecipeError
from wdae.printing import json_text, printable


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes with their probabilities, the best first."""

    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    unknown: bool

    def as_line(self, name: str) -> str:
        """For people: tab-separated."""
        shown = [f"{c} {p:.1%}" for c, p in zip(self.classes, self.probabilities, strict=True)]
        return "\t".join(map(printable, [name, *(["unknown"] if self.unknown else []), *shown]))

    def as_json(self, name: str) -> str:
        """For programs: one line."""
        found = [
            {"class": c, "probability": round(p, 6)}
            for c, p in zip(self.classes, self.probabilities, strict=True)
        ]
        return json_text({"item": name, "unknown": self.unknown, "predictions": found})


def predictions(model: Model, features: Tensor, top: int, false_alarms: float) -> list[Prediction]:
    """The ``top`` classes of each of the features ``[M, D]``.

    Args:
        false_alarms: share of base pictures that may be called unknown wrongly; 0: none is ever.
    """
    if top < 1:
        raise RecipeError(f"at least 1 class is shown, got --top {top}")
    scores = model.scores(features)
    threshold = model.ground.calibration.threshold(false_alarms)
    best = scores.double().softmax(1).topk(min(top, scores.shape[1]), dim=1)
    unknown = (model.head.familiarity(scores) < threshold).tolist()
    return [
        Prediction(tuple(model.names[c] for c in classes), tuple(values), no)
        for classes, values, no in zip(best.indices.tolist(), best.values.tolist(), unknown, strict=True)
    ]
