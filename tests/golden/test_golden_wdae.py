"""wDAE-GNN and wDAE-MLP against the authors' implementation, value by value and gradient by gradient.

Every ``wdae_gnn*`` and ``wdae_mlp*`` file in the folder is run; sizes come from its metadata and tensors.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from wdae.methods import WDAE, BaseClasses, Support
from wdae.nn import ClassGraph, Denoiser, build_graph, cosine_scores, incremental, layers, stage2_losses
from wdae.nn.generate import initial_estimate, move, refine
from wdae.nn.incremental import BaseState

GOLDEN = Path(os.environ.get("WDAE_GOLDEN", Path(__file__).parents[3] / "shared" / "golden"))
FILES = sorted(f for f in GOLDEN.glob("wdae_*.safetensors") if re.match("wdae_(gnn|mlp)", f.name))

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

    @property
    def deterministic(self) -> bool:
        return float(self.sizes.get("noise", 0)) == 0 == float(self.sizes.get("dropout", 0))

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


@pytest.fixture(
    params=FILES
    or [pytest.param(None, marks=pytest.mark.skip(f"no wdae_* files in {GOLDEN}; set WDAE_GOLDEN"))],
    ids=lambda file: file.stem if file else "none",
)
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


def test_golden_training(golden: Golden) -> None:
    if not golden.deterministic:
        pytest.skip("noise or dropout were on: their draws are not in the file")
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
    gradients = {name: p.grad for name, p in denoiser.named_parameters()} | {"scale": scale.grad}
    theirs = {
        ours(k.removeprefix("train.grad.")): v
        for k, v in golden.tensors.items()
        if k.startswith("train.grad.")
    }
    assert set(theirs) == set(gradients)
    largest = max(float(g.norm()) for g in theirs.values())
    for name, expected in theirs.items():
        error = float((gradients[name] - expected.view_as(gradients[name])).norm())
        if name.endswith("message.linear.bias"):
            # BatchNorm takes the bias out again: its gradient is zero, and what either side has is rounding.
            assert error <= 1e-6 * largest, name
        else:
            assert error <= RELATIVE * float(expected.norm()), name
