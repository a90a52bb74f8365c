"""Stage-1 training and extraction rates on a GPU: whole epochs of the real loop on drawn pictures.

    python benchmarks/stage1_throughput.py --recipe recipes/mini-imagenet/stage1-wrn-28-10.yaml --out records

Training counts augmentation, optimiser, averaging and logging; the first epoch, which compiles, is left out.
Beside the rate stands what the device's matrix unit reaches on one large product, and the share of it. A run
adds its recipe to the record of the same commit.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from common import RESULTS, Pieces
from wdae.backbones import forward_flops
from wdae.backbones.embed import embed
from wdae.config import load
from wdae.runs.run import Run
from wdae.runtime.device import fast_arithmetic
from wdae.runtime.distributed import Team, choose_device
from wdae.stage1.config import Stage1Config
from wdae.stage1.data import LabelledImages, Stage1Data
from wdae.stage1.recognition_model import build_recognition_model
from wdae.stage1.train import train_stage1


def drawn(count: int, side: int, device: torch.device) -> LabelledImages:
    generator = torch.Generator(device).manual_seed(0)
    images = torch.randint(
        0, 256, (count, side, side, 3), generator=generator, device=device, dtype=torch.uint8
    )
    return LabelledImages(images.permute(0, 3, 1, 2), torch.arange(count, device=device) % 64)


def waited(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


def training(recipe: Path, changes: dict[str, Any], count: int, epochs: int, team: Team) -> dict[str, Any]:
    fixed = {"epochs": epochs, "validation.every": 10**6, "checkpoint_every": 10**6, "data.path": "drawn"}
    config = load(Stage1Config, recipe, fixed | {"averaging.refresh_batches": 0, "keep": "last"} | changes)
    data = Stage1Data(
        drawn(count, config.data.size, team.device), None, None, tuple(f"class {c}" for c in range(64))
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        run = Run.create(Path(folder) / "run", config)
        outcome = train_stage1(config, data, run, team)
        seconds = time.monotonic() - began
        logged = [row["images_per_s"] for row in run.metrics() if "images_per_s" in row]
    return {
        "batch": config.batch,
        "images_per_s": round(outcome.images_per_s, 1),
        "tflops": round(outcome.tflops, 2),
        "best_stretch_images_per_s": round(max(logged), 1),
        "seconds_with_compiling": round(seconds, 1),
    }


def extraction(recipe: Path, count: int, compiled: bool, team: Team) -> dict[str, Any]:
    config = load(Stage1Config, recipe, {"data.path": "drawn"})
    model = build_recognition_model(config.backbone, config.backbone_options, 64, seed=0).to(team.device)
    backbone = model.channels_last().eval().backbone
    if compiled:
        model.compile_stages("default")
    images = drawn(count, config.data.size, team.device).images
    options: dict[str, Any] = {"device": team.device, "batch": 512, "compiled": compiled}
    embed(backbone, images[:2048], config.augment, **options)
    began = waited(team.device)
    embed(backbone, images, config.augment, **options)
    rate = count / (waited(team.device) - began)
    flops = forward_flops(backbone, config.data.size)
    return {"images_per_s": round(rate, 1), "tflops": round(rate * flops / 1e12, 2), "compiled": compiled}


def matrix_peak(device: torch.device) -> float:
    """TFLOP/s of a large bf16 product of random matrices."""
    n = 8192 if device.type == "cuda" else 512
    a, b = (torch.randn(n, n, device=device).bfloat16() for _ in range(2))
    for _ in range(3):
        a @ b
    began = waited(device)
    for _ in range(10):
        a @ b
    return 10 * 2 * n**3 / (waited(device) - began) / 1e12


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", type=Path, default=Path("recipes/mini-imagenet/stage1-wrn-28-10.yaml"))
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=JSON", help="override a recipe key"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the record")
    parser.add_argument("--images", type=int, default=38400)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device")
    parser.add_argument("--no-training", action="store_true")
    parser.add_argument("--no-extraction", action="store_true")
    parser.add_argument("--all-algorithms", action="store_true", help="let cuDNN try every algorithm")
    parser.add_argument(
        "--report-waits", action="store_true", help="warn wherever the host waits for the GPU"
    )
    options = parser.parse_args()
    team = Team(0, 1, choose_device(options.device))
    fast_arithmetic(team.device)
    if options.all_algorithms:
        torch.backends.cudnn.benchmark_limit = 0
    if options.report_waits and team.device.type == "cuda":
        torch.cuda.set_sync_debug_mode("warn")
    changes = {key: json.loads(value) for key, value in (word.split("=", 1) for word in options.set)}
    peak = matrix_peak(team.device)
    facts = {"matrix_peak_tflops": round(peak, 1)}
    record = Pieces("stage1-gpu", options.out, facts, ("recipe", "changes", "compiled"))
    asked = {"recipe": options.recipe.stem, "changes": " ".join(options.set)}
    if not options.no_training:
        found = training(options.recipe, changes, options.images, options.epochs, team)
        record.add("training", asked | found | {"share_of_peak": round(found["tflops"] / peak, 3)})
    for compiled in (False, True) if team.device.type == "cuda" else (False,):
        if not options.no_extraction:
            found = extraction(options.recipe, options.images, compiled, team)
            record.add("extraction", asked | found | {"share_of_peak": round(found["tflops"] / peak, 3)})


if __name__ == "__main__":
    main()
