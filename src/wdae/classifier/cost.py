"""What added classes cost the base classes, measured on base pictures that were held out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from wdae.classifier.head import Head
from wdae.classifier.model import Model
from wdae.classifier.names import shorten

_SHOWN = 3
_ENOUGH = 10  # pictures of a class that a share can be told of


@dataclass(frozen=True)
class Taken:
    """A base class and an added one that takes ``n_taken`` of its ``n_pictures``."""

    base: str
    added: str
    n_taken: int
    n_pictures: int

    @property
    def share(self) -> float:
        """The share of the base class's pictures."""
        return self.n_taken / self.n_pictures

    def __str__(self) -> str:
        of = f"{self.share:.0%}" if self.n_pictures >= _ENOUGH else f"{self.n_taken} in {self.n_pictures}"
        return f"{of} of {shorten(self.base)!r} now called {shorten(self.added)!r}"


@dataclass(frozen=True)
class BaseCost:
    """Accuracy of held-out base pictures among all classes, before and after, and who takes from whom."""

    before: float
    after: float
    n_pictures: int
    taken: tuple[Taken, ...]
    seen: bool = False
    """Whether base weights have learned from the pictures since: accuracies are then too good."""

    def as_text(self) -> str:
        """In a line, for people."""
        kind = "pictures that it has learned from" if self.seen else "held-out pictures"
        line = f"base classes: {self.before:.1%} → {self.after:.1%} of {self.n_pictures:,} {kind}"
        for one in self.taken[:_SHOWN]:
            line += f"; {one}"
        return line.replace("%", " %")


@torch.no_grad()
def cost(model: Model, before: Head | None = None) -> BaseCost | None:
    """What a change has cost the base classes; None where the model keeps no held-out pictures.

    Base weights that have learned from these pictures since are asked as they were before, where that is
    kept.

    Args:
        before: the model's head before the change; that of the base classes alone by default.

    >>> from wdae import learn, synthetic_bank
    >>> bank = synthetic_bank(12, 0, 0, 30, 16, seed=0, held_out_per_class=10)
    >>> model = learn(bank, method="initial-estimate")
    >>> model.add({"copy": bank.features[:5]})
    >>> found = cost(model)
    >>> found.n_pictures, found.after <= found.before
    (120, True)
    """
    held_out, head = model.base.held_out, model.head
    if held_out is None or not len(held_out.labels):
        return None
    features, labels = held_out.features.float(), held_out.labels
    old = model.base.unlearned(before or Model(model.base).head).likeliest(features)
    new = model.base.unlearned(head).likeliest(features)
    counts = torch.bincount(labels, minlength=head.n_base)
    lost = (new >= head.n_base) & (new != old)
    pairs, times = torch.stack([labels[lost], new[lost]]).unique(dim=1, return_counts=True)
    taken = [
        Taken(head.names[b], head.names[a], n, int(counts[b]))
        for (b, a), n in zip(pairs.T.tolist(), times.tolist(), strict=True)
    ]
    return BaseCost(
        float((old == labels).double().mean()),
        float((new == labels).double().mean()),
        len(labels),
        tuple(sorted(taken, key=lambda one: (-one.n_taken, -one.share))),
        model.base.has_seen_held_out(head),
    )
