"""The choice of ε, the refinement step, for each number of shots, on validation classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from wdae.bank import FeatureBank
from wdae.episodes import EpisodeSampler, EpisodeSpec, chunk_for, take_rows
from wdae.errors import EpisodeError
from wdae.methods.base import WeightScorer, base_classes
from wdae.methods.wdae import WDAE
from wdae.nn.generate import move, novel_estimate
from wdae.parts import Part

STEPS = tuple(round(0.1 * k, 1) for k in range(1, 11))


@torch.no_grad()
def step_curve(
    method: WDAE,
    bank: FeatureBank,
    n_shot: int,
    *,
    steps: Sequence[float] = STEPS,
    n_way: int = 5,
    n_query: int = 15,
    n_episodes: int = 2000,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> dict[float, float]:
    """Novel accuracy on validation classes for each ε, all on the same episodes.

    The denoiser runs once an episode: ε only mixes its output with its input.

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
    state = method.on(base_classes(bank, device)).state
    chunk = chunk_for(device)
    totals = dict.fromkeys(steps, 0.0)
    for start in range(0, n_episodes, chunk):
        episodes = sampler.draw(start, min(chunk, n_episodes - start))
        initial = novel_estimate(take_rows(pool.features, episodes.support))
        reconstructed = state.refine(initial, with_base=False).novel
        queries = take_rows(pool.features, episodes.query.flatten(1))
        labels = torch.arange(n_way, device=device).repeat_interleave(n_query).expand(len(episodes), -1)
        for step in steps:
            scores = WeightScorer(move(initial, reconstructed, step), None, 1.0)(queries)
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
