"""ε and the balance of base and novel scores, for any number of shots, found on classes that play novel.

Those are validation classes beside all base classes or, in their absence, some of the base classes, with
held-out images, beside the others. One pass of the denoiser serves all ε: a moved weight is a mix of two
directions, and so are its products with queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from wdae.bank import ClassSet, FeatureBank
from wdae.episodes import EpisodeSampler, EpisodeSpec, chunk_for, take_rows
from wdae.errors import EpisodeError
from wdae.methods.base import BaseClasses, base_classes
from wdae.methods.calibration import Calibration, Played, fit_gain, fit_offset
from wdae.methods.shots import step_for
from wdae.methods.wdae import WDAE
from wdae.nn.cosine import unit
from wdae.nn.generate import novel_estimate
from wdae.nn.incremental import BaseState
from wdae.parts import Part
from wdae.runtime.randomness import derive_seed

Where = Literal["validation", "base"]
STEPS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)  # 0 leaves the initial estimate alone
SLOPES = (0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5)
PACES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
_FOLDS = 4  # of base classes that play novel in turn


@dataclass(frozen=True)
class Cast:
    """Classes that play novel, and those that stay base, with images that nothing was learned from."""

    pool: ClassSet
    base: BaseClasses
    held_out: ClassSet


@dataclass(frozen=True)
class Outcome:
    """What came of one number of shots and one ε."""

    novel: float
    all: float
    played: Played

    @property
    def base(self) -> float:
        """Accuracy of base queries among base classes."""
        return float(self.played.best_right[self.played.place < 0].double().mean())


@dataclass(frozen=True)
class Tuned:
    """ε by number of shots, the balance, and the outcomes they were chosen from."""

    steps: dict[int, float]
    balance: Calibration
    outcomes: dict[int, dict[float, Outcome]]


def casts(bank: FeatureBank, where: Where, device: torch.device | str = "cpu") -> list[Cast]:
    """Who plays novel: the validation classes, or a quarter of the base classes at a time."""
    base = base_classes(bank, device)
    held_out = bank.select(Part.BASE_HELD_OUT, device=device)
    if where == "validation":
        return [Cast(bank.select(Part.VALIDATION, device=device), base, held_out)]
    filled = held_out.counts.nonzero().flatten()
    found = []
    for fold in range(_FOLDS):
        novel = filled[fold::_FOLDS]
        stays = torch.ones(held_out.n_classes, dtype=torch.bool, device=held_out.device)
        stays[novel] = False
        kept = stays.nonzero().flatten()
        if len(novel) >= 2 and bool(held_out.counts[kept].any()):
            weights = BaseClasses(base.weights[kept], base.scale)
            found.append(Cast(_some(held_out, novel), weights, _some(held_out, kept)))
    return found


def place_to_tune(bank: FeatureBank) -> Where | None:
    """Where the balance of a bank's classes can be found; None where nothing is held out."""
    if not bank.has(Part.BASE_HELD_OUT):
        return None
    return "validation" if len(bank.classes_of(Part.VALIDATION)) >= 2 else "base"


@torch.no_grad()
def tune(
    method: WDAE,
    bank: FeatureBank,
    shots: Sequence[int],
    *,
    where: Where = "validation",
    rule: Literal["shrinking", "free"] = "shrinking",
    chosen_for: Literal["novel", "both"] = "both",
    base_drop_limit: float | None = None,
    steps: dict[int, float] | None = None,
    novel_share: float = 0.5,
    n_way: int = 5,
    n_query: int = 15,
    n_episodes: int = 2000,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Tuned:
    """Find ε and balance of a method for each number of shots that the classes have images for.

    The offset of novel scores is the likeliest one; ε follows ``rule`` and costs base accuracy at most
    ``base_drop_limit``, or is as given in ``steps``; the slope is that of highest accuracy among base and
    novel classes.
    """
    device = torch.device(device)
    stage = casts(bank, where, device)
    held_out, base = bank.select(Part.BASE_HELD_OUT, device=device), base_classes(bank, device)
    gain = fit_gain((held_out.features @ unit(base.weights).T).cpu(), held_out.labels.cpu(), base.scale)
    states = [method.on(cast.base).state for cast in stage]
    outcomes: dict[int, dict[float, Outcome]] = {}
    for n_shot in sorted(set(shots)):
        some = STEPS if steps is None else (step_for(n_shot, steps),)
        query = min(n_query, min(int(cast.pool.counts.min()) for cast in stage) - n_shot)
        if query < 1:
            continue
        each = max(1, n_episodes // len(stage))
        rehearsed = [
            _rehearse(
                method,
                state,
                cast,
                EpisodeSpec(min(n_way, cast.pool.n_classes), (n_shot,), query),
                gain,
                some,
                each,
                derive_seed(seed, n_shot, number),
            )
            for number, (cast, state) in enumerate(zip(stage, states, strict=True))
        ]
        outcomes[n_shot] = {step: _outcome([r[step] for r in rehearsed]) for step in some}
    if not outcomes:
        raise EpisodeError(f"no class has images to play novel with any of {list(shots)} shots and a query")
    if steps is None:
        steps = choose(outcomes, rule, chosen_for, base_drop_limit)
    found = {k: _balance(outcomes[k], step_for(k, steps)) for k in outcomes}
    slopes, offsets = ({k: pair[i] for k, pair in found.items()} for i in (0, 1))
    return Tuned(dict(steps), Calibration(gain, slopes, offsets, novel_share=novel_share), outcomes)


def choose(
    outcomes: dict[int, dict[float, Outcome]],
    rule: Literal["shrinking", "free"] = "shrinking",
    chosen_for: Literal["novel", "both"] = "both",
    base_drop_limit: float | None = None,
) -> dict[int, float]:
    """ε for each number of shots; ``shrinking``: ε(K) = e / (1 + (K − 1) / k), e and k best on average.

    Only such ε are looked at as leave base accuracy (base among base) no more than ``base_drop_limit`` below
    that of ε = 0, which has to be among the outcomes.

    The more shots, the less there is to correct: the weight of what is known beforehand against that of K
    observations falls as 1 / (1 + K / k). Two numbers for all K are less at the mercy of chance than one
    each, and hold for any K.
    """

    def worth(outcome: Outcome) -> float:
        return outcome.novel if chosen_for == "novel" else (outcome.novel + outcome.all) / 2

    curves = {k: {step: worth(outcome) for step, outcome in found.items()} for k, found in outcomes.items()}
    kept = {k: {step: outcome.base for step, outcome in found.items()} for k, found in outcomes.items()}

    def harmless(k: int, step: float) -> bool:
        return base_drop_limit is None or kept[k][0.0] - _between(kept[k], step) <= base_drop_limit

    if rule == "free":
        return {
            k: max((s for s in found if harmless(k, s)), key=found.__getitem__) for k, found in curves.items()
        }
    best, chosen = -1.0, dict.fromkeys(outcomes, 0.0)
    for most in STEPS[1:]:
        for pace in PACES:
            table = {k: most / (1 + (k - 1) / pace) for k in outcomes}
            value = sum(_between(curves[k], step) for k, step in table.items())
            if value > best and all(harmless(k, step) for k, step in table.items()):
                best, chosen = value, table
    return {k: round(step, 4) for k, step in chosen.items()}


def _between(curve: dict[float, float], step: float) -> float:
    """A curve over ε, read between its points."""
    known = sorted(curve)
    low = max((s for s in known if s <= step), default=known[0])
    high = min((s for s in known if s >= step), default=known[-1])
    share = 0.0 if high == low else (step - low) / (high - low)
    return curve[low] + share * (curve[high] - curve[low])


def _balance(found: dict[float, Outcome], step: float) -> tuple[float, float]:
    """Slope and offset at the nearest ε that was tried; with ε they change slowly."""
    played = found[min(found, key=lambda s: abs(s - step))].played
    offsets = {slope: fit_offset(played, slope) for slope in SLOPES}
    best = max(SLOPES, key=lambda slope: played.accuracy(slope, offsets[slope]))
    return best, offsets[best]


def _outcome(rehearsed: Sequence[tuple[Played, float]]) -> Outcome:
    played = Played.joined([played for played, _ in rehearsed])
    novel = sum(novel for _, novel in rehearsed) / len(rehearsed)
    return Outcome(novel, played.accuracy(1.0, fit_offset(played)), played)


def _rehearse(
    method: WDAE,
    state: BaseState,
    cast: Cast,
    spec: EpisodeSpec,
    gain: float,
    steps: Sequence[float],
    n_episodes: int,
    seed: int,
) -> dict[float, tuple[Played, float]]:
    """Episodes with as many base as novel queries: for each ε how the scores fell out, and novel accuracy."""
    pool, n, Q = cast.pool, spec.n_novel, spec.n_query
    spec = EpisodeSpec(n, spec.n_shot, Q, n * Q)
    sampler = EpisodeSampler(pool, spec, seed, base_query=cast.held_out)
    device, N = pool.device, state.base.shape[0]
    chunk = min(chunk_for(device), 256)
    played: dict[float, list[Played]] = {step: [] for step in steps}
    hits = dict.fromkeys(steps, 0.0)
    for start in range(0, n_episodes, chunk):
        episodes = sampler.draw(start, min(chunk, n_episodes - start))
        E = len(episodes)
        initial = novel_estimate(take_rows(pool.features, episodes.support))
        refined = state.refine(initial, with_base=method.refine_base)
        queries = torch.cat(
            [
                take_rows(pool.features, episodes.query.flatten(1)),
                take_rows(cast.held_out.features, episodes.base_query),
            ],
            dim=1,
        )
        own = N + torch.arange(n, device=device).repeat_interleave(Q).expand(E, -1)
        labels = torch.cat([own, episodes.base_query_label], dim=1)
        novel = _Mix.of(queries, initial, unit(refined.novel))
        base = _base_mix(state, refined.episode, refined.node, refined.base, queries, method.refine_base)
        first: Played | None = None
        for step in steps:
            scores = gain * novel.at(step)
            hits[step] += float((scores[:, : n * Q].argmax(-1) == own - N).float().mean(1).sum())
            if first is None or method.refine_base:
                first = Played.of(
                    (gain * base.at(step)).flatten(0, 1), scores.flatten(0, 1), labels.flatten()
                )
            played[step].append(replace(first, novel=scores.flatten(0, 1).double()))
    return {step: (Played.joined(played[step]), hits[step] / n_episodes) for step in steps}


@dataclass(frozen=True)
class _Mix:
    """Cosines of queries with ``(1 − ε) u + ε v`` for unit u and v, from those with u and v.

    Shapes: from_start, from_end ``[E, Q, n]``; between (cosines of u with v) ``[E, 1, n]``.
    """

    from_start: Tensor
    from_end: Tensor
    between: Tensor

    @staticmethod
    def of(queries: Tensor, start: Tensor, end: Tensor) -> _Mix:
        between = (start * end).sum(-1).unsqueeze(-2)
        return _Mix(queries @ start.transpose(-1, -2), queries @ end.transpose(-1, -2), between)

    def at(self, step: float) -> Tensor:
        length = ((1 - step) ** 2 + step**2 + 2 * step * (1 - step) * self.between).clamp(min=1e-12).sqrt()
        return torch.lerp(self.from_start, self.from_end, step) / length


def _base_mix(
    state: BaseState, episode: Tensor, node: Tensor, changed: Tensor, queries: Tensor, refine_base: bool
) -> _Mix:
    if not refine_base:
        return _Mix.of(queries, state.base, state.base)
    end = unit(state.reconstructed).repeat(queries.shape[0], 1, 1)  # [E, N, D]
    end[episode, node] = unit(changed)
    return _Mix.of(queries, state.base.expand_as(end), end)


def _some(images: ClassSet, classes: Tensor) -> ClassSet:
    """Some classes of a set; rows stay where they are."""
    names = tuple(images.names[i] for i in classes.tolist())
    return ClassSet(images.features, images.starts[classes], images.counts[classes], names)
