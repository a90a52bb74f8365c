"""What stage 2 trains: the denoiser and the scale γ by the losses of eq. 6, or another learned method."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wdae.bank import ClassSet, FeatureBank
from wdae.episodes import Episodes, take_rows
from wdae.errors import RecipeError
from wdae.methods import WDAE, BaseClasses, LearnedMethod, find, is_learned, make
from wdae.methods.learned import StepLosses, TrainingBatch
from wdae.nn.denoiser import Denoiser
from wdae.nn.fused_loss import FusedLossInputs, fused_loss
from wdae.nn.generate import novel_estimate
from wdae.nn.graph import build_graph
from wdae.nn.losses import stage2_losses
from wdae.nn.noise import add_noise
from wdae.parts import Part
from wdae.runtime.cores import in_pieces
from wdae.runtime.device import pick_dtype
from wdae.runtime.randomness import derive_seed
from wdae.stage2.config import DenoiserConfig, MetaRecipe, TrainingConfig


def gather_batch(
    pool: ClassSet, weights: Tensor, episodes: Episodes, equal_shots: bool, queries: Tensor | None = None
) -> TrainingBatch:
    """The features of a batch of episodes of fake novel classes, on the device they are on.

    ``queries`` are the pool's features in the dtype of the products, where that is another.
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
        scale: where γ starts: the value that stage 1 learned.
        training: noise and losses.
        graph: the class graph.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        scale: float = 10.0,
        training: TrainingConfig | None = None,
        graph: DenoiserConfig | None = None,
    ) -> None:
        super().__init__()
        training, graph = training or TrainingConfig(), graph or DenoiserConfig()
        self.denoiser = denoiser
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.noise, self.noisy_targets = training.noise, training.noisy_targets
        self.classification_loss = training.classification_loss
        self.reconstruction_loss = training.reconstruction_loss
        self.n_neighbours, self.inverse_temperature = graph.neighbours, graph.inverse_temperature

    def forward(self, batch: TrainingBatch, generator: torch.Generator | None = None) -> StepLosses:
        """Losses of a batch; ``generator`` draws noise and dropout (torch's default without one)."""
        start = batch.novel_targets
        if not self.noisy_targets:
            start = novel_estimate(batch.support, batch.support_mask)
        initial = torch.cat([batch.base, start], dim=1)  # [E, N, D], unit rows
        graph = None
        if self.denoiser.kind == "gnn":
            graph = build_graph(initial, self.n_neighbours, self.inverse_temperature)
        weights = add_noise(initial, self.noise, generator) if self.noise > 0 else initial
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
        """The same from the last layer's map on, fused."""
        counted = float(self.reconstruction_loss), float(self.classification_loss)
        inputs = FusedLossInputs(weights, targets, batch.queries, batch.labels, *counted)
        scale = self.scale if self.classification_loss else self.scale.detach()
        total, values = fused_loss(mapped, scale, inputs)
        return StepLosses(total, *values)


def build_learner(recipe: MetaRecipe, dim: int, scale: float) -> Learner:
    """The learner of a recipe, freshly initialised from its seed."""
    generator = torch.Generator().manual_seed(derive_seed(recipe.seed, "denoiser"))
    d = recipe.denoiser
    denoiser = Denoiser(dim, d.hidden, d.layers, d.dropout, d.kind, generator)
    return Learner(denoiser, scale, recipe.training, d)


def as_method(learner: Learner, recipe: MetaRecipe, steps: dict[int, float] | None = None) -> WDAE:
    """The trained learner as a method."""
    device = next(learner.parameters()).device
    method = WDAE(
        learner.denoiser,
        learner.scale.item(),
        steps,
        recipe.evaluation.refinements,
        recipe.denoiser.neighbours,
        recipe.denoiser.inverse_temperature,
        pick_dtype(recipe.precision, device),
        recipe.memory_mb,
        refine_base=recipe.evaluation.refine_base,
    )
    method.name = recipe.name
    return method


def build_method(recipe: MetaRecipe, bank: FeatureBank, base: BaseClasses) -> LearnedMethod:
    """The learned method that a recipe names, freshly initialised from its seed, on the CPU."""
    name = recipe.method or ""
    if not (is_learned(name) and issubclass(find(name), LearnedMethod)):
        hint = "set denoiser.kind instead" if name.startswith("wdae") else "it has nothing to train"
        raise RecipeError(f"'method' is for learned methods beside the denoiser, got {name!r}; {hint}")
    generator = torch.Generator().manual_seed(derive_seed(recipe.seed, name))
    sizes = {"dim": bank.dim, "n_base": bank.n_base, "scale": base.scale, "generator": generator}
    method = make(name, **sizes, **recipe.options)
    assert isinstance(method, LearnedMethod)
    method.prepare(base, bank.select(Part.BASE_TRAIN), generator)
    method.name = recipe.name
    return method
