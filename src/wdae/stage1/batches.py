"""Training batches of stage 1: shuffled, augmented and, for self-supervision, rotated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wdae.data import ImageSet
from wdae.data.augment import Draws, apply_augment, sample_augment
from wdae.data.stream import Batch as DecodedBatch
from wdae.data.stream import CentralSquare, RandomSquare, stream
from wdae.errors import DataError
from wdae.runtime.randomness import derive_seed
from wdae.stage1.config import Stage1Config


@dataclass(frozen=True, eq=False)
class PictureBatch:
    """One process's share of a step: ``R`` rotated copies of ``B`` augmented pictures, upright first.

    Shapes: ``images [R B, 3, S, S]`` float; ``labels [R B]``; ``rotations [R B]`` in quarter turns;
    ``partner [R B]``: the row that mixup would mix each row with, another picture rotated alike.
    """

    images: Tensor
    labels: Tensor
    rotations: Tensor
    partner: Tensor
    n_upright: int


def all_rotations(images: Tensor) -> Tensor:
    """Every picture by 0, 90, 180 and 270 degrees, rotation by rotation: ``[B, ...]`` to ``[4 B, ...]``."""
    rotated = torch.cat([torch.rot90(images, turns, (2, 3)) for turns in range(4)])
    return rotated.contiguous(memory_format=torch.channels_last)


def upright_and_rotated(images: Tensor, rotations: Tensor) -> Tensor:
    """Every picture upright, then each by its own number of quarter turns: ``[2 B, C, S, S]``."""
    each = torch.stack([torch.rot90(images, turns, (2, 3)) for turns in range(4)])  # [4, B, C, S, S]
    chosen = each[rotations, torch.arange(len(images), device=images.device)]
    return torch.cat([images, chosen]).contiguous(memory_format=torch.channels_last)


class Batches(ABC):
    """The batch of every step, wherever the pictures come from.

    A batch depends on the seed and the step alone, so a run can resume at any step and on any number of
    processes. Random numbers are drawn on the CPU for the whole batch; each process applies those of its
    share.

    Args:
        count: number of training pictures.
        side: their side, as :meth:`pictures` gives them.
        rank: which process this is, of ``size``.
        size: number of processes; must divide the batch.
    """

    def __init__(
        self, count: int, side: int, config: Stage1Config, device: torch.device, rank: int, size: int
    ) -> None:
        if config.batch % size:
            raise DataError(f"a batch of {config.batch} cannot be shared evenly by {size} processes")
        if config.mixup and size > 1 and config.batch // size % 2:
            raise DataError(
                f"mixup pairs pictures within a process: {config.batch} by {size} processes leaves one over"
            )
        if count < config.batch:
            raise DataError(
                f"{count} training pictures do not fill one batch of {config.batch}; lower 'batch'"
            )
        self.count, self.seed, self.device, self.rank, self.size = count, config.seed, device, rank, size
        self.batch, self.share = config.batch, config.batch // size
        self.mine = slice(rank * self.share, (rank + 1) * self.share)
        self.steps_per_epoch = count // config.batch
        self.copies = config.copies
        self.augment = config.augment
        self.picture_side = self.stored_side = side
        self.side = self.augment.size or side
        self._apply = apply_augment

    @abstractmethod
    def pictures(self, epoch: int, place: int) -> tuple[Tensor, Tensor]:
        """This process's share of an epoch's ``place``-th batch: uint8 ``[B, 3, S, S]``, labels ``[B]``."""

    def compile(self, mode: str) -> None:
        """Fuse the augmentation into a few kernels."""
        self._apply = torch.compile(apply_augment, mode=mode, dynamic=False)

    @torch.no_grad()
    def at(self, step: int) -> PictureBatch:
        """The batch of a step; an epoch's last, incomplete batch is left out."""
        epoch, place = divmod(step, self.steps_per_epoch)
        generator = self._generator("pictures", step)
        draws = sample_augment(self.batch, self.stored_side, self.stored_side, self.augment, generator)
        # The two pictures of a mixup pair are rotated alike, so that a mixed picture has one rotation.
        drawn = torch.randint(1, 4, (self.batch // 2 + 1,), generator=generator).repeat_interleave(2)
        images, labels = self.pictures(epoch, place)
        images = self._apply(images, Draws(*(self._to_device(draw) for draw in draws)), self.augment)
        n, upright = len(images), torch.zeros_like(labels)
        # Neighbours pair up: the order is random already, and pairs never straddle two processes.
        partner = (torch.arange(n, device=self.device) ^ 1).clamp(max=n - 1)
        if self.copies == 1:
            return PictureBatch(images, labels, upright, partner, n)
        if self.copies == 2:
            other = self._to_device(drawn)
            images, rotations = upright_and_rotated(images, other), torch.cat([upright, other])
        else:
            images, rotations = all_rotations(images), torch.cat([upright + turns for turns in range(4)])
        partner = torch.cat([partner + copy * n for copy in range(self.copies)])
        return PictureBatch(images, labels.repeat(self.copies), rotations, partner, n)

    def _to_device(self, drawn: Tensor) -> Tensor:
        """This process's rows on the device; from pinned memory, so that the host does not wait."""
        mine = drawn[self.mine]
        return mine.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else mine

    def order(self, epoch: int) -> Tensor:
        """The pictures' indices, shuffled for each epoch, on the CPU."""
        return torch.randperm(self.count, generator=self._generator("order", epoch))

    def _generator(self, *place: int | str) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self.seed, *place))


class ResidentBatches(Batches):
    """Batches of pictures that live on the device as uint8.

    Args:
        images: ``[M, 3, S, S]`` uint8, channels last in memory.
        labels: ``[M]``, 0 to C - 1.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, config: Stage1Config, *, rank: int = 0, size: int = 1
    ) -> None:
        super().__init__(len(images), images.shape[-1], config, images.device, rank, size)
        self.pixels, self.labels = images.permute(0, 2, 3, 1).contiguous(), labels
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def pictures(self, epoch: int, place: int) -> tuple[Tensor, Tensor]:
        """Rows gathered on the device; the order is copied to it once an epoch."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.order(epoch).to(self.device)
        rows = self._order[place * self.batch :][self.mine]
        return self.pixels.index_select(0, rows).permute(0, 3, 1, 2), self.labels[rows]


class StreamedBatches(Batches):
    """Batches decoded from disk by worker processes, for sets too big for the device.

    A random resized crop is cut by the worker, from the full picture.

    Args:
        images: the data set.
        rows: the training pictures' indices in it.
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
        self.images, self.rows, self.workers = images, rows, config.data.workers
        self.label_of = torch.zeros(len(images), dtype=torch.int64)
        self.label_of[torch.from_numpy(rows)] = labels.cpu()
        self.square: CentralSquare | RandomSquare = CentralSquare(config.data.size)
        if self.augment.crop == "resized":
            self.square = RandomSquare(self.side, self.augment.area, self.augment.aspect)
            self.stored_side = self.side
            self.augment = self.augment.model_copy(update={"crop": "none"})
        self._next = (-1, -1)
        self._stream: Iterator[DecodedBatch] = iter(())

    def pictures(self, epoch: int, place: int) -> tuple[Tensor, Tensor]:
        """The next batch of the stream; a new stream begins where steps are not taken in order."""
        if (epoch, place) != self._next:
            self._stream = self._from(epoch, place)
        got = next(self._stream)
        self._next = (epoch, place + 1) if place + 1 < self.steps_per_epoch else (epoch + 1, -1)
        labels = self.label_of[got.rows]
        return got.images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def _from(self, epoch: int, place: int) -> Iterator[DecodedBatch]:
        order = self.rows[self.order(epoch).numpy()][place * self.batch : self.steps_per_epoch * self.batch]
        return stream(
            self.images,
            self.square,
            self.share,
            self.workers,
            rows=order.reshape(-1, self.batch)[:, self.mine].ravel(),
            picture_seed=self.seed,
            epoch=epoch,
            pin_memory=self.device.type == "cuda",
        )
