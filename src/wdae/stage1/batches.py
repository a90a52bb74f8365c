"""Training batches: shuffled, augmented, turned."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from wdae.data.augment import Draws, apply_augment, sample_augment
from wdae.errors import DataError
from wdae.runtime.randomness import derive_seed
from wdae.stage1.config import Stage1Config
from wdae.stage1.rotation import all_turns, upright_and_turned


@dataclass(frozen=True, eq=False)
class Batch:
    """One process's share of a step, augmented and turned: ``T`` copies of ``B`` pictures, upright first.

    Shapes: ``images [T B, 3, S, S]`` float; ``labels [T B]``; ``turns [T B]``; ``partner [T B]``, whom each
    row would be mixed with: the same turn of another picture.
    """

    images: Tensor
    labels: Tensor
    turns: Tensor
    partner: Tensor
    n_upright: int


class Batches(ABC):
    """What a step trains on, wherever the pictures come from.

    It depends on the seed and the step alone: a run can go on from any step, on any number of processes,
    without a generator's state being kept. Random numbers are drawn on the CPU for the whole batch, each
    process applies those of its share, and they travel without the device being waited for.

    Args:
        count: number of training pictures.
        side: theirs, as :meth:`pictures` gives them.
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
        self.copies = 1 if config.rotation is None else {4: 4, 1: 2}[config.rotation.turns]
        self.config = config.augment.build()
        self.picture_side = self.stored = side  # streams of crops store those
        self.side = self.config.size or side
        self._apply = apply_augment

    @abstractmethod
    def pictures(self, epoch: int, place: int) -> tuple[Tensor, Tensor]:
        """This process's share of an epoch's ``place``-th batch: uint8 ``[B, 3, S, S]``, labels ``[B]``."""

    def compile(self, mode: str) -> None:
        """Fuse the augmentation into a few kernels."""
        self._apply = torch.compile(apply_augment, mode=mode, dynamic=False)

    @torch.no_grad()
    def at(self, step: int) -> Batch:
        """The batch of a step; an epoch's last, incomplete batch is left out."""
        epoch, place = divmod(step, self.steps_per_epoch)
        generator = self._generator("pictures", step)
        draws = sample_augment(self.batch, self.stored, self.stored, self.config, generator)
        # Two that may be mixed are turned alike, so that the turn of a mixed picture is beyond doubt.
        turns = torch.randint(1, 4, (self.batch // 2 + 1,), generator=generator).repeat_interleave(2)
        images, labels = self.pictures(epoch, place)
        here = Draws(*(self._sent(draw) for draw in draws))
        images = self._apply(images, here, self.config)
        return self._turned(images, labels, self._sent(turns) if self.copies == 2 else None)

    def _turned(self, images: Tensor, labels: Tensor, turns: Tensor | None) -> Batch:
        n, upright = len(images), torch.zeros_like(labels)
        # Neighbours pair up: the order is random already, and pairs never straddle two processes.
        partner = (torch.arange(n, device=self.device) ^ 1).clamp(max=n - 1)
        if self.copies == 1:
            return Batch(images, labels, upright, partner, n)
        if turns is not None:
            images, all_of_them = upright_and_turned(images, turns), torch.cat([upright, turns])
        else:
            images, all_of_them = all_turns(images), torch.cat([upright + turn for turn in range(4)])
        partner = torch.cat([partner + copy * n for copy in range(self.copies)])
        return Batch(images, labels.repeat(self.copies), all_of_them, partner, n)

    def _sent(self, drawn: Tensor) -> Tensor:
        """This process's rows on the device; from pinned memory, or the host would wait for the device."""
        mine = drawn[self.mine]
        return mine.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else mine

    def order(self, epoch: int) -> Tensor:
        """The pictures' numbers, shuffled anew for each epoch, on the CPU."""
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
        """Rows gathered on the device; only once an epoch does anything travel."""
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.order(epoch).to(self.device)
        rows = self._order[place * self.batch :][self.mine]
        return self.pixels.index_select(0, rows).permute(0, 3, 1, 2), self.labels[rows]
