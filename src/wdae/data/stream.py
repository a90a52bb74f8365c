"""Big sets, decoded by worker processes while somebody else computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from wdae.data.decode import Pixels, fit, resample
from wdae.data.image_set import ImageSet
from wdae.data.source import ImageSource
from wdae.errors import DataError, listed
from wdae.runtime.process import available_cores

Transform = Callable[[Pixels, np.random.Generator], Pixels]
"""One picture of any size, and a generator of its own, to uint8 [size, size, 3]."""


class Batch(NamedTuple):
    """images uint8 [B, 3, size, size]; labels int64 [B]; rows int64 [B], the pictures' numbers in the set.

    ``dropped`` names the unreadable pictures that should have been in this batch.

    >>> images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    >>> batch = Batch(images, torch.tensor([0, 1]), torch.tensor([4, 7]), dropped=())
    >>> batch.rows.tolist(), batch.dropped
    ([4, 7], ())
    """

    images: torch.Tensor
    labels: torch.Tensor
    rows: torch.Tensor
    dropped: tuple[str, ...]


@dataclass(frozen=True)
class CentralSquare:
    """The central square at ``size`` × ``size``; the very pixels :func:`wdae.data.pixels` would keep.

    >>> CentralSquare(8)(np.zeros((20, 30, 3), np.uint8), np.random.default_rng(0)).shape
    (8, 8, 3)
    """

    size: int

    @property
    def at_least(self) -> int:
        """How many pixels a side the decoder must leave."""
        return 2 * self.size

    def __call__(self, pixels: Pixels, _generator: np.random.Generator) -> Pixels:
        """uint8 [height, width, 3] → uint8 [size, size, 3]."""
        return fit(pixels, self.size)


@dataclass(frozen=True)
class RandomSquare:
    """A box of random area and aspect ratio at ``size`` × ``size``; flips and colours come later.

    >>> RandomSquare(8)(np.zeros((20, 30, 3), np.uint8), np.random.default_rng(0)).shape
    (8, 8, 3)
    """

    size: int
    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)

    def __call__(self, pixels: Pixels, generator: np.random.Generator) -> Pixels:
        """uint8 [height, width, 3] → uint8 [size, size, 3]."""
        height, width = pixels.shape[:2]
        for _ in range(10):
            share = generator.uniform(*self.area) * height * width
            ratio = math.exp(generator.uniform(math.log(self.aspect[0]), math.log(self.aspect[1])))
            tall, wide = round(math.sqrt(share / ratio)), round(math.sqrt(share * ratio))
            if 1 <= tall <= height and 1 <= wide <= width:
                top = int(generator.integers(height - tall + 1))
                left = int(generator.integers(width - wide + 1))
                return resample(pixels, (left, top, left + wide, top + tall), self.size)
        return fit(pixels, self.size)


def stream(
    image_set: ImageSet,
    transform: Transform,
    batch: int,
    workers: int | None = None,
    *,
    rows: Sequence[int] | npt.NDArray[np.int64] | None = None,
    seed: int | None = None,
    picture_seed: int | None = None,
    epoch: int = 0,
    rank: int = 0,
    world: int = 1,
    drop_last: bool = False,
    skip_broken: bool = False,
    pin_memory: bool = False,
) -> Iterator[Batch]:
    """Yield the pictures in batches, decoded and transformed in worker processes.

    A picture's randomness depends on its seed, epoch and number only, not on the number of workers or ranks.

    Args:
        rows: the pictures wanted, by number; all by default.
        seed: shuffles, anew each epoch; None keeps the order.
        picture_seed: of what is random in a picture; by default that of the order, or 0.
        rank: of ``world`` processes that share the pictures out, each taking every ``world``-th.
        drop_last: leave out the last pictures where they do not fill a batch on every rank.
        skip_broken: leave unreadable pictures out and name them in ``dropped``, instead of raising.

    >>> from wdae.data import ArraySource
    >>> source = ArraySource((np.zeros((5, 9, 9, 3), np.uint8),), np.array([[0, i] for i in range(5)]), ())
    >>> images = ImageSet("mine", source, np.arange(5), np.zeros(5, np.uint8), tuple("abcde"))
    >>> [tuple(batch.images.shape) for batch in stream(images, CentralSquare(8), batch=3, workers=0)]
    [(3, 3, 8, 8), (2, 3, 8, 8)]
    """
    if batch < 1 or not 0 <= rank < world:
        raise DataError(f"cannot stream batches of {batch} for rank {rank} of {world}")
    order = np.arange(len(image_set)) if rows is None else np.asarray(rows, dtype=np.int64)
    if seed is not None:
        order = np.random.default_rng((seed, epoch)).permutation(order)
    if drop_last:
        order = order[: len(order) // (batch * world) * batch * world]
    mine = order[rank::world].tolist()
    pictures = _Pictures(
        image_set.source, transform, ((seed or 0) if picture_seed is None else picture_seed, epoch)
    )
    loader: DataLoader[tuple[int, Pixels | str]] = DataLoader(
        pictures,
        batch_sampler=[mine[start : start + batch] for start in range(0, len(mine), batch)],
        num_workers=available_cores() if workers is None else workers,
        collate_fn=_collate,
        pin_memory=pin_memory,
    )
    try:
        for images, kept, dropped in loader:
            if dropped and not skip_broken:
                raise DataError(
                    f"{image_set.name}: cannot be read: {listed(dropped)}; repair the pictures, or leave"
                    " them out with skip_broken (--skip-broken; wdae learn, add: without --strict)"
                )
            if len(kept):
                labels = torch.from_numpy(image_set.labels[kept.numpy()])
                yield Batch(images.permute(0, 3, 1, 2), labels, kept, tuple(dropped))
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise DataError(f"{image_set.name}: a decoding process died: {error}; try fewer workers") from error


class _Pictures(Dataset[tuple[int, Pixels | str]]):
    def __init__(self, source: ImageSource, transform: Transform, seed: tuple[int, int]) -> None:
        self.source, self.transform, self.seed = source, transform, seed
        self.at_least: int | None = getattr(transform, "at_least", None)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[int, Pixels | str]:
        """The transformed picture, or the reason why there is none: an error would end the worker's batch."""
        try:
            pixels = self.source.read(index, self.at_least)
        except DataError as error:
            return index, str(error)
        return index, self.transform(pixels, np.random.default_rng((*self.seed, index)))


def _collate(items: list[tuple[int, Pixels | str]]) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    good = [(index, pixels) for index, pixels in items if not isinstance(pixels, str)]
    dropped = [reason for _, reason in items if isinstance(reason, str)]
    rows = torch.tensor([index for index, _ in good], dtype=torch.int64)
    if not good:
        return torch.empty(0), rows, dropped
    return torch.from_numpy(np.stack([pixels for _, pixels in good])), rows, dropped
