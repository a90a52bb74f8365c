"""The choice of ε, the refinement step, for each number of shots, on pseudo-novel classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from wdae.bank import FeatureBank
from wdae.calibration.pseudo_novel import QueryScores
from wdae.episodes import EpisodeSampler, EpisodeSpec, chunk_for, take_rows
from wdae.errors import EpisodeError
from wdae.methods.base import WeightScorer, base_classes
from wdae.methods.wdae import WDAE
from wdae.nn.generate import move, novel_estimate
from wdae.parts import Part

STEPS = tuple(round(0.1 * k, 1) for k in range(11))
"""The grid of ε; 0 leaves the initial estimate alone."""
TUNED_STEPS = tuple(STEPS[k] for k in (0, 1, 2, 3, 4, 6, 8, 10))
"""Those tried where base classes are scored too, which costs more; between them curves are interpolated."""
PACES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)


@dataclass(frozen=True)
class Trial:
    """One number of shots and one ε: accuracy among novel and among all classes, and the queries' scores."""

    novel: float
    all: float
    scores: QueryScores


Trials = Mapping[int, Mapping[float, Trial]]
"""By number of shots, then by ε."""


def choose(
    trials: Trials,
    rule: Literal["shrinking", "free"] = "shrinking",
    chosen_for: Literal["novel", "both"] = "both",
    base_drop_limit: float | None = None,
) -> dict[int, float]:
    """ε for each number of shots; ``shrinking``: ε(K) = e / (1 + (K − 1) / k), e and k best on average.

    Only such ε are looked at as leave base accuracy (base among base) no more than ``base_drop_limit`` below
    that of ε = 0, which has to be among the trials.

    The more shots, the less there is to correct: the weight of what is known beforehand against that of K
    observations falls as 1 / (1 + K / k). Two numbers for all K are less at the mercy of chance than one
    each, and hold for any K.
    """

    def worth(trial: Trial) -> float:
        return trial.novel if chosen_for == "novel" else (trial.novel + trial.all) / 2

    curves = {k: {step: worth(trial) for step, trial in found.items()} for k, found in trials.items()}
    base = {
        k: {step: trial.scores.base_accuracy() for step, trial in found.items()}
        for k, found in trials.items()
    }

    def harmless(k: int, step: float) -> bool:
        return base_drop_limit is None or base[k][0.0] - _between(base[k], step) <= base_drop_limit

    if rule == "free":
        return {
            k: max((s for s in found if harmless(k, s)), key=found.__getitem__) for k, found in curves.items()
        }
    best, chosen = -1.0, dict.fromkeys(trials, 0.0)
    for most in TUNED_STEPS[1:]:
        for pace in PACES:
            table = {k: most / (1 + (k - 1) / pace) for k in trials}
            value = sum(_between(curves[k], step) for k, step in table.items())
            if value > best and all(harmless(k, step) for k, step in table.items()):
                best, chosen = value, table
    return {k: round(step, 4) for k, step in chosen.items()}


def _between(curve: Mapping[float, float], step: float) -> float:
    """A curve over ε, read between its points."""
    known = sorted(curve)
    low = max((s for s in known if s <= step), default=known[0])
    high = min((s for s in known if s >= step), default=known[-1])
    share = 0.0 if high == low else (step - low) / (high - low)
    return curve[low] + share * (curve[high] - curve[low])


@torch.no_grad()
def step_curve(
    method: WDAE,
    bank: FeatureBank,
    n_shot: int,
    *,
    steps: Sequence[float] = STEPS[1:],
    n_way: int = 5,
    n_query: int = 15,
    n_episodes: int = 2000,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> dict[float, float]:
    """Novel accuracy on validation classes for each ε, all on the same episodes.

    The denoiser runs once an episode: ε only mixes its output with its input. Several refinements run for
    each ε, as every one begins where the last has led to.

    >>> from wdae import Denoiser, synthetic_bank
    >>> bank = synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4)
    >>> method = WDAE(Denoiser(dim=8, hidden=4).eval())
    >>> list(step_curve(method, bank, 1, steps=(0.5, 1.0), n_query=5, n_episodes=10))
    [0.5, 1.0]
    """
    device = torch.device(device)
    pool = bank.select(Part.VALIDATION, device=device)
    n_way = min(n_way, pool.n_classes)
    sampler = EpisodeSampler(pool, EpisodeSpec(n_way, (n_shot,), n_query), seed)
    adapter = method.on(base_classes(bank, device))
    chunk = chunk_for(device)
    totals = dict.fromkeys(steps, 0.0)
    for start in range(0, n_episodes, chunk):
        episodes = sampler.draw(start, min(chunk, n_episodes - start))
        initial = novel_estimate(take_rows(pool.features, episodes.support))
        once = adapter.state.refine(initial, with_base=False).novel if method.n_steps == 1 else None
        queries = take_rows(pool.features, episodes.query.flatten(1))
        labels = torch.arange(n_way, device=device).repeat_interleave(n_query).expand(len(episodes), -1)
        for step in steps:
            novel = adapter.moved(initial, step).novel if once is None else move(initial, once, step)
            scores = WeightScorer(novel, None, 1.0)(queries)
            totals[step] += float((scores.argmax(-1) == labels).float().mean(-1).sum())
    return {step: total / n_episodes for step, total in totals.items()}


def choose_steps(
    method: WDAE,
    bank: FeatureBank,
    shots: Sequence[int],
    *,
    n_way: int = 5,
    n_query: int = 15,
    n_episodes: int = 2000,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> dict[int, float]:
    """The ε of highest validation accuracy for each number of shots.

    >>> from wdae import Denoiser, synthetic_bank
    >>> bank = synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4)
    >>> method = WDAE(Denoiser(dim=8, hidden=4).eval())
    >>> sorted(choose_steps(method, bank, shots=(1, 2), n_query=5, n_episodes=10))
    [1, 2]
    """
    if not bank.has(Part.VALIDATION):
        raise EpisodeError("ε is chosen on validation classes, and the bank has none; give the steps instead")
    chosen: dict[int, float] = {}
    for n_shot in shots:
        curve = step_curve(
            method,
            bank,
            n_shot,
            n_way=n_way,
            n_query=n_query,
            n_episodes=n_episodes,
            seed=seed,
            device=device,
        )
        chosen[n_shot] = max(curve, key=lambda step: curve[step])
    return chosen
