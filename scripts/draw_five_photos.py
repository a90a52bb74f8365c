"""Draw the README's picture: five photos in, three commands, what the model then says of new photos.

    python scripts/draw_five_photos.py [FILE]

The photos are painted here; everything else is what the commands gave.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from PIL import Image

from wdae.cli.main import main as wdae

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "five-photos.png"
INK, BAR, OTHER = "#1f2430", "#3d5afe", "#b9c2d9"


def paint(folder: Path, count: int, seed: int) -> list[Path]:
    """Brown stripes on white, as an okapi's legs have."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for i in range(count):
        picture = np.full((120, 160, 3), 235.0)
        picture[:, (np.arange(160) // rng.integers(9, 15)) % 2 == 0] = (90, 50, 30)
        picture += rng.normal(0, 8, picture.shape)
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.jpg")
    return sorted(folder.glob("*.jpg"))


def run(*words: object) -> str:
    """What a command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            wdae([str(word) for word in words])
        except SystemExit as end:
            if end.code:
                raise
    return out.getvalue()


def outcome(folder: Path) -> tuple[list[Path], list[Path], list[list[dict[str, Any]]]]:
    """The five photos, the new ones, and the three likeliest classes of each new one."""
    shots, new = paint(folder / "okapi", 5, seed=0), paint(folder / "new", 3, seed=7)
    run("learn", "-o", folder / "model")
    run("add", folder / "model", "--class", "okapi", *shots)
    lines = run("predict", folder / "model", *new, "--top", 3, "--json").splitlines()
    return shots, new, [json.loads(line)["predictions"] for line in lines]


def draw(folder: Path, file: Path) -> None:
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shots, new, predictions = outcome(folder)
    figure = plt.figure(figsize=(9, 4.4), dpi=110)
    grid = figure.add_gridspec(5, 10, height_ratios=[1.2, 0.45, 0.9, 0.9, 0.9], hspace=0.25, wspace=0.15)
    label = {"color": INK, "fontsize": 11}

    def picture(place: Any, photo: Path, title: str | None = None) -> None:
        axes = figure.add_subplot(place)
        axes.imshow(Image.open(photo))
        axes.set_axis_off()
        if title:
            axes.text(0, -14, title, family="monospace", **label)

    for i, photo in enumerate(shots):
        title = None if i else "$ wdae add model --class okapi okapi/*.jpg"
        picture(grid[0, 2 * i : 2 * i + 2], photo, title)
    for i, (photo, classes) in enumerate(zip(new, predictions, strict=True)):
        picture(grid[2 + i, 0:2], photo, None if i else "$ wdae predict model new/*.jpg --top 3")
        axes = figure.add_subplot(grid[2 + i, 2:10])
        values = [entry["probability"] for entry in classes]
        axes.barh(range(3), values, color=[BAR, OTHER, OTHER], height=0.62)
        for row, entry in enumerate(classes):
            share = 100 * entry["probability"]
            percent = "> 99.9 %" if share > 99.9 else f"{share:.1f} %" if share >= 0.1 else "< 0.1 %"
            axes.text(entry["probability"] + 0.012, row, f"{entry['class']}  {percent}", va="center", **label)
        axes.set(xlim=(-0.05, 1.35), ylim=(2.6, -0.6))
        axes.set_axis_off()
    figure.savefig(file, bbox_inches="tight", metadata={"Software": None})


def main(words: list[str]) -> None:
    file = Path(words[0]).resolve() if words else PICTURE
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("WDAE_CACHE", folder)
        draw(Path(folder), file)
    print(file)


if __name__ == "__main__":
    main(sys.argv[1:])
