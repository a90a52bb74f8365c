"""Stage-2 training speed: episodes a second of the real training loop, set up as the command line does it.

python benchmarks/training.py                      2 cores: 64 classes, 20 fake novel, 200 queries
python benchmarks/training.py --gpu                a GPU: N = 100, H = 1024
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from common import keep
from wdae import synthetic_bank
from wdae.runtime.process import SHORT_WAIT, keep_freed_memory
from wdae.stage2.config import DenoiserConfig, MetaRecipe, TrainingConfig
from wdae.stage2.train import train


def rate(recipe: MetaRecipe, n_classes: int, dim: int, warm_up: int) -> float:
    """Episodes a second after the first ``warm_up`` steps (which compile, tune and fill caches)."""
    bank = synthetic_bank(
        n_base=n_classes, n_validation=0, n_novel=0, images_per_class=100, dim=dim, held_out_per_class=10
    )
    done, began = 0, 0.0

    def on_progress(n: int, **_: Any) -> None:
        nonlocal done, began
        done += n
        if done == warm_up * recipe.training.episodes_per_step:
            _wait()
            began = time.perf_counter()

    train(recipe, bank, on_progress=on_progress)
    _wait()
    steps = recipe.training.steps - warm_up
    return steps * recipe.training.episodes_per_step / (time.perf_counter() - began)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3, help="the best counts: the others were disturbed")
    parser.add_argument("--batches", type=int, nargs="+", default=None)
    args = parser.parse_args()
    if any(name not in os.environ for name in SHORT_WAIT):  # it counts from the start of a process
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | SHORT_WAIT)
    keep_freed_memory()
    gpu = args.gpu
    n_classes, hidden, dropout = (100, 1024, 0.7) if gpu else (64, 320, 0.95)
    rows = []
    for kind in ("gnn", "mlp"):
        for batch in args.batches or ((64, 128, 256) if gpu else (8, 16, 32)):
            training = TrainingConfig(
                steps=args.steps,
                episodes_per_step=batch,
                n_fake=20,
                queries_per_novel=5,
                base_queries=100,
                validate_every=args.steps,
                keep="last",
            )
            recipe = MetaRecipe(
                device="cuda" if gpu else "cpu",
                denoiser=DenoiserConfig(kind=kind, hidden=hidden, dropout=dropout),
                training=training,
            )
            warm_up = max(3, args.steps // 6)
            speed = max(rate(recipe, n_classes, 640, warm_up) for _ in range(args.repeats))
            rows.append({"kind": kind, "episodes_per_step": batch, "episodes_per_second": speed})
            print(f"{kind} {batch:4d} episodes a step: {speed:8.0f} episodes/s", flush=True)
    sizes = {"classes": n_classes, "fake_novel": 20, "queries": 200, "dim": 640, "hidden": hidden}
    path = keep("training-gpu" if gpu else "training-cpu", {"sizes": sizes, "rows": rows}, args.out)
    print(path)


if __name__ == "__main__":
    main()
