"""The base–novel curve of a model and of its rivals, on the same features and draws.

    python benchmarks/base_novel.py                                # the embedded bank
    python benchmarks/base_novel.py --banks pictures=B other=C     # others too, under names of yours
    python benchmarks/base_novel.py --without-embedded --banks pictures=B --shots 20 100

Five novel classes are added from 1, 2, 5, 10 and 20 pictures each, or as many as asked for. Reported for
each method: the area below the base–novel curve, with the paired difference of ours; accuracies as the
scores come; and novel accuracy among all classes where base accuracy among all has fallen by two points, and
where it has fallen by as much as ours loses by default. Rivals get the one offset of novel scores that does
this on all draws together; ours by default has chosen nothing on them, and the difference to it is paired.

Rivals are scikit-learn's, fitted to all base images and the shots; LwoF is trained by its recipe.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from wdae.bank import FeatureBank
from wdae.bank.embedded import embedded_bank
from wdae.classifier import Model, learn
from wdae.config import load, recipe_file
from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.evaluation.curve import Curve
from wdae.evaluation.metrics import joint_accuracy, joint_hits
from wdae.evaluation.results import Estimate
from wdae.methods.base import Support, base_classes
from wdae.nn.cosine import unit
from wdae.parts import Part
from wdae.runs.environment import environment
from wdae.stage2.config import MetaRecipe
from wdae.stage2.run import fit_method

RESULTS = Path(__file__).parent / "results" / "base-novel.json"
SHOTS = (1, 2, 5, 10, 20)
WAYS, QUERIES, BASE_QUERIES, SEED = 5, 15, 300, 4321
LOSS = 0.02
"""Of base accuracy among all classes, when five classes are added."""
OURS = "wdae"
METRICS = ("area", "novel", "base", "all", "novel_in_all", "base_in_all")

Scores = Callable[[Tensor, Tensor], Tensor]
"""Shots ``[n, K, D]`` and queries ``[Q, D]`` to scores ``[Q, N + n]``."""


def fewer_images(bank: FeatureBank, most: int, seed: int = 0) -> FeatureBank:
    """The bank with at most so many base-train images of each class, the same for every method."""
    keep = torch.ones(len(bank.labels), dtype=torch.bool)
    order = torch.randperm(len(bank.labels), generator=torch.Generator().manual_seed(seed))
    for c in bank.base_classes:
        own = order[(bank.labels[order] == c) & (bank.parts[order] == Part.BASE_TRAIN.code)]
        keep[own[most:]] = False
    rows = keep.nonzero()[:, 0]
    scales = None if bank.scales is None else bank.scales[rows]
    return replace(
        bank, features=bank.features[rows], labels=bank.labels[rows], parts=bank.parts[rows], scales=scales
    )


class Rivals:
    """Each fits all base images and the shots, as scikit-learn users do."""

    def __init__(self, bank: FeatureBank) -> None:
        train = bank.select(Part.BASE_TRAIN)
        self.X, self.y, self.n_base = train.features.numpy(), train.labels.numpy(), bank.n_base
        self.means = train.unit_means(torch.float32)
        self.logistic = LogisticRegression(C=10.0, max_iter=300, class_weight="balanced", warm_start=True)
        recipe = load(MetaRecipe, recipe_file("mini-imagenet/lwof"))
        self.lwof = fit_method(recipe, bank).on(base_classes(bank))

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
        with torch.no_grad():
            return self.lwof.adapt(Support(shots[None]), joint=True)(queries[None])[0]


def ours(model: Model) -> Scores:
    """The model with classes added as people add them."""

    def scores(shots: Tensor, queries: Tensor) -> Tensor:
        one = Model(model.base)
        one.add({f"new class {c}": rows for c, rows in enumerate(shots)})
        return one.scores(queries)

    return scores


def curves(
    bank: FeatureBank, methods: dict[str, Scores], n_shot: int, draws: int, part: Part = Part.NOVEL
) -> dict[str, Any]:
    """All methods on the same draws."""
    pool, held, n_base = bank.select(part), bank.select(Part.BASE_HELD_OUT), bank.n_base
    spec = EpisodeSpec(WAYS, (n_shot,), QUERIES, BASE_QUERIES)
    drawn = EpisodeSampler(pool, spec, SEED, base_query=held).draw(0, draws)
    own = n_base + torch.arange(WAYS).repeat_interleave(QUERIES)
    values: dict[str, list[dict[str, Tensor]]] = {name: [] for name in methods}
    turns: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {name: [] for name in methods}
    for i in range(draws):
        shots = pool.features[drawn.support[i]]
        queries = torch.cat([pool.features[drawn.query[i].flatten()], held.features[drawn.base_query[i]]])
        labels = torch.cat([own, drawn.base_query_label[i]])[None]
        for name, method in methods.items():
            right = joint_hits(method(shots, queries)[None], labels, n_base)
            values[name].append(joint_accuracy(right, labels >= n_base))
            turns[name].append((right["flips"][0], right["own"][0], labels[0] >= n_base))
    table = {
        name: {metric: torch.cat([row[metric] for row in rows]).numpy() for metric in METRICS}
        for name, rows in values.items()
    }
    found = {
        name: Curve.of(*(torch.cat(column) for column in zip(*rows, strict=True)))
        for name, rows in turns.items()
    }
    loss = max(0.0, float(found[OURS].base[0]) - float(table[OURS]["base_in_all"].mean()))  # by default
    report: dict[str, Any] = {}
    for name, row in table.items():
        before = float(found[name].base[0])
        report[name] = {metric: vars(Estimate.of(row[metric])) for metric in METRICS}
        report[name] |= {
            "base_before": before,
            "novel_at_that_loss": found[name].keeping(before - LOSS).novel,
            "area_of_ours_beyond": vars(Estimate.of(table[OURS]["area"] - row["area"])),
        }
        offset = found[name].keeping(before - loss).offset
        novel = [(right & (flips < offset))[new].double().mean() for flips, right, new in turns[name]]
        theirs = table[OURS]["novel_in_all"] if name == OURS else torch.stack(novel).numpy()
        report[name]["at_the_loss_of_ours"] = {
            "loss": loss,
            "novel": float(theirs.mean()),
            "novel_of_ours_beyond": vars(Estimate.of(table[OURS]["novel_in_all"] - theirs)),
        }
    return report


def measured(bank: FeatureBank, draws: int, shots: Sequence[int] = SHOTS) -> Iterator[dict[str, Any]]:
    """A model learned from the bank beside its rivals; the report, longer by a number of shots each time."""
    model = learn(bank)
    methods = {OURS: ours(model), **Rivals(bank).all()}
    report: dict[str, Any] = {
        "draws": draws,
        "method": model.base.method.describe(),
        "recipe": model.base.info.get("recipe", {}).get("name"),
        "shots": {},
    }
    for k in shots:
        report["shots"][str(k)] = curves(bank, methods, k, draws)
        yield report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--banks", nargs="*", default=[], help="NAME=FOLDER, beside the embedded bank")
    parser.add_argument("--without-embedded", action="store_true", help="those banks alone")
    parser.add_argument("--shots", type=int, nargs="+", default=SHOTS)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--base-images", type=int, default=100, help="of each base class, for every method")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    banks = {} if options.without_embedded else {"embedded bank": embedded_bank()}
    banks |= {name: FeatureBank.open(path) for name, path in (text.split("=", 1) for text in options.banks)}
    report: dict[str, Any] = {"environment": environment(seed=0, command=["benchmarks/base_novel.py"])}
    for name, bank in banks.items():
        for found in measured(fewer_images(bank, options.base_images), options.draws, options.shots):
            report[name] = found
            options.out.write_text(json.dumps(report, indent=2) + "\n")
            n_shot, rows = list(found["shots"].items())[-1]
            for method, row in rows.items():
                area, beyond = (Estimate(**row[key]) for key in ("area", "area_of_ours_beyond"))
                there = row["at_the_loss_of_ours"]
                ahead = Estimate(**there["novel_of_ours_beyond"])
                print(
                    f"{name} {n_shot:>2} {method:30} area {area}  ours beyond {beyond.starred()}; at a loss"
                    f" of {there['loss']:.2%} novel {there['novel']:.2%}, ours beyond {ahead.starred()}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
