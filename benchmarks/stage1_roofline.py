"""How fast stage 1 could be at most on a device, by arithmetic and memory traffic alone; runs on any machine.

    python benchmarks/stage1_roofline.py [--peak 790] [--bandwidth 4.3]
    python benchmarks/stage1_roofline.py --device cuda    # convolutions as fast as cuDNN has them, too

Each convolution is three products in training (output, gradient of its input, gradient of its weights), each
as long as its arithmetic at the matrix unit's peak or its reading and writing at the memory's, whichever is
longer. BatchNorm with the activation after it reads and writes maps only: once for its statistics, once to
apply it; backwards alike. Maps are of two bytes a value; nothing is read twice that a kernel could keep, and
no kernel falls short of either peak, so that no program is faster whose BatchNorm has kernels of its own.
Pooling, additions, the optimiser and augmentation are left out. The peaks are those measured on an H200, in
TFLOP/s and TB/s.

With a device, the three products of each convolution are timed there, each alone, by the fastest algorithm
that cuDNN finds (bfloat16, channels last). No training with these convolutions is faster than their sum, were
all else free; with BatchNorm's reading and writing at the memory's peak beside them, that is the best to hope
for while the two are kernels of their own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common import RESULTS, keep
from wdae import backbones

BYTES = 2
CASES = {"resnet12": 84, "wrn-28-10": 80}


class Timer:
    """Seconds a picture of a convolution's products on a device, each alone; equal ones are timed once."""

    def __init__(self, device: str, batch: int) -> None:
        self.device, self.batch = torch.device(device), batch
        self.known: dict[tuple[Any, ...], float] = {}
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.benchmark_limit = 0  # every algorithm is tried

    def __call__(self, conv: nn.Conv2d, side: int) -> float:
        key = (conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, side)
        if key not in self.known:
            self.known[key] = self._measure(conv, side)
        return self.known[key]

    def _measure(self, conv: nn.Conv2d, side: int) -> float:
        place: dict[str, Any] = {"device": self.device, "dtype": torch.bfloat16}
        x = torch.randn(self.batch, conv.in_channels, side, side, **place)
        weight = torch.randn(conv.weight.shape, **place)
        x, weight = (t.contiguous(memory_format=torch.channels_last) for t in (x, weight))
        shape: tuple[Any, ...] = (list(conv.stride), list(conv.padding), [1, 1], False, [0, 0], 1)
        out = torch.ops.aten.convolution(x, weight, None, *shape)

        def gradient(of_input: bool) -> Callable[[], Any]:
            wanted = [of_input, not of_input, False]
            return lambda: torch.ops.aten.convolution_backward(out, x, weight, None, *shape, wanted)

        works = [lambda: torch.ops.aten.convolution(x, weight, None, *shape), gradient(False)]
        works += [gradient(True)] if conv.in_channels != 3 else []
        return sum(map(self._seconds, works)) / self.batch

    def _seconds(self, work: Callable[[], Any], repeats: int = 10) -> float:
        for _ in range(3):
            work()
        began = self._now()
        for _ in range(repeats):
            work()
        return (self._now() - began) / repeats

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def bound(
    name: str, side: int, peak: float, bandwidth: float, batch: int = 256, timer: Timer | None = None
) -> dict[str, float]:
    """The shortest time of training on a picture, and what share of the peak that leaves."""
    products: list[tuple[float, float]] = []  # floating-point operations, bytes
    timed: list[float] = []
    network = backbones.build(name, image_size=side).eval()

    def convolution(part: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        assert isinstance(part, nn.Conv2d)
        if timer is not None:
            timed.append(timer(part, given[0].shape[-1]))
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
    found = {
        "side": side,
        "gflop_an_image": round(flops / 1e9, 2),
        "megabytes_an_image": round(moved / 1e6, 1),
        "images_per_s_at_most": round(1 / seconds),
        "tflops_at_most": round(flops / seconds / 1e12, 1),
        "share_of_peak_at_most": round(flops / seconds / (peak * 1e12), 3),
    }
    if timer is None:
        return found
    norms = sum(b for f, b in products if f == 0) / (bandwidth * 1e12)
    return found | {
        "share_with_convolutions_as_timed": round(flops / sum(timed) / (peak * 1e12), 3),
        "share_with_batch_norm_too": round(flops / (sum(timed) + norms) / (peak * 1e12), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peak", type=float, default=790.0, help="TFLOP/s of the matrix unit")
    parser.add_argument("--bandwidth", type=float, default=4.3, help="TB/s of the memory")
    parser.add_argument("--device", help="where convolutions are timed; without, none are")
    parser.add_argument("--batch", type=int, default=256, help="pictures of a step")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the record")
    args = parser.parse_args()
    timer = None if args.device is None else Timer(args.device, args.batch)
    rows = [
        {"backbone": name, **bound(name, side, args.peak, args.bandwidth, args.batch, timer)}
        for name, side in CASES.items()
    ]
    print(*rows, sep="\n")
    peaks = {"peak_tflops": args.peak, "bandwidth_tb_per_s": args.bandwidth, "pictures_a_step": args.batch}
    print(keep("stage1-roofline", {**peaks, "at_most": rows}, args.out))


if __name__ == "__main__":
    main()
