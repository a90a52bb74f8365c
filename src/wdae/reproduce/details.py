"""What the plots show beyond accuracies: the trade-off of novel and base, and each class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from wdae.bank import FeatureBank
from wdae.episodes import EpisodeSampler, EpisodeSpec, take_rows
from wdae.errors import StorageError
from wdae.evaluation.curve import Curve
from wdae.methods import Method
from wdae.methods.base import base_classes, gather_support
from wdae.nn.cosine import unit
from wdae.parts import Part
from wdae.storage.tensors import load_tensors, save_tensors

POINTS = 61  # of a trade-off curve


@dataclass(frozen=True, eq=False)
class Details:
    """Of one method at one number of shots.

    Shapes:
        classes, right ``[E, n]``: the novel classes of each episode, and their share of right queries among
        the novel classes; offsets, novel, base ``[P]``: constants added to novel scores, and the accuracies
        of novel and of base queries among all classes that each gives (empty without held-out images); the
        first offset is 0.
    """

    classes: Tensor
    right: Tensor
    offsets: Tensor
    novel: Tensor
    base: Tensor

    def save(self, path: Path) -> None:
        """Write to a safetensors file."""
        save_tensors(path, vars(self))

    @classmethod
    def load(cls, path: Path) -> Details:
        """Read what :meth:`save` wrote."""
        found = load_tensors(path)
        shapes = {name: tuple(found[name].shape) for name in cls.__dataclass_fields__ if name in found}
        whole = set(found) == set(cls.__dataclass_fields__) and found["classes"].dtype == torch.int64
        alike = whole and len({shapes[name] for name in ("offsets", "novel", "base")}) == 1
        if not alike or len(shapes["offsets"]) != 1 or shapes["classes"] != shapes["right"]:
            raise StorageError(f"{path} is altered: no details of a row; remove it to measure them again")
        return cls(**found)


@torch.no_grad()
def measure_details(
    method: Method,
    bank: FeatureBank,
    n_shot: int,
    *,
    n_way: int,
    n_query: int,
    n_episodes: int,
    seed: int,
    device: torch.device,
) -> Details:
    """Class by class, and by margin: the episodes that ``few_way`` draws from the same seed."""
    joint = method.joint and bank.has(Part.BASE_HELD_OUT)
    pool = bank.select(Part.NOVEL, device=device)
    held_out = bank.select(Part.BASE_HELD_OUT, device=device) if joint else None
    spec = EpisodeSpec(n_way, (n_shot,), n_query, n_way * n_query if joint else 0)
    sampler = EpisodeSampler(pool, spec, seed, base_query=held_out)
    adapter = method.on(base_classes(bank, device))
    classes, right, margins = [], [], []
    for episodes in sampler.batches(n_episodes):
        E, n, Q = episodes.query.shape
        scorer = adapter.adapt(gather_support(pool, episodes), joint=joint)
        scores = scorer(take_rows(pool.features, episodes.query.flatten(1)))
        n_base = scores.shape[-1] - n
        labels = torch.arange(n, device=device).repeat_interleave(Q)
        own = scores[..., n_base:].argmax(-1) == labels  # [E, n·Q]
        classes.append(episodes.novel_classes.cpu())
        right.append(own.view(E, n, Q).float().mean(-1).cpu())
        if held_out is not None:
            base_scores = scorer(take_rows(held_out.features, episodes.base_query))
            base_own = base_scores[..., :n_base].argmax(-1) == episodes.base_query_label
            margins.append(
                (_margin(scores, n_base), own.flatten(), _margin(base_scores, n_base), base_own.flatten())
            )
    curve = (
        trade_off(*(torch.cat(column).cpu() for column in zip(*margins, strict=True))) if margins else _EMPTY
    )
    return Details(torch.cat(classes), torch.cat(right), *curve)


def trade_off(
    novel_margin: Tensor, novel_own: Tensor, base_margin: Tensor, base_own: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Offsets of novel scores, and the accuracies of novel and base queries among all classes under them.

    A query is right among all classes if it is right among its own kind and that kind's best score is the
    higher one, so margins suffice for every offset.

    Args:
        novel_margin: best novel minus best base score of novel queries ``[M]``; base_margin likewise.
        novel_own: whether a novel query is right among the novel classes ``[M]``; base_own likewise.
    """
    every = torch.cat([novel_margin, base_margin]).double()
    at = torch.linspace(0, 1, POINTS - 1, dtype=torch.float64)
    ordered = every.sort().values
    swept = -ordered[(at * (len(ordered) - 1)).round().long()]
    offsets = torch.cat([torch.zeros(1, dtype=torch.float64), swept])
    is_novel = torch.arange(len(every)) < len(novel_margin)
    curve = Curve.of(-every, torch.cat([novel_own, base_own]), is_novel)
    points = [curve.at(offset) for offset in offsets.tolist()]
    _, base, novel = torch.tensor(points, dtype=torch.float64).T
    return offsets, novel, base


def base_distances(bank: FeatureBank, n_neighbours: int = 10) -> dict[str, float]:
    """Distance of each novel class, the mean of its images, to the base classes.

    It is 1 − the mean cosine to the nearest base classes.
    """
    pool = bank.select(Part.NOVEL)
    cosines = pool.unit_means(torch.float32) @ unit(base_classes(bank).weights).T
    nearest = cosines.topk(min(n_neighbours, cosines.shape[1]), dim=1).values.mean(1)
    return dict(zip(pool.names, (1 - nearest).tolist(), strict=True))


_EMPTY = (torch.zeros(0), torch.zeros(0), torch.zeros(0))


def _margin(scores: Tensor, n_base: int) -> Tensor:
    """How much the best novel score exceeds the best base score ``[E·Q]``."""
    return (scores[..., n_base:].amax(-1) - scores[..., :n_base].amax(-1)).flatten()
