"""Rehearsal: classes play new, to choose the refinement step and to calibrate before a real one comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wdae.bank import ClassSet
from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.errors import EpisodeError
from wdae.methods.calibration import (
    REHEARSED,
    Calibration,
    Played,
    area_under_roc,
    calibration_error,
    fit_balance,
    fit_gain,
    quantiles,
)
from wdae.nn.cosine import unit
from wdae.nn.generate import move, novel_estimate
from wdae.nn.incremental import BaseState
from wdae.runtime.randomness import derive_seed

STEPS = tuple(round(0.1 * k, 1) for k in range(11))  # 0 leaves the initial estimate alone
_MOST_SCORES = 3e7  # images × base classes looked at


@dataclass(frozen=True)
class Stage:
    """One cast of the rehearsal.

    Attributes:
        base: unit weights of the classes that stay base ``[N, D]``.
        held_out: images of those classes that nothing was learned from.
        pool: images of the classes that play new.
        state: the denoiser on ``base``, or None.
    """

    base: Tensor
    held_out: ClassSet
    pool: ClassSet
    state: BaseState | None = None


@dataclass(frozen=True)
class Balance:
    """ε, slope and offset of a number of shots, and how well calibrated their scores are."""

    step: float
    slope: float
    offset: float
    error_before: float
    error: float


def calibrate(
    weights: Tensor,
    held_out: ClassSet | None,
    scale: float,
    stages: Sequence[Stage],
    shots: Sequence[int],
    n_episodes: int,
    seed: int,
    novel_share: float = 0.5,
) -> tuple[Calibration, dict[int, float]]:
    """The calibration, and ε for each number of shots.

    Args:
        weights, held_out, scale: of all base classes; γ before calibration.
        stages: casts to rehearse with; none leaves added classes as they are.
        shots: numbers of shots to rehearse.
        n_episodes: over all stages together.
    """
    gain, figures, familiarity = _base_gain(weights, held_out, scale, seed)
    balances: dict[int, Balance] = {}
    for n_shot in shots if stages else ():
        try:
            balances[n_shot] = _balance(stages, n_shot, gain, n_episodes, derive_seed(seed, n_shot))
        except EpisodeError:  # too few images for so many shots
            continue
    if stages:
        known = torch.cat([(stage.held_out.features @ stage.base.T).amax(1) for stage in stages])
        unknown = torch.cat([(stage.pool.features @ stage.base.T).amax(1) for stage in stages])
        figures["auroc_unknown"] = area_under_roc(known, unknown)
    for n_shot, found in balances.items():
        figures[f"ece_added_{n_shot}_before"] = found.error_before
        figures[f"ece_added_{n_shot}"] = found.error
    calibration = Calibration(
        gain,
        {k: found.slope for k, found in balances.items()},
        {k: found.offset for k, found in balances.items()},
        quantiles(familiarity),
        figures,
        novel_share,
    )
    return calibration, {k: found.step for k, found in balances.items()}


def _base_gain(
    weights: Tensor, images: ClassSet | None, scale: float, seed: int
) -> tuple[float, dict[str, float], Tensor]:
    """Gain of base classes; figures taken on images that the gain of the other half was found on."""
    if images is None or len(images.features) < 2 or len(weights) < 2:
        return scale, {}, torch.zeros(0)
    generator = torch.Generator().manual_seed(derive_seed(seed, "gain"))
    most = max(100, int(_MOST_SCORES / len(weights)))
    rows = torch.randperm(len(images.features), generator=generator)[:most]
    cosines, labels = images.features[rows] @ weights.T, images.labels[rows]
    first, second = slice(None, None, 2), slice(1, None, 2)
    chances = torch.empty_like(cosines)
    for fitted, measured in ((first, second), (second, first)):
        gain = fit_gain(cosines[fitted], labels[fitted], scale)
        chances[measured] = (gain * cosines[measured]).softmax(1)
    gain = fit_gain(cosines, labels, scale)
    figures = {
        "accuracy_base": float((cosines.argmax(1) == labels).double().mean()),
        "ece_base_before": calibration_error((scale * cosines).softmax(1), labels),
        "ece_base": calibration_error(chances, labels),
    }
    return gain, figures, gain * cosines.amax(1)


@torch.no_grad()
def _play(stage: Stage, n_shot: int, gain: float, n_episodes: int, seed: int) -> dict[float, Played]:
    """Episodes of a stage: as many queries of base classes as of new ones; the outcome for each ε."""
    pool = stage.pool
    n_way, n_query = min(REHEARSED, pool.n_classes), max(1, min(15, int(pool.counts.min()) - n_shot))
    most = int(_MOST_SCORES / (2 * n_way * n_query * len(stage.base)))
    n_episodes = max(2, min(n_episodes, most))
    spec = EpisodeSpec(n_way, (n_shot,), n_query, n_way * n_query)
    episodes = EpisodeSampler(pool, spec, seed, base_query=stage.held_out).draw(0, n_episodes)
    initial = novel_estimate(pool.features[episodes.support])  # [E, n, D]
    restored = initial
    if stage.state is not None:
        parts = [stage.state.refine(some, with_base=False).novel for some in initial.split(16)]
        restored = unit(torch.cat(parts))
    rows = episodes.query.flatten(1)
    queries = torch.cat([pool.features[rows], stage.held_out.features[episodes.base_query]], dim=1)
    own = len(stage.base) + torch.arange(n_way).repeat_interleave(n_query).expand(n_episodes, -1)
    labels = torch.cat([own, episodes.base_query_label], dim=1).flatten()
    base = gain * (queries.flatten(0, 1) @ stage.base.T)
    outcome: dict[float, Played] = {}
    for step in STEPS if stage.state is not None else STEPS[:1]:
        weights = unit(move(initial, restored, step))
        novel = gain * (queries @ weights.transpose(1, 2)).flatten(0, 1)
        outcome[step] = Played.of(base, novel, labels, REHEARSED)
    return outcome


def _play_all(
    stages: Sequence[Stage], n_shot: int, gain: float, n_episodes: int, seed: int
) -> dict[float, Played]:
    each = max(2, n_episodes // len(stages))
    outcomes = [
        _play(stage, n_shot, gain, each, derive_seed(seed, number)) for number, stage in enumerate(stages)
    ]
    return {step: Played.joined([outcome[step] for outcome in outcomes]) for step in outcomes[0]}


def _balance(stages: Sequence[Stage], n_shot: int, gain: float, n_episodes: int, seed: int) -> Balance:
    """ε, slope and offset under which true classes are most probable.

    The figures are of classes other than those that slope and offset were found on, where there are enough.
    """
    played = _play_all(stages, n_shot, gain, n_episodes, seed)
    found = {step: fit_balance(outcome) for step, outcome in played.items()}
    step = min(found, key=lambda s: float(played[s].loss(*found[s])))
    halves = [
        _play_all(half, n_shot, gain, n_episodes // 2, derive_seed(seed, "half", number))[step]
        for number, half in enumerate(_halves(stages))
    ]
    before = [half.error(1.0, 0.0) for half in halves]
    after = [other.error(*fit_balance(mine)) for mine, other in zip(halves, halves[::-1], strict=True)]
    return Balance(step, *found[step], sum(before) / len(before), sum(after) / len(after))


def _halves(stages: Sequence[Stage]) -> list[Sequence[Stage]]:
    """Two casts with different classes that play new; the same twice where there are too few."""
    if len(stages) > 1:
        return [stages[::2], stages[1::2]]
    pool = stages[0].pool
    if pool.n_classes < 4:
        return [stages, stages]
    pools = [
        ClassSet(pool.features, pool.starts[i::2].clone(), pool.counts[i::2].clone(), pool.names[i::2])
        for i in (0, 1)
    ]
    return [[replace(stages[0], pool=half)] for half in pools]
