"""ε and the balance of base and novel scores, for any number of shots, found on pseudo-novel classes."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from wdae.bank import ClassSet, FeatureBank
from wdae.calibration.conformal import fit_sets
from wdae.calibration.probabilities import (
    area_under_roc,
    base_cosines,
    base_figures,
    binned_error,
    fit_gain,
    minimise,
    quantiles,
)
from wdae.calibration.protection import MANY_SHOTS, protecting_shares
from wdae.calibration.pseudo_novel import (
    Generating,
    QueryScores,
    Split,
    Weighing,
    Where,
    halves,
    play,
    splits,
    where_to_play,
)
from wdae.calibration.step_size import TUNED_STEPS, Trial, Trials, choose
from wdae.errors import EpisodeError
from wdae.methods.base import base_classes
from wdae.methods.calibration import Calibration, step_for
from wdae.methods.wdae import WDAE
from wdae.nn.cosine import unit
from wdae.parts import Part
from wdae.runtime.randomness import derive_seed

SLOPES = (0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5)
_FARTHEST = 50.0  # offsets looked at
_RECOGNISED = 0.98  # accuracy from which on it cannot choose a slope
_MEASURED = (1, 2, 5)  # numbers of shots whose calibration error is measured
_MEASURED_EPISODES = 120


@dataclass(frozen=True)
class Tuned:
    """ε by number of shots, the balance, and the trials they were chosen from."""

    steps: dict[int, float]
    balance: Calibration
    trials: Trials


@torch.no_grad()
def tune(
    method: Generating,
    bank: FeatureBank,
    shots: Sequence[int],
    *,
    where: Where = "validation",
    rule: Literal["shrinking", "free"] = "shrinking",
    chosen_for: Literal["novel", "both"] = "both",
    base_drop_limit: float | None = None,
    steps: Mapping[int, float] | None = None,
    novel_share: float = 0.5,
    n_way: int = 5,
    n_query: int = 15,
    n_episodes: int = 2000,
    seed: int = 0,
    device: torch.device | str = "cpu",
    images: int = 0,
) -> Tuned:
    """Find ε and balance of a method for each number of shots that the classes have images for.

    The offset of novel scores is the likeliest one; ε follows ``rule`` and costs base accuracy at most
    ``base_drop_limit``, or is as given in ``steps``; the slope is that of highest accuracy among base and
    novel classes. ``images`` is that of :func:`wdae.calibration.pseudo_novel.splits`.
    """
    device = torch.device(device)
    found = splits(bank, where, device, images)
    held_out, base = bank.select(Part.BASE_HELD_OUT, device=device), base_classes(bank, device)
    gain = fit_gain(*base_cosines(held_out, unit(base.weights)), base.scale)
    if not isinstance(method, WDAE):
        steps = {1: 0.0}
    trials: dict[int, dict[float, Trial]] = {}
    for n_shot in sorted(set(shots)) if found else ():
        some = TUNED_STEPS if steps is None else (step_for(n_shot, steps),)
        played = play(
            method,
            found,
            n_shot,
            gain,
            some,
            n_way=n_way,
            n_query=n_query,
            n_episodes=n_episodes,
            seed=seed,
        )
        if played:
            trials[n_shot] = {
                step: Trial(novel, scores.accuracy(1.0, fit_offset(scores)), scores)
                for step, (scores, novel) in played.items()
            }
    if not trials:
        raise EpisodeError(f"no class has images to play novel with any of {list(shots)} shots and a query")
    if steps is None:
        steps = choose(trials, rule, chosen_for, base_drop_limit)
    pairs = {k: _at_nearest(trials[k], step_for(k, steps)) for k in trials}
    slopes, offsets = ({k: pair[i] for k, pair in pairs.items()} for i in (0, 1))
    return Tuned(dict(steps), Calibration(gain, slopes, offsets, novel_share=novel_share), trials)


def _at_nearest(trials: Mapping[float, Trial], step: float) -> tuple[float, float]:
    """Slope and offset at the nearest ε that was tried; with ε they change slowly."""
    return fit_balance(trials[min(trials, key=lambda s: abs(s - step))].scores)


def fit_balance(scores: QueryScores) -> tuple[float, float]:
    """Slope of highest accuracy among base and novel classes, each with its likeliest offset.

    Of slopes that are as good, it is the one nearest 1, which changes least. Where nearly all queries are
    recognised with any slope, as with few classes, accuracy cannot choose: both are then the likeliest, with
    a weak prior that keeps them finite.
    """
    offsets = {slope: fit_offset(scores, slope) for slope in SLOPES}
    accuracy = {slope: scores.accuracy(slope, offset) for slope, offset in offsets.items()}
    if min(accuracy.values()) < _RECOGNISED:
        best = max(SLOPES, key=lambda slope: (accuracy[slope], -abs(math.log(slope))))
        return best, offsets[best]
    log_slope = torch.zeros((), dtype=torch.float64, requires_grad=True)
    offset = torch.zeros((), dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        unlikely = log_slope.square() + (offset / 3).square()
        return scores.loss(log_slope.exp(), offset) + 0.005 * unlikely

    minimise([log_slope, offset], loss)
    return float(log_slope.detach().exp()), float(offset.detach())


def fit_offset(scores: QueryScores, slope: float = 1.0) -> float:
    """The likeliest offset of novel classes, for a given slope.

    At the maximum of the likelihood the queries' probability of being novel, on average, is the share of
    those that are: the constant that puts both kinds of classes on a par. Only the log odds of novel against
    base matter, and the average rises with the offset: Newton's steps, kept within halves of an interval.
    """
    is_novel = scores.is_novel
    if not bool(is_novel.any()) or not bool((~is_novel).any()):
        return 0.0
    odds = (slope * scores.novel).logsumexp(1) + scores.prior - scores.mass
    share = is_novel.double().mean()
    weight = torch.where(is_novel, 0.5 / share, 0.5 / (1 - share)) / len(odds)
    low, high, offset = -_FARTHEST, _FARTHEST, 0.0
    for _ in range(60):
        chance = torch.sigmoid(odds + offset)
        excess = float(weight @ chance) - 0.5
        low, high = (low, offset) if excess > 0 else (offset, high)
        ahead = offset - excess / max(float(weight @ (chance * (1 - chance))), 1e-12)
        last, offset = offset, ahead if low < ahead < high else (low + high) / 2
        if abs(offset - last) < 1e-6:
            break
    return offset


@torch.no_grad()
def measured(
    method: Weighing,
    bank: FeatureBank,
    played: FeatureBank | None = None,
    *,
    novel_share: float | None = None,
    seed: int = 0,
    images: int = 0,
) -> Calibration:
    """The method's balance with what a practitioner asks of it: when a score is unfamiliar, how good it is.

    Calibration errors are of other images than the gain, and of other pseudo-novel classes than slope and
    offset, were found on. A method without a balance gets one that leaves its scores as they are.
    Pseudo-novel classes are those of ``played``, the bank that the method was trained on. ``novel_share`` is
    what the model expects, None: no more than base classes can bear.
    """
    base = base_classes(bank)
    scale = base.scale if not isinstance(method, WDAE) or method.scale is None else method.scale
    balance = method.balance or Calibration(scale)
    if not bank.has(Part.BASE_HELD_OUT):
        return replace(balance, novel_share=novel_share)
    weights = unit(base.weights)
    cosines, labels = base_cosines(bank.select(Part.BASE_HELD_OUT), weights)
    figures = base_figures(cosines, labels, scale)
    played = bank if played is None else played
    where = where_to_play(played)
    found = [] if where is None else splits(played, where, images=images)
    if found:
        known, unknown = (
            torch.cat([_nearest(images(split), split.base.weights) for split in found])
            for images in (lambda split: split.held_out, lambda split: split.pool)
        )
        figures["auroc_unknown"] = area_under_roc(known, unknown)
    for n_shot in _MEASURED:
        if found and n_shot in balance.offsets:
            figures |= _novel_figures(method, halves(found), n_shot, balance.gain, seed)
    shots = sorted(balance.offsets)
    more = MANY_SHOTS if shots and method.posterior is not None else ()
    made = copy.copy(method)
    made.balance = replace(
        balance,
        familiarity=quantiles(balance.gain * cosines.amax(1)),
        figures=figures,
        novel_share=novel_share,
        protecting=protecting_shares(method, found, sorted({*shots, *more}), seed=seed),
    )
    sets = fit_sets(made, bank.select(Part.BASE_HELD_OUT), weights, found, shots, seed=seed)
    return replace(made.balance, sets=sets)


def _nearest(images: ClassSet, weights: Tensor) -> Tensor:
    """The cosine of each image with its nearest class ``[M]``."""
    rows = torch.cat([images.of_class(c) for c in range(images.n_classes)])
    return (rows @ unit(weights).T).amax(1)


def _novel_figures(
    method: Weighing, parts: Sequence[Sequence[Split]], n_shot: int, gain: float, seed: int
) -> dict[str, float]:
    step = step_for(n_shot, method.steps) if isinstance(method, WDAE) else 0.0
    found = [
        play(
            method,
            part,
            n_shot,
            gain,
            (step,),
            n_episodes=_MEASURED_EPISODES // 2,
            seed=derive_seed(seed, "half", number),
        )
        for number, part in enumerate(parts)
    ]
    if not all(found):
        return {}
    pair = [one[step][0] for one in found]
    before = [_error(scores, 1.0, 0.0) for scores in pair]
    after = [_error(theirs, *fit_balance(mine)) for mine, theirs in zip(pair, pair[::-1], strict=True)]
    return {f"ece_added_{n_shot}_before": sum(before) / 2, f"ece_added_{n_shot}": sum(after) / 2}


def _error(scores: QueryScores, slope: float, offset: float) -> float:
    return binned_error(scores.confidence(slope, offset), scores.right(slope, offset))
