"""What stage 2 trains: the denoiser and the scale γ, with the losses of an episode batch (eq. 6)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wdae.bank import ClassSet
from wdae.episodes import Episodes, take_rows
from wdae.methods.learned import StepLosses, TrainingBatch
from wdae.nn.denoiser import Denoiser
from wdae.nn.fused_loss import FusedLossInputs, fused_loss
from wdae.nn.generate import novel_estimate
from wdae.nn.graph import build_graph
from wdae.nn.losses import stage2_losses
from wdae.nn.noise import noisy
from wdae.runtime.cores import in_pieces

__all__ = ["Learner", "StepLosses", "TrainingBatch", "gather_batch"]


def gather_batch(
    pool: ClassSet, weights: Tensor, episodes: Episodes, equal_shots: bool, queries: Tensor | None = None
) -> TrainingBatch:
    """The features of a batch of episodes of fake novel classes, on the device they lie on.

    ``queries`` are the pool's features in the dtype their products are computed in, where that is another.
    """
    assert episodes.base_classes is not None
    n_base = episodes.base_classes.shape[1]
    E, n, Q = episodes.query.shape
    novel_labels = n_base + torch.arange(n, device=weights.device).repeat_interleave(Q)
    rows = torch.cat([episodes.query.flatten(1), episodes.base_query], dim=1)
    return TrainingBatch(
        base=take_rows(weights, episodes.base_classes),
        novel_targets=take_rows(weights, episodes.novel_classes),
        support=take_rows(pool.features, episodes.support),
        support_mask=None if equal_shots else episodes.support_mask,
        queries=take_rows(pool.features if queries is None else queries, rows),
        labels=torch.cat([novel_labels.expand(E, -1), episodes.base_query_label], dim=1),
        base_classes=episodes.base_classes,
        novel_classes=episodes.novel_classes,
        joint=episodes.base_query.shape[1] > 0,
    )


class Learner(nn.Module):
    """The denoiser, the scale γ, and the switches of the paper's ablations.

    Args:
        denoiser: r(·).
        scale: where γ starts: as stage 1 left it.
        noise: σ; 0 trains without noise.
        noisy_targets: feed the learned weights of fake novel classes plus noise, not means of shots.
        classification_loss, reconstruction_loss: which terms of eq. 6 count.
        n_neighbours, inverse_temperature: of the class graph.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        scale: float = 10.0,
        noise: float = 0.1,
        noisy_targets: bool = False,
        classification_loss: bool = True,
        reconstruction_loss: bool = True,
        n_neighbours: int = 10,
        inverse_temperature: float = 5.0,
    ) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.noise = noise
        self.noisy_targets = noisy_targets
        self.classification_loss = classification_loss
        self.reconstruction_loss = reconstruction_loss
        self.n_neighbours = n_neighbours
        self.inverse_temperature = inverse_temperature

    def forward(self, batch: TrainingBatch, generator: torch.Generator | None = None) -> StepLosses:
        """Losses of a batch; ``generator`` draws noise and dropout (torch's default without one)."""
        start = (
            batch.novel_targets if self.noisy_targets else novel_estimate(batch.support, batch.support_mask)
        )
        initial = torch.cat([batch.base, start], dim=1)  # [E, N, D], unit rows
        graph = None
        if self.denoiser.kind == "gnn":
            graph = build_graph(initial, self.n_neighbours, self.inverse_temperature)
        weights = noisy(initial, self.noise, generator) if self.noise > 0 else initial
        targets = torch.cat([batch.base, batch.novel_targets], dim=1)
        if in_pieces(initial):
            return self._on_cpu(self.denoiser.map(weights, graph, generator), weights, targets, batch)
        restored = self.denoiser(weights, graph, generator)
        losses = stage2_losses(restored, targets, batch.queries, batch.labels, self.scale)
        total = restored.new_zeros(())
        if self.reconstruction_loss:
            total = total + losses.reconstruction
        if self.classification_loss:
            total = total + losses.classification
        accuracy = (losses.scores.argmax(-1) == batch.labels).float().mean()
        return StepLosses(total, losses.reconstruction.detach(), losses.classification.detach(), accuracy)

    def _on_cpu(self, mapped: Tensor, weights: Tensor, targets: Tensor, batch: TrainingBatch) -> StepLosses:
        """The same, from the last layer's map on."""
        inputs = FusedLossInputs(
            weights,
            targets,
            batch.queries,
            batch.labels,
            float(self.reconstruction_loss),
            float(self.classification_loss),
        )
        scale = self.scale if self.classification_loss else self.scale.detach()
        total, values = fused_loss(mapped, scale, inputs)
        return StepLosses(total, *values)
