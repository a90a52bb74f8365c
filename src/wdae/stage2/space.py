"""The space that a denoiser works in: chosen on validation classes, base weights learned anew in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.bank import ClassSet, FeatureBank
from wdae.bank.encoding import blocks, decode
from wdae.errors import EpisodeError
from wdae.evaluation.protocol import nearest_mean_accuracies
from wdae.methods.base import base_classes
from wdae.nn.cosine import unit
from wdae.nn.space import FeatureSpace, powered, whitening
from wdae.parts import Part
from wdae.runtime.randomness import derive_seed
from wdae.stage2.config import SpaceConfig

POWERS = (1.0, 0.7, 0.5)
CENTRES = (0.0, 0.3, 0.6, 1.0)
SHRINKS = (1.0, 0.98, 0.95, 0.9, 0.8, 0.6)
_CHOICE_SHOTS = (1, 5)
_BATCH, _RATE = 1024, 1e-3  # of refitting base weights


def find_space(
    bank: FeatureBank, config: SpaceConfig, *, seed: int = 0, device: torch.device | str = "cpu"
) -> FeatureSpace | None:
    """The space a recipe asks for; None where that is the features as they are."""
    if (config.power, config.centre, config.shrink) == (1.0, 0.0, 1.0) and not config.refit_steps:
        return None
    train = bank.select(Part.BASE_TRAIN, device=device)
    power, centre = _choose(bank, train.features, config, seed)
    mean = powered(train.features, power).mean(0)
    space = FeatureSpace(power, (centre * mean), train.features, 1.0)
    if config.shrink != 1.0:
        space = _whitened(space, bank, train, config, seed)
    return with_base_weights(space, bank, config.refit_steps, seed)


def with_base_weights(space: FeatureSpace, bank: FeatureBank, n_steps: int, seed: int = 0) -> FeatureSpace:
    """The space with the base classes of a bank: their weights there, learned for a few steps."""
    device = space.centre.device
    train, base = bank.select(Part.BASE_TRAIN, device=device), base_classes(bank, device)
    features = space.features(train.features)
    if space.power == 1.0 and not bool(space.centre.any()) and space.whiten is None:
        start = unit(base.weights)
    else:
        start = replace(train, features=features).unit_means(torch.float32)
    weights, scale = refit(features, train.labels, start, base.scale, n_steps, seed)
    return replace(space, weights=weights, scale=scale)


def in_space(bank: FeatureBank, space: FeatureSpace) -> FeatureBank:
    """The bank with its features and base weights in a space."""
    device = space.centre.device
    parts = []
    for rows in blocks(len(bank.labels)):
        scales = None if bank.scales is None else bank.scales[rows].to(device)
        parts.append(space.features(decode(bank.features[rows].to(device), scales)).cpu())
    moved = replace(bank, features=torch.cat(parts), scales=None)
    return moved.with_base_weights(space.weights, space.scale)


def refit(
    features: Tensor, labels: Tensor, start: Tensor, scale: float, n_steps: int, seed: int
) -> tuple[Tensor, float]:
    """A cosine classifier learned on frozen features ``[M, D]`` for a few steps, from unit rows ``[N, D]``.

    Few steps on purpose: the images are those that the backbone was trained on, and weights that fit them to
    the end leave held-out images, and new classes, behind.
    """
    if n_steps == 0:
        return start, scale
    weights = start.clone().requires_grad_()
    gain = torch.tensor(float(scale), device=start.device, requires_grad=True)
    optimiser = torch.optim.Adam([weights, gain], lr=_RATE)
    generator = torch.Generator().manual_seed(derive_seed(seed, "refit"))
    order: Sequence[Tensor] = ()
    for step in range(n_steps):
        place = step % max(1, len(order))
        if place == 0:
            order = torch.randperm(len(labels), generator=generator).to(labels.device).split(_BATCH)
        rows = order[place]
        with torch.enable_grad():
            loss = F.cross_entropy(gain * (features[rows] @ unit(weights).T), labels[rows])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
        optimiser.step()
    return unit(weights.detach()), float(gain.detach())


def _choose(bank: FeatureBank, train: Tensor, config: SpaceConfig, seed: int) -> tuple[float, float]:
    """Power and centre of highest nearest-mean accuracy on validation classes, where they are not given."""
    powers = POWERS if config.power is None else (config.power,)
    centres = CENTRES if config.centre is None else (config.centre,)
    if len(powers) * len(centres) == 1:
        return powers[0], centres[0]
    pool = _validation(bank, train.device)

    def moved() -> Iterator[ClassSet]:
        for power in powers:
            mean = powered(train, power).mean(0)
            rows = powered(pool.features, power)
            for centre in centres:
                yield replace(pool, features=unit(rows - centre * mean))

    found = _accuracies(moved, config.choice_episodes, seed)
    return max(zip(itertools.product(powers, centres), found, strict=True), key=lambda pair: pair[1])[0]


def _whitened(
    space: FeatureSpace, bank: FeatureBank, train: ClassSet, config: SpaceConfig, seed: int
) -> FeatureSpace:
    """The space with whitening: as strong as given or, where that is left open, as is best."""
    shrinks = SHRINKS if config.shrink is None else (config.shrink,)
    found = whitening(space.features(train.features), train.labels, shrinks)
    spaces = {s: replace(space, whiten=None if s == 1.0 else found[s], shrink=s) for s in shrinks}
    if len(shrinks) == 1:
        return spaces[shrinks[0]]
    pool = _validation(bank, train.device)

    def moved() -> Iterator[ClassSet]:
        return (replace(pool, features=one.features(pool.features)) for one in spaces.values())

    accuracy = dict(zip(spaces, _accuracies(moved, config.choice_episodes, seed), strict=True))
    return spaces[max(accuracy, key=accuracy.__getitem__)]


def _validation(bank: FeatureBank, device: torch.device | str) -> ClassSet:
    if not bank.has(Part.VALIDATION):
        raise EpisodeError(
            "power, centre and shrink of a space are chosen on validation classes, and the bank has none; "
            "give them"
        )
    return bank.select(Part.VALIDATION, device=device)


def _accuracies(pools: Callable[[], Iterator[ClassSet]], n_episodes: int, seed: int) -> list[float]:
    """Of class sets with other features each, the mean over numbers of shots that the smallest class has."""
    first = next(pools())
    n_way, fewest = min(5, first.n_classes), int(first.counts.min())
    shots = [k for k in _CHOICE_SHOTS if k < fewest]
    n = derive_seed(seed, "space")
    found = [
        [one.mean for one in nearest_mean_accuracies(pools(), n_way, k, min(15, fewest - k), n_episodes, n)]
        for k in shots
    ]
    return [sum(values) / len(shots) for values in zip(*found, strict=True)] or [0.0 for _ in pools()]
