"""Weights of base classes from their features alone: stage 1's cosine classifier on fixed features."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.bank import ClassSet
from wdae.nn.cosine import CosineClassifier, unit
from wdae.nn.posterior import likeliest

_BATCH = 256
_RATE = 0.02
_SCALE = 10.0  # where γ starts, as in the paper
_FEW_IMAGES = 1000  # in all; as many are told apart on held-out ones, and have time to be learned in steps
_MOST_OPERATIONS = 4e12  # a minute or two of one core; beyond, class means do nearly as well


def learn_weights(
    train: ClassSet, held_out: ClassSet | None, epochs: int, seed: int, images: int | None = None
) -> tuple[Tensor, float]:
    """Base weights ``[N, D]`` and γ, by cross-entropy from the class means on.

    From few images they are the likeliest weights with the means as a prior. From more, the means are kept
    where held-out images are told apart worse by the learned weights than by them.

    Args:
        images: how many there were when weights were first learned, if they are learned anew from more: in
            the same way, since other weights have other scores than those that were calibrated.
    """
    means = train.unit_means()
    cost = 6.0 * len(train.features) * train.n_classes * train.dim
    epochs = min(epochs, int(_MOST_OPERATIONS / cost))
    if train.n_classes < 2 or not epochs:
        return means, _SCALE
    if (images or len(train.features)) < _FEW_IMAGES:
        found = likeliest(unit(train.features.float()), train.labels, _SCALE * means.float())
        lengths = torch.linalg.vector_norm(found, dim=1)
        return unit(found), max(1.0, float(lengths.mean()))
    classifier = CosineClassifier(train.n_classes, train.dim, _SCALE)
    with torch.no_grad():
        classifier.weight.copy_(means)
    _train(classifier, train.features, train.labels, epochs, seed)
    learned, gamma = unit(classifier.weight.detach()), float(classifier.scale.detach().clamp(min=1.0))
    if held_out is not None and len(held_out.features):
        right = [_accuracy(held_out, weights) for weights in (means, learned)]
        if right[0] > right[1]:
            return means, gamma
    return learned, gamma


def _train(classifier: CosineClassifier, features: Tensor, labels: Tensor, epochs: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(classifier.parameters(), lr=_RATE)
    per_epoch = math.ceil(len(features) / _BATCH)
    for epoch in range(epochs):
        order = torch.randperm(len(features), generator=generator)
        for step in range(per_epoch):
            done = (epoch * per_epoch + step) / (epochs * per_epoch)
            for group in optimiser.param_groups:
                group["lr"] = _RATE * (1 + math.cos(math.pi * done)) / 2
            rows = order[step * _BATCH : (step + 1) * _BATCH]
            loss = F.cross_entropy(classifier(features[rows]), labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def _accuracy(images: ClassSet, weights: Tensor) -> float:
    right = [
        (x @ unit(weights).T).argmax(1) == y
        for x, y in zip(images.features.split(4096), images.labels.split(4096), strict=True)
    ]
    return float(torch.cat(right).double().mean())
