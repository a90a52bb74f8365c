"""Differentiable ridge regression in closed form, for a batch of problems."""

from __future__ import annotations

import torch
from torch import Tensor

from wdae.errors import ModelError
from wdae.runtime.device import full_precision


def ridge(features: Tensor, targets: Tensor, penalty: Tensor | float, weight: Tensor | None = None) -> Tensor:
    """``W = argmin Σ_i s_i ‖W x_i − y_i‖² + λ ‖W‖²``, by the smaller of two systems.

    With fewer examples than dimensions, Woodbury's form ``Xᵀ (X Xᵀ + λI)⁻¹ Y`` (eq. 6 of Bertinetto 2019)
    solves an M × M system instead of a D × D one.

    Shapes: features ``[E, M, D]``, targets ``[E, M, C]``, weight ``[E, M]`` (s; None: all 1) → ``[E, C, D]``.
    """
    with full_precision(features):
        X, Y = features.float(), targets.float()
        if weight is not None:
            root = weight.float().sqrt().unsqueeze(-1)
            X, Y = X * root, Y * root
        M, D = X.shape[-2:]
        Xt = X.transpose(-1, -2)
        small = M <= D
        system = X @ Xt if small else Xt @ X
        system = system + penalty * torch.eye(system.shape[-1], device=X.device)
        factor, _ = torch.linalg.cholesky_ex(system)
        if not torch.compiler.is_compiling():
            _refuse_singular(factor, system)
        solved = torch.cholesky_solve(Y if small else Xt @ Y, factor)
        return (Xt @ solved if small else solved).transpose(-1, -2)


def _refuse_singular(factor: Tensor, system: Tensor) -> None:
    """A pivot as small as rounding errors means that the system has no unique solution."""
    pivots = factor.detach().diagonal(dim1=-2, dim2=-1).square()
    largest = system.detach().diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
    sound = pivots > 4 * torch.finfo(system.dtype).eps * largest  # False for NaN too
    if not bool(sound.all()):
        raise ModelError(
            "the ridge system is singular: two support examples are alike, or depend on each other, and "
            "the penalty is 0 or next to it; give a penalty above 0 (1.0 is usual)"
        )
