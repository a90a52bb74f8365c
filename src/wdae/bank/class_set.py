"""One part of a bank, laid out to sample from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from wdae.bank.encoding import blocks


@dataclass(frozen=True, eq=False)
class ClassSet:
    """Features of one part, class after class, of unit length, on one device.

    Images of class ``c`` are rows ``starts[c]`` to ``starts[c] + counts[c]``.

    Shapes:
        features [M, D]; starts [C] int64; counts [C] int64; names has length C.

    >>> from wdae import Part, synthetic_bank
    >>> novel = synthetic_bank(4, 2, 3, 10, 8, seed=0, held_out_per_class=2).select(Part.NOVEL)
    >>> novel.n_classes, novel.of_class(1).shape, novel.counts.tolist()
    (3, torch.Size([10, 8]), [10, 10, 10])
    """

    features: Tensor
    starts: Tensor
    counts: Tensor
    names: tuple[str, ...]

    @property
    def n_classes(self) -> int:
        """The number of classes, those without images included."""
        return len(self.names)

    @property
    def dim(self) -> int:
        """The feature size D."""
        return self.features.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self.features.device

    @property
    def labels(self) -> Tensor:
        """The position of each row's class in ``names``, [M] int64."""
        return torch.repeat_interleave(torch.arange(self.n_classes, device=self.device), self.counts)

    def of_class(self, index: int) -> Tensor:
        """The features of one class, [counts[index], D]."""
        start, count = int(self.starts[index]), int(self.counts[index])
        return self.features[start : start + count]

    def unit_means(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The mean of each class's features at unit length, summed in ``dtype``: [C, D] float32."""
        sums = torch.zeros(self.n_classes, self.dim, dtype=dtype, device=self.device)
        labels = self.labels
        for block in blocks(len(labels)):  # no second copy of a big set in another dtype
            sums.index_add_(0, labels[block], self.features[block].to(dtype))
        return F.normalize(sums, dim=1).float()

    def to(self, device: str | torch.device) -> ClassSet:
        """The same set on another device."""
        return ClassSet(self.features.to(device), self.starts.to(device), self.counts.to(device), self.names)
