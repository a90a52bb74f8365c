"""Time and memory against the number of classes on a GPU, everything exact: graph, refinement, addition.

python benchmarks/scale_gpu.py [--sizes 1000 ... 1000000] [--out FOLDER]

For each size: the class graph by comparing all with all, the denoiser over all classes, then 5 classes added.
Writes scale-gpu.json to --out, $OUT or benchmarks/results. On a CPU, give small sizes.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from common import keep
from wdae import WDAE, Denoiser
from wdae.methods import BaseClasses, Support
from wdae.nn.cosine import unit
from wdae.nn.graph import build_graph

T = TypeVar("T")


def clustered(n: int, dim: int, device: torch.device) -> Tensor:
    """Unit rows ``[n, D]`` in clusters of a hundred, as class weights lie."""
    generator = torch.Generator(device).manual_seed(0)
    centres = torch.randn(max(1, n // 100), dim, generator=generator, device=device)
    which = torch.randint(len(centres), (n,), generator=generator, device=device)
    return unit(centres[which] + 0.8 * torch.randn(n, dim, generator=generator, device=device))


def timed(work: Callable[[], T], device: torch.device) -> tuple[T, float]:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    began = time.perf_counter()
    found = work()
    wait()
    return found, time.perf_counter() - began


def parts_of_a_block(weights: Tensor, device: torch.device, rows: int = 4096) -> dict[str, float]:
    """What a block of rows costs: the product in float32 and in TensorFloat-32, the choice of the best."""
    some, found = weights[:rows], {}
    for name, allowed in (("float32", False), ("tf32", True)):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        some @ weights.T
        block, found[f"block_product_{name}_s"] = timed(lambda: some @ weights.T, device)
    torch.backends.cuda.matmul.allow_tf32 = False
    block.topk(10, dim=1)
    _, found["block_topk_s"] = timed(lambda: block.topk(10, dim=1), device)
    return {"block_rows": float(len(some)), **found}


def measure(n_classes: int, dim: int, hidden: int, device: torch.device) -> dict[str, float]:
    weights = clustered(n_classes, dim, device)
    generator = torch.Generator().manual_seed(0)
    novel = torch.randn(1, 5, 5, dim, generator=generator).to(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    graph, graph_s = timed(lambda: build_graph(weights, many=2**62), device)
    graph_peak = _peak(device)
    method = WDAE(Denoiser(dim, hidden, generator=generator).eval().to(device))
    base = BaseClasses(weights)
    adapter, base_s = timed(lambda: method.on(base, graph), device)
    adapter.adapt(Support(novel))
    adds = sorted(timed(lambda: adapter.adapt(Support(novel)), device)[1] for _ in range(9))
    return {
        "classes": n_classes,
        "graph_s": graph_s,
        "refine_all_s": base_s,
        "add_5_p50_s": adds[4],
        "graph_peak_gib": graph_peak,
        "peak_gib": _peak(device),
        **parts_of_a_block(weights, device),
    }


def _peak(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000]
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes)
    parser.add_argument("--dim", type=int, default=640)
    parser.add_argument("--hidden", type=int, default=320)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    device = torch.device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    measure(1000, args.dim, args.hidden, device)  # warms up
    rows = []
    for size in args.sizes:
        rows.append(measure(size, args.dim, args.hidden, device))
        print("  ".join(f"{key} {value:.4g}" for key, value in rows[-1].items()), flush=True)
        record = {"dim": args.dim, "hidden": args.hidden, "device": name, "rows": rows}
        folder = args.out or (Path(os.environ["OUT"]) if os.environ.get("OUT") else None)
        path = keep("scale-gpu", record, folder)  # after each size: what is cut short is not lost
        if device.type == "cuda":
            torch.cuda.empty_cache()
    print(path)


if __name__ == "__main__":
    main()
