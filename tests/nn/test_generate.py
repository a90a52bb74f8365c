from __future__ import annotations

import pytest
import torch
from seeded import randn

from wdae.errors import ModelError
from wdae.nn import Denoiser, build_graph, unit
from wdae.nn.generate import initial_estimate, move, novel_estimate, refine


def denoiser(kind: str = "gnn") -> Denoiser:
    return Denoiser(8, 6, 2, 0.9, kind, torch.Generator().manual_seed(1)).eval()  # type: ignore[arg-type]


def test_initial_estimate_against_loops() -> None:
    base, support = 3 * randn(4, 8), 2 * randn(3, 2, 5, 8, seed=1)
    initial = initial_estimate(base, support)
    assert initial.shape == (3, 6, 8)
    for e in range(3):
        for b in range(4):
            torch.testing.assert_close(initial[e, b], base[b] / base[b].norm())
        for c in range(2):
            mean = sum(support[e, c, k] / support[e, c, k].norm() for k in range(5)) / 5
            torch.testing.assert_close(initial[e, 4 + c], mean / mean.norm())


def test_base_weights_of_each_episode() -> None:
    base, support = randn(3, 4, 8), randn(3, 2, 1, 8, seed=1)
    initial = initial_estimate(base, support)
    torch.testing.assert_close(initial[1], initial_estimate(base[1], support[1:2])[0])


def test_unequal_shots_are_means_over_each_class_own() -> None:
    support = randn(2, 3, 4, 8)
    shots = torch.tensor([[1, 4, 2], [3, 3, 1]])
    mask = torch.arange(4) < shots.unsqueeze(-1)
    spoiled = support.masked_fill(~mask.unsqueeze(-1), 100.0)  # what lies past a class's shots has no say
    estimate = novel_estimate(spoiled, mask)
    for e in range(2):
        for c in range(3):
            own = support[e, c, : shots[e, c]]
            torch.testing.assert_close(estimate[e, c], unit(unit(own).mean(0)))
    torch.testing.assert_close(
        novel_estimate(support, torch.ones(2, 3, 4, dtype=torch.bool)), novel_estimate(support)
    )


def test_feature_sizes_must_agree() -> None:
    with pytest.raises(ModelError, match="support features have 7 dimensions, the base weights 8"):
        initial_estimate(randn(4, 8), randn(1, 2, 1, 7))


def test_move() -> None:
    w, r = unit(randn(3, 8)), randn(3, 8, seed=1)
    torch.testing.assert_close(move(w, r, 0.6), 0.4 * w + 0.6 * r / r.norm(dim=-1, keepdim=True))
    torch.testing.assert_close(unit(move(w, r, 1.0)), unit(r))  # the code's special case, up to length
    assert torch.equal(move(w, r, 0.0), w)
    each = torch.tensor([[0.0], [0.5], [1.0]])
    torch.testing.assert_close(move(w, r, each)[1], move(w, r, 0.5)[1])


@pytest.mark.parametrize("kind", ["gnn", "mlp"])
@pytest.mark.parametrize("n_steps", [1, 2, 3])
@torch.no_grad()
def test_refine_repeats_the_step_on_the_graph_of_the_initial_estimates(kind: str, n_steps: int) -> None:
    net, initial = denoiser(kind), unit(randn(2, 9, 8))
    graph = build_graph(initial, 3, 2.0)
    w = initial
    for _ in range(n_steps):
        w = w + 0.7 * (unit(net(w, graph)) - w)
    torch.testing.assert_close(refine(net, initial, 0.7, n_steps, 3, 2.0), w)


@torch.no_grad()
def test_no_step_changes_nothing() -> None:
    initial = unit(randn(2, 9, 8))
    assert torch.equal(refine(denoiser(), initial, 0.0, 3), initial)
