"""The paper's ``g(·)``: an initial estimate of all class weights, then refinement by the denoiser."""

from __future__ import annotations

import torch
from torch import Tensor

from wdae.errors import ModelError
from wdae.nn.cosine import unit
from wdae.nn.denoiser import Denoiser
from wdae.nn.graph import build_graph


def novel_estimate(support: Tensor, mask: Tensor | None = None) -> Tensor:
    """Novel half of eq. 5: the mean of the L2-normalised features of a class's shots, normalised.

    Shapes:
        support ``[..., n, K, D]``, mask ``[..., n, K]`` (True where there is a shot) → ``[..., n, D]``.

    >>> novel_estimate(torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]))  # one class, two shots
    tensor([[0.7071, 0.7071]])
    """
    features = unit(support)
    if mask is None:
        return unit(features.mean(-2))
    kept = mask.unsqueeze(-1).to(features.dtype)
    return unit((features * kept).sum(-2))  # the count cancels in the normalisation


def initial_estimate(base: Tensor, support: Tensor, mask: Tensor | None = None) -> Tensor:
    """Eq. 5: base classes keep their learned weight, novel ones start from their shots; unit rows.

    Shapes:
        base ``[N, D]`` or ``[E, N, D]``, support ``[E, n, K, D]`` → ``[E, N + n, D]``, base first.

    >>> initial_estimate(torch.eye(3, 4), torch.ones(2, 5, 1, 4)).shape  # 3 base classes, 2 episodes of 5
    torch.Size([2, 8, 4])
    """
    novel = novel_estimate(support, mask)
    if base.shape[-1] != novel.shape[-1]:
        raise ModelError(
            f"support features have {novel.shape[-1]} dimensions, the base weights {base.shape[-1]}; "
            "both must come from the same backbone"
        )
    return torch.cat([unit(base).expand(*novel.shape[:-2], -1, -1), novel], dim=-2)


def move(weights: Tensor, reconstructed: Tensor, step: Tensor | float) -> Tensor:
    """One refinement step (eq. 4): ``w + ε (unit(r) − w)``.

    The authors' code returns ``r`` itself for ε = 1; this is the same up to the rows' length, which the
    cosine classifier takes off.

    >>> move(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]), 0.25).tolist()
    [0.75, 0.25]
    """
    target = unit(reconstructed)
    return target if isinstance(step, float) and step == 1.0 else torch.lerp(weights, target, step)


def refine(
    denoiser: Denoiser,
    initial: Tensor,
    step: Tensor | float = 1.0,
    n_steps: int = 1,
    n_neighbours: int = 10,
    inverse_temperature: float = 5.0,
) -> Tensor:
    """Refine initial estimates ``[E, N, D]`` of all classes by the denoiser, ``n_steps`` times (eq. 4).

    The graph is that of the initial estimates throughout. This is the plain computation over all classes;
    :class:`wdae.nn.incremental.BaseState` gives the same for one step at a fraction of the cost when the base
    classes stay the same.

    >>> initial = initial_estimate(torch.eye(3, 4), torch.ones(2, 5, 1, 4))
    >>> refine(Denoiser(dim=4, hidden=4).eval(), initial, step=0.5).shape
    torch.Size([2, 8, 4])
    """
    graph = build_graph(initial, n_neighbours, inverse_temperature) if denoiser.kind == "gnn" else None
    weights = initial
    for _ in range(n_steps):
        weights = move(weights, denoiser(weights, graph), step)
    return weights
