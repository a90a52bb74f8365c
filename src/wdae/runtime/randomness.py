"""Random numbers that depend on a seed and a position alone, the same on every device.

Drawn from a stateful generator, an episode would depend on how many were drawn with it. Here number ``i``
of stream ``s`` under seed ``k`` is a hash of (k, s, i) (SplitMix64), so any slice of any stream can be had
at once, in any chunk size, on any device, by any process, with the same result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def _signed(x: int) -> int:
    """A 64-bit pattern as the signed integer torch holds."""
    x &= _MASK
    return x - (1 << 64) if x >= 1 << 63 else x


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's is arithmetic on signed integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def derive_seed(seed: int, *names: int | str) -> int:
    """A seed for a named purpose, far from the seeds of other purposes; 63 bits, never negative.

    >>> derive_seed(0, "noise", 3) == derive_seed(0, "noise", 3) != derive_seed(0, "noise", 4)
    True
    """
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generator, the only one that dropout knows, for a block, then restore it."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def uniform(seed: int, stream: int, start: int, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    """Uniform float64 in [0, 1): rows ``start..start+shape[0]-1`` of the given stream.

    A row's numbers depend on its index, not on ``start`` or the number of rows.
    """
    row = 1
    for size in shape[1:]:
        row *= size
    key = _signed(derive_seed(seed, stream))
    index = torch.arange(start * row, (start + shape[0]) * row, dtype=torch.int64, device=device)
    bits = _mix(index * _signed(_GAMMA) + key)
    return (_shift_right(bits, 11).double() * 2.0**-53).view(shape)


def integers(seed: int, stream: int, start: int, bounds: Tensor) -> Tensor:
    """Uniform integers in ``[0, bound)`` for each entry of ``bounds`` ``[rows, ...]`` (at least 1)."""
    u = uniform(seed, stream, start, tuple(bounds.shape), bounds.device)
    return torch.minimum((u * bounds).long(), bounds - 1)
