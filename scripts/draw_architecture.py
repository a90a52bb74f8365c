"""Draw the two pictures of docs/architecture.md: the way of the data, and the layers of the package.

    python scripts/draw_architecture.py

Layers are those of the import contract in pyproject.toml; a test holds the drawn names to it.
"""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
FONT = "font-family='system-ui, sans-serif'"
INK, LINE, FILL, ACCENT = "#1f2430", "#8a93a6", "#f4f6fb", "#dfe8ff"

ABOUT = {
    "cli": "one module per command of wdae",
    "serve": "wdae serve: page, API, database, jobs",
    "api": "the public functions, as the commands do",
    "estimator": "FewShotClassifier for scikit-learn",
    "export": "a plain matrix, ONNX, TorchScript",
    "classifier": "the model people keep: learn, add, predict, undo",
    "reproduce": "the paper's tables row by row; the demo",
    "comparison": "wdae compare: many methods, the same episodes",
    "extract": "pictures to a feature bank with a trained backbone",
    "episodic": "train a backbone and a method together, on pictures",
    "stage1": "train backbone and cosine classifier",
    "stage2": "train the denoiser, or any learned method",
    "evaluation": "protocols, metrics, results, tables, plots",
    "calibration": "pseudo-novel classes choose step size and balance",
    "methods": "wDAE and every compared system, one interface",
    "nn": "tensors in, tensors out: equations 4 to 12",
    "episodes": "who is novel, which images are shots",
    "synthetic": "made-up banks",
    "bank": "features with labels, on disk and on a device",
    "backbones": "networks from pictures to features",
    "data": "one reader per layout; decoding; augmentation",
    "runs": "run folders, environment, progress",
    "runtime": "device, precision, cores, randomness",
    "storage": "atomic files, manifests, locks, checkpoints",
    "config": "typed recipes that inherit",
    "parts": "base, validation, novel",
    "errors": "what went wrong and what to do",
    "version": "the version",
    "printing": "safe text for terminals",
    "lazy": "names imported when first used",
}

WAY = [
    ("picture", "files, folders, lists", "data/", "decode, crop, normalise"),
    ("feature z", "D numbers", "backbones/, extract/", "kept in bank/"),
    ("weight w", "one per class, D numbers", "nn/generate.py, methods/", "mean of shots, then denoised"),
    ("score", "γ cos(z, w), balanced", "nn/cosine.py, calibration/", "softmax gives probabilities"),
    ("answer", "a class, or a table", "classifier/, evaluation/", "predict, or accuracy ± interval"),
]


def layers() -> list[list[str]]:
    """The layers of the contract, the topmost first; those on one line do not import each other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (c for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    return [[name.strip() for name in line.split("|")] for line in contract["layers"]]


def text(x: float, y: float, words: str, size: int = 13, anchor: str = "middle", bold: bool = False) -> str:
    weight = " font-weight='600'" if bold else ""
    return (
        f"<text x='{x:g}' y='{y:g}' font-size='{size}' text-anchor='{anchor}'{weight} fill='{INK}' {FONT}>"
        f"{escape(words)}</text>"
    )


def box(x: float, y: float, width: float, height: float, fill: str = FILL) -> str:
    place = f"x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}'"
    return f"<rect {place} rx='6' fill='{fill}' stroke='{LINE}'/>"


def drawing(width: float, height: float, parts: list[str]) -> str:
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}'"
        f" width='{width:g}' height='{height:g}'>"
    )
    return "\n".join([head, "<rect width='100%' height='100%' fill='white'/>", *parts, "</svg>", ""])


def way() -> str:
    """From left to right: what a picture becomes, and where."""
    width, gap, top = 176, 26, 20
    parts = []
    for i, (name, what, where, how) in enumerate(WAY):
        x = 16 + i * (width + gap)
        middle = x + width / 2
        parts += [box(x, top, width, 62, ACCENT)]
        parts += [text(middle, top + 26, name, 17, bold=True), text(middle, top + 47, what, 12)]
        parts += [text(middle, top + 86, where, 12, bold=True), text(middle, top + 104, how, 12)]
        if i:
            y = top + 31
            parts.append(f"<path d='M{x - gap + 4:g} {y} h{gap - 10}' stroke='{INK}' stroke-width='2'/>")
            parts.append(f"<path d='M{x - 8:g} {y - 5} l7 5 l-7 5 z' fill='{INK}'/>")
    return drawing(32 + len(WAY) * width + (len(WAY) - 1) * gap, top + 122, parts)


def house() -> str:
    """The layers as rows; each may import those below it."""
    parts, y, width = [], 36.0, 980.0
    parts.append(text(16, 22, "Each row may import the rows below it, never those above.", 13, "start"))
    for names in layers():
        each = (width - 10 * (len(names) - 1)) / len(names)
        for i, name in enumerate(names):
            x = 16 + i * (each + 10)
            parts.append(box(x, y, each, 28, ACCENT if name in ("methods", "nn", "calibration") else FILL))
            parts.append(text(x + 12, y + 19, name, 14, "start", bold=True))
            parts.append(text(x + 140, y + 19, ABOUT.get(name, ""), 13, "start"))
        y += 34
    return drawing(width + 32, y + 8, parts)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "data-way.svg").write_text(way(), encoding="utf-8")
    (IMAGES / "layers.svg").write_text(house(), encoding="utf-8")


if __name__ == "__main__":
    main()
