"""Logistic regression on the support examples."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from wdae.errors import ModelError
from wdae.methods.base import BaseClasses, Method, Scorer, Support
from wdae.methods.examples import LinearScorer, examples_of
from wdae.nn.cosine import unit
from wdae.nn.logistic import logistic_regression


def fit_logistic(support: Support, base: Tensor | None, strength: float) -> Scorer:
    """A linear classifier of novel classes and, if given, base classes ``[N, D]`` (one example each)."""
    shots = Support(unit(support.features), support.mask)
    examples = examples_of(shots, None if base is None else unit(base))
    weights, bias = logistic_regression(examples.features, examples.targets, examples.weight, strength)
    scorer = LinearScorer(weights, bias)
    return lambda queries: scorer(unit(queries))


class LogisticRegression(Method):
    """A multinomial logistic regression fitted to the shots of each episode, to its optimum.

    The baseline of the low-shot benchmark (Hariharan & Girshick 2017). Departures: with base classes asked
    for, each is one example, its learned weight, that counts as much as a novel class's shots together;
    there the classifier is trained on all base-train images.

    Args:
        strength: scikit-learn's C, the inverse of the L2 penalty.
    """

    name = "logistic-regression"
    about: ClassVar[str] = "a linear classifier fitted to the shots"
    paper: ClassVar[str] = "Hariharan & Girshick 2017"

    def __init__(self, strength: float = 1.0) -> None:
        if strength <= 0:
            raise ModelError(f"the strength C of logistic regression must be above 0, got {strength}")
        self.strength = strength

    def describe(self) -> dict[str, Any]:
        """The strength C."""
        return {"strength": self.strength}

    def adapt(self, support: Support, base: BaseClasses, joint: bool = False) -> Scorer:
        """Fit all episodes at once."""
        return fit_logistic(support, base.weights if joint else None, self.strength)
