"""A linear map of a concatenation that is stored as its parts.

A node's state at layer l is ``h = [w̃; u_1; ...; u_l]``, rescaled to unit length (:func:`part_scales`). Stored
as parts, w̃ needs no gradient, and at test time the product for base classes is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wdae.runtime.device import full_precision


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The dtype that products of ``x`` are computed in: autocast's if it is on, else its own."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def part_scales(n_parts: int) -> list[float]:
    """Factors of ``[w̃; u_1; ...; u_l]`` after l concatenations, each divided by √2 [code].

    >>> part_scales(1)
    [1.0]
    >>> [round(s**2, 3) for s in part_scales(3)]
    [0.25, 0.25, 0.5]
    """
    depth = n_parts - 1
    return [2.0 ** (-depth / 2)] + [2.0 ** (-(depth - k + 1) / 2) for k in range(1, n_parts)]


class _JoinedLinear(torch.autograd.Function):
    """One product for all parts forward; none backward for the parts that need no gradient."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor | None, scales: Sequence[float], *parts: Tensor
    ) -> Tensor:
        dtype = autocast_dtype(parts[0])
        with full_precision(weight):
            scaled = [part if s == 1.0 else part * s for part, s in zip(parts, scales, strict=True)]
            flat = [part.to(dtype).flatten(0, -2) for part in scaled]
            joined = flat[0] if len(flat) == 1 else torch.cat(flat, dim=-1)
            cast = weight.to(dtype)
            out = F.linear(joined, cast, None if bias is None else bias.to(dtype))
        ctx.save_for_backward(joined, cast)
        ctx.scales, ctx.bias, ctx.dtype = scales, bias is not None, weight.dtype
        ctx.shapes = [(part.shape, part.dtype) for part in parts]
        return out.view(*parts[0].shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        joined, cast = ctx.saved_tensors
        with full_precision(joined):
            g = grads[0].flatten(0, -2)
            g_weight = (g.T @ joined).to(ctx.dtype)
            g_bias = g.sum(0, dtype=ctx.dtype) if ctx.bias else None
            needed = ctx.needs_input_grad[3:]
            sizes = [shape[-1] for shape, _ in ctx.shapes]
            first = needed.index(True) if any(needed) else len(needed)
            g_parts: list[Tensor | None] = [None] * first
            if first < len(needed):  # the input comes first and needs none: the others in one product
                g_rest = (g @ cast[:, sum(sizes[:first]) :]).split(sizes[first:], dim=-1)
                for g_part, s, (shape, dtype) in zip(
                    g_rest, ctx.scales[first:], ctx.shapes[first:], strict=True
                ):
                    g_parts.append((g_part if s == 1.0 else g_part * s).to(dtype).view(shape))
        return g_weight, g_bias, None, *g_parts


class SplitLinear(nn.Linear):
    """``nn.Linear`` on a concatenation of parts.

    Args:
        sizes: width of each part.
        out_features: width of the output.
        bias: whether there is one.
    """

    def __init__(self, sizes: Sequence[int], out_features: int, bias: bool = True) -> None:
        super().__init__(sum(sizes), out_features, bias=bias)
        self.sizes = tuple(sizes)

    def blocks(self, scales: Sequence[float]) -> list[Tensor]:
        """The weight's columns for each part, times the part's scale."""
        return [
            block if scale == 1.0 else block * scale
            for block, scale in zip(self.weight.split(self.sizes, dim=1), scales, strict=True)
        ]

    def apply_parts(self, parts: Sequence[Tensor], scales: Sequence[float]) -> Tensor:
        """Map the concatenation of ``scale · part`` over all parts: ``[..., size_k] → [..., out]``."""
        out: Tensor = _JoinedLinear.apply(self.weight, self.bias, tuple(scales), *parts)
        return out

    def apply_state(self, parts: Sequence[Tensor], message: Tensor | None) -> Tensor:
        """Map ``[h; m]``: the state's parts rescaled, the message as it is; ``h`` alone without one."""
        scales = part_scales(len(parts))
        if message is None:
            return self.apply_parts(parts, scales)
        return self.apply_parts([*parts, message], [*scales, 1.0])
