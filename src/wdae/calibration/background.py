"""Classes that a backbone was trained on, beside those of a model: what is one of them is none of these."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wdae.calibration.familiarity import LEAST_ALIKE, LEAST_SHARE, UNSURE
from wdae.nn.cosine import unit

SHARPNESS = 3.0
"""How little the background classes count that the pictures of a class are seldom taken for, beside the one
that they are taken for most often; chosen on validation classes."""

_RARE, _LARGEST_FACTOR = 1e-4, 5.0


@dataclass(frozen=True, eq=False)
class Background:
    """A backbone's own classifier, on features of unit length: weight ``[B, D]``, bias ``[B]``.

    Some of its classes are those of a model, under whatever name: which ones, the examples of a class tell.
    What it then finds in a picture beyond them speaks against every class of the model.
    """

    weight: Tensor
    bias: Tensor

    @classmethod
    def of_linear(
        cls,
        weight: Tensor,
        bias: Tensor,
        length: float,
        usual: Tensor | None = None,
        found: Tensor | None = None,
    ) -> Background:
        """From a classifier of features that are so long on average, kept in half precision.

        Pictures unlike those that the backbone was trained on, such as small ones that were enlarged, shift
        its features. Where their means ``[D]`` are known, ``usual`` there and ``found`` here (the latter of
        features of unit length), a factor brings each feature from the one to the other, as is done with
        BatchNorm by Yanghao Li et al., "Revisiting Batch Normalization For Practical Domain Adaptation",
        2016, https://arxiv.org/abs/1603.04779. A feature whose mean is not above 0 stays as it is.
        """
        weight = length * weight.detach()
        if usual is not None and found is not None:
            usual = usual.detach() / length
            factor = (usual / found.clamp(min=_RARE)).clamp(1 / _LARGEST_FACTOR, _LARGEST_FACTOR)
            weight = weight * torch.where((usual > 0) & (found > 0), factor, 1.0)
        return cls(weight.half().float(), bias.detach().float())

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


def profile(chances: Tensor, sharpness: float) -> Tensor:
    """The background classes that a class of examples with these chances ``[k, B]`` is, ``[B]``."""
    return sharpened(chances.mean(0), sharpness)


def sharpened(means: Tensor, sharpness: float) -> Tensor:
    """Profiles ``[..., B]`` of which :func:`explained` makes ``(m / max m)^s``, from means m of chances.

    A class is mostly one background class, or several alike; what its pictures are mistaken for now and then
    is no part of it. A sharpness of 0 leaves the means, as in files of before.

    >>> found = sharpened(torch.tensor([0.6, 0.3, 0.0]), 2.0)
    >>> (found / (found + UNSURE)).round(decimals=4)
    tensor([0.9091, 0.2500, 0.0000])
    """
    if not sharpness:
        return means
    share = (means / means.amax(-1, keepdim=True).clamp(min=1e-12)).pow(sharpness)
    return (UNSURE * share / (1 - share).clamp(min=UNSURE)).clamp(max=1)


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
