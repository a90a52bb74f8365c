"""Pictures of nothing, drawn by code: noise, text, flat colours and screens, to know them by."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_SIDES = (96, 400)  # as photos are, they are scaled down: noise of any grain then shows as it would


def draw_outliers(folder: Path, n_each: int, seed: int = 0) -> dict[str, list[Path]]:
    """Draw ``n_each`` pictures of each kind to files, so that a backbone reads them as it reads any.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     {kind: len(files) for kind, files in draw_outliers(Path(place), 2).items()}
    {'noise': 2, 'text': 2, 'flat': 2, 'screen': 2}
    """
    found = {}
    for number, (kind, draw) in enumerate(_KINDS.items()):
        rng = np.random.default_rng([seed, number])
        found[kind] = [folder / f"{kind}-{i}.png" for i in range(n_each)]
        for file in found[kind]:
            draw(rng, int(rng.integers(*_SIDES))).save(file)
    return found


def _colour(rng: np.random.Generator) -> tuple[int, int, int]:
    if rng.random() < 0.3:  # grey, as paper and windows are
        grey = int(rng.choice([0, 32, 128, 224, 240, 255]))
        return (grey, grey, grey)
    red, green, blue = rng.integers(0, 256, 3).tolist()
    return (red, green, blue)


def _noise(rng: np.random.Generator, side: int) -> Image.Image:
    grain = max(1, int(side / rng.choice([8, 32, 128, 512])))
    cells = -(-side // grain)
    shape = (cells, cells, 1 if rng.random() < 0.3 else 3)
    if rng.random() < 0.5:
        values = rng.uniform(0, 256, shape)
    else:
        values = rng.uniform(64, 192) + rng.uniform(20, 90) * rng.standard_normal(shape)
    picture = Image.fromarray(np.broadcast_to(values.clip(0, 255), (cells, cells, 3)).astype(np.uint8))
    smooth = Image.Resampling.BICUBIC if rng.random() < 0.5 else Image.Resampling.NEAREST
    return picture.resize((side, side), smooth)


def _flat(rng: np.random.Generator, side: int) -> Image.Image:
    first, last = np.array(_colour(rng), dtype=float), np.array(_colour(rng), dtype=float)
    if rng.random() < 0.5:
        last = first
    ramp = np.linspace(0, 1, side)[:, None, None]
    rows = np.broadcast_to(first + ramp * (last - first), (side, side, 3))
    rows = rows + rng.choice([0, 2, 6]) * rng.standard_normal((side, side, 1))
    rows = np.rot90(rows, int(rng.integers(4)))
    return Image.fromarray(rows.clip(0, 255).astype(np.uint8))


def _text(rng: np.random.Generator, side: int) -> Image.Image:
    dark, light = int(rng.integers(0, 80)), int(rng.integers(180, 256))
    paper, ink = ((light,) * 3, (dark,) * 3) if rng.random() < 0.8 else (_colour(rng), _colour(rng))
    picture = Image.new("RGB", (side, side), paper)
    _lines(ImageDraw.Draw(picture), rng, (0, 0, side, side), ink, side / rng.uniform(4, 24))
    return picture


def _screen(rng: np.random.Generator, side: int) -> Image.Image:
    picture = Image.new("RGB", (side, side), _colour(rng))
    draw = ImageDraw.Draw(picture)
    for _ in range(int(rng.integers(1, 5))):  # windows: a bar, a pane, text or buttons on it
        left, top = (rng.uniform(-0.2, 0.6, 2) * side).tolist()
        right, bottom = (rng.uniform(0.3, 0.9, 2) * side + (left, top)).tolist()
        pane = _colour(rng)
        draw.rectangle((left, top, right, bottom), fill=pane)
        draw.rectangle((left, top, right, top + side / 16), fill=_colour(rng))
        ink = (20, 20, 20) if sum(pane) > 380 else (235, 235, 235)
        _lines(draw, rng, (left, top + side / 10, right, bottom), ink, side / rng.uniform(14, 32))
        for _ in range(int(rng.integers(0, 4))):
            x, y = rng.uniform(left, right), rng.uniform(top, bottom)
            draw.rectangle((x, y, x + side / 6, y + side / 16), fill=_colour(rng))
    return picture


def _lines(
    draw: ImageDraw.ImageDraw,
    rng: np.random.Generator,
    box: tuple[float, float, float, float],
    ink: tuple[int, int, int],
    height: float,
) -> None:
    """Lines of words, as they fill a column."""
    font = ImageFont.load_default(size=max(4.0, height))
    left, top, right, bottom = box
    letters = list(string.ascii_letters + string.digits)
    width = max(1, int(1.6 * (right - left) / height))  # letters a line
    while top < bottom:
        line = "".join(rng.choice(letters, width))
        gaps = rng.random(width) < 0.18
        draw.text((left, top), "".join(" " if g else c for c, g in zip(line, gaps, strict=True)), ink, font)
        top += height * 1.25


_KINDS = {"noise": _noise, "text": _text, "flat": _flat, "screen": _screen}
