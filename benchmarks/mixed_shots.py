"""Classes with differing numbers of pictures beside each other, and rivals on the same draws.

    python benchmarks/mixed_shots.py                              # the embedded bank
    python benchmarks/mixed_shots.py --bank FOLDER --name mine    # another one, under a name of yours

Five novel classes are added, some from a few pictures and some from many. Reported for each method: the area
below the base–novel curve, and the accuracy of novel pictures among all classes, over the five classes and by
their number of pictures, where base pictures lose as much as ours lets them lose by default. Of ours it is
also reported what the same classes have with the same pictures where all five have as many. Rivals, draws and
offsets are those of ``base_novel.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from base_novel import (
    BASE_QUERIES,
    OURS,
    QUERIES,
    SEED,
    WAYS,
    Rivals,
    fewer_images,
    learned,
    ours,
    with_queries_apart,
)
from common import RESULTS, Pieces
from wdae.bank import FeatureBank
from wdae.bank.embedded import embedded_bank
from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.evaluation.curve import Curve, areas
from wdae.evaluation.metrics import joint_hits
from wdae.evaluation.results import Estimate
from wdae.nn.cosine import unit
from wdae.parts import Part

MIXES = ((1, 1, 1, 20, 20), (1, 2, 5, 10, 20), (5, 5, 5, 50, 50))
_MOST = max(map(max, MIXES))

Examples = Sequence[Tensor]
"""The shots of each class ``[K, D]``, of as many as it has."""
Scores = Callable[[Examples, Tensor], Tensor]
Turns = dict[str, Tensor]
"""Where each query turns to a novel class, and whether it is right among its own kind ``[draws, Q]``."""


class UnequalRivals(Rivals):
    """The same, of classes with differing numbers of shots."""

    def of_any_shots(self) -> dict[str, Scores]:
        return {
            "nearest mean": self.nearest,
            "logistic regression, balanced": self.logistic_regression,  # type: ignore[dict-item]
            "LDA with shrinkage": self.lda,  # type: ignore[dict-item]
        }

    def with_shots(self, shots: Examples) -> tuple[Any, Any]:  # type: ignore[override]
        y = self.n_base + np.arange(len(shots)).repeat([len(rows) for rows in shots])
        return np.concatenate([self.X, torch.cat(list(shots)).numpy()]), np.concatenate([self.y, y])

    def nearest(self, shots: Examples, queries: Tensor) -> Tensor:
        means = torch.stack([unit(unit(rows).mean(0)) for rows in shots])
        return queries @ torch.cat([self.means, means]).T


class Draws:
    """The same classes, pictures and queries for every method and every mix."""

    def __init__(self, bank: FeatureBank, count: int) -> None:
        self.pool, self.held = bank.select(Part.NOVEL), bank.select(Part.BASE_HELD_OUT)
        spec = EpisodeSpec(WAYS, (_MOST,), QUERIES, BASE_QUERIES)
        self.drawn = EpisodeSampler(self.pool, spec, SEED, base_query=self.held).draw(0, count)
        self.n_base, self.count = bank.n_base, count

    def turns(self, method: Scores, shots: Sequence[int]) -> Turns:
        """What a method makes of all draws where the classes have so many shots."""
        found = []
        for i in range(self.count):
            examples = self.pool.features[self.drawn.support[i]]
            own = self.pool.features[self.drawn.query[i].flatten()]
            queries = torch.cat([own, self.held.features[self.drawn.base_query[i]]])
            novel = self.n_base + torch.arange(WAYS).repeat_interleave(QUERIES)
            labels = torch.cat([novel, self.drawn.base_query_label[i]])
            scores = method([rows[:k] for rows, k in zip(examples, shots, strict=True)], queries)
            found.append(joint_hits(scores[None], labels[None], self.n_base))
        return {key: torch.cat([one[key] for one in found]) for key in ("flips", "own")}


def is_novel(turns: Turns) -> Tensor:
    """Which queries are of novel classes ``[draws, Q]``: the first."""
    return (torch.arange(turns["own"].shape[1]) < WAYS * QUERIES).expand_as(turns["own"])


def curve_of(turns: Turns) -> Curve:
    """That of all draws together."""
    return Curve.of(turns["flips"].flatten(), turns["own"].flatten(), is_novel(turns).flatten())


def by_class(turns: Turns, offset: float) -> Tensor:
    """Accuracy of each novel class among all classes ``[draws, n]``, with an offset of novel scores."""
    right = turns["own"] & (turns["flips"] < offset)
    return right[:, : WAYS * QUERIES].view(-1, WAYS, QUERIES).double().mean(2)


def rows_of(found: dict[str, Turns], equal: dict[int, Turns], shots: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each method; ``equal``: ours where all classes have so many shots."""
    own_curve, own = curve_of(found[OURS]), by_class(found[OURS], 0.0)
    loss = max(0.0, float(own_curve.base[0]) - own_curve.at(0.0).base)
    own_area = areas(found[OURS]["flips"], found[OURS]["own"], is_novel(found[OURS]))
    places = {k: [c for c, other in enumerate(shots) if other == k] for k in sorted(set(shots))}
    rows = []
    for name, turns in found.items():
        curve, area = curve_of(turns), areas(turns["flips"], turns["own"], is_novel(turns))
        before = float(curve.base[0])
        there = own if name == OURS else by_class(turns, curve.keeping(before - loss).offset)
        row: dict[str, Any] = {"shots": ", ".join(map(str, shots)), "method": name, "draws": len(own)}
        row |= {"base_before": before, "loss_of_ours": loss, "area": _estimate(area)}
        row["novel_at_loss_of_ours"] = _estimate(there.mean(1))
        row["by_shots"] = {str(k): _estimate(there[:, some].mean(1)) for k, some in places.items()}
        if name == OURS:
            same = {k: by_class(equal[k], 0.0)[:, some].mean(1) for k, some in places.items()}
            row["by_shots_where_equal"] = {str(k): _estimate(values) for k, values in same.items()}
        else:
            row["ours_beyond"] = {
                "area": _estimate(own_area - area),
                "novel_at_loss_of_ours": _estimate((own - there).mean(1)),
            }
        rows.append(row)
    return rows


def _estimate(values: Tensor) -> dict[str, Any]:
    return Estimate.of(values.double().numpy()).to_dict()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bank", type=Path, help="a feature bank; the embedded one by default")
    parser.add_argument("--name", default="embedded", help="what the bank is called in the record")
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--base-images", type=int, default=100, help="of each base class, for every method")
    parser.add_argument("--model", type=Path, help="where the learned model is kept for further runs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of records")
    options = parser.parse_args()
    bank = embedded_bank() if options.bank is None else FeatureBank.open(options.bank)
    seen, bank = with_queries_apart(fewer_images(bank, options.base_images))
    model, draws = learned(seen, options.model), Draws(bank, options.draws)
    own: Scores = ours(model)  # type: ignore[assignment]
    methods = {OURS: own} | UnequalRivals(bank).of_any_shots()
    facts = {"base_images": options.base_images, "learned_with": model.base.info["recipe"]["name"]}
    record = Pieces(f"mixed-shots-{options.name}", options.out, facts, ("shots", "method"))
    equal = {k: draws.turns(methods[OURS], (k,) * WAYS) for k in sorted({k for mix in MIXES for k in mix})}
    for mix in MIXES:
        found = {name: draws.turns(method, mix) for name, method in methods.items()}
        for row in rows_of(found, equal, mix):
            record.add("rows", row)


if __name__ == "__main__":
    main()
