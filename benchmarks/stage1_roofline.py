"""How fast stage 1 could be at most on a device, by arithmetic and memory traffic alone; runs on any machine.

    python benchmarks/stage1_roofline.py [--peak 790] [--bandwidth 4.3]

Each convolution is three products in training (output, gradient of its input, gradient of its weights), each
as long as its arithmetic at the matrix unit's peak or its reading and writing at the memory's, whichever is
longer. BatchNorm with the activation after it reads and writes maps only: once for its statistics, once to
apply it; backwards alike. Maps are of two bytes a value; nothing is read twice that a kernel could keep, and
no kernel falls short of either peak, so that no program is faster. Pooling, additions, the optimiser and
augmentation are left out. The peaks are those measured on an H200, in TFLOP/s and TB/s.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from common import keep
from wdae import backbones

BYTES = 2
CASES = {"resnet12": 84, "wrn-28-10": 80}


def bound(name: str, side: int, peak: float, bandwidth: float, batch: int = 256) -> dict[str, float]:
    """The shortest time of training on a picture, and what share of the peak that leaves."""
    products: list[tuple[float, float]] = []  # floating-point operations, bytes
    network = backbones.build(name, image_size=side).eval()

    def convolution(part: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        assert isinstance(part, nn.Conv2d)
        weights = part.weight.numel() / batch
        flops = 2.0 * part.weight.numel() * out[0, 0].numel()
        moved = BYTES * (given[0].numel() + out.numel() + weights)
        first = given[0].shape[1] == 3  # nobody asks for the gradient of the pictures
        products.extend([(flops, moved)] * (2 if first else 3))

    def norm(_: nn.Module, given: tuple[Tensor, ...], __: Tensor) -> None:
        # Forwards read for the statistics, read and written; backwards two maps read, two read, one written.
        products.append((0.0, BYTES * given[0].numel() * (1 + 2 + 2 + 3)))

    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            part.register_forward_hook(convolution)
        elif isinstance(part, nn.BatchNorm2d):
            part.register_forward_hook(norm)
    with torch.no_grad():
        network(torch.zeros(1, 3, side, side))
    flops, moved = (sum(column) for column in zip(*products, strict=True))
    seconds = sum(max(f / (peak * 1e12), b / (bandwidth * 1e12)) for f, b in products)
    return {
        "side": side,
        "gflop_an_image": round(flops / 1e9, 2),
        "megabytes_an_image": round(moved / 1e6, 1),
        "images_per_s_at_most": round(1 / seconds),
        "tflops_at_most": round(flops / seconds / 1e12, 1),
        "share_of_peak_at_most": round(flops / seconds / (peak * 1e12), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peak", type=float, default=790.0, help="TFLOP/s of the matrix unit")
    parser.add_argument("--bandwidth", type=float, default=4.3, help="TB/s of the memory")
    args = parser.parse_args()
    rows = [{"backbone": n, **bound(n, side, args.peak, args.bandwidth)} for n, side in CASES.items()]
    print(*rows, sep="\n")
    peaks = {"peak_tflops": args.peak, "bandwidth_tb_per_s": args.bandwidth}
    print(keep("stage1-roofline", {**peaks, "at_most": rows}))


if __name__ == "__main__":
    main()
