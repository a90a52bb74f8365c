"""How much the service takes from whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wdae.errors import RecipeError, nearest

_Count = Annotated[int, Field(ge=1)]


class Limits(BaseModel):
    """What a request, a key and a model may ask for; memory and disk are bounded by these.

    Args:
        picture_bytes: of one file.
        picture_pixels: of one picture; JPEGs, which are decoded at a fraction, may have twice as many.
        upload_files: of one request.
        upload_bytes: of one request.
        import_files: of one zip.
        import_bytes: of one zip, and of all that is in it.
        requests: of one key, or one address without one, in a second, on average over ten.
        model_bytes: pictures kept for one model.
        decoders: processes that decode pictures; 0: as many as cores, at most four.
        decoder_bytes: memory of one such process.
        decoder_seconds: that one picture may take.
        in_flight_bytes: that all requests together may be uploading; others are told to try again.

    >>> Limits().picture_bytes
    33554432
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    picture_bytes: _Count = 32 * 2**20
    picture_pixels: _Count = 50_000_000
    upload_files: _Count = 500
    upload_bytes: _Count = 256 * 2**20
    import_files: _Count = 100_000
    import_bytes: _Count = 4 * 2**30
    requests: _Count = 100
    model_bytes: _Count = 10 * 2**30
    decoders: Annotated[int, Field(ge=0)] = 0
    decoder_bytes: _Count = 3 * 2**29
    decoder_seconds: Annotated[float, Field(gt=0)] = 20.0
    in_flight_bytes: _Count = 2**30

    @classmethod
    def of(cls, words: Iterable[str]) -> Limits:
        """The usual limits but for some, each as ``NAME=NUMBER``.

        >>> Limits.of(["requests=5"]).requests
        5
        """
        given: dict[str, str] = {}
        for word in words:
            name, found, value = word.partition("=")
            if not found or name not in cls.model_fields:
                raise RecipeError(f"{word!r} is no limit NAME=NUMBER{nearest(name, cls.model_fields)}")
            given[name] = value
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            fault = error.errors()[0]
            raise RecipeError(f"limit {fault['loc'][0]}: {fault['msg']}") from None
