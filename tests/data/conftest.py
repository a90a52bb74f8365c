"""Pictures and small benchmarks, drawn for the tests."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Draw = Callable[..., np.ndarray]


def draw(seed: int = 0, height: int = 24, width: int = 24) -> np.ndarray:
    """A smooth coloured picture, different for each seed and with no symmetry; uint8 [height, width, 3]."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encode(image: Image.Image | np.ndarray, form: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(buffer, form, **options)
    return buffer.getvalue()


def write(path: Path, seed: int = 0, height: int = 24, width: int = 24) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    form = {".jpg": "JPEG", ".png": "PNG"}[path.suffix.lower().replace(".jpeg", ".jpg")]
    path.write_bytes(encode(draw(seed, height, width), form))
    return path


@pytest.fixture(name="draw")
def _draw() -> Callable[..., np.ndarray]:
    return draw


@pytest.fixture(name="encode")
def _encode() -> Callable[..., bytes]:
    return encode


@pytest.fixture(name="write")
def _write() -> Callable[..., Path]:
    return write


@pytest.fixture
def class_folders(tmp_path: Path) -> Path:
    """Three classes of four pictures: tmp_path/pets/{cat,dog,okapi}/{0..3}.jpg."""
    for number, name in enumerate(("cat", "dog", "okapi")):
        for picture in range(4):
            write(tmp_path / "pets" / name / f"{picture}.jpg", 10 * number + picture)
    return tmp_path / "pets"
