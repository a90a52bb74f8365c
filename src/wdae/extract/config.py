"""The recipe of extraction: a backbone and pictures in, a feature bank out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from wdae.config import Config
from wdae.config.shipped import EMBEDDED, EMBEDDED_BACKBONE


def _sensible(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if small := [size for size in sizes if size < 8]:
        raise ValueError(f"'sizes' must be at least 8 each, got {small[0]}")
    if len(set(sizes)) < len(sizes):
        raise ValueError(f"'sizes' must differ, got {', '.join(map(str, sizes))}")
    return sizes


def _share(area: tuple[float, float]) -> tuple[float, float]:
    if not 0 < area[0] <= area[1] <= 1:
        raise ValueError(
            f"'crop_area' is two shares in 0 … 1, the smaller first: got {area[0]} and {area[1]}"
        )
    return area


Sides = Annotated[tuple[int, ...], AfterValidator(_sensible)]
"""Sides of pictures, each at least 8 and no two the same."""


class ExtractConfig(Config):
    """Everything ``wdae extract`` needs."""

    former: ClassVar[Mapping[str, str]] = {"model": "backbone"}
    places: ClassVar[tuple[str, ...]] = ("backbone", "backbone_options")

    data: Path
    """The data set: a folder, a list (.csv), tars of WebDataset, or any of these in a bucket (s3://...)."""
    layout: str = "auto"
    """How the folder is laid out; ``auto`` finds out."""
    reading: Literal["names", "positions"] | None = None
    """Of ImageNet-FS's split; as in the backbone's training by default, or by its class names."""
    backbone: str
    """A folder that ``wdae pretrain`` wrote, whose recipe says which images are held out; ``embedded``, which
    ships with the package and brings base weights for MiniImageNet; or a backbone with weights of its own
    (``lite0``, ``timm:NAME``, ``onnx:FILE``, ``pkg.module:factory``)."""
    backbone_options: dict[str, Any] = Field(default={})
    """Options of that backbone."""
    size: int | None = Field(default=None, ge=8)
    """Side of the pictures; the backbone's own by default."""
    sizes: Sides = ()
    """Sides at which each picture is seen; its features are the mean over them, each of unit length
    (``size`` alone by default)."""
    crops: int = Field(default=0, ge=0)
    """Random crops of each picture, cut from the largest of the sides and seen at the first, half of them
    mirrored by chance; the mean of their features counts as one more side."""
    crop_area: Annotated[tuple[float, float], AfterValidator(_share)] = (0.35, 1.0)
    """Smallest and largest share of the picture that a crop shows."""
    held_out: int | None = Field(default=None, ge=0)
    """Images of each base class marked as held out; as in the backbone's training by default."""
    seed: int | None = Field(default=None, ge=0)
    """Draws the held-out images, and crops; as in the backbone's training by default."""
    flip_average: bool = False
    """Average the features of each picture and of its mirror image."""
    dtype: Literal["float32", "float16", "int8"] = "float32"
    """How the bank keeps features."""
    batch: int = Field(default=512, ge=1)
    """Pictures at a time on a GPU; a CPU takes fewer."""
    chunk: int = Field(default=8192, ge=1)
    """Pictures between two saves: what an interruption can cost. Crops are drawn chunk by chunk."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """Arithmetic of the backbone; auto: bf16 on a GPU that computes in it, float32 on a CPU."""
    compile: bool = False
    """Compile the stages: worth the wait above some hundred thousand pictures."""
    stream: bool = False
    """Decode while extracting, keeping no cache of pixels: for sets larger than the disk can spare."""
    cache_dir: Path | None = None
    """Where decoded pictures are cached."""
    skip_broken: bool = True
    """Leave unreadable pictures out, and name them, instead of refusing the data set."""
    allow_missing: bool = False
    """Take a benchmark with classes or pictures missing."""

    @property
    def trained(self) -> Path | None:
        """The folder of a backbone that was trained here; None for one with weights of its own."""
        if self.backbone == EMBEDDED:
            return EMBEDDED_BACKBONE
        path = Path(self.backbone)
        is_path = path.is_dir() or (":" not in self.backbone and len(path.parts) > 1)
        return path if is_path else None

    @model_validator(mode="after")
    def _sides(self) -> Self:
        if self.sizes and self.size is not None:
            raise ValueError("give either 'size' or 'sizes'")
        return self
