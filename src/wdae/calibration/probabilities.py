"""Scores as probabilities: the gain that makes them so, and how far off they are."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.bank import ClassSet
from wdae.methods.records import QUANTILES

MOST_SCORES = 3e7
"""Images × base classes that a gain is fitted on; of more images, every second, third, ... is taken."""


def base_cosines(images: ClassSet, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines ``[M, N]`` of base images with unit weights ``[N, D]``, and labels ``[M]``, on the CPU."""
    every = max(1, int(len(images.features) * len(weights) / MOST_SCORES))
    return (images.features[::every] @ weights.T).cpu(), images.labels[::every].cpu()


def fit_gain(cosines: Tensor, labels: Tensor, start: float) -> float:
    """The gain that makes held-out images' labels most probable: cosines ``[M, N]``, labels ``[M]``.

    Labels are smoothed by half a count in M + 1, or images that are all told apart would ask for certainty.
    """
    log = torch.zeros((), dtype=torch.float64, requires_grad=True)
    cosines = cosines.double()
    smoothing = 0.5 / (len(labels) + 1)

    def loss() -> Tensor:
        return F.cross_entropy(start * log.exp() * cosines, labels, label_smoothing=smoothing)

    minimise([log], loss)
    return start * float(log.detach().clamp(-3, 3).exp())


def base_figures(cosines: Tensor, labels: Tensor, scale: float) -> dict[str, float]:
    """Accuracy and calibration error of held-out base images, each half with the gain of the other."""
    if len(labels) < 2 or cosines.shape[1] < 2:
        return {}
    chances = torch.empty_like(cosines)
    first, second = slice(None, None, 2), slice(1, None, 2)
    for fitted, measured in ((first, second), (second, first)):
        gain = fit_gain(cosines[fitted], labels[fitted], scale)
        chances[measured] = (gain * cosines[measured]).softmax(1)
    return {
        "accuracy_base": float((cosines.argmax(1) == labels).double().mean()),
        "ece_base_before": calibration_error((scale * cosines).softmax(1), labels),
        "ece_base": calibration_error(chances, labels),
    }


def quantiles(values: Tensor) -> tuple[float, ...]:
    """The quantiles 0, 1/200, ..., 1 of some values."""
    if not len(values):
        return ()
    found = torch.quantile(values.double(), torch.linspace(0, 1, QUANTILES).double())
    return tuple(round(value, 5) for value in found.tolist())


def calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Expected calibration error of probabilities ``[M, C]`` for labels ``[M]``."""
    confidence, predicted = probabilities.max(1)
    return binned_error(confidence, predicted == labels)


def binned_error(confidence: Tensor, right: Tensor, n_bins: int = 15) -> float:
    """|confidence − accuracy| over bins of confidence, weighted by their size."""
    place = (confidence * n_bins).long().clamp(0, n_bins - 1)
    gap = torch.zeros(n_bins, dtype=torch.float64)
    gap.index_add_(0, place, confidence.double() - right.double())
    return float(gap.abs().sum() / len(right))


def area_under_roc(known: Tensor, unknown: Tensor) -> float:
    """The probability that a known image's score exceeds an unknown one's (ties count half)."""
    values = torch.cat([known, unknown]).double()
    _, inverse, counts = values.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2.0)[inverse]  # mean rank of ties, from 1
    n, m = len(known), len(unknown)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


@torch.enable_grad()
def minimise(parameters: list[Tensor], loss: Callable[[], Tensor]) -> None:
    """Bring a smooth loss of a few parameters to its minimum, by L-BFGS."""
    optimiser = torch.optim.LBFGS(parameters, max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()
        return value

    optimiser.step(closure)
