"""wDAE-GNN and wDAE-MLP against the authors' implementation, value by value and gradient by gradient.

Every ``wdae_*`` file beside this one is run; sizes come from its metadata and tensors.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from wdae.methods import WDAE, BaseClasses, Support
from wdae.nn import ClassGraph, Denoiser, build_graph, cosine_scores, incremental, layers, stage2_losses
from wdae.nn.generate import initial_estimate, move, refine
from wdae.nn.incremental import BaseState

FILES = sorted(Path(__file__).parent.glob("wdae_*.safetensors"))

FORWARD = 1e-5  # absolute
RELATIVE = 1e-4  # of losses, and of a gradient's norm


@dataclass(frozen=True)
class Golden:
    sizes: dict[str, str]
    tensors: dict[str, Tensor]
    denoiser: Denoiser

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def scale(self) -> float:
        return float(self.sizes["scale"])

    def initial(self) -> Tensor:
        return initial_estimate(self["input.base_weights"], self["input.support"])

    def graph(self) -> ClassGraph | None:
        if self.denoiser.kind == "mlp":
            return None
        return build_graph(
            self.initial(), int(self.sizes["neighbours"]), float(self.sizes["inverse_temperature"])
        )


def ours(theirs: str) -> str:
    """``layer0.message.batchnorm.weight`` to ``layers.0.message.norm.weight``."""
    return re.sub(r"^layer(\d+)", r"layers.\1", theirs).replace("batchnorm", "norm")


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def golden(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Golden:
    with safe_open(request.param, framework="pt") as file:
        sizes = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    kind = sizes.get("kind") or request.param.stem.split("_")[1]
    parameters = {ours(k.removeprefix("param.")): v for k, v in tensors.items() if k.startswith("param.")}
    n_layers = 1 + max(int(name.split(".")[1]) for name in parameters)
    denoiser = Denoiser(int(sizes["feature_dim"]), int(sizes["hidden_dim"]), n_layers, 0.0, kind)
    unmapped = {n for n in denoiser.state_dict() if not n.endswith("num_batches_tracked")} ^ set(parameters)
    assert not unmapped
    denoiser.load_state_dict(parameters, strict=False)
    for module in denoiser.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.eps = float(sizes.get("batchnorm_eps", module.eps))
    for module in (layers, incremental):
        monkeypatch.setattr(module, "SLOPE", float(sizes.get("leaky_relu_slope", layers.SLOPE)))
    return Golden(sizes, tensors, denoiser.eval())


def close(value: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(value.detach(), expected, rtol=0, atol=FORWARD)


def test_golden_initial_estimate(golden: Golden) -> None:
    close(golden.initial(), golden["eval.initial"])


def test_golden_graph(golden: Golden) -> None:
    graph = golden.graph()
    if graph is None:  # wDAE-MLP: each class alone
        assert "eval.neighbours" not in golden.tensors
        return
    # Neighbours of (nearly) equal similarity may stand in either order: compare as sets, then by class.
    ours_sorted, order = graph.neighbours.sort(-1)
    theirs_sorted, their_order = golden["eval.neighbours"].long().sort(-1)
    assert torch.equal(ours_sorted, theirs_sorted)
    close(graph.strengths.gather(-1, order), golden["eval.edge_strength"].gather(-1, their_order))


@torch.no_grad()
def test_golden_evaluation(golden: Golden) -> None:
    r = golden.denoiser(golden.initial(), golden.graph())
    close(r, golden["eval.reconstructed"])
    checked = 0
    for name, expected in golden.tensors.items():
        if name.startswith("eval.refined_step_"):
            step = float(name.removeprefix("eval.refined_step_"))
            close(move(golden.initial(), r, step), expected)
            again = refine(
                golden.denoiser,
                golden.initial(),
                step,
                n_neighbours=int(golden.sizes["neighbours"]),
                inverse_temperature=float(golden.sizes["inverse_temperature"]),
            )
            close(again, expected)
            checked += 1
        elif name.startswith("eval.scores_step_"):
            step = float(name.removeprefix("eval.scores_step_"))
            weights = move(golden.initial(), r, step)
            close(cosine_scores(golden["input.query"], weights, golden.scale), expected)
            checked += 1
    assert checked >= 2


@torch.no_grad()
def test_golden_incremental_and_method(golden: Golden) -> None:
    """The quick path the evaluation takes, one episode at a time, since base weights differ between them."""
    n_base = golden["input.base_weights"].shape[1]
    neighbours, temperature = int(golden.sizes["neighbours"]), float(golden.sizes["inverse_temperature"])
    scores = next(name for name in golden.tensors if name.startswith("eval.scores_step_"))
    method = WDAE(
        golden.denoiser,
        golden.scale,
        {1: float(scores.removeprefix("eval.scores_step_"))},
        n_neighbours=neighbours,
        inverse_temperature=temperature,
    )
    for e, base in enumerate(golden["input.base_weights"]):
        novel = golden.initial()[e : e + 1, n_base:]
        state = BaseState(golden.denoiser, base, neighbours, temperature)
        refined = state.refine(novel)
        out = torch.cat([state.reconstructed, refined.novel[0]])
        out[refined.node] = refined.base
        close(out, golden["eval.reconstructed"][e])
        scorer = method.adapt(Support(golden["input.support"][e : e + 1]), BaseClasses(base), joint=True)
        close(scorer(golden["input.query"][e : e + 1])[0], golden[scores][e])


def gradients(golden: Golden) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Ours and theirs, of the sum of both losses."""
    denoiser = golden.denoiser.train()
    scale = torch.tensor(golden.scale, requires_grad=True)
    r = denoiser(golden.initial(), golden.graph())
    close(r, golden["train.reconstructed"])
    targets = torch.cat([golden["input.base_weights"], golden["input.novel_target_weights"]], dim=1)
    losses = stage2_losses(r, targets, golden["input.query"], golden["input.query_label"].long(), scale)
    for name in ("reconstruction", "classification"):
        expected = golden[f"train.{name}_loss"].squeeze()
        torch.testing.assert_close(getattr(losses, name).detach(), expected, rtol=RELATIVE, atol=0)
    (losses.reconstruction + losses.classification).backward()
    theirs = {
        ours(k.removeprefix("train.grad.")): v
        for k, v in golden.tensors.items()
        if k.startswith("train.grad.")
    }
    found = {name: p.grad for name, p in denoiser.named_parameters()} | {"scale": scale.grad}
    return {name: g for name, g in found.items() if g is not None}, theirs


class ZeroSums:
    """The gradients that each layer's ``message.linear.bias`` is the sum of.

    BatchNorm takes the bias out again, so the sum is zero, and what either side has instead is rounding. A
    float32 sum of n terms is off by about √n · 2⁻²³ · Σ |term|, as errors of either sign partly cancel; n
    is the number of edges, since the authors' program sums over edges.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.projected: list[Tensor] = []
        self.n_edges = 0
        plain = layers.edge_norm

        def watched(projected: Tensor, *rest: Any) -> Any:
            projected.retain_grad()
            self.projected.append(projected)
            self.n_edges = rest[2].numel()
            return plain(projected, *rest)

        monkeypatch.setattr(layers, "edge_norm", watched)

    def bound(self, name: str) -> Tensor:
        terms = self.projected[int(name.split(".")[1])].grad
        assert terms is not None
        return math.sqrt(self.n_edges) * torch.finfo(terms.dtype).eps * terms.flatten(0, 1).abs().sum(0)


def test_golden_training(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    zero = ZeroSums(monkeypatch)
    found, theirs = gradients(golden)
    assert set(theirs) == set(found)
    for name, expected in theirs.items():
        if name.endswith("message.linear.bias"):
            for gradient in (found[name], expected):
                assert bool((gradient.abs() <= zero.bound(name)).all()), name
        else:
            error = float((found[name] - expected.view_as(found[name])).norm())
            assert error <= RELATIVE * float(expected.norm()), name


def test_the_room_for_rounding_is_small(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """A BatchNorm whose mean passes no gradient back is seen in the bias, far beyond rounding."""
    if golden.denoiser.kind == "mlp":
        return  # it has no messages

    def wrong(p: Tensor, gain: Tensor, shift: Tensor, neighbours: Tensor, eps: float) -> Any:
        edges = p.unsqueeze(2) + p[torch.arange(len(p))[:, None, None], neighbours]
        mean, variance = edges.mean((0, 1, 2)).detach(), edges.var((0, 1, 2), correction=0)
        nodes = (p - mean / 2) * (gain * torch.rsqrt(variance + eps)) + shift / 2
        return nodes, mean, variance.detach()

    monkeypatch.setattr(layers, "edge_norm", wrong)
    zero = ZeroSums(monkeypatch)
    found, _ = gradients(golden)
    biases = [name for name in found if name.endswith("message.linear.bias")]
    assert all(float((found[name].abs() / zero.bound(name)).max()) > 1000 for name in biases)
