"""What every method promises. A check takes a method's name and asserts; ``CHECKS`` says whom it concerns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from method_samples import bank_of, fresh, recipe_of, trained
from torch import Tensor

from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.errors import ModelError
from wdae.evaluation.protocol import base_classes, few_way, gather_support, take_rows
from wdae.methods import WDAE, LearnedMethod, Method, Support, find, is_learned
from wdae.methods.saved import load_method, save_method
from wdae.nn.cosine import unit
from wdae.parts import Part
from wdae.stage2.learner import gather_batch
from wdae.stage2.state import build_optimiser

E, n, K, Q = 6, 5, 3, 4
Check = Callable[[str], None]
CHECKS: dict[Check, Callable[[str], bool]] = {}
"""Each check, and whether it concerns a method."""


def check(concerns: Callable[[str], bool] = lambda name: True) -> Callable[[Check], Check]:
    """Put a function among the checks."""

    def put(function: Check) -> Check:
        CHECKS[function] = concerns
        return function

    return put


def learned(name: str) -> bool:
    return is_learned(name)


def joint(name: str) -> bool:
    return find(name).joint


def unordered(name: str) -> bool:
    return not find(name).ordered


def sample(n_shot: int = K) -> tuple[Support, Tensor]:
    """Support and queries of novel classes: ``[E, n, K, D]`` and ``[E, n·Q, D]``."""
    pool = bank_of("easy").select(Part.NOVEL)
    episodes = EpisodeSampler(pool, EpisodeSpec(n, (n_shot,), Q), seed=1).draw(0, E)
    return gather_support(pool, episodes), take_rows(pool.features, episodes.query.flatten(1))


def scores_of(method: Method, support: Support, queries: Tensor, joint: bool = False) -> Tensor:
    with torch.no_grad():
        return method.on(base_classes(bank_of("easy"))).adapt(support, joint)(queries)


def decided(scores: Tensor) -> Tensor:
    """Scores up to what no decision depends on: a common shift of all classes of a query."""
    return scores - scores.mean(-1, keepdim=True)


def close(a: Tensor, b: Tensor, tolerance: float = 2e-3) -> None:
    torch.testing.assert_close(decided(a), decided(b), rtol=1e-3, atol=tolerance)


@check()
def it_says_what_it_is(name: str) -> None:
    kind = find(name)
    assert kind.about and kind.paper and kind.__doc__
    assert trained(name).name == name


@check()
def shapes(name: str) -> None:
    support, queries = sample()
    scores = scores_of(trained(name), support, queries)
    assert scores.shape == (E, n * Q, n)
    assert scores.isfinite().all()


@check(joint)
def joint_shapes_base_first(name: str) -> None:
    support, queries = sample()
    bank = bank_of("easy")
    scores = scores_of(trained(name), support, queries, joint=True)
    assert scores.shape == (E, n * Q, bank.n_base + n)
    held_out = bank.select(Part.BASE_HELD_OUT)
    rows = held_out.starts[:12]
    known = scores_of(trained(name), support, held_out.features[rows].expand(E, -1, -1), joint=True)
    right = (known[..., : bank.n_base].argmax(-1) == torch.arange(12)).float().mean()
    assert right > 0.5


@check(lambda name: not joint(name))
def base_classes_are_refused_where_they_cannot_be_scored(name: str) -> None:
    support, queries = sample()
    with pytest.raises(ModelError, match="novel classes only"):
        scores_of(trained(name), support, queries, joint=True)


@check(unordered)
def the_order_of_shots_does_not_matter(name: str) -> None:
    support, queries = sample()
    turned = Support(support.features[:, :, [2, 0, 1]])
    close(scores_of(trained(name), turned, queries), scores_of(trained(name), support, queries))


@check(unordered)
def the_order_of_classes_carries_over(name: str) -> None:
    support, queries = sample()
    order = [3, 0, 4, 2, 1]
    turned = Support(support.features[:, order])
    close(scores_of(trained(name), turned, queries), scores_of(trained(name), support, queries)[..., order])


@check()
def episodes_do_not_see_each_other(name: str) -> None:
    support, queries = sample()
    whole = scores_of(trained(name), support, queries)
    for e in range(E):
        alone = scores_of(trained(name), Support(support.features[e : e + 1]), queries[e : e + 1])
        close(alone[0], whole[e])


@check(lambda name: not find(name).transductive)
def queries_do_not_see_each_other(name: str) -> None:
    support, queries = sample()
    whole = scores_of(trained(name), support, queries)
    close(scores_of(trained(name), support, queries[:, 3:5]), whole[:, 3:5])


@check()
def padding_of_unequal_shots_is_not_seen(name: str) -> None:
    support, queries = sample(n_shot=2)
    junk = torch.cat([support.features, 9 * torch.ones(E, n, 1, support.features.shape[-1])], dim=2)
    mask = torch.tensor([True, True, False]).expand(E, n, 3)
    padded = scores_of(trained(name), Support(junk, mask), queries)
    close(padded, scores_of(trained(name), support, queries))


@check()
def above_chance(name: str) -> None:
    result = few_way(trained(name), bank_of("easy"), 1, n_episodes=150, joint=False)
    assert result.metrics["novel"].mean - 3 * result.metrics["novel"].ci95 > 0.2


@check()
def perfect_where_images_of_a_class_are_alike(name: str) -> None:
    method, bank = trained(name, "no-spread"), bank_of("no-spread")
    for n_shot in (1, 5):
        result = few_way(method, bank, n_shot, n_query=5, n_episodes=40, joint=False)
        assert result.metrics["novel"].mean == 1.0


@check(lambda name: learned(name) and find(name) is not WDAE)
def gradients_reach_every_parameter(name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        _gradients_reach(name, dtype)


def _gradients_reach(name: str, dtype: torch.dtype) -> None:
    bank = bank_of("easy")
    method, recipe = fresh(name, bank), recipe_of(name)
    wanted = {key for key, p in method.named_parameters() if p.requires_grad}
    if not wanted:
        return  # nothing is learned by gradients
    assert bank.base_weights is not None
    training = recipe.training
    base_queries = 10 if method.joint else 0
    spec = EpisodeSpec(5, training.shots, 4, base_queries)
    pool = bank.select(Part.BASE_TRAIN)
    sampler = EpisodeSampler(pool, spec, seed=0, fake=True)
    optimiser = build_optimiser(method, training, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    reached: set[str] = set()
    method.train()
    for step in range(3):  # a network whose last layer starts at zero is reached in the second step
        batch = gather_batch(pool, unit(bank.base_weights), sampler.draw(8 * step, 8), equal_shots=False)
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            losses = method(batch, generator)
        losses.total.backward()
        optimiser.step()
        for key, p in method.named_parameters():
            if p.grad is not None and bool(p.grad.abs().sum() > 0):
                assert p.grad.isfinite().all(), key
                reached.add(key)
    assert reached == wanted


@check(learned)
def saved_and_loaded_it_scores_the_same(name: str) -> None:
    support, queries = sample()
    method = trained(name)
    with tempfile.TemporaryDirectory() as folder:
        save_method(Path(folder, "model.safetensors"), method, name)
        loaded = load_method(Path(folder, "model.safetensors"))
    assert loaded.name == method.name
    torch.testing.assert_close(
        scores_of(loaded, support, queries), scores_of(method, support, queries), rtol=0, atol=0
    )


@check(learned)
def a_saved_method_is_refused_for_another_feature_size(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_method(Path(folder, "model.safetensors"), trained(name), name)
        with pytest.raises(ModelError, match="size 24, and size 640"):
            load_method(Path(folder, "model.safetensors"), dim=640)


@check()
def bfloat16_within_tolerance(name: str) -> None:
    support, queries = sample()
    method = trained(name)
    exact = decided(scores_of(method, support, queries))
    if isinstance(method, WDAE):  # it has a precision of its own
        method = WDAE(method.denoiser, method.scale, method.steps, dtype=torch.bfloat16)
        rough = decided(scores_of(method, support, queries).float())
    else:
        with torch.autocast("cpu", torch.bfloat16):
            rough = decided(scores_of(method, support, queries).float())
    assert (rough - exact).norm() <= 0.05 * exact.norm()
    assert (rough.argmax(-1) == exact.argmax(-1)).float().mean() >= 0.95


@check(lambda name: learned(name) and issubclass(find(name), LearnedMethod))
def training_is_the_same_each_time(name: str) -> None:
    if name == "snail":
        return  # its training takes longest; the loop is the same for all
    first, again = trained(name), trained.__wrapped__(name)
    assert isinstance(first, LearnedMethod) and isinstance(again, LearnedMethod)
    for key, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[key]), key
