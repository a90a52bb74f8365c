"""Rehearsal: classes play new, to choose the refinement step and to calibrate before a real one comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wdae.bank import ClassSet
from wdae.calibration import (
    Calibration,
    area_under_roc,
    calibration_error,
    fit_balance,
    fit_gain,
    quantiles,
)
from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.errors import EpisodeError
from wdae.generate import move, novel_estimate
from wdae.nn.cosine import unit
from wdae.nn.incremental import BaseState
from wdae.randomness import derive_seed

STEPS = tuple(round(0.1 * k, 1) for k in range(11))  # 0 leaves the initial estimate alone
_MOST_SCORES = 3e7  # held-out images × base classes looked at


@dataclass(frozen=True)
class Rehearsal:
    """What is rehearsed with.

    Attributes:
        base: unit weights of the classes that stay base ``[N, D]``.
        held_out: images of those classes that nothing was learned from.
        pool: images of the classes that play new, or None where there are none.
        state: the denoiser on ``base``, or None.
        scale: γ before calibration.
    """

    base: Tensor
    held_out: ClassSet | None
    pool: ClassSet | None
    state: BaseState | None
    scale: float


@dataclass(frozen=True)
class Balance:
    """ε, slope and offset of a number of shots, and how well calibrated their scores are."""

    step: float
    slope: float
    offset: float
    error_before: float
    error: float


def calibrate(
    stage: Rehearsal, shots: Sequence[int], n_episodes: int, seed: int
) -> tuple[Calibration, dict[int, float]]:
    """The calibration, and ε for each number of shots."""
    gain, figures, familiarity = _base_gain(stage, seed)
    balances: dict[int, Balance] = {}
    n_episodes = max(10, min(n_episodes, int(_MOST_SCORES / (150 * len(stage.base)))))
    if stage.pool is not None and stage.held_out is not None:
        for n_shot in shots:
            try:
                balances[n_shot] = _balance(stage, n_shot, gain, n_episodes, derive_seed(seed, n_shot))
            except EpisodeError:  # too few images for so many shots
                continue
        top = gain * (stage.pool.features @ stage.base.T).amax(1)
        if len(familiarity):
            figures["auroc_unknown"] = area_under_roc(familiarity, top)
    for n_shot, found in balances.items():
        figures[f"ece_added_{n_shot}_before"] = found.error_before
        figures[f"ece_added_{n_shot}"] = found.error
    slopes = {k: found.slope for k, found in balances.items()}
    offsets = {k: found.offset for k, found in balances.items()}
    steps = {k: found.step for k, found in balances.items()}
    return Calibration(gain, slopes, offsets, quantiles(familiarity), figures), steps


def _base_gain(stage: Rehearsal, seed: int) -> tuple[float, dict[str, float], Tensor]:
    """Gain of base classes; figures taken on images that the gain of the other half was found on."""
    images = stage.held_out
    if images is None or len(images.features) < 2 or len(stage.base) < 2:
        return stage.scale, {}, torch.zeros(0)
    generator = torch.Generator().manual_seed(derive_seed(seed, "gain"))
    most = max(100, int(_MOST_SCORES / len(stage.base)))
    rows = torch.randperm(len(images.features), generator=generator)[:most]
    cosines, labels = images.features[rows] @ stage.base.T, images.labels[rows]
    first, second = slice(None, None, 2), slice(1, None, 2)
    errors = []
    for fitted, measured in ((first, second), (second, first)):
        gain = fit_gain(cosines[fitted], labels[fitted], stage.scale)
        errors.append(calibration_error((gain * cosines[measured]).softmax(1), labels[measured]))
    gain = fit_gain(cosines, labels, stage.scale)
    figures = {
        "accuracy_base": float((cosines.argmax(1) == labels).double().mean()),
        "ece_base_before": calibration_error((stage.scale * cosines).softmax(1), labels),
        "ece_base": sum(errors) / 2,
    }
    return gain, figures, gain * cosines.amax(1)


@torch.no_grad()
def _play(
    stage: Rehearsal, pool: ClassSet, n_shot: int, gain: float, n_episodes: int, seed: int
) -> tuple[Tensor, dict[float, Tensor], Tensor]:
    """Scores of queries of both kinds: base ``[M, N]``, new ``[M, n]`` for each ε, labels ``[M]``."""
    assert stage.held_out is not None
    fewest = int(pool.counts.min())
    n_way, n_query = min(5, pool.n_classes), max(1, min(15, fewest - n_shot))
    spec = EpisodeSpec(n_way, (n_shot,), n_query, n_way * n_query)
    episodes = EpisodeSampler(pool, spec, seed, base_query=stage.held_out).draw(0, n_episodes)
    initial = novel_estimate(pool.features[episodes.support])  # [E, n, D]
    restored = initial
    if stage.state is not None:
        parts = [stage.state.refine(some, with_base=False).novel for some in initial.split(16)]
        restored = unit(torch.cat(parts))
    rows = episodes.query.flatten(1)
    queries = torch.cat([pool.features[rows], stage.held_out.features[episodes.base_query]], dim=1)
    n_base = len(stage.base)
    own = n_base + torch.arange(n_way).repeat_interleave(n_query).expand(n_episodes, -1)
    labels = torch.cat([own, episodes.base_query_label], dim=1).flatten()
    base = gain * (queries.flatten(0, 1) @ stage.base.T)
    novel = {
        step: gain * (queries @ unit(move(initial, restored, step)).transpose(1, 2)).flatten(0, 1)
        for step in (STEPS if stage.state is not None else (0.0,))
    }
    return base, novel, labels


def _balance(stage: Rehearsal, n_shot: int, gain: float, n_episodes: int, seed: int) -> Balance:
    """ε, slope and offset under which labels are most probable; the figures by halves of the classes."""
    assert stage.pool is not None
    base, novel, labels = _play(stage, stage.pool, n_shot, gain, n_episodes, seed)
    losses: dict[float, tuple[float, float, float]] = {}
    for step, scores in novel.items():
        slope, offset = fit_balance(base, scores, labels)
        joint = torch.cat([base, slope * scores + offset], dim=1)
        losses[step] = (float(torch.nn.functional.cross_entropy(joint, labels)), slope, offset)
    step = min(losses, key=lambda s: losses[s][0])
    _, slope, offset = losses[step]

    halves = _halves(stage.pool) if stage.pool.n_classes >= 4 else [stage.pool, stage.pool]
    played = [
        _play(stage, half, n_shot, gain, max(5, n_episodes // 2), derive_seed(seed, "half", i))
        for i, half in enumerate(halves)
    ]
    before: list[float] = []
    after: list[float] = []
    for mine, other in (played, played[::-1]):
        a, b = fit_balance(mine[0], mine[1][step], mine[2])
        for found, slope_, offset_ in ((before, 1.0, 0.0), (after, a, b)):
            joint = torch.cat([other[0], slope_ * other[1][step] + offset_], dim=1)
            found.append(calibration_error(joint.softmax(1), other[2]))
    return Balance(step, slope, offset, sum(before) / 2, sum(after) / 2)


def _halves(pool: ClassSet) -> list[ClassSet]:
    """Every other class, and the rest."""
    return [
        ClassSet(
            pool.features, pool.starts[first::2].clone(), pool.counts[first::2].clone(), pool.names[first::2]
        )
        for first in (0, 1)
    ]
