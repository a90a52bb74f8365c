"""LEO: meta-learning with latent embedding optimisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wdae.bank import ClassSet
from wdae.methods.base import BaseClasses, Scorer, Support
from wdae.methods.examples import LinearScorer, support_examples
from wdae.methods.learned import (
    FEW_WAY,
    LearnedMethod,
    Random,
    Setting,
    StepLosses,
    TrainingBatch,
    episode_inputs,
)
from wdae.nn.cosine import unit
from wdae.nn.inner_loop import gradient_steps, support_loss
from wdae.nn.linear import mlp, orthogonal_linear, principal_init
from wdae.runtime.device import full_precision


class Leo(LearnedMethod):
    """Classifier weights decoded from latent codes, which gradient steps on the shots adapt.

    Andrei Rusu, Dushyant Rao, Jakub Sygnowski, Oriol Vinyals, Razvan Pascanu, Simon Osindero, Raia Hadsell,
    "Meta-Learning with Latent Embedding Optimization", ICLR 2019, https://arxiv.org/abs/1807.05960
    (algorithm 1). Encoder and relation network give each class a Gaussian over codes; a linear decoder turns
    a code into a Gaussian over weights. Gradient steps adapt the codes, then the weights themselves. Codes
    and weights are sampled in training and are means at test time.

    Departures: the relation network's output is added to the mean of the encoded shots and starts at zero;
    the encoder starts along the principal directions of base-train features and the decoder as its
    transpose, so learning begins at nearest mean in the latent space (chosen on validation classes of the
    embedded bank over random directions, which start far below it); no dropout; the L2 penalty is the
    optimiser's weight decay.

    Args:
        latent: size of a code.
        n_steps, n_fine_steps: steps on codes, steps on weights (5 and 5 in the paper).
        kl_weight, code_weight, orthogonality_weight: β, γ and the decoder's penalty (eq. 6 and section 2.5).
    """

    name = "leo"
    about = "weights decoded from latent codes that are adapted by gradient steps"
    paper = "Rusu 2019"
    joint = False
    training_defaults = FEW_WAY

    def __init__(
        self,
        setting: Setting,
        latent: int = 64,
        n_steps: int = 5,
        n_fine_steps: int = 5,
        kl_weight: float = 1e-3,
        code_weight: float = 1e-2,
        orthogonality_weight: float = 1e-2,
    ) -> None:
        super().__init__(setting)
        self.n_steps, self.n_fine_steps = n_steps, n_fine_steps
        self.kl_weight, self.code_weight = kl_weight, code_weight
        self.orthogonality_weight = orthogonality_weight
        dim, scale, generator = setting.dim, setting.scale, setting.generator
        latent = min(latent, dim)
        self.encode = orthogonal_linear(dim, latent, generator)
        self.relate = mlp([2 * latent, 2 * latent, 2 * latent], generator, zero_last=True)
        self.decode = nn.Linear(latent, 2 * dim, bias=False)
        with torch.no_grad():
            self.decode.weight.zero_()
            self.decode.weight[:dim] = self.encode.weight.T * (latent / dim)
        self.log_rate = nn.Parameter(torch.tensor(1.0 / scale**2).log())
        self.log_fine_rate = nn.Parameter(torch.tensor(0.1 / scale**2).log())
        self.log_spread = nn.Parameter(torch.tensor([-3.0, -4.0]))  # of codes and of weights, at the start

    def prepare(self, base: BaseClasses, pool: ClassSet, generator: torch.Generator) -> None:
        """Encoder and decoder along the principal directions of the base-train features."""
        principal_init(self.encode, pool.features)
        self.decode.weight.data[: self.dim] = self.encode.weight.data.T

    def learn(self, support: Support, base: BaseClasses, joint: bool, generator: Random = None) -> Scorer:
        """Both inner loops."""
        return self._learn(support, generator)[0]

    def forward(self, batch: TrainingBatch, generator: Random = None) -> StepLosses:
        """Cross-entropy of the queries plus the penalties of eq. 6."""
        support, _ = episode_inputs(batch)
        scorer, penalty = self._learn(support, generator)
        return StepLosses.of(scorer(batch.queries), batch.labels - batch.base.shape[1], penalty)

    def _learn(self, support: Support, generator: Random) -> tuple[Scorer, Tensor]:
        examples = support_examples(Support(unit(support.features), support.mask))
        with full_precision(support.features):
            features = examples.features.float()
            mean, log_spread = self._codes(features, examples.targets, examples.weight)
            start = self._sample(mean, log_spread, generator)
            noise = self._noise(mean.new_empty(*mean.shape[:2], self.dim), generator)

            def weights(codes: Tensor) -> Tensor:
                both: Tensor = self.decode(codes)
                centre, spread = both.chunk(2, -1)
                return centre if noise is None else centre + (spread + self.log_spread[1]).exp() * noise

            def loss(rows: Tensor) -> Tensor:
                scores = self.scale * features @ rows.transpose(-1, -2)
                return support_loss(scores, examples.targets, examples.weight)

            rates = [self.log_rate.exp()] * self.n_steps
            (codes,) = gradient_steps(lambda z: loss(weights(z)), [start], rates, training=self.training)
            rates = [self.log_fine_rate.exp()] * self.n_fine_steps
            (rows,) = gradient_steps(loss, [weights(codes)], rates, training=self.training)
            penalty = self._penalty(mean, log_spread, start, codes)
        scorer = LinearScorer(rows, None, self.scale)
        return lambda queries: scorer(unit(queries)), penalty

    def _codes(self, features: Tensor, targets: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log deviation of each class's code ``[E, n, L]``, over pairs of its shots with all."""
        encoded = self.encode(features)  # [E, M, L]
        E, M, L = encoded.shape
        pairs = torch.cat(
            [encoded.unsqueeze(2).expand(E, M, M, L), encoded.unsqueeze(1).expand(E, M, M, L)], dim=-1
        )
        related = (self.relate(pairs) * weight[:, None, :, None]).sum(2) / weight.sum(-1).view(-1, 1, 1)
        share = targets * weight.unsqueeze(-1)  # [E, M, n]
        share = (share / share.sum(1, keepdim=True).clamp(min=1)).transpose(1, 2)
        shift, log_spread = (share @ related).chunk(2, -1)
        return share @ encoded + shift, log_spread + self.log_spread[0]

    def _noise(self, like: Tensor, generator: Random) -> Tensor | None:
        return torch.randn(like.shape, device=like.device, generator=generator) if self.training else None

    def _sample(self, mean: Tensor, log_spread: Tensor, generator: Random) -> Tensor:
        noise = self._noise(mean, generator)
        return mean if noise is None else mean + log_spread.exp() * noise

    def _penalty(self, mean: Tensor, log_spread: Tensor, start: Tensor, codes: Tensor) -> Tensor:
        divergence = (mean.square() + (2 * log_spread).exp() - 2 * log_spread - 1).sum(-1).mean() / 2
        shift = (codes.detach() - start).square().sum(-1).mean()
        rows = unit(self.decode.weight[: self.dim].T)  # [L, D]
        alike = (rows @ rows.T - torch.eye(len(rows), device=rows.device)).square().mean()
        return self.kl_weight * divergence + self.code_weight * shift + self.orthogonality_weight * alike
