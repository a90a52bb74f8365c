"""wDAE and its starting point through the same checks, then what wDAE promises beyond them."""

from __future__ import annotations

import math

import pytest
import torch
from seeded import randn
from torch import Tensor

from wdae.errors import ModelError
from wdae.methods import WDAE, BaseClasses, InitialEstimate, Method, Support, WeightScorer, make, names
from wdae.methods.calibration import step_for, steps_for
from wdae.nn import Denoiser, build_graph, cosine_scores, unit
from wdae.nn.generate import initial_estimate, refine

E, N, n, K, Q, D = 4, 30, 5, 3, 6, 12


BASE = BaseClasses(2 * randn(N, D), scale=12.0)
SUPPORT = Support(randn(E, n, K, D, seed=1))
QUERIES = randn(E, Q, D, seed=2)


def denoiser(kind: str = "gnn", n_layers: int = 2) -> Denoiser:
    net = Denoiser(D, 10, n_layers, 0.9, kind, torch.Generator().manual_seed(1))  # type: ignore[arg-type]
    source = torch.Generator().manual_seed(2)
    for name, tensor in net.state_dict().items():
        if ".norm." in name and tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=source)
            tensor.copy_(0.5 + noise.abs() if name.endswith(("var", "weight")) else 0.3 * noise)
    return net.eval()


@pytest.fixture(params=["initial-estimate", "wdae-gnn", "wdae-mlp"])
def method(request: pytest.FixtureRequest) -> Method:
    options = {} if request.param == "initial-estimate" else {"dim": D, "hidden": 10}
    return make(request.param, **options)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=tolerance)


@torch.no_grad()
def test_shapes_and_the_novel_columns(method: Method) -> None:
    adapter = method.on(BASE)
    novel, joint = adapter.adapt(SUPPORT)(QUERIES), adapter.adapt(SUPPORT, joint=True)(QUERIES)
    assert novel.shape == (E, Q, n)
    assert joint.shape == (E, Q, N + n)
    assert bool(joint.isfinite().all())
    close(joint[..., N:], novel)
    close(method.adapt(SUPPORT, BASE, joint=True)(QUERIES), joint)


@torch.no_grad()
def test_episodes_do_not_touch_each_other(method: Method) -> None:
    together = method.adapt(SUPPORT, BASE, joint=True)(QUERIES)
    for e in range(E):
        some = slice(e, e + 1)
        alone = method.adapt(Support(SUPPORT.features[some]), BASE, joint=True)(QUERIES[some])
        close(alone[0], together[e])


@torch.no_grad()
def test_permuting_the_classes_permutes_the_scores(method: Method) -> None:
    scores = method.adapt(SUPPORT, BASE, joint=True)(QUERIES)
    base_order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    novel_order = torch.tensor([3, 0, 4, 1, 2])
    base = BaseClasses(BASE.weights[base_order], BASE.scale)
    permuted = method.adapt(Support(SUPPORT.features[:, novel_order]), base, joint=True)(QUERIES)
    close(permuted, scores[..., torch.cat([base_order, N + novel_order])])


@torch.no_grad()
def test_order_of_shots_and_lengths_do_not_matter(method: Method) -> None:
    scores = method.adapt(SUPPORT, BASE)(QUERIES)
    factors = randn(E, n, K, 1, seed=5).abs() + 0.1
    close(method.adapt(Support(SUPPORT.features.flip(2) * factors), BASE)(3 * QUERIES), scores)


@torch.no_grad()
def test_a_mask_is_as_good_as_fewer_shots(method: Method) -> None:
    mask = torch.tensor([True, True, False]).expand(E, n, K)
    masked = method.adapt(Support(SUPPORT.features, mask), BASE, joint=True)(QUERIES)
    close(masked, method.adapt(Support(SUPPORT.features[:, :, :2]), BASE, joint=True)(QUERIES))


def test_describe_is_plain_data(method: Method) -> None:
    import json

    assert json.loads(json.dumps(method.describe())) == method.describe()
    assert method.name in names()


def test_initial_estimate_is_the_nearest_mean() -> None:
    scorer = InitialEstimate().adapt(SUPPORT, BASE, joint=True)
    expected = cosine_scores(QUERIES, initial_estimate(BASE.weights, SUPPORT.features), 12.0)
    close(scorer(QUERIES), expected, 1e-5)


@pytest.mark.parametrize("kind", ["gnn", "mlp"])
@pytest.mark.parametrize("n_layers", [1, 2, 3])
@pytest.mark.parametrize("n_steps", [1, 2])
@pytest.mark.parametrize("step", [0.3, 1.0])
@torch.no_grad()
def test_wdae_is_the_plain_refinement(kind: str, n_layers: int, n_steps: int, step: float) -> None:
    net = denoiser(kind, n_layers)
    method = WDAE(net, 7.0, {1: step}, n_steps, 4, 3.0)
    weights = refine(net, initial_estimate(BASE.weights, SUPPORT.features), step, n_steps, 4, 3.0)
    expected = cosine_scores(QUERIES, weights, 7.0)
    scorer = method.adapt(SUPPORT, BASE, joint=True)
    close(scorer(QUERIES), expected)
    close(scorer.weights(), unit(weights))
    close(method.adapt(SUPPORT, BASE)(QUERIES), expected[..., N:])


@pytest.mark.parametrize("kind", ["gnn", "mlp"])
@pytest.mark.parametrize("n_steps", [1, 2])
@torch.no_grad()
def test_each_class_moves_by_its_own_number_of_shots(kind: str, n_steps: int) -> None:
    """And base classes by the mean over the episode's novel classes."""
    net, table = denoiser(kind), {1: 1.0, 2: 0.6, 3: 0.2}
    shots = torch.tensor([[1, 2, 3, 3, 1], [3, 3, 3, 3, 3], [1, 1, 1, 1, 1], [2, 2, 1, 3, 2]])
    mask = torch.arange(K) < shots.unsqueeze(-1)
    scorer = WDAE(net, None, table, n_steps).adapt(Support(SUPPORT.features, mask), BASE, joint=True)
    for e in range(E):
        own = torch.tensor([table[int(k)] for k in shots[e]])
        steps = torch.cat([own.mean().expand(N), own])[:, None]
        initial = initial_estimate(BASE.weights, SUPPORT.features[e : e + 1], mask[e : e + 1])
        expected = refine(net, initial, steps, n_steps)
        close(scorer(QUERIES)[e], cosine_scores(QUERIES[e], expected[0], 12.0))


def test_step_interpolation() -> None:
    table = {1: 1.0, 5: 0.5, 20: 0.1}
    assert [step_for(k, table) for k in (1, 5, 20)] == pytest.approx([1.0, 0.5, 0.1])
    assert step_for(50, table) == 0.1
    assert step_for(1, {5: 0.4}) == step_for(50, {5: 0.4}) == 0.4
    assert step_for(3, {}) == 1.0
    assert step_for(10, table) == pytest.approx(0.5 - 0.4 * math.log(2) / math.log(4))
    assert step_for(math.sqrt(5), table) == pytest.approx(0.75)
    values = [step_for(k, table) for k in range(1, 20)]
    assert values == sorted(values, reverse=True)
    shots = torch.tensor([[1, 10], [20, 1]])
    expected = [[step_for(int(k), table) for k in row] for row in shots]
    close(steps_for(shots, table), torch.tensor(expected), 1e-6)


def test_defaults() -> None:
    method = WDAE(denoiser())
    assert method.name == "wdae-gnn"
    assert WDAE(denoiser("mlp")).name == "wdae-mlp"
    assert method.steps == {1: 1.0, 5: 0.5}
    assert method.describe() == {"steps": {"1": 1.0, "5": 0.5}, "n_steps": 1, "precision": "float32"}


@torch.no_grad()
def test_scale_of_the_base_classes_unless_given() -> None:
    close(
        WDAE(denoiser()).adapt(SUPPORT, BASE)(QUERIES) * 2,
        WDAE(denoiser(), 24.0).adapt(SUPPORT, BASE)(QUERIES),
    )


@torch.no_grad()
def test_a_cached_graph_and_a_memory_cap_change_nothing() -> None:
    expected = WDAE(denoiser()).on(BASE).adapt(SUPPORT, joint=True)(QUERIES)
    cached = WDAE(denoiser()).on(BASE, graph=build_graph(BASE.weights))
    close(cached.adapt(SUPPORT, joint=True)(QUERIES), expected)
    capped = WDAE(denoiser(), memory_mb=1e-6)
    close(capped.on(BASE).adapt(SUPPORT, joint=True)(QUERIES), expected)


@pytest.mark.parametrize("kind", ["gnn", "mlp"])
@torch.no_grad()
def test_bfloat16_scores_stay_near_float32(kind: str) -> None:
    exact = WDAE(denoiser(kind)).adapt(SUPPORT, BASE, joint=True)(QUERIES)
    rough = WDAE(denoiser(kind), dtype=torch.bfloat16).adapt(SUPPORT, BASE, joint=True)(QUERIES)
    assert rough.dtype == torch.float32
    assert 0 < float((rough - exact).abs().max()) < 0.02 * BASE.scale


def test_weights_of_a_scorer_for_all_episodes() -> None:
    scorer = WeightScorer(randn(E, n, D), randn(N, D), 1.0)
    assert scorer.weights().shape == (E, N + n, D)
    assert WeightScorer(randn(E, n, D), None, 1.0).weights().shape == (E, n, D)


def test_unknown_method_and_bad_options() -> None:
    with pytest.raises(ModelError, match="no method is called 'wdae-gn'; did you mean 'wdae-gnn'"):
        make("wdae-gn")
    with pytest.raises(ModelError, match="at least 1 step, got n_steps=0"):
        WDAE(denoiser(), n_steps=0)


def test_feature_size_different_from_the_model() -> None:
    with pytest.raises(ModelError, match="works on features of size 12, the base weights have 9"):
        WDAE(denoiser()).on(BaseClasses(randn(6, 9)))
    with pytest.raises(ModelError, match="support features have 9 dimensions, the model works on 12"):
        WDAE(denoiser()).on(BASE).adapt(Support(randn(1, 2, 1, 9)))
