"""A model of a million classes on a CPU: graph by an index, refined, saved, opened, added to, asked.

python benchmarks/scale_classes.py --build 1000 1000000 --models FOLDER   then   --use 1000 1000000 ...
python benchmarks/scale_classes.py --against 300000 --accuracy 100000

Each size is a process of its own, and each piece adds to a record, results/scale/scale-classes.json or, for
``--accuracy``, scale-accuracy.json.
``--use`` opens a built model, adds classes and classifies. ``--against`` compares the index with comparing
all with all in one process. ``--accuracy`` puts so many distractors, halfway between real features, beside
the 100 classes of the embedded bank, and compares accuracies with an index and without.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from common import RESULTS, Pieces
from wdae import WDAE, Denoiser, FeatureBank, Part, embedded_bank, load_recipe, train
from wdae.bank import class_means
from wdae.classifier.base_knowledge import BaseKnowledge
from wdae.classifier.model import Model
from wdae.classifier.predictions import predictions
from wdae.classifier.store import changing, load, save
from wdae.methods.calibration import Calibration
from wdae.nn.cosine import unit
from wdae.nn.graph import build_graph
from wdae.nn.incremental import BaseState

T = TypeVar("T")
PICTURES = 1000


def clustered(n: int, dim: int, kind: str = "clusters", seed: int = 0, of: int | None = None) -> Tensor:
    """Unit rows: in clusters of a hundred, in nested groups, or means of two real features with noise."""
    if kind == "nested":
        return nested(n, dim, of or n, seed)
    generator = torch.Generator().manual_seed(seed)
    if kind == "real":
        pool, noise = embedded_bank().select(Part.BASE_TRAIN).features, 0.5
        which = torch.randint(len(pool), (2, n), generator=generator)  # halfway between any two pictures
    else:
        centres = torch.randn(max(1, n // 100), dim, generator=torch.Generator().manual_seed(0))
        pool, noise = unit(centres), 0.8
        which = torch.randint(len(pool), (1, n), generator=generator)
    rows = torch.empty(n, pool.shape[1])
    for start in range(0, n, 65_536):
        some = pool[which[:, start : start + 65_536]].sum(0)
        drawn = torch.randn(some.shape, generator=generator) * (noise / some.shape[1] ** 0.5)
        rows[start : start + 65_536] = unit(some + drawn)
    return rows


def nested(n: int, dim: int, of: int, seed: int = 0) -> Tensor:
    """Unit rows in groups of ten, ten of which are a group, and so on, as kinds and families of things lie.

    Args:
        of: how many classes the groups are made for; ``n`` of them are drawn, all of them where seed is 0.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(of, (n,), generator=generator) if seed else torch.randperm(n, generator=generator)
    rows, size = torch.empty(n, dim), 10
    for some in rows.split(65_536):
        some[:] = torch.randn(some.shape, generator=generator) * (0.8 / dim**0.5)
    while size < of:
        of_level = torch.Generator().manual_seed(size)  # the same groups for every seed
        centres = torch.randn(-(-of // size), dim, generator=of_level) * (0.6 / dim**0.5)
        for some, which in zip(rows.split(65_536), drawn.split(65_536), strict=True):
            some += centres[which // size]
        size *= 10
    for some in rows.split(65_536):
        some[:] = unit(some)
    return rows


def timed(work: Callable[[], T]) -> tuple[T, float, float]:
    """What it gives, seconds on the clock, and seconds of all cores together."""
    began, used = time.perf_counter(), time.process_time()
    found = work()
    return found, time.perf_counter() - began, time.process_time() - used


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def method_of(dim: int, hidden: int) -> WDAE:
    balance = Calibration(12.0, slopes={5: 1.0}, offsets={5: 0.0}, familiarity=tuple(range(5)))
    network = Denoiser(dim, hidden, generator=torch.Generator().manual_seed(0)).eval()
    return WDAE(network, 12.0, {5: 0.5}, balance=balance, refine_base=False)


def measure(n: int, dim: int, hidden: int, kind: str, folder: Path) -> dict[str, Any]:
    """Build, refine all and save in this process; open, add and predict in another."""
    weights = clustered(n, dim, kind)
    dim = weights.shape[1]
    method = method_of(dim, hidden)
    names = [f"class {i}" for i in range(n)]
    base, built_s, built_cpu_s = timed(lambda: BaseKnowledge.of_weights(names, weights, method, many=1))
    weights = base.weights  # the others are let go
    _, refined_s, refined_cpu_s = timed(
        lambda: BaseState(method.denoiser, base.weights, graph=base.graph).reconstructed
    )
    _, saved_s, _ = timed(lambda: save(Model(base), folder))
    assert base.index is not None
    return {
        "classes": n,
        "kind": kind,
        "index": dict(base.index.facts),
        "graph_s": built_s,
        "graph_cpu_s": built_cpu_s,
        "refine_all_s": refined_s,
        "refine_all_cpu_s": refined_cpu_s,
        "save_s": saved_s,
        "peak_gib": peak_gib(),
        "bytes_on_disk": sum(file.stat().st_size for file in folder.iterdir()),
    }


def use(folder: Path, kind: str) -> dict[str, Any]:
    """Open the model, add five classes of five examples ten times, classify a thousand vectors."""
    model, open_s, open_cpu_s = timed(lambda: load(folder))
    n, dim = len(model.base.names), model.base.dim
    made = [
        {f"new {turn} {i}": clustered(5, dim, kind, seed=1 + 5 * turn + i, of=n) for i in range(5)}
        for turn in range(11)
    ]
    adds, adds_cpu, commits = [], [], []
    for turn, classes in enumerate(made):

        def add(classes: dict[str, Tensor] = classes) -> None:
            model.add(classes)
            _ = model.head.added  # ready to be asked

        _, took, cpu = timed(add)
        if turn:  # the first builds what base classes alone determine
            adds.append(took)
            adds_cpu.append(cpu)
        else:
            first = took
        model.undo()
    model = load(folder, verify=False)
    for turn in range(5):
        with changing(folder, opened=model) as opened:
            began = time.perf_counter()
            opened.add(made[turn])
        commits.append(time.perf_counter() - began)
    with changing(folder, opened=model) as opened:
        for _ in commits:
            opened.undo()
    queries = clustered(PICTURES, dim, kind, seed=77, of=n)
    predictions(model, queries[:256], top=5)
    _, predict_s, predict_cpu_s = timed(lambda: predictions(model, queries, top=5))
    middle = len(adds) // 2
    return {
        "classes": n,
        "kind": kind,
        "open_s": open_s,
        "open_cpu_s": open_cpu_s,
        "first_add_s": first,
        "add_5_p50_s": sorted(adds)[middle],
        "add_5_cpu_p50_s": sorted(adds_cpu)[middle],
        "add_5_on_disk_p50_s": sorted(commits)[len(commits) // 2],
        "pictures_per_s": PICTURES / predict_s,
        "pictures_per_cpu_s": PICTURES / predict_cpu_s,
        "open_peak_gib": peak_gib(),
    }


def against(n: int, dim: int) -> dict[str, Any]:
    """The graph by an index and by comparing all with all, in one process; the latter on a share of rows."""
    weights = clustered(n, dim)
    found, index_s, index_cpu_s = timed(lambda: build_graph(weights, many=1))
    drawn = torch.randperm(n, generator=torch.Generator().manual_seed(5))[: max(1000, n // 50)]

    def exact() -> Tensor:
        best = []
        for rows in drawn.split(max(1, int(256 * 2**20 / (4 * n)))):  # blocks as build_graph has them
            block = weights[rows] @ weights.T
            block[torch.arange(len(rows)), rows] = -torch.inf
            best.append(block.topk(10, dim=1).indices)
        return torch.cat(best)

    true, some_s, some_cpu_s = timed(exact)
    times = n / len(drawn)
    same = (true.unsqueeze(2) == found.neighbours[drawn].unsqueeze(1)).any(2).double()
    assert found.index is not None
    return {
        "classes": n,
        "index": dict(found.index.facts),
        "recall": float(same.mean()),
        "exact_rows": len(drawn),
        "index_s": index_s,
        "index_cpu_s": index_cpu_s,
        "exact_s": some_s * times,
        "exact_cpu_s": some_cpu_s * times,
        "times_faster": some_s * times / index_s,
        "times_less_cpu": some_cpu_s * times / index_cpu_s,
    }


def between(bank: FeatureBank, n: int, seed: int = 3) -> Tensor:
    """Classes that nobody asks for: halfway between pictures of two base classes, with noise."""
    generator = torch.Generator().manual_seed(seed)
    known = bank.select(Part.BASE_TRAIN)
    pool, each = unit(known.features), int(known.labels.bincount().max())
    rows = torch.empty(n, bank.dim)
    for some in rows.split(65_536):
        first = torch.randint(len(pool), (len(some),), generator=generator)
        step = torch.randint(each, len(pool) - each + 1, (len(some),), generator=generator)
        halfway = unit(pool[first] + pool[(first + step) % len(pool)])  # pictures lie class by class
        some[:] = unit(halfway + torch.randn(some.shape, generator=generator) * (0.5 / bank.dim**0.5))
    return rows


def accuracy(distractors: int) -> dict[str, Any]:
    """Accuracy among 64 base classes, distractors and 36 added ones, with an index and without.

    The network and the balance are trained on the base classes, shortly. The added classes are held to be as
    likely as the real base classes, together, and a distractor as likely as one of these. (As likely as all
    base classes together, each added one would be thousands of times likelier than a base class.)
    """
    bank: FeatureBank = embedded_bank()
    base = unit(class_means(bank))
    weights = torch.cat([base, between(bank, distractors)])
    changes = {"steps": 200, "validate_every": 100, "validation_episodes": 200}
    recipe: dict[str, Any] = {f"training.{key}": value for key, value in changes.items()}
    recipe |= {"precision": "float32", "evaluation.step_episodes": 200, "evaluation.refine_base": False}
    recipe |= {"evaluation.tuned_shots": (5,), "evaluation.shots": (5,)}
    method = train(load_recipe("mini-imagenet/wdae-gnn", recipe), replace(bank, base_weights=base))
    assert isinstance(method, WDAE) and method.balance is not None and method.scale is not None
    scale, balance = method.scale, method.balance
    held_out = bank.select(Part.BASE_HELD_OUT)
    others = [bank.select(part) for part in (Part.VALIDATION, Part.NOVEL)]
    examples = [part.of_class(c) for part in others for c in range(part.n_classes)]
    shots = {f"added {c}": rows[:5] for c, rows in enumerate(examples)}
    rows = [found[5:105] for found in examples]
    queries = torch.cat([held_out.features, *rows])
    truth = [f"class {label}" for label in held_out.labels.tolist()]
    n_held_out = len(truth)
    truth += [name for name, found in zip(shots, rows, strict=True) for _ in found]

    def answered(weights: Tensor, many: int) -> Tensor:
        """Which queries a model of these base classes answers rightly."""
        names = tuple(f"class {i}" for i in range(len(weights)))
        method.balance = replace(balance, novel_share=len(base) / (len(base) + len(weights)))
        if many == 1:
            known = BaseKnowledge.of_weights(names, weights, method, many=1)
        else:  # all compared with all
            graph = build_graph(weights, many=many)
            counts = torch.full((len(weights),), 100)
            known = BaseKnowledge(names, weights, counts, method, scale, graph)
        model = Model(known)
        model.add(shots)
        told = predictions(model, queries)
        return torch.tensor([one.classes[0] == true for one, true in zip(told, truth, strict=True)]).double()

    right = {
        "alone": answered(base, 2**62),
        "index": answered(weights, 1),
        "exact": answered(weights, 2**62),
    }
    apart = right["index"] - right["exact"]
    found: dict[str, Any] = {
        "distractors": distractors,
        "real_classes": len(base) + len(examples),
        "queries": len(truth),
        "difference": float(apart.mean()),
        "difference_ci95": 1.96 * float(apart.std() / len(apart) ** 0.5),
        "answered_otherwise": int((apart != 0).sum()),
    }
    for kind, values in right.items():
        found[f"accuracy_{kind}"] = float(values.mean())
        found[f"base_{kind}"], found[f"added_{kind}"] = (
            float(some.mean()) for some in (values[:n_held_out], values[n_held_out:])
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=int, nargs="*", default=[], help="sizes of models to build and save")
    parser.add_argument("--use", type=int, nargs="*", default=[], help="sizes of built models to measure")
    parser.add_argument("--kind", default="clusters", choices=["clusters", "nested", "real"])
    parser.add_argument("--against", type=int, nargs="*", default=[])
    parser.add_argument("--accuracy", type=int, nargs="*", default=[])
    parser.add_argument("--dim", type=int, default=640)
    parser.add_argument("--hidden", type=int, default=320)
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--models", type=Path, default=Path("models"), help="where models are kept")
    parser.add_argument("--out", type=Path, default=RESULTS / "scale", help="folder of the record")
    parser.add_argument("--part", nargs="+", default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
        torch.set_num_threads(args.cores)
        job, n = args.part[0], int(args.part[1])
        folder = args.models / f"{args.kind}-{n}"
        done: dict[str, Any]
        if job == "build":
            done = measure(n, args.dim, args.hidden, args.kind, folder)
        elif job == "use":
            done = use(folder, args.kind)
        else:
            done = against(n, args.dim) if job == "against" else accuracy(n)
        print(json.dumps(done))
        return
    facts: dict[str, Any] = {
        "dim": args.dim,
        "hidden": args.hidden,
        "cores": args.cores,
        "against": [],
        "rows": [],
    }

    def pieces() -> Pieces:
        return Pieces("scale-classes", args.out, facts, ("classes", "kind"))

    def part(job: str, n: int) -> dict[str, Any]:
        command = [sys.executable, __file__, "--dim", str(args.dim), "--hidden", str(args.hidden)]
        command += ["--cores", str(args.cores), "--kind", args.kind, "--models", str(args.models)]
        ran = subprocess.run([*command, "--part", job, str(n)], check=True, stdout=subprocess.PIPE, text=True)
        found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        found[f"{job}_load"] = os.getloadavg()[0]
        return found

    for job, sizes in (("build", args.build), ("use", args.use)):
        for n in sizes:
            pieces().add("rows", part(job, n))
    for n in args.against:
        pieces().add("against", part("against", n))
    for n in args.accuracy:
        Pieces("scale-accuracy", args.out, {}, ("distractors",)).add("accuracy", part("accuracy", n))


if __name__ == "__main__":
    main()
