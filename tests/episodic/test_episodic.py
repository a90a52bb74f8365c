"""Training on episodes of pictures: every method learns, goes on exactly and is its paper's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conv4_results
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from wdae import backbones
from wdae.bank import ClassSet
from wdae.cli.app import run_app
from wdae.cli.main import main, root
from wdae.config import load
from wdae.data.augment import prepare
from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.episodic import run as run_module
from wdae.episodic.config import EpisodicRecipe
from wdae.episodic.heads import (
    HEADS,
    EpisodeHead,
    GraphHead,
    MatchingHead,
    PrototypicalHead,
    R2D2Head,
    RelationHead,
)
from wdae.episodic.learners import MamlLearner, build_learner
from wdae.episodic.run import MODEL, train_and_test
from wdae.episodic.train import CHECKPOINT, EpisodeBatches, Gradient, Recorded, measure, pool_of
from wdae.errors import RecipeError
from wdae.evaluation.results import Result
from wdae.parts import Part
from wdae.runs.run import Run
from wdae.runtime.device import fast_arithmetic
from wdae.runtime.randomness import derive_seed
from wdae.storage.checkpoint import load_checkpoint

METHODS = [*HEADS, "maml"]
SIDE = 16
SMALL: dict[str, Any] = {
    "data.path": "nowhere",
    "data.size": SIDE,
    "backbone": "conv4-32",
    "backbone_options": {"image_size": SIDE},
    "episode": {"ways": 3, "queries": 3, "per_step": 4},
    "measure": {"ways": 3, "queries": 3, "every": 4, "validation_episodes": 10, "episodes": 30},
    "steps": 8,
    "augment": {"padding": 1, "flip": 0.0, "brightness": 0.0, "contrast": 0.0, "saturation": 0.0},
    "log_every": 4,
}
OWN: dict[str, dict[str, Any]] = {
    "relation": {
        "backbone": "conv4-64",
        "backbone_options": {"image_size": 40, "pooled_blocks": 2, "final_relu": True},
        "data.size": 40,
        "episode": {"ways": 3, "queries": 2, "per_step": 2},
    },
    "gnn": {
        "options": {"embedded": 16, "hidden": 16},
        "backbone": "conv4-256",
        "backbone_options": {"image_size": SIDE, "leak": 0.2, "dropout": [0, 0, 0.4, 0.5]},
    },
    "maml": {"options": {"steps": 2, "test_steps": 3, "rate": 0.1}},
}


def recipe(method: str, **changes: Any) -> EpisodicRecipe:
    given = {key.replace("__", "."): value for key, value in changes.items()}
    return load(EpisodicRecipe, None, SMALL | {"method": method} | OWN.get(method, {}) | given)


def stripes(classes: int, seed: int, side: int) -> np.ndarray:
    """Ten pictures a class: stripes of a direction of its own, on a colour that says nothing."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side]
    angles = np.pi * (np.arange(classes) + rng.uniform()) / classes
    phase = rng.uniform(0, 6, (classes, 10, 1, 1))
    turned = x * np.cos(angles)[:, None, None] + y * np.sin(angles)[:, None, None]
    wave = 40 * np.sin(1.2 * turned[:, None] + phase)[..., None]
    colour = rng.uniform(-80, 80, (classes, 10, 1, 1, 3))
    return (
        (128 + wave + colour + rng.normal(0, 15, (classes, 10, side, side, 3))).clip(0, 255).astype(np.uint8)
    )


def pools(side: int = SIDE) -> dict[Part, ClassSet]:
    def pool(classes: int, seed: int) -> ClassSet:
        images = torch.from_numpy(stripes(classes, seed, side)).flatten(0, 1).permute(0, 3, 1, 2)
        names = tuple(f"class {c}" for c in range(classes))
        return pool_of(images, torch.arange(classes).repeat_interleave(10), names)

    return {Part.BASE_TRAIN: pool(12, 1), Part.VALIDATION: pool(6, 2), Part.NOVEL: pool(6, 3)}


def test_less_precise_products_end_with_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precision, real, seen = torch.get_float32_matmul_precision, run_module.measure, []

    def noted(*given: Any) -> torch.Tensor:
        seen.append(precision())
        return real(*given)

    monkeypatch.setattr(run_module, "fast_arithmetic", lambda _: fast_arithmetic(torch.device("cuda")))
    monkeypatch.setattr(run_module, "measure", noted)
    config = recipe("prototypical")
    assert train_and_test(Run.create(tmp_path / "run", config), config, pools(config.data.size)) is not None
    assert (precision(), seen) == ("highest", ["high"])


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_whole_and_goes_on_exactly(method: str, tmp_path: Path) -> None:
    config = recipe(method)
    data = pools(config.data.size)
    whole = Run.create(tmp_path / "whole", config)
    result = train_and_test(whole, config, data)
    assert result is not None
    assert sum("loss" in row for row in whole.metrics()) == 2
    assert [row["step"] for row in whole.metrics() if "validation" in row] == [0, 4, 8]
    assert result.info["transductive"] is (method == "maml")
    assert Result.load(next(whole.results.glob("*.json"))).metrics == result.metrics
    again = train_and_test(whole, config, data, resume=True)
    assert again is not None and again.metrics == result.metrics
    assert [row["step"] for row in whole.metrics() if "novel" in row] == [8]

    parts = Run.create(tmp_path / "parts", config)
    assert train_and_test(parts, config, data, max_seconds=0) is None
    step = load_checkpoint(parts.path / CHECKPOINT).state["step"]
    assert 0 < step < config.steps
    again = train_and_test(parts, config, data, resume=True)
    assert again is not None and again.metrics == result.metrics
    a, b = (load_checkpoint(run.path / MODEL).tensors for run in (whole, parts))
    assert all(torch.equal(a[name], b[name]) for name in a)
    with pytest.raises(RecipeError, match="differing: shots"):
        train_and_test(parts, recipe(method, shots=2), data, resume=True)


def test_pictures_of_an_episode_are_split_into_other_shots_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each picture of a class is its shot once, and the others are queries."""
    config = recipe(
        "matching", episode={"ways": 3, "queries": 3, "per_step": 2, "splits": 4}, steps=1, log_every=1
    )
    seen = []

    def score(self: MatchingHead, support: Tensor, queries: Tensor) -> Tensor:
        if self.training:
            seen.append((support, queries.unflatten(1, (3, 3))))
        return real(self, support, queries)

    real = MatchingHead.forward
    monkeypatch.setattr(MatchingHead, "forward", score)
    assert train_and_test(Run.create(tmp_path / "run", config), config, pools()) is not None
    ((support, queries),) = seen
    assert support.shape[:3] == (8, 3, 1)
    together = torch.cat([support, queries], 2).unflatten(0, (4, 2)).sort(3).values
    assert torch.equal(together, together[:1].expand_as(together))
    first = support.unflatten(0, (4, 2))
    assert all(not torch.equal(first[i], first[j]) for i in range(4) for j in range(i))


def test_a_run_that_the_clock_stopped_is_tested_where_asked(tmp_path: Path) -> None:
    config, data = recipe("matching"), pools()
    run = Run.create(tmp_path / "run", config)
    early = train_and_test(run, config, data, max_seconds=0, test_stopped=True)
    assert early is not None and early.info["stopped_at"] == 4
    saved = load_checkpoint(run.path / MODEL)
    learner = build_learner(config)
    learner.load_state_dict(saved.tensors)
    assert float(
        measure(learner, config, data[Part.VALIDATION], 10, derive_seed(0, "validation")).mean()
    ) == (pytest.approx(early.info["validation"]))
    whole = train_and_test(run, config, data, resume=True, test_stopped=True)
    assert whole is not None and "stopped_at" not in whole.info
    (kept,) = run.results.glob("*.json")
    assert Result.load(kept).metrics == whole.metrics


@pytest.mark.parametrize(
    ("method", "gain"), [("prototypical", 0.3), ("matching", 0.3), ("r2d2", 0.3), ("maml", 0.15)]
)
def test_training_helps_over_the_start(method: str, gain: float) -> None:
    """Without a run's choice by validation: a few steps alone raise accuracy on classes never seen."""
    config, data = recipe(method), pools()
    learner = build_learner(config)
    before = measure(learner, config, data[Part.NOVEL], 100, 0).mean()
    optimiser = torch.optim.Adam(learner.parameters(), 3e-3)
    E, n, K, Q = 4, 3, 1, 3
    labels = torch.arange(n).repeat_interleave(Q).expand(E, -1)
    learner.train()
    for _, pictures in zip(range(24), EpisodeBatches(data[Part.BASE_TRAIN], config).since(0), strict=False):
        known = learner.embed(pictures).unflatten(0, (E, n, K + Q))
        loss = learner.loss(learner.score(known[:, :, :K], known[:, :, K:].flatten(1, 2)), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert measure(learner, config, data[Part.NOVEL], 100, 0).mean() > before + gain


@pytest.mark.parametrize(
    ("head", "steps"),
    [(lambda: GraphHead(16, 2, 3, embedded=16, hidden=16), 40), (lambda: RelationHead(400, 4, 3), 10)],
    ids=["gnn", "relation"],
)
def test_a_network_that_compares_learns_to(head: Callable[[], EpisodeHead], steps: int) -> None:
    """On features made around random class centres: together with a backbone these two learn too slowly."""
    torch.manual_seed(0)
    network = head()

    def episodes(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        centres = torch.randn(count, 3, 1, network.dim, generator=draw)
        rows = centres + 0.7 * torch.randn(count, 3, 4, network.dim, generator=draw)
        labels = torch.arange(3).repeat_interleave(3).expand(count, -1)
        return rows[:, :, :1], rows[:, :, 1:].flatten(1, 2), labels

    def accuracy() -> float:
        support, queries, labels = episodes(100, 999)
        with torch.no_grad():
            return float((network.eval()(support, queries).argmax(-1) == labels).float().mean())

    before = accuracy()
    optimiser = torch.optim.Adam(network.train().parameters(), 1e-2)
    for step in range(steps):
        support, queries, labels = episodes(16, step)
        loss = network.loss(network(support, queries), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert before < 0.5 and accuracy() > 0.75


def test_matching_adds_the_attention_to_each_shot_of_a_class() -> None:
    support, queries = torch.randn(2, 3, 3, 8), torch.randn(2, 4, 8)
    found = MatchingHead(8, 2, 3, scale=5.0)(support, queries)
    for e in range(2):
        for q in range(4):
            attention = torch.tensor(
                [
                    [
                        float(torch.exp(5 * F.cosine_similarity(queries[e, q], support[e, c, k], dim=0)))
                        for k in range(3)
                    ]
                    for c in range(3)
                ]
            )
            wanted = attention.sum(1) / attention.sum()
            assert torch.allclose(found[e, q].exp(), wanted, atol=1e-5)


def test_prototypical_scores_are_distances() -> None:
    support, queries = torch.randn(2, 3, 4, 8), torch.randn(2, 5, 8)
    scores = PrototypicalHead(8, 2, 3)(support, queries)
    wanted = -10 / 8 * torch.cdist(queries, support.mean(2)).square()
    assert torch.allclose(scores.log_softmax(-1), wanted.log_softmax(-1), atol=1e-4)


def test_r2d2_solves_a_ridge_regression() -> None:
    support, queries = torch.randn(1, 3, 2, 8), torch.randn(1, 5, 8)
    scores = R2D2Head(8, 2, 3, penalty=0.5, scale=2.0)(support, queries)
    X, Y = support[0].flatten(0, 1) / 8**0.5, torch.eye(3).repeat_interleave(2, 0)
    W = torch.linalg.solve(X.T @ X + 0.5 * torch.eye(8), X.T @ Y)
    assert torch.allclose(scores[0], 2.0 * queries[0] / 8**0.5 @ W, atol=1e-4)


def test_relation_convolves_a_class_beside_a_query() -> None:
    head = RelationHead(4 * 10 * 10, 4, 3).eval()
    support, queries = torch.randn(1, 3, 2, 400), torch.randn(1, 2, 400)
    found = head(support, queries)
    kernel = torch.cat([head.of_class.weight, head.of_query.weight], 1)
    for q in range(2):
        for c in range(3):
            pair = torch.cat([support[0, c].sum(0).view(4, 10, 10), queries[0, q].view(4, 10, 10)])
            one = head.decide(head.second(head.first(F.conv2d(pair[None], kernel))))
            assert torch.allclose(found[0, q, c], torch.sigmoid(one).squeeze(), atol=1e-5)


def test_a_graph_network_scores_each_query_by_itself() -> None:
    head = GraphHead(6, 2, 3, embedded=8, hidden=8).eval()
    support, queries = torch.randn(2, 3, 2, 6), torch.randn(2, 4, 6)
    together = head(support, queries)
    alone = torch.cat([head(support, queries[:, q : q + 1]) for q in range(4)], 1)
    assert torch.allclose(together, alone, atol=1e-5)


def slow_graph(head: GraphHead, shots: Tensor, query: Tensor) -> Tensor:
    """Scores of one query ``[D]`` among shots ``[n, K, D]``, a node and an edge at a time."""
    (n, K, _), uniform = shots.shape, torch.full((head.ways,), 1 / head.ways)
    one_hot = torch.eye(n)
    nodes = [torch.cat([head.embed(query[None])[0], uniform])]
    nodes += [torch.cat([head.embed(shots[c, k][None])[0], one_hot[c]]) for c in range(n) for k in range(K)]

    def gathered(layer: int, i: int) -> Tensor:
        """A node beside the mean of the others, weighted by its edges to them."""
        others = [j for j in range(len(nodes)) if j != i]
        network = head.edges[layer].network
        strengths = torch.stack([network((nodes[i] - nodes[j]).abs()[None])[0, 0] for j in others]).softmax(0)
        return torch.cat([nodes[i], sum(a * nodes[j] for a, j in zip(strengths, others, strict=True))])

    for layer, append in enumerate(head.append):
        nodes = [torch.cat([node, append(gathered(layer, i)[None])[0]]) for i, node in enumerate(nodes)]
    return head.classify(gathered(len(head.append), 0))


@torch.no_grad()
def test_a_graph_network_is_nodes_with_labels_and_edges_between_them() -> None:
    torch.manual_seed(0)
    head = GraphHead(6, 2, 3, embedded=8, hidden=8)
    support, queries = torch.randn(2, 3, 2, 6), torch.randn(2, 4, 6)
    for _ in range(20):
        head(support, queries)  # running statistics
    found = head.eval()(support, queries)
    wanted = torch.stack(
        [torch.stack([slow_graph(head, support[e], queries[e, q]) for q in range(4)]) for e in range(2)]
    )
    assert float(wanted.std(1).min()) > 0.01
    assert torch.allclose(found, wanted, atol=1e-4)


def slow_network(learner: MamlLearner, pictures: Tensor, weights: list[Tensor]) -> Tensor:
    """One episode with torch's own convolutions and BatchNorm, normalised before it is pooled."""
    *blocks, last, offset = weights
    for kernel, gain, bias in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
        hidden = F.conv2d(pictures, kernel, padding=1)
        hidden = F.batch_norm(hidden, None, None, gain, bias, training=True)
        pictures = F.max_pool2d(torch.relu(hidden), 2)
    return F.linear(pictures.flatten(1), last, offset)


def test_maml_is_gradient_steps_on_one_episode_after_another_to_second_order() -> None:
    torch.manual_seed(0)
    learner = (
        MamlLearner(backbones.build("conv4-32", image_size=20), 20, 3, steps=2, rate=0.05).double().train()
    )
    for stage in learner.backbone.stages:
        stage[1].weight.data[::3] = -0.7  # pooled before they are normalised, values are turned over
    support, queries = torch.rand(2, 3, 2, 3, 20, 20).double(), torch.rand(2, 4, 3, 20, 20).double()
    labels = torch.tensor([[0, 1, 2, 0], [1, 1, 0, 2]])
    flat = (
        learner.embed(support.flatten(0, 2)).view(2, 3, 2, -1),
        learner.embed(queries.flatten(0, 1)).view(2, 4, -1),
    )
    scores = learner.score(*flat)
    found = torch.autograd.grad(learner.loss(scores, labels), list(learner.parameters()))
    slow = []
    for e in range(2):
        weights: list[Tensor] = list(learner.parameters())
        for _ in range(2):
            shots = slow_network(learner, support[e].flatten(0, 1), weights)
            loss = F.cross_entropy(shots, torch.arange(3).repeat_interleave(2))
            slopes = torch.autograd.grad(loss, weights, create_graph=True)
            weights = [w - 0.05 * g for w, g in zip(weights, slopes, strict=True)]
        slow.append(slow_network(learner, queries[e], weights))
    wanted = torch.stack(slow)
    assert torch.allclose(scores, wanted, atol=1e-4)
    expected = torch.autograd.grad(learner.loss(wanted, labels), list(learner.parameters()))
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-3 * float(b.abs().max()) + 1e-7)


def maml_gradient(like: Tensor, *, half: bool = False) -> tuple[Tensor, Tensor]:
    """Scores and the whole gradient of one small episode in the type of ``like``; some gains are negative."""
    torch.manual_seed(0)
    learner = MamlLearner(backbones.build("conv4-32", image_size=20), 20, 3, steps=2, rate=0.05).train()
    for stage in learner.backbone.stages:
        stage[1].weight.data[::3] = -0.7
    draw = torch.Generator().manual_seed(1)
    support, queries = torch.rand(1, 3, 2, 1200, generator=draw), torch.rand(1, 4, 1200, generator=draw)
    learner.to(like.dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        scores = learner.score(support.to(like.dtype), queries.to(like.dtype))
    learner.loss(scores, torch.tensor([[0, 1, 2, 0]])).backward()
    return scores, torch.cat([p.grad.flatten().double() for p in learner.parameters() if p.grad is not None])


def test_maml_in_bfloat16_has_nearly_the_same_gradient() -> None:
    scores, found = maml_gradient(torch.empty(0), half=True)
    assert scores.dtype == torch.float32
    exact, wanted = maml_gradient(torch.empty(0, dtype=torch.float64))
    assert 1e-6 < float((scores - exact).detach().abs().max()) < 0.2
    assert float(F.cosine_similarity(found, wanted, dim=0)) > 0.9


def test_maml_of_plain_pictures_has_numbers_for_scores() -> None:
    """Where a map is the same everywhere, rounding must not make its variance negative."""
    torch.manual_seed(0)
    learner = MamlLearner(backbones.build("conv4-32", image_size=20), 20, 3, steps=1).train()
    with torch.no_grad():
        kernel = learner.backbone.stages[0][0].weight
        kernel[:, :, :, 0] = kernel[:, :, :, 2] = kernel[:, :, 0] = kernel[:, :, 2] = 0.0  # no borders
    plain = torch.linspace(30, 90, 20).view(20, 1, 1, 1).expand(20, 1, 1, 1200)
    assert bool(learner.score(plain.expand(20, 3, 1, 1200), plain.flatten(1, 2)).isfinite().all())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="records are of GPUs")
def test_a_recorded_step_is_the_step() -> None:
    config, data = recipe("maml", precision="float32"), pools()
    base = data[Part.BASE_TRAIN].to(torch.device("cuda"))
    plain = Gradient(build_learner(config).cuda().train(), config, base.device)
    recorded = Recorded(Gradient(build_learner(config).cuda().train(), config, base.device))
    for _, pictures in zip(range(3), EpisodeBatches(base, config).since(0), strict=False):
        assert torch.allclose(plain(pictures), recorded(pictures), atol=1e-4)
        both = zip(plain.learner.parameters(), recorded.gradient.learner.parameters(), strict=True)
        for a, b in both:
            assert torch.allclose(a.grad, b.grad, atol=1e-3 * float(a.grad.abs().max()) + 1e-7)


def test_pictures_of_a_step_are_those_of_its_episodes_whatever_came_before() -> None:
    config = recipe("matching", augment__crop="none")
    batches = EpisodeBatches(pools()[Part.BASE_TRAIN], config)
    first, second = (batches.since(step) for step in (0, 1))
    next(first)
    assert torch.equal(next(first), next(second))


@pytest.mark.parametrize("method", ["relation", "gnn"])
def test_statistics_of_an_episode_are_those_of_its_pictures(method: str) -> None:
    config = recipe(method)
    own = config.model_copy(update={"measure": config.measure.model_copy(update={"statistics": "episode"})})
    novel, learner = pools(config.data.size)[Part.NOVEL], build_learner(config)
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    found = measure(learner, own, novel, 20, 0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.state_dict().items())
    assert not any(part.training for part in learner.modules())
    spec = EpisodeSpec(3, (1,), 3)
    episodes = EpisodeSampler(novel, spec, 0).draw(0, 20)
    for part in learner.modules():  # which the test must not see
        if isinstance(part, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            torch.nn.init.constant_(part.running_mean, 9.0)
            part.train()

    labels, wanted = torch.arange(3).repeat_interleave(3), []
    for shots, queries in zip(episodes.support, episodes.query, strict=True):
        images = novel.features[torch.cat([shots, queries], 1)].view(
            -1, config.data.size, config.data.size, 3
        )
        with torch.no_grad():
            known = learner.embed(prepare(images.permute(0, 3, 1, 2), config.augment)).view(1, 3, 4, -1)
            scores = learner.score(known[:, :, :1], known[:, :, 1:].flatten(1, 2))[0]
        wanted.append((scores.argmax(-1) == labels).float().mean())
    assert torch.equal(found, torch.stack(wanted))
    assert not torch.equal(found, measure(learner, config, novel, 20, 0))


def test_a_run_says_whether_queries_inform_each_other(tmp_path: Path) -> None:
    config = recipe("matching", measure__statistics="episode", steps=1)
    result = train_and_test(Run.create(tmp_path / "run", config), config, pools())
    assert result is not None and result.info["transductive"] is True


def test_faults_are_named() -> None:
    with pytest.raises(RecipeError, match="one number of classes"):
        recipe("gnn", episode={"ways": 4, "queries": 3})
    with pytest.raises(RecipeError, match=r"4 pictures of a class .* have 4 sets of shots"):
        recipe("matching", episode={"ways": 3, "queries": 3, "splits": 5})
    with pytest.raises(RecipeError, match="matching has no option 'scael'; did you mean 'scale'"):
        build_learner(recipe("matching", options={"scael": 1.0}))
    with pytest.raises(RecipeError, match=r"pictures of 32 px, data\.size is 16"):
        build_learner(recipe("matching", backbone_options={"image_size": 32}))


WIDTHS = {"widths": [4, 4, 4, 4]}


@pytest.mark.parametrize(
    ("method", "backbone", "options"),
    [
        ("maml", "resnet12", WIDTHS),
        ("maml", "conv4-512", {"final_relu": True}),  # pool is mean
        ("maml", "conv4-64", {}),  # no ReLU closes it
        ("maml", "conv4-64", {"final_relu": True, "pooled_blocks": 2}),
        ("maml", "conv4-64", {"final_relu": True, "pool": "joined"}),
        ("relation", "resnet12", WIDTHS),
        ("relation", "conv4-64", {"pooled_blocks": 3}),  # a map of 5 × 5
        ("relation", "conv4-64", {"pooled_blocks": 2, "pool": "joined"}),
        ("relation", "conv4-64", {"pooled_blocks": 2, "pool": "mean"}),
    ],
)
def test_a_backbone_that_a_method_cannot_take_is_refused(
    method: str, backbone: str, options: dict[str, Any]
) -> None:
    given = options | ({} if backbone == "resnet12" else {"image_size": 40})
    with pytest.raises(RecipeError, match=r"[gG]ive backbone conv4-"):
        build_learner(recipe(method, backbone=backbone, backbone_options=given, data__size=40))


def test_the_smallest_map_that_a_relation_network_takes() -> None:
    for size, taken in ((40, True), (39, False)):
        options = {"image_size": size, "pooled_blocks": 2}
        config = recipe("relation", backbone_options=options, data__size=size)
        if not taken:
            with pytest.raises(RecipeError, match="a map of 9 × 9"):
                build_learner(config)
            continue
        learner = build_learner(config).eval()
        rows = learner.embed(torch.rand(4, 3, size, size))
        assert learner.score(rows[:3].view(1, 3, 1, -1), rows[3:].unsqueeze(0)).shape == (1, 1, 3)


@pytest.mark.parametrize(
    ("method", "options", "says"),
    [
        (
            "maml",
            {"test_steps": 2.0},
            r"options\.test_steps .* whole number of at least 1, got 2\.0 \(number\)",
        ),
        ("maml", {"steps": True}, r"got True \(true/false\)"),
        ("maml", {"steps": 0}, "at least 1, got 0"),
        ("r2d2", {"penalty": 0.0}, r"a number above 0, got 0\.0"),
        ("gnn", {"hidden": 8.5}, "options.hidden"),
    ],
)
def test_an_option_of_another_type_or_size_is_refused(
    method: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(RecipeError, match=says):
        build_learner(recipe(method, options=options))


def words_of(place: Path, method: str = "prototypical", ways: int = 3) -> list[str]:
    """A command on pictures of four base, three validation and three novel classes, which it makes."""
    for part, classes, seed in (("base", 4, 1), ("validation", 3, 2), ("novel", 3, 3)):
        for c, some in enumerate(stripes(classes, seed, SIDE)):
            folder = place / "pictures" / part / f"{part}-{c}"
            folder.mkdir(parents=True)
            for i, image in enumerate(some[:5]):
                Image.fromarray(image).save(folder / f"{i}.png")
    return (
        f"--method {method} --data.path {place / 'pictures'} --data.size 16 --steps 2"
        f" --data.cache-dir {place / 'cache'} --backbone conv4-32 --backbone-options.image-size 16"
        f" --episode.ways {ways} --episode.queries 2 --episode.per-step 2 --measure.ways {ways}"
        " --measure.queries 2 --measure.validation-episodes 4 --measure.episodes 8"
        f" -o {place / 'run'} --device cpu"
    ).split()


@pytest.mark.parametrize("method", ["gnn", "maml"])
def test_too_few_classes_for_a_network_of_a_fixed_number_are_refused_before_decoding(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(root(), ["episodic", *words_of(tmp_path, method, ways=4)]) == 2
    assert f"has 3 validation classes, but {method} is made for 4" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


def test_another_recipe_is_refused_before_decoding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["episodic", *words_of(tmp_path)]
    assert run_app(root(), given) == 0
    shutil.rmtree(tmp_path / "cache")
    assert run_app(root(), [*given, "--resume", "--learning-rate", "0.5"]) == 2
    assert "differing: learning_rate; give the recipe" in capsys.readouterr().err
    assert run_app(root(), [*given, "--force", "--options.penalty", "1"]) == 2
    assert "prototypical has no option 'penalty'" in capsys.readouterr().err
    assert (tmp_path / "run" / CHECKPOINT).exists()  # refused before the run was replaced
    assert not (tmp_path / "cache").exists()


def test_the_command_trains_tests_and_tests_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = words_of(tmp_path)
    for more in ([], ["--resume"]):
        with pytest.raises(SystemExit) as end:
            main(["episodic", *given, *more])
        assert end.value.code == 0
    said = capsys.readouterr().out.splitlines()
    assert "3-way 1-shot" in said[-1]
    assert said[0] == said[-1]

    environment = tmp_path / "run" / "environment.json"
    known = json.loads(environment.read_text())
    environment.write_text(json.dumps(known | {"commit": "0" * 40 + "+"}))
    with pytest.raises(SystemExit, match="with changes"):
        conv4_results.collect(tmp_path / "run")
    environment.write_text(json.dumps(known | {"commit": "0" * 40}))
    record = conv4_results.collect(tmp_path / "run")
    assert len(record["curve"]) == 2
    assert record["recipe"]["data"]["path"] == "DIR"  # where it lay here is nobody's business
    assert str(tmp_path) not in json.dumps(record)
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "one.json").write_text(json.dumps(record))
    page = conv4_results.section(tmp_path / "records")
    (line,) = [line for line in page if line.startswith("| prototypical | conv4-32 | 1 |")]
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[5] == "49.42 ± 0.78" and cells[7] == "8"
    assert "commit 000000000000." in " ".join(page)
    record["rows"][0]["info"]["stopped_at"] = 1
    (tmp_path / "records" / "one.json").write_text(json.dumps(record))
    assert "| 2 of 4 |" in "\n".join(conv4_results.section(tmp_path / "records"))
    assert float(cells[6]) == pytest.approx(float(cells[4].split()[0]) - 49.42, abs=0.006)
