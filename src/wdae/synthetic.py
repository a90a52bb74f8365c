"""Synthetic feature banks whose classes form a hierarchy, so that neighbouring classes are informative."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.bank import FeatureBank
from wdae.errors import BankError
from wdae.parts import Part

_BRANCHING = (4, 4)  # children at each level above the classes: 16 super-classes in 4 families
_UNEVENNESS = 0.3  # deviation of the logarithm of a class's spread
_NUISANCE_SHARE = 0.3  # of the noise's squared length, in directions that all classes share
_WEIGHT_NOISE = 0.15  # length of the disturbance of the base weights
_SCALE = 20.0  # γ of the imagined base classifier


def synthetic_bank(
    n_base: int = 64,
    n_validation: int = 16,
    n_novel: int = 20,
    images_per_class: int | tuple[int, int] = 100,
    dim: int = 64,
    seed: int = 0,
    *,
    held_out_per_class: int = 25,
    kinship: float = 0.5,
    spread: float = 2.0,
) -> FeatureBank:
    """A bank drawn from a tree of classes; the same arguments give the same bank.

    The direction of a class is a mixture of its ancestors' directions and its own. An image is that
    direction plus noise, part of it in a few nuisance directions that all classes share (as pose and light
    in photographs). The learned base weights are the true directions plus a little noise.

    Args:
        images_per_class: for every class, or the smallest and largest number, drawn for each class.
        held_out_per_class: how many of a base class's images are held out.
        kinship: the share (of squared length) of a class's direction that comes from its ancestors.
        spread: length of an image's noise relative to its class direction at D = 64; it grows with the fourth
            root of D, which keeps the episodes roughly as hard at every size.

    >>> bank = synthetic_bank(n_base=8, n_validation=0, n_novel=4, images_per_class=10, held_out_per_class=3)
    >>> bank.n_base, bank.dim, sum(bank.counts(Part.BASE_HELD_OUT))
    (8, 64, 24)
    """
    low, high = (images_per_class,) * 2 if isinstance(images_per_class, int) else images_per_class
    if n_base < 1 or min(n_validation, n_novel) < 0:
        raise BankError(
            f"a synthetic bank takes at least 1 base class and no negative numbers; got {n_base} base,"
            f" {n_validation} validation and {n_novel} novel classes"
        )
    if not 1 <= low <= high or not 0 <= held_out_per_class < low:
        raise BankError(
            f"{low} to {high} images a class, of which {held_out_per_class} held out, leave no base-train"
            " images; give fewer held out or more images"
        )
    if dim < 2:
        raise BankError(f"dim must be at least 2, got {dim}")
    generator = torch.Generator().manual_seed(seed)
    n_classes = n_base + n_validation + n_novel
    parents, directions = _tree(n_classes, dim, kinship, generator)
    counts = torch.randint(low, high + 1, (n_classes,), generator=generator)
    labels = torch.arange(n_classes).repeat_interleave(counts)
    spreads = spread * (dim / 64) ** 0.25 * (_UNEVENNESS * torch.randn(n_classes, generator=generator)).exp()
    features = directions[labels] + spreads[labels, None] * _noise(len(labels), dim, generator)
    disturbance = torch.randn(n_base, dim, generator=generator) / math.sqrt(dim)
    weights = F.normalize(directions[:n_base] + _WEIGHT_NOISE * disturbance, dim=1)

    place = torch.arange(len(labels)) - torch.searchsorted(labels, labels)  # of an image in its class
    parts = torch.full_like(labels, Part.NOVEL.code)
    parts[labels < n_base + n_validation] = Part.VALIDATION.code
    parts[labels < n_base] = Part.BASE_TRAIN.code
    parts[(labels < n_base) & (place >= counts[labels] - held_out_per_class)] = Part.BASE_HELD_OUT.code
    names = [f"{family}/{label:0{len(str(n_classes - 1))}d}" for label, family in enumerate(parents)]
    info = {"source": "synthetic", "seed": seed, "spread": spread, "kinship": kinship}
    return FeatureBank.build(features, labels, names, parts, weights, _SCALE, info)


def _tree(n_classes: int, dim: int, kinship: float, generator: torch.Generator) -> tuple[list[str], Tensor]:
    """Each class's super-class by name, and its unit direction [n_classes, D].

    Classes go to the super-classes in turn, so that base, validation and novel classes are all spread out.
    """
    paths = list(itertools.product(*(range(width) for width in _BRANCHING)))
    order = torch.randperm(len(paths), generator=generator).tolist()
    chosen = [paths[order[label % len(paths)]] for label in range(n_classes)]
    own = math.sqrt(1 - kinship) * _directions(n_classes, dim, generator)
    nodes: dict[tuple[int, ...], Tensor] = {(): torch.zeros(dim)}
    share = math.sqrt(kinship / len(_BRANCHING))
    for depth in range(1, len(_BRANCHING) + 1):
        for path in itertools.product(*(range(width) for width in _BRANCHING[:depth])):
            nodes[path] = nodes[path[:-1]] + share * _directions(1, dim, generator)[0]
    mixed = torch.stack([nodes[path] for path in chosen]) + own
    return [".".join(map(str, path)) for path in chosen], F.normalize(mixed, dim=1)


def _directions(n: int, dim: int, generator: torch.Generator) -> Tensor:
    return F.normalize(torch.randn(n, dim, generator=generator), dim=1)


def _noise(n: int, dim: int, generator: torch.Generator) -> Tensor:
    """Noise of expected squared length 1, a share of it in an eighth of the directions. [n, D]."""
    n_nuisance = max(1, dim // 8)
    everywhere = torch.randn(n, dim, generator=generator) / math.sqrt(dim)
    axes: Tensor = torch.linalg.qr(torch.randn(dim, n_nuisance, generator=generator)).Q  # [D, n_nuisance]
    shared = torch.randn(n, n_nuisance, generator=generator) / math.sqrt(n_nuisance) @ axes.T
    return math.sqrt(1 - _NUISANCE_SHARE) * everywhere + math.sqrt(_NUISANCE_SHARE) * shared
