"""A model of a million classes on a CPU: graph by an index, refined, saved, opened, added to, asked.

python benchmarks/scale_classes.py [--sizes 1000 ... 1000000] [--against 300000] [--accuracy 100000]

Each size in a process of its own. ``--against`` compares the index with comparing all with all in one
process, in CPU time too. ``--accuracy`` adds so many distractors, real features with noise, to 100 classes
of the embedded bank, and compares accuracies with an index and without. Writes scale-classes.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from common import keep
from wdae import WDAE, Denoiser, FeatureBank, Part, embedded_bank
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


def clustered(n: int, dim: int, kind: str = "clusters", seed: int = 0) -> Tensor:
    """Unit rows: in clusters of a hundred, or means of two real features with noise."""
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
    _, saved_s, _ = timed(lambda: save(Model(base), folder / "model"))
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
        "bytes_on_disk": sum(file.stat().st_size for file in (folder / "model").iterdir()),
    }


def use(folder: Path, kind: str) -> dict[str, Any]:
    """Open the model, add five classes of five examples ten times, classify a thousand vectors."""
    model, open_s, open_cpu_s = timed(lambda: load(folder / "model"))
    n, dim = len(model.base.names), model.base.dim
    made = [
        {f"new {turn} {i}": clustered(5, dim, kind, seed=1 + 5 * turn + i) for i in range(5)}
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
    model = load(folder / "model", verify=False)
    for turn in range(5):
        with changing(folder / "model", opened=model) as opened:
            began = time.perf_counter()
            opened.add(made[turn])
        commits.append(time.perf_counter() - began)
    queries = clustered(PICTURES, dim, kind, seed=77)
    predictions(model, queries[:256], top=5)
    _, predict_s, predict_cpu_s = timed(lambda: predictions(model, queries, top=5))
    middle = len(adds) // 2
    return {
        "open_s": open_s,
        "open_cpu_s": open_cpu_s,
        "first_add_s": first,
        "add_5_p50_s": sorted(adds)[middle],
        "add_5_cpu_p50_s": sorted(adds_cpu)[middle],
        "add_5_on_disk_p50_s": sorted(commits)[len(commits) // 2],
        "pictures_per_s": PICTURES / predict_s,
        "pictures_per_cpu_s": PICTURES / predict_cpu_s,
        "open_peak_gib": peak_gib(),
        "base_classes": n,
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


def accuracy(distractors: int) -> dict[str, Any]:
    """Accuracy among 64 base classes, distractors and 20 added ones, with an index and without."""
    bank: FeatureBank = embedded_bank()
    base = bank.base_weights
    assert base is not None
    weights = torch.cat([unit(base), clustered(distractors, bank.dim, "real", seed=3)])
    names = [f"class {i}" for i in range(len(weights))]
    method = method_of(bank.dim, 320)
    novel, held_out = bank.select(Part.NOVEL), bank.select(Part.BASE_HELD_OUT)
    shots = {f"novel {c}": novel.of_class(c)[:5] for c in range(novel.n_classes)}
    labels, rows = [], []
    for c in range(novel.n_classes):
        rows.append(novel.of_class(c)[5:105])
        labels.append(torch.full((len(rows[-1]),), len(weights) + c))
    some = torch.randperm(len(held_out.features), generator=torch.Generator().manual_seed(0))[:2000]
    queries = torch.cat([held_out.features[some], *rows])
    truth = torch.cat([held_out.labels[some], *labels])
    right = {}
    for kind, many in (("index", 1), ("exact", 2**62)):
        graph = None
        if kind == "exact":  # the same classes, compared with all
            graph = build_graph(weights, many=many)
            known = BaseKnowledge(
                tuple(names), weights, torch.full((len(weights),), 100), method, 12.0, graph
            )
        else:
            known = BaseKnowledge.of_weights(names, weights, method, many=many)
        model = Model(known)
        model.add(shots)
        answers = [p.classes[0] for p in predictions(model, queries)]
        place = {name: i for i, name in enumerate(model.names)}
        right[kind] = torch.tensor([place[a] for a in answers]) == truth
    apart = right["index"].double() - right["exact"].double()
    return {
        "distractors": distractors,
        "queries": len(truth),
        "accuracy_index": float(right["index"].double().mean()),
        "accuracy_exact": float(right["exact"].double().mean()),
        "difference": float(apart.mean()),
        "difference_ci95": 1.96 * float(apart.std() / len(apart) ** 0.5),
        "base_index": float(right["index"][: len(some)].double().mean()),
        "base_exact": float(right["exact"][: len(some)].double().mean()),
        "novel_index": float(right["index"][len(some) :].double().mean()),
        "novel_exact": float(right["exact"][len(some) :].double().mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--kinds", nargs="+", default=["clusters"], choices=["clusters", "real"])
    parser.add_argument("--against", type=int, nargs="*", default=[300_000])
    parser.add_argument("--accuracy", type=int, nargs="*", default=[100_000])
    parser.add_argument("--dim", type=int, default=640)
    parser.add_argument("--hidden", type=int, default=320)
    parser.add_argument("--cores", type=int, default=None, help="cores to compare, open, add and predict on")
    parser.add_argument("--scratch", type=Path, default=None, help="where models are saved meanwhile")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--part", nargs="+", default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part is not None:
        job, *words = args.part
        if args.cores is not None and job in ("against", "use"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
            torch.set_num_threads(args.cores)
        done: dict[str, Any]
        if job == "measure":
            done = measure(int(words[0]), args.dim, args.hidden, words[1], Path(words[2]))
        elif job == "use":
            done = use(Path(words[0]), words[1])
        else:
            done = against(int(words[0]), args.dim) if job == "against" else accuracy(int(words[0]))
        print(json.dumps(done))
        return

    def part(*words: str) -> dict[str, Any]:
        command = [sys.executable, __file__, "--dim", str(args.dim), "--hidden", str(args.hidden)]
        command += [] if args.cores is None else ["--cores", str(args.cores)]
        ran = subprocess.run([*command, "--part", *words], check=True, stdout=subprocess.PIPE, text=True)
        found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        found["load"] = os.getloadavg()[0]
        print(json.dumps(found), flush=True)
        return found

    record: dict[str, Any] = {"dim": args.dim, "hidden": args.hidden, "threads": torch.get_num_threads()}
    record["cores"] = args.cores or os.cpu_count()
    record |= {"against": [], "accuracy": [], "rows": []}
    for n in args.against:
        record["against"].append(part("against", str(n)))
        keep("scale-classes", record, args.out)
    for n in args.accuracy:
        record["accuracy"].append(part("accuracy", str(n)))
        keep("scale-classes", record, args.out)
    for kind in args.kinds:
        for n in args.sizes:
            with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
                row = part("measure", str(n), kind, folder)
                row |= part("use", folder, kind)
            record["rows"].append(row)
            print(keep("scale-classes", record, args.out), flush=True)


if __name__ == "__main__":
    main()
