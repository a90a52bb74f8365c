"""Evaluation speed on a GPU: 20,000 test episodes of wDAE-GNN, drawing them included.

python benchmarks/evaluation_gpu.py [--bank BANK] [--episodes 20000]

5 novel classes beside the bank's base classes, H = 320, 15 queries a class; novel accuracy alone, and novel
and base together. The first run of each warms up and is timed apart.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from common import keep
from wdae import WDAE, Denoiser, FeatureBank, few_way
from wdae.bank.embedded import embedded_bank


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bank", type=Path, default=None)
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--shots", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    bank = embedded_bank() if args.bank is None else FeatureBank.open(args.bank)
    denoiser = Denoiser(bank.dim, 320, generator=torch.Generator().manual_seed(0)).eval().to(args.device)
    rows = []
    for n_shot in args.shots:
        for joint in (False, True):
            for dtype in (torch.float32, torch.bfloat16):
                method = WDAE(denoiser, dtype=dtype)
                seconds = []
                for _ in range(4):
                    began = time.perf_counter()
                    found = few_way(
                        method, bank, n_shot, n_episodes=args.episodes, joint=joint, device=args.device
                    )
                    seconds.append(time.perf_counter() - began)
                row = {
                    "shots": n_shot,
                    "asked": "novel and base" if joint else "novel",
                    "precision": str(dtype).removeprefix("torch."),
                    "first_s": seconds[0],
                    "median_s": sorted(seconds[1:])[1],
                    "episodes_per_second": args.episodes / sorted(seconds[1:])[1],
                }
                rows.append(row)
                print(
                    *(
                        f"{key} {value:.4g}" if isinstance(value, float) else value
                        for key, value in row.items()
                    )
                )
                del found
    sizes = {"base": bank.n_base, "novel": 5, "dim": bank.dim, "hidden": 320, "episodes": args.episodes}
    print(keep("evaluation-gpu", {"sizes": sizes, "rows": rows}, args.out))


if __name__ == "__main__":
    main()
