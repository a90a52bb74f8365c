"""The two losses of stage-2 training (eq. 6): reconstruct the weights, classify the queries."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from wdae.nn.cosine import vector_length


@dataclass(frozen=True)
class Losses:
    """Both terms of eq. 6, unweighted, and the scores they came from.

    >>> import torch
    >>> losses = Losses(torch.tensor(0.5), torch.tensor(1.0), torch.zeros(1, 2, 3))
    >>> float(losses.reconstruction + losses.classification)
    1.5
    """

    reconstruction: Tensor
    classification: Tensor
    scores: Tensor


def stage2_losses(
    weights: Tensor, targets: Tensor, queries: Tensor, labels: Tensor, scale: Tensor | float
) -> Losses:
    """Mean squared distance of unit weights to unit targets, and cross-entropy over all classes.

    Args:
        weights: generated weights ``ŵ`` ``[E, N, D]``.
        targets: weights learned in stage 1, ``w*`` ``[E, N, D]``.
        queries: features ``[E, Q, D]``.
        labels: class of each query ``[E, Q]``, ``0..N-1``.
        scale: γ.

    >>> import torch
    >>> weights = torch.eye(3).unsqueeze(0)  # one episode, three classes
    >>> losses = stage2_losses(weights, weights, weights, torch.tensor([[0, 1, 2]]), scale=10.0)
    >>> float(losses.reconstruction), losses.scores.argmax(-1).tolist()
    (0.0, [[0, 1, 2]])
    """
    # Products are divided by lengths, which spares normalised copies of weights, targets and queries.
    length = vector_length(weights)  # [E, N]
    cosine = (weights * targets).sum(-1) / (length * vector_length(targets))
    reconstruction = (2 - 2 * cosine).mean()  # = ‖unit(ŵ) − unit(w*)‖²
    products = queries @ weights.transpose(-1, -2)  # [E, Q, N]
    scores = scale * products / (length.unsqueeze(-2) * vector_length(queries).unsqueeze(-1))
    classification = F.cross_entropy(scores.flatten(0, 1).float(), labels.flatten())
    return Losses(reconstruction, classification, scores)
