"""What a model was learned from the base classes, and how it makes weights for classes that are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from wdae.methods.calibration import Calibration
from wdae.methods.wdae import WDAE, steps_for
from wdae.nn.cosine import unit
from wdae.nn.generate import move
from wdae.nn.graph import ClassGraph
from wdae.nn.incremental import BaseState


@dataclass(frozen=True)
class NovelWeights:
    """Weights of n added classes: where they started, where the denoiser put them, what came of both.

    Shapes: initial, reconstructed, final ``[n, D]``, unit rows; shots, steps ``[n]``. ``base`` ``[N, D]``
    holds the base weights beside them, moved where the model refines those too.
    """

    initial: Tensor
    reconstructed: Tensor
    final: Tensor
    shots: Tensor
    steps: Tensor
    base: Tensor


@dataclass(frozen=True, eq=False)
class Ground:
    """The base classes and everything that adding classes leaves alone.

    Args:
        names: of the base classes.
        weights: of the base classes ``[N, D]``, unit rows.
        counts: images behind each of them, ``[N]``; how much more examples of it can move its weight.
        calibration: from cosines to probabilities.
        method: the denoiser with its settings; None where there were too few classes to train one, and
            added classes keep their initial estimate.
        graph: of the base classes, if there is a GNN denoiser.
        refine_base: whether base weights move too when classes are added, as in the paper; without, they
            stay exactly as learned.
        info: provenance, recipe, how labels are to be read; JSON values.

    >>> ground = Ground(("cat", "dog"), torch.eye(2, 4), torch.tensor([10, 10]), Calibration(gain=10.0))
    >>> ground.dim, ground.novel_weights([torch.eye(4)[2:3]]).final.tolist()
    (4, [[0.0, 0.0, 1.0, 0.0]])
    """

    names: tuple[str, ...]
    weights: Tensor
    counts: Tensor
    calibration: Calibration
    method: WDAE | None = None
    graph: ClassGraph | None = None
    refine_base: bool = False
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def dim(self) -> int:
        """Feature size D."""
        return self.weights.shape[1]

    @cached_property
    def state(self) -> BaseState | None:
        """What the denoiser makes of the base classes alone, computed once."""
        if self.method is None:
            return None
        method = self.method
        return BaseState(
            method.denoiser,
            self.weights,
            method.n_neighbours,
            method.inverse_temperature,
            self.graph,
            method.memory_mb,
            method.dtype,
        )

    @torch.no_grad()
    def novel_weights(self, examples: Sequence[Tensor]) -> NovelWeights:
        """Weights of added classes from all their examples, each ``[k, D]`` of unit rows.

        They depend on the examples alone, not on the order in which these came.
        """
        initial = class_means(examples)  # [n, D]
        shots = torch.tensor([len(rows) for rows in examples])
        state = self.state
        if state is None or self.method is None or not len(examples):
            return NovelWeights(initial, initial, initial, shots, torch.zeros(len(shots)), self.weights)
        steps = steps_for(shots, self.method.steps)
        refined = state.refine(initial.unsqueeze(0), with_base=self.refine_base)
        reconstructed = unit(refined.novel[0])
        final = unit(move(initial, reconstructed, steps.unsqueeze(1)))
        base = self.weights
        if self.refine_base:
            restored = state.reconstructed.clone()
            restored[refined.node] = refined.base
            base = unit(move(self.weights, restored, float(steps.mean())))
        return NovelWeights(initial, reconstructed, final, shots, steps, base)

    def base_with_examples(self, base: Tensor, extra: dict[int, Tensor]) -> Tensor:
        """Base weights where some classes got more examples: the learned weight counts as their images do."""
        if not extra:
            return base
        base = base.clone()
        for row, examples in extra.items():
            total = base[row].double() * float(self.counts[row]) + examples.double().sum(0)
            base[row] = unit(total).to(base.dtype)
        return base


def class_means(examples: Sequence[Tensor]) -> Tensor:
    """Eq. 5 for classes of unequal shots: the unit mean of each class's unit rows, ``[n, D]``.

    Summed in double precision, so that the order of the examples does not show.
    """
    if not examples:
        return torch.zeros(0, 0)
    sums = torch.stack([rows.double().sum(0) for rows in examples])
    return unit(sums).float()
