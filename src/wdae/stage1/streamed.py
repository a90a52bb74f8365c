"""Training batches of sets too big for the device: decoded by worker processes as they are needed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wdae.data import ImageSet
from wdae.data.stream import Batch as Streamed
from wdae.data.stream import CentralSquare, RandomSquare, stream
from wdae.stage1.batches import Batches
from wdae.stage1.config import Stage1Config


class StreamedBatches(Batches):
    """Batches of pictures read from disk; a random resized crop is cut by the worker, from the full picture.

    Args:
        images: the data set.
        rows: the training pictures' numbers in it.
        labels: their classes, 0 to C - 1, ``[M]``.
    """

    def __init__(
        self,
        images: ImageSet,
        rows: npt.NDArray[np.int64],
        labels: Tensor,
        config: Stage1Config,
        device: torch.device,
        *,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        super().__init__(len(rows), config.data.size, config, device, rank, size)
        self.images, self.rows = images, rows
        self.label_of = torch.zeros(len(images), dtype=torch.int64)
        self.label_of[torch.from_numpy(rows)] = labels.cpu()
        self.square: CentralSquare | RandomSquare = CentralSquare(config.data.size)
        if self.config.crop == "resized":
            self.square = RandomSquare(self.side, self.config.area, self.config.aspect)
            self.stored = self.side
            self.config = self.config.model_copy(update={"crop": "none"})
        self.workers = config.data.workers
        self._next = (-1, -1)
        self._stream: Iterator[Streamed] = iter(())

    def pictures(self, epoch: int, place: int) -> tuple[Tensor, Tensor]:
        """The next batch of the stream; one begun anew where steps are not taken in order."""
        if (epoch, place) != self._next:
            self._stream = self._from(epoch, place)
        got = next(self._stream)
        follows = place + 1 < self.steps_per_epoch
        self._next = (epoch, place + 1) if follows else (epoch + 1, -1)
        return got.images.to(self.device, non_blocking=True), self._labels(got.rows)

    def _labels(self, rows: Tensor) -> Tensor:
        return self.label_of[rows].to(self.device, non_blocking=True)

    def _from(self, epoch: int, place: int) -> Iterator[Streamed]:
        order = self.rows[self.order(epoch).numpy()]
        used = order[place * self.batch : self.steps_per_epoch * self.batch]
        return stream(
            self.images,
            self.square,
            self.share,
            self.workers,
            rows=used,
            epoch=epoch,
            rank=self.rank,
            world=self.size,
            pin_memory=self.device.type == "cuda",
        )
