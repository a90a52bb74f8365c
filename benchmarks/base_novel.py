"""The base–novel curve of a model and of its rivals, on the same features and draws.

    python benchmarks/base_novel.py                                      # the embedded bank
    python benchmarks/base_novel.py --bank FOLDER --name pictures        # another one, under a name of yours
    python benchmarks/base_novel.py --bank FOLDER --name pictures --shots 100 500 --draws 10 --model KEPT
    python benchmarks/base_novel.py --keep RIVALS --rivals-only         # once; --keep RIVALS takes them up

Five novel classes are added from 1, 2, 5, 10 and 20 pictures each, or as many as asked for. Reported for
each method: the area below the base–novel curve, with the paired difference of ours; accuracies as the
scores come; and novel accuracy among all classes where base accuracy among all has fallen by two points, and
where it has fallen by as much as ours loses by default. Rivals get the one offset of novel scores that does
this on all draws together; ours by default has chosen nothing on them, and the difference to it is paired.
Logistic regression takes part in ``--slow-draws`` of the draws alone; it is compared on those.

Rivals are scikit-learn's, fitted to all base images and the shots; LwoF is trained by its recipe. They do
not depend on our model: with ``--keep`` what they answered is kept draw by draw, for as long as bank, draws,
their code and the versions of their libraries stay the same, and the record has the commits that they were
measured at. A run adds its numbers of shots to those of the same bank and commit.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from common import RESULTS, Pieces
from wdae.bank import FeatureBank
from wdae.bank.embedded import embedded_bank
from wdae.classifier import Model, learn, load
from wdae.classifier import save as save_model
from wdae.config import load as checked
from wdae.config import recipe_file
from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.evaluation.curve import Curve
from wdae.evaluation.metrics import joint_accuracy, joint_hits
from wdae.evaluation.results import Estimate
from wdae.methods import learned as learned_methods
from wdae.methods.base import Adapter, Support, base_classes
from wdae.nn.cosine import unit
from wdae.parts import Part
from wdae.runs.environment import commit
from wdae.stage2.config import MetaRecipe
from wdae.stage2.run import fit_method

SHOTS = (1, 2, 5, 10, 20)
WAYS, QUERIES, BASE_QUERIES, SEED = 5, 15, 300, 4321
LOSS = 0.02
"""Of base accuracy among all classes, when five classes are added."""
OURS = "wdae"
SLOW = ("logistic regression, balanced",)
METRICS = ("area", "novel", "base", "all", "novel_in_all", "base_in_all")

Scores = Callable[[Tensor, Tensor], Tensor]
"""Shots ``[n, K, D]`` and queries ``[Q, D]`` to scores ``[Q, N + n]``."""
Answered = dict[str, Any]
"""A method on one draw: commit, metrics and, query by query, what a curve is made of."""


def fewer_images(bank: FeatureBank, most: int, seed: int = 0) -> FeatureBank:
    """The bank with at most so many base-train images of each class, the same for every method."""
    away = []
    order = torch.randperm(len(bank.labels), generator=torch.Generator().manual_seed(seed))
    for c in bank.base_classes:
        own = order[(bank.labels[order] == c) & (bank.parts[order] == Part.BASE_TRAIN.code)]
        away.append(own[most:])
    return _without(bank, torch.cat(away))


def with_queries_apart(bank: FeatureBank) -> tuple[FeatureBank, FeatureBank]:
    """The bank that a model is learned from, and the one that all are measured on.

    Where base weights are learned with a model, held-out pictures return into them: then half of these are
    kept from it, and are the queries. The other half are base images like any for the other methods.
    """
    if bank.base_weights is not None:
        return bank, bank
    held = (bank.parts == Part.BASE_HELD_OUT.code).nonzero()[:, 0]
    order = torch.randperm(len(held), generator=torch.Generator().manual_seed(1))
    queries, returning = order.chunk(2)
    parts = bank.parts.clone()
    parts[held[returning]] = Part.BASE_TRAIN.code
    return _without(bank, held[queries]), replace(bank, parts=parts)


def _without(bank: FeatureBank, away: Tensor) -> FeatureBank:
    kept = torch.ones(len(bank.labels), dtype=torch.bool)
    kept[away] = False
    rows = kept.nonzero()[:, 0]
    scales = None if bank.scales is None else bank.scales[rows]
    return replace(
        bank, features=bank.features[rows], labels=bank.labels[rows], parts=bank.parts[rows], scales=scales
    )


class Rivals:
    """Each fits all base images and the shots, as scikit-learn users do."""

    def __init__(self, bank: FeatureBank) -> None:
        self.bank = bank
        train = bank.select(Part.BASE_TRAIN)
        self.X, self.y, self.n_base = train.features.numpy(), train.labels.numpy(), bank.n_base
        self.means = train.unit_means(torch.float32)
        self.logistic = LogisticRegression(C=10.0, max_iter=300, class_weight="balanced", warm_start=True)

    @cached_property
    def lwof(self) -> Adapter:
        return fit_method(_lwof(), self.bank).on(base_classes(self.bank))

    def all(self) -> dict[str, Scores]:
        return {
            "nearest mean": self.nearest_mean,
            "logistic regression, balanced": self.logistic_regression,
            "LDA with shrinkage": self.lda,
            "5 nearest neighbours": self.neighbours,
            "LwoF": self.learned,
        }

    def with_shots(self, shots: Tensor) -> tuple[Any, Any]:
        y = self.n_base + np.arange(len(shots)).repeat(shots.shape[1])
        return np.concatenate([self.X, shots.flatten(0, 1).numpy()]), np.concatenate([self.y, y])

    def nearest_mean(self, shots: Tensor, queries: Tensor) -> Tensor:
        return queries @ torch.cat([self.means, unit(unit(shots).mean(1))]).T

    def logistic_regression(self, shots: Tensor, queries: Tensor) -> Tensor:
        """To its optimum, from that of the draw before, which is quicker."""
        self.logistic.fit(*self.with_shots(shots))
        return torch.from_numpy(self.logistic.decision_function(queries.numpy()))

    def lda(self, shots: Tensor, queries: Tensor) -> Tensor:
        X, y = self.with_shots(shots)
        n = self.n_base + len(shots)
        found = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto", priors=np.full(n, 1 / n))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.from_numpy(found.fit(X, y).decision_function(queries.numpy()))

    def neighbours(self, shots: Tensor, queries: Tensor) -> Tensor:
        found = KNeighborsClassifier(5, weights="distance").fit(*self.with_shots(shots))
        return torch.from_numpy(found.predict_proba(queries.numpy()))

    def learned(self, shots: Tensor, queries: Tensor) -> Tensor:
        trained = self.lwof
        with torch.no_grad():
            return trained.adapt(Support(shots[None]), joint=True)(queries[None])[0]


def _lwof() -> MetaRecipe:
    return checked(MetaRecipe, recipe_file("mini-imagenet/lwof"))


class Kept:
    """What rivals answered before, a file for each of them and each number of shots.

    The name of a file has a digest of all that the answers depend on: where any of it is another one, they
    are measured anew.
    """

    def __init__(self, folder: Path, bank: FeatureBank) -> None:
        self.folder = folder
        self.facts = {
            "bank": bank.digest,
            "episodes": [WAYS, QUERIES, BASE_QUERIES, SEED],
            "code": [inspect.getsource(part) for part in (Rivals, Draws, learned_methods)],
            "recipe": _lwof().model_dump(mode="json"),
            "versions": [sklearn.__version__, np.__version__, torch.__version__],
        }

    def path(self, name: str, n_shot: int) -> Path:
        facts = json.dumps(self.facts | {"method": name, "shots": n_shot}, sort_keys=True)
        digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
        return self.folder / f"{name.replace(' ', '-').replace(',', '')}-{n_shot}-{digest}.pt"

    def read(self, name: str, n_shot: int) -> list[Answered]:
        path = self.path(name, n_shot)
        return torch.load(path, weights_only=True) if path.is_file() else []

    def write(self, name: str, n_shot: int, found: list[Answered]) -> None:
        path = self.path(name, n_shot)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(found, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)


def ours(model: Model) -> Scores:
    """The model with classes added as people add them."""

    def scores(shots: Tensor, queries: Tensor) -> Tensor:
        one = Model(model.base)
        one.add({f"new class {c}": rows for c, rows in enumerate(shots)})
        return one.scores(queries)

    return scores


class Draws:
    """The same draws for every method."""

    def __init__(self, bank: FeatureBank, n_shot: int, count: int) -> None:
        self.pool, self.held = bank.select(Part.NOVEL), bank.select(Part.BASE_HELD_OUT)
        self.n_base, self.n_shot, self.count = bank.n_base, n_shot, count
        spec = EpisodeSpec(WAYS, (n_shot,), QUERIES, BASE_QUERIES)
        self.drawn = EpisodeSampler(self.pool, spec, SEED, base_query=self.held).draw(0, count)

    def answered(self, method: Scores, i: int) -> Answered:
        """What a method makes of a draw: its metrics, and query by query what a curve is made of."""
        drawn, pool, held = self.drawn, self.pool, self.held
        shots = pool.features[drawn.support[i]]
        queries = torch.cat([pool.features[drawn.query[i].flatten()], held.features[drawn.base_query[i]]])
        own = self.n_base + torch.arange(WAYS).repeat_interleave(QUERIES)
        labels = torch.cat([own, drawn.base_query_label[i]])[None]
        right = joint_hits(method(shots, queries)[None], labels, self.n_base)
        metrics = {
            k: float(v) for k, v in joint_accuracy(right, labels >= self.n_base).items() if k in METRICS
        }
        turns = {"flips": right["flips"][0], "own": right["own"][0], "novel": labels[0] >= self.n_base}
        return {"commit": commit(), "metrics": metrics, **turns}

    def by(self, name: str, method: Scores, slow_draws: int, kept: Kept | None = None) -> list[Answered]:
        """All draws of a method; the first of them of a slow one. What was kept is not measured again."""
        wanted = slow_draws if name in SLOW else self.count
        found = [] if kept is None else kept.read(name, self.n_shot)[:wanted]
        for i in range(len(found), min(wanted, self.count)):
            found.append(self.answered(method, i))
            if kept is not None:
                kept.write(name, self.n_shot, found)
        return found


def curves(found: dict[str, list[Answered]], n_shot: int) -> list[dict[str, Any]]:
    """A row for each method from what it answered, ours among them."""
    ours_by_metric = _by_metric(found[OURS])
    rows = []
    for name, own in found.items():
        table, n = _by_metric(own), len(own)
        ours = {metric: values[:n] for metric, values in ours_by_metric.items()}
        curve, own_curve = _curve(own), _curve(found[OURS][:n])
        before = float(curve.base[0])
        loss = max(0.0, float(own_curve.base[0]) - float(ours["base_in_all"].mean()))
        there = ours["novel_in_all"] if name == OURS else _novel(own, curve.keeping(before - loss).offset)
        row: dict[str, Any] = {"shots": n_shot, "method": name, "draws": n, "base_before": before}
        row |= {metric: _estimate(table[metric]) for metric in METRICS}
        row["novel_at_two_points"] = _estimate(_novel(own, curve.keeping(before - LOSS).offset))
        row |= {"loss_of_ours": loss, "novel_at_loss_of_ours": _estimate(there)}
        if name != OURS:
            row["ours_beyond"] = {
                **{metric: _estimate(ours[metric] - table[metric]) for metric in ("area", "novel")},
                "novel_at_loss_of_ours": _estimate(ours["novel_in_all"] - there),
            }
            row["measured_at"] = sorted({str(one["commit"]) for one in own})
        rows.append(row)
    return rows


def _by_metric(found: list[Answered]) -> dict[str, Any]:
    return {metric: np.array([one["metrics"][metric] for one in found]) for metric in METRICS}


def _curve(found: list[Answered]) -> Curve:
    """That of all draws together."""
    return Curve.of(*(torch.cat([one[key] for one in found]) for key in ("flips", "own", "novel")))


def _novel(found: list[Answered], offset: float) -> Any:
    """Novel accuracy among all classes of each draw, with an offset of novel scores."""
    return np.array(
        [float((one["own"] & (one["flips"] < offset))[one["novel"]].double().mean()) for one in found]
    )


def _estimate(values: Any) -> dict[str, Any]:
    return Estimate.of(values).to_dict()


def learned(bank: FeatureBank, kept: Path | None) -> Model:
    """A model learned from the bank, or the one that was kept of a run before."""
    if kept is not None and kept.exists():
        return load(kept)
    model = learn(bank)
    if kept is not None:
        save_model(model, kept)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bank", type=Path, help="a feature bank; the embedded one by default")
    parser.add_argument("--name", default="embedded", help="what the bank is called in the record")
    parser.add_argument("--shots", type=int, nargs="+", default=SHOTS)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument(
        "--slow-draws", type=int, default=40, help="draws that logistic regression takes part in"
    )
    parser.add_argument("--base-images", type=int, default=100, help="of each base class, for every method")
    parser.add_argument("--model", type=Path, help="where the learned model is kept for further runs")
    parser.add_argument("--keep", type=Path, help="a folder where rivals' answers are kept for further runs")
    parser.add_argument("--rivals-only", action="store_true", help="measure and keep rivals, no record")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of records")
    options = parser.parse_args()
    bank = embedded_bank() if options.bank is None else FeatureBank.open(options.bank)
    seen, bank = with_queries_apart(fewer_images(bank, options.base_images))
    rivals = Rivals(bank).all()
    kept = None if options.keep is None else Kept(options.keep, bank)
    if options.rivals_only:
        for k in options.shots:
            for name, method in rivals.items():
                done = Draws(bank, k, options.draws).by(name, method, options.slow_draws, kept)
                print(f"{name}, {k} shots: {len(done)} draws", flush=True)
        return
    model = learned(seen, options.model)
    facts = {
        "bank": {key: bank.info.get(key) for key in ("source", "backbone", "images_a_class")},
        "base_classes": bank.n_base,
        "base_images": round(sum(bank.counts(Part.BASE_TRAIN)) / bank.n_base),
        "brings_base_weights": bank.base_weights is not None,
        "learned_with": model.base.info.get("recipe", {}).get("name"),
        "expected_share": {str(k): v for k, v in sorted(model.base.calibration.protecting.items())},
    }
    record = Pieces(f"base-novel-{options.name}", options.out, facts, ("shots", "method"))
    for k in options.shots:
        draws = Draws(bank, k, options.draws)
        found = {OURS: draws.by(OURS, ours(model), options.slow_draws)}
        found |= {name: draws.by(name, method, options.slow_draws, kept) for name, method in rivals.items()}
        for row in curves(found, k):
            record.add("rows", row)


if __name__ == "__main__":
    main()
