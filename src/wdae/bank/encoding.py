"""How feature vectors are stored: float32, float16, or int8 with a scale per vector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import Tensor

from wdae.errors import BankError

Encoding = Literal["float32", "float16", "int8"]
ENCODINGS: tuple[str, ...] = get_args(Encoding)
DTYPES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}
BLOCK_ROWS = 16_384  # about 40 MB of float32 at D = 640: what one step of a conversion holds


def blocks(n_rows: int) -> Iterator[slice]:
    """Slices that cover ``n_rows`` rows, so that a big bank is converted without a second copy of it."""
    for start in range(0, n_rows, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, n_rows))


def decode(features: Tensor, scales: Tensor | None) -> Tensor:
    """Stored rows as float32: int8 rows are multiplied by their scales. [M, D], [M] -> [M, D]."""
    values = features.to(torch.float32)
    return values if scales is None else values * scales.to(torch.float32)[:, None]


def encode(
    features: Tensor, scales: Tensor | None, encoding: Encoding, first: int = 0
) -> tuple[Tensor, Tensor | None]:
    """Rows (and their scales, if int8) in another encoding; rows that are there already stay bit for bit.

    An int8 row is ``round(127 x / max|x|)`` with scale ``max|x| / 127``: half a step, at most 0.4 % of the
    row's largest value, is lost in each place. ``first`` is the number of the first row, for messages.
    """
    if encoding not in ENCODINGS:
        raise BankError(f"cannot store features as {encoding!r}; accepted: {', '.join(ENCODINGS)}")
    dtype = DTYPES[encoding]
    if features.dtype == dtype:
        return features, scales
    out = torch.empty(features.shape, dtype=dtype)
    out_scales = torch.empty(len(features)) if dtype == torch.int8 else None
    for rows in blocks(len(features)):
        values = decode(features[rows], None if scales is None else scales[rows])
        if out_scales is not None:
            out_scales[rows] = values.abs().amax(1) / 127
            out[rows] = (values / out_scales[rows, None]).round_()
        else:
            out[rows] = values
            lost = ~out[rows].isfinite().all(1) | (out[rows] == 0).all(1)
            if lost.any():
                row = first + rows.start + int(lost.nonzero()[0])
                raise BankError(
                    f"row {row} is too large or too small for {encoding} (up to 65504); store the bank as"
                    " float32 or int8, or divide the features by a constant"
                )
    return out, out_scales
