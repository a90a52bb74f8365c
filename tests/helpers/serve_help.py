"""Small pictures of things that are easily told apart, and a service to show them to."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def picture(colour: int, seed: int, kind: str = "PNG", side: int = 120) -> bytes:
    """A picture mostly of one colour (0 red, 1 green, 2 blue), with a block of another in a random place."""
    draw = np.random.default_rng((colour, seed))
    pixels = np.zeros((side, side + 30, 3), np.uint8)
    pixels[..., colour] = 200
    top, left = draw.integers(side // 6, side // 2, 2)
    pixels[top : top + side // 3, left : left + side // 3, (colour + 1) % 3] = draw.integers(60, 255)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def upload(**classes: list[bytes]) -> dict[str, Any]:
    """Keyword arguments of a request that teaches these pictures."""
    named = [(name, f"{name}-{i}.png", data) for name, some in classes.items() for i, data in enumerate(some)]
    return {
        "files": [("files", (file, data)) for _, file, data in named],
        "data": {"classes": [name for name, _, _ in named]},
    }
