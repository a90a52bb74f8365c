"""What a practitioner waits for and gets: adding classes, predicting, and the alternatives in the same run.

    python benchmarks/practitioner.py                    # writes benchmarks/results/practitioner.json
    python benchmarks/practitioner.py --bank my-bank     # accuracy on another bank
    python benchmarks/practitioner.py --runs runs/gnn    # beside what wdae train has trained, same episodes

Every figure is measured in this run, on this machine. "All" is the mean of the accuracies of base and novel
queries among all classes, as in the paper's evaluation.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from torch import Tensor

from base_novel import fewer_images
from wdae.bank import FeatureBank
from wdae.bank.embedded import embedded_bank
from wdae.classifier import BaseKnowledge, Model, learn, load, save
from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.estimator import FewShotClassifier
from wdae.evaluation.protocol import few_way
from wdae.methods.calibration import Calibration
from wdae.methods.saved import load_method
from wdae.methods.wdae import WDAE
from wdae.nn.cosine import unit
from wdae.nn.denoiser import Denoiser
from wdae.nn.graph import build_graph
from wdae.nn.posterior import Posterior
from wdae.nn.space import FeatureSpace
from wdae.parts import Part
from wdae.runs.environment import environment

RESULTS = Path(__file__).parent / "results" / "practitioner.json"
DIM, HIDDEN, WAYS, SHOTS = 640, 320, 5, 5
EPISODE_SEED = 1234
METRICS = ("novel", "base", "all", "harmonic")


def sized_model(n_classes: int, seed: int = 0) -> Model:
    """A model of many classes with an untrained denoiser: the same work as with one that was learned."""
    generator = torch.Generator().manual_seed(seed)
    weights = unit(torch.randn(n_classes, DIM, generator=generator))
    balance = Calibration(15.0, {1: 0.7, 5: 1.1}, {1: 3.0, 5: -1.5})
    denoiser = Denoiser(DIM, HIDDEN, generator=generator).eval()
    centre, whiten = 0.01 * torch.randn(DIM, generator=generator), torch.eye(DIM)
    space = FeatureSpace(0.5, centre, weights, 15.0, whiten, 0.9)
    method = WDAE(denoiser, steps={1: 1.0, 5: 0.5}, balance=balance, refine_base=False, space=space)
    anchors = unit(
        weights.repeat(4, 1)[:4096] + 0.03 * torch.randn(min(4 * n_classes, 4096), DIM, generator=generator)
    )
    method.posterior = Posterior(anchors, n_classes, share=6.0, intercepts=True, fewest=2)
    graph = build_graph(weights)
    counts = torch.full((n_classes,), 20)
    names = tuple(f"class {i}" for i in range(n_classes))
    return Model(BaseKnowledge(names, weights, counts, method, graph=graph, info={"denoiser": "gnn"}))


def spread(seconds: list[float]) -> dict[str, float]:
    values = sorted(seconds)
    at = lambda share: values[min(len(values) - 1, round(share * (len(values) - 1)))]  # noqa: E731
    return {
        "p50_ms": 1e3 * statistics.median(values),
        "p99_ms": 1e3 * at(0.99),
        "worst_ms": 1e3 * values[-1],
        "n": float(len(values)),
    }


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ready(model: Model, classes: dict[str, Tensor]) -> None:
    """Add classes until the next prediction can be made."""
    model.add(classes)
    _ = model.head.matrix


def adding(n_classes: int, repeats: int, shots: int = SHOTS) -> dict[str, Any]:
    """Time to add 5 classes of so many shots until the next prediction can be made, features given."""
    model = sized_model(n_classes)
    generator = torch.Generator().manual_seed(1)
    first = timed(lambda: (model.base.adapter, None))
    seconds = []
    for repeat in range(repeats + 3):
        rows = torch.randn(WAYS, shots, DIM, generator=generator)
        classes = {f"new {i}": rows[i] for i in range(WAYS)}
        took = timed(partial(ready, model, classes))
        model.undo()
        if repeat >= 3:
            seconds.append(took)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        write = timed(lambda: save(model, path))
        read = timed(lambda: load(path))
    return {
        **spread(seconds),
        "first_use_ms": 1e3 * first,
        "save_ms": 1e3 * write,
        "load_ms": 1e3 * read,
    }


def one_more(n_classes: int, n_added: int, repeats: int) -> dict[str, float]:
    """Time to add one class more beside so many added ones."""
    model, generator = sized_model(n_classes), torch.Generator().manual_seed(1)
    rows = torch.randn(n_added + repeats, SHOTS, DIM, generator=generator)
    ready(model, {f"added {i}": rows[i] for i in range(n_added)})
    seconds = []
    for repeat in range(repeats):
        seconds.append(timed(partial(ready, model, {f"new {repeat}": rows[n_added + repeat]})))
        model.undo()
        _ = model.head.matrix
    return spread(seconds)


def predicting(n_classes: int, n_vectors: int, repeats: int) -> dict[str, float]:
    """Vectors a second through ``FewShotClassifier.predict``."""
    model = sized_model(n_classes)
    model.add({f"new {i}": torch.randn(5, DIM) for i in range(5)})
    estimator = FewShotClassifier()
    estimator.n_features_in_ = DIM
    estimator._take(model)
    queries = np.random.default_rng(0).normal(size=(n_vectors, DIM)).astype(np.float32)
    estimator.predict(queries[:1000])
    rates = [n_vectors / timed(lambda: estimator.predict(queries)) for _ in range(repeats)]
    return {"vectors_per_s": statistics.median(rates), "best": max(rates), "n": float(n_vectors)}


def draws(bank: FeatureBank, n_shot: int, count: int) -> list[tuple[list[int], Tensor, Tensor]]:
    """Novel classes, their support rows and their query rows, drawn from a seed."""
    pool = bank.select(Part.NOVEL)
    generator = torch.Generator().manual_seed(n_shot)
    out = []
    for _ in range(count):
        classes = torch.randperm(pool.n_classes, generator=generator)[:WAYS].tolist()
        rows = torch.stack(
            [
                pool.starts[c] + torch.randperm(int(pool.counts[c]), generator=generator)[: n_shot + 15]
                for c in classes
            ]
        )
        out.append((classes, rows[:, :n_shot], rows[:, n_shot:]))
    return out


def accuracy(scores: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], n_base: int) -> dict[str, float]:
    """Novel among novel, base among base, and all among all (both kinds counting half)."""
    novel = labels >= n_base
    right = scores.argmax(1) == labels
    novel_right, base_right = float(right[novel].mean()), float(right[~novel].mean())
    return {
        "novel": float((scores[novel][:, n_base:].argmax(1) + n_base == labels[novel]).mean()),
        "base": float((scores[~novel][:, :n_base].argmax(1) == labels[~novel]).mean()),
        "novel_among_all": novel_right,
        "base_among_all": base_right,
        "all": (novel_right + base_right) / 2,
        "harmonic": statistics.harmonic_mean([novel_right, base_right]),
    }


def rivals() -> dict[str, Callable[[], Any]]:
    """What scikit-learn offers for the same task; each refits on everything."""
    return {
        "logistic regression": lambda: LogisticRegression(C=10.0, max_iter=200),
        "logistic regression, balanced": lambda: LogisticRegression(
            C=10.0, max_iter=200, class_weight="balanced"
        ),
        "1 nearest neighbour": lambda: KNeighborsClassifier(1),
        "5 nearest neighbours": lambda: KNeighborsClassifier(5),
        "nearest centroid": lambda: NearestCentroid(),
    }


def _scores(model: Any, queries: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if isinstance(model, NearestCentroid):
        distances = np.linalg.norm(queries[:, None] - model.centroids_[None], axis=2)
        return np.asarray(-distances)
    return np.asarray(model.predict_proba(queries))


def research(bank: FeatureBank, model: Model, methods: dict[str, Path], episodes: int) -> dict[str, Any]:
    """The model and methods of ``wdae train`` on the same episodes: all and harmonic accuracy."""
    pool, held = bank.select(Part.NOVEL), bank.select(Part.BASE_HELD_OUT)
    report: dict[str, Any] = {}
    for n_shot in (1, 5):
        options: dict[str, Any] = {"n_episodes": episodes, "seed": EPISODE_SEED, "joint": True}
        table: dict[str, dict[str, Any]] = {}
        for name, path in methods.items():
            result = few_way(load_method(path / "model.safetensors", dim=bank.dim), bank, n_shot, **options)
            table[name] = {key: result.per_episode[key] for key in METRICS}
        spec = EpisodeSpec(WAYS, (n_shot,), 15, 15 * WAYS)
        drawn = EpisodeSampler(pool, spec, EPISODE_SEED, base_query=held).draw(0, episodes)
        rows = []
        for i in range(episodes):
            one = Model(model.base)
            one.add({f"new class {c}": pool.features[drawn.support[i, c]] for c in range(WAYS)})
            queries = [pool.features[drawn.query[i].flatten()], held.features[drawn.base_query[i]]]
            own = bank.n_base + torch.arange(WAYS).repeat_interleave(15)
            labels = torch.cat([own, drawn.base_query_label[i]])
            rows.append(accuracy(one.scores(torch.cat(queries)).numpy(), labels.numpy(), bank.n_base))
        table["practitioner"] = {key: np.array([row[key] for row in rows]) for key in METRICS}
        report[str(n_shot)] = {
            name: {key: _interval(values) for key, values in row.items()} for name, row in table.items()
        }
        ours = table["practitioner"]
        report[str(n_shot)] |= {
            f"practitioner minus {name}": {k: _interval(ours[k] - row[k]) for k in METRICS}
            for name, row in table.items()
            if name != "practitioner"
        }
    return report


def _interval(values: Any) -> dict[str, float]:
    values = np.asarray(values, dtype=np.float64)
    return {"mean": float(values.mean()), "ci95": float(1.96 * values.std(ddof=1) / len(values) ** 0.5)}


def comparison(bank: FeatureBank, model: Model, n_draws: int, slow_draws: int) -> dict[str, Any]:
    """Accuracy and time to update, of ours and of the rivals, on the same draws."""
    report: dict[str, Any] = {
        "figures": dict(model.base.calibration.figures),
        "shots": {},
    }
    train, held, pool = (bank.select(p) for p in (Part.BASE_TRAIN, Part.BASE_HELD_OUT, Part.NOVEL))
    n_base = bank.n_base
    base_rows = torch.randperm(len(held.features), generator=torch.Generator().manual_seed(9))[:750]
    for n_shot in (1, 5):
        rows: dict[str, list[dict[str, float]]] = {}
        for number, (_, support, query) in enumerate(draws(bank, n_shot, n_draws)):
            queries = torch.cat([pool.features[query.flatten()], held.features[base_rows]])
            labels = torch.cat(
                [n_base + torch.arange(WAYS).repeat_interleave(query.shape[1]), held.labels[base_rows]]
            ).numpy()
            classes = {f"new class {i}": pool.features[some] for i, some in enumerate(support)}
            took = timed(partial(ready, model, classes))
            found = accuracy(model.scores(queries).numpy(), labels, n_base)
            rows.setdefault("wdae", []).append(found | {"update_s": took})
            model.undo()
            shots = pool.features[support.flatten()]
            X = torch.cat([train.features, shots]).numpy()
            y = np.concatenate([train.labels.numpy(), n_base + np.arange(WAYS).repeat(n_shot)])
            for name, make in rivals().items():
                if number >= slow_draws and name.startswith("logistic"):
                    continue
                rival = make()
                took = timed(lambda rival=rival, X=X, y=y: rival.fit(X, y))  # type: ignore[misc]
                found = accuracy(_scores(rival, queries.numpy()), labels, n_base)
                rows.setdefault(name, []).append(found | {"update_s": took})
        report["shots"][str(n_shot)] = {
            name: {
                "draws": len(values),
                **{key: statistics.fmean(v[key] for v in values) for key in values[0]},
                "update_median_s": statistics.median(v["update_s"] for v in values),
            }
            for name, values in rows.items()
        }
    for table in report["shots"].values():
        ours = table["wdae"]["update_median_s"]
        for row in table.values():
            row["times_ours"] = row["update_median_s"] / ours
    report["twenty_added"] = twenty_added(bank, model)
    return report


def twenty_added(bank: FeatureBank, model: Model) -> dict[str, float]:
    """Base accuracy before and after adding 20 classes × 5 shots."""
    pool, held = bank.select(Part.NOVEL), bank.select(Part.BASE_HELD_OUT)
    names = list(pool.names)[:20]
    before = model.scores(held.features)[:, : bank.n_base].argmax(1) == held.labels
    model.add({f"new {name}".replace("/", " "): pool.of_class(i)[:5] for i, name in enumerate(names)})
    scores = model.scores(held.features)
    after = scores[:, : bank.n_base].argmax(1) == held.labels
    among_all = scores.argmax(1) == held.labels
    model.undo()
    return {
        "classes": len(names),
        "base_before": float(before.double().mean()),
        "base_after_among_base": float(after.double().mean()),
        "base_after_among_all": float(among_all.double().mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bank", type=Path, help="a feature bank; the embedded one by default")
    parser.add_argument(
        "--base-images", type=int, help="of each base class, for every method; all by default"
    )
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--slow-draws", type=int, default=40, help="draws that slow rivals take part in")
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--steps", type=int, help="training steps of the denoiser, where not the recipe's")
    parser.add_argument("--runs", type=Path, nargs="*", default=[], help="runs of wdae train to stand beside")
    parser.add_argument("--episodes", type=int, default=600, help="on which runs and the model are measured")
    parser.add_argument("--threads", type=int, help="of torch; as many as there are cores by default")
    parser.add_argument("--only", choices=["speed", "accuracy"])
    parser.add_argument("--note", help="what a reader of the record should know of the run")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    report: dict[str, Any] = {
        "environment": environment(seed=0, command=sys.argv),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **({"note": options.note} if options.note else {}),
    }
    if options.only != "accuracy":
        report["add_5x5_to_1000"] = adding(1000, options.repeats)
        report["add_5x20_to_1000"] = adding(1000, max(5, options.repeats // 10), 20)
        report["add_5x5_to_20000"] = adding(20_000, max(5, options.repeats // 20))
        report["add_1x5_to_1000_beside_1000_added"] = one_more(1000, 1000, max(5, options.repeats // 20))
        report["predict_1000"] = predicting(1000, 100_000, 5)
    if options.only != "speed":
        bank = FeatureBank.open(options.bank) if options.bank else embedded_bank()
        if options.base_images is not None:
            bank = fewer_images(bank, options.base_images)
        began = time.perf_counter()
        model = learn(bank, recipe=None if options.steps is None else {"training.steps": options.steps})
        report["learn_s"] = time.perf_counter() - began
        report["bank"] = bank.info | {"n_base": bank.n_base, "dim": bank.dim}
        report["base_images"] = max(bank.counts(Part.BASE_TRAIN))
        report["method"] = model.base.method.describe()
        methods = {path.name: path for path in options.runs}
        report["research"] = research(bank, model, methods, options.episodes)
        report["comparison"] = comparison(bank, model, options.draws, options.slow_draws)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({k: v for k, v in report.items() if k != "environment"}, indent=2))


if __name__ == "__main__":
    main()
