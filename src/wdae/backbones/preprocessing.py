"""How a backbone wants its pictures: one record, kept wherever its features or its weights are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from wdae.errors import ModelError, RecipeError
from wdae.storage.records import ClassNames, Digest, Info, Record, Text, faults

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    from wdae.data.decode import Pixels

PREPROCESSING = "preprocessing"
"""Under this key a bank's provenance and an export's metadata have it."""
Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
LARGEST = 4096
"""Of any option of a backbone."""
LARGEST_SIDE = 1024
"""Of a backbone's pictures: memory grows with its square, and no weight of a file says how large they are."""

_MOST_PIXELS = 2**24  # of a resized picture; one that would have more is cut before it is resized

Colour = Annotated[tuple[Annotated[float, Field(gt=-1000, lt=1000)], ...], Field(min_length=3, max_length=3)]
Spread = Annotated[tuple[Annotated[float, Field(gt=0, lt=1000)], ...], Field(min_length=3, max_length=3)]


class Preprocessing(Record):
    """From a picture of any size to what the network takes: a square of pixels, then three numbers a pixel.

    Args:
        image_size: side of the square.
        resize: the side that it is cut from the middle of; None: the square is not cut, but all there is.
        fit: ``square`` resamples the central square of the picture in one step; ``shortest`` resizes the
            picture so that its shorter side is ``resize`` pixels, then cuts; ``stretch`` makes a square of
            all of it, then cuts.
        rounding: of half a pixel where the cut does not lie on whole ones: to the ``even`` one as torchvision
            does, or ``down`` as transformers does.
        interpolation: the filter, antialiased.
        value_range: pixels run from 0 to this before ``mean`` is taken off and ``std`` divided by.

    >>> import numpy as np
    >>> rule = Preprocessing(image_size=8, resize=10, fit="shortest", interpolation="bicubic")
    >>> rule(np.zeros((20, 30, 3), np.uint8)).shape
    (8, 8, 3)
    >>> print(rule)
    8 px of the middle of 10 (shortest, bicubic), mean 0.485 0.456 0.406, std 0.229 0.224 0.225
    """

    image_size: Annotated[int, Field(ge=1, le=LARGEST_SIDE)]
    mean: Colour = (0.485, 0.456, 0.406)
    std: Spread = (0.229, 0.224, 0.225)
    resize: Annotated[int, Field(ge=1, le=2 * LARGEST_SIDE)] | None = None
    fit: Literal["square", "shortest", "stretch"] = "square"
    rounding: Literal["even", "down"] = "even"
    interpolation: Interpolation = "bilinear"
    value_range: Annotated[float, Field(gt=0, le=65535)] = 1.0

    @model_validator(mode="after")
    def _cut_fits(self) -> Self:
        if self.resize is not None and self.resize < self.image_size:
            raise ValueError(f"resize is {self.resize}, less than image_size, {self.image_size}")
        return self

    @classmethod
    def of(cls, facts: Mapping[str, Any], where: str = "the backbone") -> Self:
        """The record among other facts; values that it cannot have are an error."""
        known = {key: facts[key] for key in Preprocessing.model_fields if facts.get(key) is not None}
        try:
            return cls.model_validate(known, strict=False)
        except ValidationError as error:
            raise ModelError(f"how {where} wants its pictures: {'; '.join(faults(error))}") from None

    def facts(self) -> dict[str, Any]:
        """All of it as plain values, what goes without saying left out."""
        return {"mean": list(self.mean), "std": list(self.std)} | self.model_dump(
            mode="json", exclude_defaults=True
        )

    def changed(
        self,
        *,
        side: int | None = None,
        crop: float | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        interpolation: str | None = None,
    ) -> Preprocessing:
        """With other values where some are given.

        Args:
            side: of the square; what it is cut from grows with it.
            crop: the share of the shorter side that the square shows.

        >>> Preprocessing(image_size=224).changed(side=112, crop=0.875).resize
        128
        """
        if crop is not None and not 0 < crop <= 1:
            raise RecipeError(f"crop is {crop}; give the share of the shorter side that is seen, 0 … 1")
        facts = self.model_dump()
        new = side or self.image_size
        facts["image_size"] = new
        if crop is not None:
            facts["resize"] = math.floor(new / crop)
        elif self.resize is not None:
            facts["resize"] = max(new, round(self.resize * new / self.image_size))
        given = {"mean": mean, "std": std, "interpolation": interpolation}
        return Preprocessing.of(facts | {key: value for key, value in given.items() if value is not None})

    def __str__(self) -> str:
        cut = f" of the middle of {self.resize}" if self.resize not in (None, self.image_size) else ""
        numbers = [" ".join(f"{value:g}" for value in values) for values in (self.mean, self.std)]
        high = f", of 0 to {self.value_range:g}" if self.value_range != 1 else ""
        return (
            f"{self.image_size} px{cut} ({self.fit}, {self.interpolation}), mean {numbers[0]},"
            f" std {numbers[1]}{high}"
        )

    @property
    def is_plain(self) -> bool:
        """Whether the square is what :func:`wdae.data.pixels` keeps."""
        return (self.fit, self.resize, self.interpolation) == ("square", None, "bilinear")

    @property
    def at_least(self) -> int:
        """How many pixels a side the decoder must leave.

        A JPEG that is shrunk while it is decoded moves features by some percent, so only plain squares, which
        have always been, and very large pictures are.
        """
        return (2 if self.is_plain else 8) * (self.resize or self.image_size)

    def __call__(self, picture: Pixels, _generator: np.random.Generator | None = None) -> Pixels:
        """The square. Shapes: uint8 [height, width, 3] → uint8 [image_size, image_size, 3]."""
        import numpy as np  # here, so that what only reads the record waits for none of them
        from PIL import Image

        from wdae.data.decode import resample

        side, from_side = self.image_size, self.resize or self.image_size
        height, width = picture.shape[:2]
        if height == width == side == from_side:
            return picture
        if self.fit == "square":
            span = min(height, width) * side / from_side
            left, top = (width - span) / 2, (height - span) / 2
            return resample(picture, (left, top, left + span, top + span), side, self.interpolation)
        tall = wide = from_side
        if self.fit == "shortest":
            short = min(height, width)
            tall, wide = (int(from_side * one / short) for one in (height, width))
        top, left = (self._rounded((one - side) / 2) for one in (tall, wide))
        if tall * wide <= _MOST_PIXELS:  # as libraries do, to the last bit
            how = Image.Resampling[self.interpolation.upper()]
            resized = Image.fromarray(picture).resize((wide, tall), how)
            return np.asarray(resized.crop((left, top, left + side, top + side)))
        # Of a strip, resizing all of it first would take any memory.
        down, across = height / tall, width / wide
        box = (left * across, top * down, (left + side) * across, (top + side) * down)
        return resample(picture, box, side, self.interpolation)

    def _rounded(self, pixels: float) -> int:
        return round(pixels) if self.rounding == "even" else math.floor(pixels)

    def prepare(self, batch: Tensor) -> Tensor:
        """What the network takes. Shapes: uint8 [B, 3, S, S] → float32 [B, 3, S, S], channels last."""
        from torch import channels_last  # here, so that what only decodes pictures does not wait for torch

        from wdae.data.colour import normalise

        values = batch.float() / 255
        if self.value_range != 1:
            values = values * self.value_range
        return normalise(values, self.mean, self.std).contiguous(memory_format=channels_last)

    def prepared(self, batch: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """The same without torch. Shapes: uint8 [B, S, S, 3] → float32 [B, 3, S, S]."""
        import numpy as np

        values = batch.astype(np.float32) / np.float32(255)
        if self.value_range != 1:
            values *= np.float32(self.value_range)
        values -= np.array(self.mean, np.float32)
        values /= np.array(self.std, np.float32)
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))


class BackboneCard(Preprocessing):
    """What a model's file says of its backbone and of how pictures are prepared for it."""

    backbone: Text
    backbone_options: Info
    mean: Colour
    std: Spread
    class_names: ClassNames = ()
    weights_sha256: Digest | None = None


def refuse_other(one: Preprocessing, name: str, other: Preprocessing, other_name: str) -> None:
    """Raise where two that meet do not see pictures alike: their features are not comparable.

    >>> refuse_other(Preprocessing(image_size=8), "a", Preprocessing(image_size=9), "b")
    Traceback (most recent call last):
    ...
    wdae.errors.ModelError: a and b do not see pictures alike, so their features cannot be compared. ...
    """
    if one.facts() != other.facts():
        raise ModelError(
            f"{name} and {other_name} do not see pictures alike, so their features cannot be compared."
            f" {name}: {one}. {other_name}: {other}. Give the backbone and the options (--side, --crop,"
            " --mean, --std, --interpolation) that the features were made with"
        )
