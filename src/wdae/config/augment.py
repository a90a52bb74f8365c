"""The recipe of image augmentation: shared by training, validation and extraction."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from wdae.config.recipe import Config

Strength = Annotated[float, Field(ge=0, le=1)]


class AugmentConfig(Config):
    """Random crop, flip and colour jitter of training pictures, in this order; then normalisation.

    >>> AugmentConfig(crop="resized", hue=0.1).jitters
    True
    """

    size: int | None = Field(default=None, ge=1)
    """Side of the square that comes out; that of the pictures by default. A smaller one, with ``resized``
    crops, trains faster; validation and extraction still see whole pictures."""
    crop: Literal["pad", "resized", "none"] = "pad"
    """``pad`` and cut a square, ``resized`` (random area and aspect), or ``none``."""
    padding: int = Field(default=8, ge=0)
    """Pixels on every side, for ``pad``."""
    padding_mode: Literal["zeros", "reflect"] = "zeros"
    """What lies outside: black, or the mirror image."""
    area: tuple[float, float] = (0.08, 1.0)
    """Smallest and largest share of the picture, for ``resized``."""
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest width-to-height ratio, for ``resized``."""
    flip: Strength = 0.5
    """Probability of mirroring left to right."""
    brightness: Strength = 0.4
    """Strength of the jitter of brightness."""
    contrast: Strength = 0.4
    """Strength of the jitter of contrast."""
    saturation: Strength = 0.4
    """Strength of the jitter of saturation."""
    hue: float = Field(default=0.0, ge=0, le=0.5)
    """Strength of the jitter of hue, at most half a turn of the colour circle."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Mean of the normalisation, by channel."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Standard deviation of the normalisation, by channel."""

    @model_validator(mode="after")
    def _ranges(self) -> Self:
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise ValueError(f"area is {self.area}; give two shares in 0 … 1, the smaller first")
        if not 0 < self.aspect[0] <= self.aspect[1]:
            raise ValueError(f"aspect is {self.aspect}; give two positive ratios, the smaller first")
        if min(self.std) <= 0:
            raise ValueError(f"std is {self.std}; give three positive numbers")
        return self

    @property
    def jitters(self) -> bool:
        """Whether colours change at all."""
        return max(self.brightness, self.contrast, self.saturation, self.hue) > 0
