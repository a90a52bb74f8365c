"""Time and peak memory against the number of classes, on a CPU.

python benchmarks/scale.py [--sizes 1000 3000 10000 30000 100000]

For each size, in a process of its own: the class graph in blocks, the denoiser over all base classes, and
then 5 novel classes added with the graph kept. Writes benchmarks/results/scale-cpu.json and a plot.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

from common import RESULTS, best_of, keep
from wdae import WDAE, Denoiser
from wdae.methods import BaseClasses, Support
from wdae.nn.graph import build_graph


def measure(n_classes: int, dim: int, hidden: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(n_classes, dim, generator=generator)
    novel = torch.randn(1, 5, 5, dim, generator=generator)
    began = time.perf_counter()
    graph = build_graph(weights)
    graph_s = time.perf_counter() - began
    method = WDAE(Denoiser(dim, hidden, generator=generator).eval())
    began = time.perf_counter()
    adapter = method.on(BaseClasses(weights), graph)
    base_s = time.perf_counter() - began
    novel_s = best_of(5, lambda: adapter.adapt(Support(novel)))
    joint_s = best_of(5, lambda: adapter.adapt(Support(novel), joint=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {
        "classes": n_classes,
        "graph_s": graph_s,
        "denoise_base_s": base_s,
        "add_5_novel_only_s": novel_s,
        "add_5_with_base_s": joint_s,
        "peak_gib": peak,
    }


def plot(rows: list[dict[str, float]], folder: Path) -> list[Path]:
    from wdae.evaluation.plots import figure

    sizes = [row["classes"] for row in rows]
    with figure(10, 4) as (fig, save):
        left, right = fig.subplots(1, 2)
        for key, label in (
            ("graph_s", "class graph, once"),
            ("denoise_base_s", "denoise all base classes, once"),
            ("add_5_with_base_s", "add 5 classes"),
        ):
            left.loglog(sizes, [row[key] for row in rows], marker="o", label=label)
        left.set(xlabel="classes", ylabel="seconds")
        left.legend()
        right.loglog(sizes, [row["peak_gib"] for row in rows], marker="o", color="black")
        right.set(xlabel="classes", ylabel="peak memory, GiB")
        return list(save(folder, "scale"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1_000, 3_000, 10_000, 20_000, 30_000, 100_000]
    )
    parser.add_argument("--dim", type=int, default=640)
    parser.add_argument("--hidden", type=int, default=320)
    parser.add_argument("--one", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(measure(args.one, args.dim, args.hidden)))
        return
    rows = []
    for size in args.sizes:
        command = [sys.executable, __file__, "--one", str(size), "--dim", str(args.dim)]
        done = subprocess.run(
            [*command, "--hidden", str(args.hidden)], check=True, capture_output=True, text=True
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print("  ".join(f"{key} {value:.4g}" for key, value in rows[-1].items()), flush=True)
    record = {"dim": args.dim, "hidden": args.hidden, "threads": torch.get_num_threads(), "rows": rows}
    print(keep("scale-cpu", record, args.out))
    for path in plot(rows, args.out or RESULTS):
        print(path)


if __name__ == "__main__":
    main()
