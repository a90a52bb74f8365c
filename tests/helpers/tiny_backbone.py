"""A backbone that knows colours and stripes without training, and pictures that differ by them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 200, 60),
    "blue": (40, 60, 220),
    "yellow": (220, 210, 40),
    "violet": (160, 40, 200),
    "grey": (128, 128, 128),
    "orange": (240, 140, 30),
    "black": (15, 15, 15),
}


class TinyBackbone(nn.Module):
    """Average colours of a 4 × 4 grid through a fixed random map: 32 features."""

    image_size = 24

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.map = nn.Linear(48, 32)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            self.map.weight.copy_(torch.randn(32, 48, generator=generator) / 7)
            self.map.bias.copy_(torch.randn(32, generator=generator) / 7)

    def forward(self, images: Tensor) -> Tensor:
        """``[B, 3, 24, 24]`` → ``[B, 32]``."""
        return self.map(self.pool(images).flatten(1))  # type: ignore[no-any-return]


def factory() -> nn.Module:
    return TinyBackbone()


def paint(folder: Path, colours: list[str], count: int, seed: int = 0, side: int = 24) -> Path:
    """``folder/COLOUR/i.png``: plain colours with noise."""
    rng = np.random.default_rng(seed)
    for colour in colours:
        (folder / colour).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            base = np.array(COLOURS[colour]) + rng.normal(0, 18, size=(1, 1, 3))
            pixels = np.clip(base + rng.normal(0, 12, size=(side, side, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / colour / f"{seed}-{i}.png")
    return folder
