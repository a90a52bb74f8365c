"""Classes that a backbone was trained on, beside those of a model: what is one of them is none of these."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wdae.calibration.familiarity import LEAST_ALIKE, LEAST_SHARE, UNSURE
from wdae.nn.cosine import unit


@dataclass(frozen=True, eq=False)
class Background:
    """A backbone's own classifier, on features of unit length: weight ``[B, D]``, bias ``[B]``.

    Some of its classes are those of a model, under whatever name: which ones, the examples of a class tell.
    What it then finds in a picture beyond them speaks against every class of the model.
    """

    weight: Tensor
    bias: Tensor

    @classmethod
    def of_linear(cls, weight: Tensor, bias: Tensor, length: float) -> Background:
        """From a classifier of features that are so long on average, kept in half precision."""
        return cls((length * weight.detach()).half().float(), bias.detach().float())

    def chances(self, features: Tensor) -> Tensor:
        """Probabilities of the background classes ``[M, B]`` for features ``[M, D]``."""
        return torch.addmm(self.bias, unit(features), self.weight.T).softmax(1)


def explained(chances: Tensor, profiles: Tensor) -> Tensor:
    """Log odds that what the background finds in pictures is a class, ``[M, C]``.

    Args:
        chances: of the background classes in each picture ``[M, B]``.
        profiles: means of these over examples of each class ``[C, B]``.

    >>> profiles = torch.tensor([[0.9, 0.1, 0.0], [0.0, 0.0, 1.0]])
    >>> explained(torch.tensor([[1.0, 0.0, 0.0]]), profiles).round().tolist()
    [[2.0, -14.0]]
    """
    return _log_odds(chances @ (profiles / (profiles + UNSURE)).T)


def _log_odds(share: Tensor) -> Tensor:
    share = share.double().clamp(LEAST_SHARE, 1 - LEAST_SHARE)
    return (share / (1 - share)).log().float()


def alike(chances: Tensor, others: Tensor) -> Tensor:
    """Log of the chance that pictures and the means of others are of one background class, ``[...]``.

    Shapes: both ``[..., B]``.

    >>> chances, others = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    >>> alike(chances, others).exp().tolist()
    [0.5, 1.0]
    """
    return (chances * others).sum(-1).clamp(min=LEAST_ALIKE).log()
