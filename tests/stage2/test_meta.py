"""Stage 2: the losses of a batch, the switches of the ablations, the loop, and interruption."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from wdae.bank import FeatureBank
from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.evaluation.config import EvaluationConfig
from wdae.evaluation.protocol import few_way
from wdae.methods import InitialEstimate
from wdae.nn import Denoiser, build_graph, stage2_losses, unit
from wdae.nn.generate import initial_estimate
from wdae.nn.noise import add_noise
from wdae.parts import Part
from wdae.stage2.config import DenoiserConfig, MetaRecipe, TrainingConfig
from wdae.stage2.learner import Learner, TrainingBatch, as_method, build_learner, gather_batch
from wdae.stage2.state import learning_rate
from wdae.stage2.train import train
from wdae.storage.checkpoint import load_checkpoint
from wdae.synthetic import synthetic_bank


def recipe(
    kind: str = "gnn", layers: int = 2, dropout: float = 0.5, seed: int = 0, **training: Any
) -> MetaRecipe:
    """Small and quick: 24 steps, 3 validations."""
    options = {
        "n_fake": 6,
        "queries_per_novel": 3,
        "base_queries": 20,
        "steps": 24,
        "episodes_per_step": 4,
        "validate_every": 8,
        "validation_episodes": 20,
        "keep": "last",
    }
    return MetaRecipe(
        seed=seed,
        device="cpu",
        precision="float32",
        denoiser=DenoiserConfig(kind=kind, hidden=12, layers=layers, dropout=dropout, neighbours=4),  # type: ignore[arg-type]
        training=TrainingConfig(**(options | training)),
        evaluation=EvaluationConfig(queries=6),
    )


def equal(a: Learner | dict[str, Tensor], b: Learner | dict[str, Tensor]) -> bool:
    a, b = (x if isinstance(x, dict) else x.state_dict() for x in (a, b))
    return set(a) == set(b) and all(torch.equal(a[k], b[k]) for k in a)


# The losses of a batch.


def batch_of(bank: FeatureBank, spec: EpisodeSpec | None = None) -> TrainingBatch:
    pool = bank.select(Part.BASE_TRAIN)
    spec = spec or EpisodeSpec(6, (2,), 3, 10)
    episodes = EpisodeSampler(pool, spec, 0, fake=True).draw(0, 4)
    return gather_batch(pool, unit(bank.base_weights), episodes, equal_shots=len(spec.n_shot) == 1)


def learner_of(
    bank: FeatureBank, kind: str = "gnn", dropout: float = 0.0, scale: float = 10.0, **options: Any
) -> Learner:
    net = Denoiser(bank.dim, 12, 2, dropout, kind, torch.Generator().manual_seed(1))  # type: ignore[arg-type]
    return Learner(net, scale, TrainingConfig(**options), DenoiserConfig(neighbours=4))


def test_a_batch_holds_the_features_of_its_episodes(small_bank: FeatureBank) -> None:
    pool, weights = small_bank.select(Part.BASE_TRAIN), unit(small_bank.base_weights)
    episodes = EpisodeSampler(pool, EpisodeSpec(6, (1, 3), 3, 10), 0, fake=True).draw(0, 4)
    batch = gather_batch(pool, weights, episodes, equal_shots=False)
    n_base = small_bank.n_base - 6
    assert batch.base.shape == (4, n_base, small_bank.dim)
    for e in range(4):
        for i in range(n_base):
            assert torch.equal(batch.base[e, i], weights[episodes.base_classes[e, i]])  # type: ignore[index]
        for i in range(6):
            assert torch.equal(batch.novel_targets[e, i], weights[episodes.novel_classes[e, i]])
            for k in range(3):
                assert torch.equal(batch.support[e, i, k], pool.features[episodes.support[e, i, k]])
        order = [*episodes.base_classes[e].tolist(), *episodes.novel_classes[e].tolist()]  # type: ignore[index]
        for feature, label in zip(batch.queries[e], batch.labels[e].tolist(), strict=True):
            rows = (pool.features == feature).all(-1).nonzero().flatten()
            assert pool.labels[rows].tolist() == [order[label]]
    assert torch.equal(batch.support_mask, episodes.support_mask)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["gnn", "mlp"])
@pytest.mark.parametrize(("noise", "noisy_targets"), [(0.0, False), (0.2, False), (0.2, True)])
def test_losses_of_a_batch_step_by_step(
    small_bank: FeatureBank, kind: str, noise: float, noisy_targets: bool
) -> None:
    options = {"noise": noise, "noisy_targets": noisy_targets}
    batch, learner = batch_of(small_bank), learner_of(small_bank, kind, scale=8.0, **options)
    losses = learner(batch, torch.Generator().manual_seed(5))

    initial = initial_estimate(batch.base, batch.support)
    if noisy_targets:  # fake novel classes too begin at their learned weights
        initial = torch.cat([batch.base, batch.novel_targets], dim=1)
    graph = build_graph(initial, 4)  # of the estimates before the noise
    weights = add_noise(initial, noise, torch.Generator().manual_seed(5)) if noise else initial
    expected = stage2_losses(
        learner_of(small_bank, kind).denoiser(weights, graph),
        torch.cat([batch.base, batch.novel_targets], dim=1),
        batch.queries,
        batch.labels,
        8.0,
    )
    torch.testing.assert_close(losses.reconstruction, expected.reconstruction)
    torch.testing.assert_close(losses.classification, expected.classification)
    torch.testing.assert_close(losses.total, expected.reconstruction + expected.classification)
    right = expected.scores.argmax(-1) == batch.labels
    torch.testing.assert_close(losses.accuracy, right.float().mean())


def test_a_step_compiles_into_one_graph(small_bank: FeatureBank) -> None:
    """As on a GPU, operation by operation; eagerly, a CPU goes in pieces: both give the same."""
    batch, found = batch_of(small_bank), []
    for compiled in (False, True):
        learner = learner_of(small_bank, noise=0.0)
        step = torch.compile(learner, fullgraph=True, backend="aot_eager") if compiled else learner
        losses = step(batch, None)
        losses.total.backward()
        found.append([losses.total.detach(), losses.accuracy, *[p.grad for p in learner.parameters()]])
    for eager, recorded in zip(*found, strict=True):
        torch.testing.assert_close(eager, recorded, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["gnn", "mlp"])
@pytest.mark.parametrize("switched_off", [None, "classification_loss", "reconstruction_loss"])
def test_a_gpu_minimises_what_a_cpu_does(
    small_bank: FeatureBank, kind: str, switched_off: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ablations too: a GPU adds up the losses in code of its own, which runs here on a CPU."""
    batch, found = batch_of(small_bank), []
    options = {"noise": 0.0} | ({switched_off: False} if switched_off else {})
    for in_pieces in (True, False):
        monkeypatch.setattr("wdae.stage2.learner.in_pieces", lambda _, answer=in_pieces: answer)
        learner = learner_of(small_bank, kind, **options)
        losses = learner(batch, None)
        losses.total.backward()
        values = [losses.total, losses.reconstruction, losses.classification, losses.accuracy]
        found.append([*values, *[p.grad for p in learner.parameters()]])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_without_noise_nothing_is_drawn(small_bank: FeatureBank) -> None:
    batch = batch_of(small_bank)
    for noise in (0.0, 0.1):
        a, b = (
            learner_of(small_bank, noise=noise)(batch, torch.Generator().manual_seed(s)).total for s in (1, 2)
        )
        assert torch.equal(a, b) == (noise == 0.0)


def test_without_classification_loss_the_scale_has_no_gradient(small_bank: FeatureBank) -> None:
    batch = batch_of(small_bank)
    gradients = {}
    for name, switches in {
        "both": {},
        "reconstruction": {"classification_loss": False},
        "classification": {"reconstruction_loss": False},
    }.items():
        learner = learner_of(small_bank, noise=0.0, **switches)
        losses = learner(batch)
        losses.total.backward()
        gradients[name] = {k: p.grad for k, p in learner.named_parameters()}
        if name != "both":
            torch.testing.assert_close(losses.total.detach(), getattr(losses, name))
    assert gradients["reconstruction"]["scale"] is None
    assert gradients["classification"]["scale"] is not None
    for key, both in gradients["both"].items():
        parts = [gradients[name][key] for name in ("reconstruction", "classification")]
        total = sum(p for p in parts if p is not None)
        torch.testing.assert_close(both, total, rtol=1e-3, atol=1e-5)


def test_noisy_targets_do_not_look_at_the_shots(small_bank: FeatureBank) -> None:
    batch = batch_of(small_bank)
    from dataclasses import replace

    other = replace(batch, support=batch.support.flip(0))
    for noisy_targets in (True, False):
        learner = learner_of(small_bank, noise=0.1, noisy_targets=noisy_targets)
        totals = [learner(x, torch.Generator().manual_seed(1)).total for x in (batch, other)]
        assert torch.equal(*totals) == noisy_targets
    # Without noise the input is the target itself.
    net = learner_of(small_bank, noise=0.0, noisy_targets=True)
    targets = torch.cat([batch.base, batch.novel_targets], dim=1)
    expected = stage2_losses(
        learner_of(small_bank).denoiser(targets, build_graph(targets, 4)),
        targets,
        batch.queries,
        batch.labels,
        10.0,
    )
    torch.testing.assert_close(net(batch).reconstruction, expected.reconstruction)


def test_unequal_shots_reach_the_estimate(small_bank: FeatureBank) -> None:
    from dataclasses import replace

    batch = batch_of(small_bank, EpisodeSpec(6, (1, 4), 3, 10, unequal=True))
    assert batch.support_mask is not None
    assert not bool(batch.support_mask.all())
    learner = learner_of(small_bank, noise=0.0)
    spoiled = replace(batch, support=batch.support.masked_fill(~batch.support_mask.unsqueeze(-1), 7.0))
    torch.testing.assert_close(learner(spoiled).total, learner_of(small_bank, noise=0.0)(batch).total)


# The loop.


@pytest.mark.parametrize("kind", ["gnn", "mlp"])
def test_the_loss_falls_and_the_result_beats_its_start(small_bank: FeatureBank, kind: str) -> None:
    lines: list[dict[str, Any]] = []
    config = recipe(kind, dropout=0.2, steps=400, validate_every=50, base_queries=30, learning_rate=0.02)
    learner = train(config, small_bank, log=lines.append)
    assert not learner.training
    assert lines[-1]["loss"] < 0.9 * lines[0]["loss"]
    assert lines[-1]["reconstruction"] < lines[0]["reconstruction"]
    assert lines[-1]["accuracy"] > lines[0]["accuracy"]
    options = {"n_query": 10, "n_episodes": 300, "joint": False}
    trained = few_way(as_method(learner, config, {1: 1.0}), small_bank, 1, **options)  # type: ignore[arg-type]
    fresh = few_way(
        as_method(build_learner(config, small_bank.dim, 10.0).eval(), config, {1: 1.0}),
        small_bank,
        1,
        **options,  # type: ignore[arg-type]
    )
    start = few_way(InitialEstimate(), small_bank, 1, **options)  # type: ignore[arg-type]
    assert trained.metrics["novel"].mean > fresh.metrics["novel"].mean + 0.05
    assert trained.metrics["novel"].mean > start.metrics["novel"].mean


def test_what_is_logged(small_bank: FeatureBank) -> None:
    lines: list[dict[str, Any]] = []
    output: list[int] = []
    train(recipe(steps=20), small_bank, log=lines.append, on_progress=lambda n, **_: output.append(n))
    assert [line["step"] for line in lines] == [8, 16, 20]
    assert [line["episodes"] for line in lines] == [32, 64, 80]
    assert sum(output) == 80
    for line in lines:
        assert line["loss"] == pytest.approx(line["reconstruction"] + line["classification"], rel=1e-5)
        assert 0 <= line["accuracy"] <= 1
        assert {"validation", "validation_ci95", "learning_rate"} <= set(line)


def test_learning_rates() -> None:
    base = {"steps": 100, "learning_rate": 0.1}
    constant = TrainingConfig(schedule="constant", **base)
    assert {learning_rate(constant, s) for s in range(100)} == {0.1}
    stepped = TrainingConfig(schedule="step", milestones=(0.5, 0.75), decay=0.1, **base)
    assert [learning_rate(stepped, s) for s in (0, 49, 50, 74, 75, 99)] == pytest.approx(
        [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    )
    cosine = TrainingConfig(schedule="cosine", **base)
    for s in range(100):
        assert learning_rate(cosine, s) == pytest.approx(0.05 * (1 + math.cos(math.pi * s / 100)))


def test_the_optimiser_uses_the_schedule(small_bank: FeatureBank) -> None:
    """One dimension of the state would do, but the lines and the weights are what a user sees."""
    lines: list[dict[str, Any]] = []
    quick = {"learning_rate": 0.1, "decay": 1e-12, "milestones": (0.5,), "steps": 16, "validate_every": 8}
    quick |= {"momentum": 0.0, "weight_decay": 0.0}
    stepped = train(recipe("mlp", 1, schedule="step", **quick), small_bank, log=lines.append)
    assert [line["learning_rate"] for line in lines] == pytest.approx([0.1, 1e-13])
    half = train(recipe("mlp", 1, schedule="constant", **(quick | {"steps": 8})), small_bank)
    for a, b in zip(stepped.parameters(), half.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)  # nothing moved after the drop


@pytest.mark.parametrize(
    "change",
    [
        {"noise": 0.0},
        {"noisy_targets": True},
        {"classification_loss": False},
        {"reconstruction_loss": False},
        {"shots": (1, 3)},
        {"shots": (1, 3), "unequal_shots": True},
        {"weight_decay": 0.0},
        {"momentum": 0.0},
        {"seed": 1},
    ],
    ids=str,
)
def test_every_switch_changes_the_weights(small_bank: FeatureBank, change: dict[str, Any]) -> None:
    assert not equal(train(recipe(**change), small_bank), train(recipe(), small_bank))


def test_ablations_through_the_recipe(small_bank: FeatureBank) -> None:
    no_decay = {"weight_decay": 0.0}
    start = build_learner(recipe(), small_bank.dim, float(small_bank.cosine_scale or 0)).scale
    for loss, moved in (("reconstruction_loss", True), ("classification_loss", False)):
        learner = train(recipe(**{loss: False}, **no_decay), small_bank)
        assert (learner.scale.item() != start.item()) == moved
    assert start.item() == small_bank.cosine_scale


@pytest.mark.parametrize(("kind", "dropout"), [("gnn", 0.5), ("gnn", 0.95), ("mlp", 0.5)])
def test_the_same_seed_gives_the_same_weights(small_bank: FeatureBank, kind: str, dropout: float) -> None:
    """Whatever else draws from torch's own generators meanwhile."""
    first = train(recipe(kind, dropout=dropout), small_bank)
    again = train(recipe(kind, dropout=dropout), small_bank, on_progress=lambda *_, **__: torch.rand(3))
    assert equal(first, again)


def test_the_number_of_threads_does_not_matter() -> None:
    """So large that torch would share a product out among threads, which adds up in another order."""
    bank = synthetic_bank(64, 6, 8, 20, 256, seed=3, held_out_per_class=5)
    own = recipe("gnn", steps=2, episodes_per_step=16, n_fake=15, base_queries=60, validate_every=2)
    wide = own.model_copy(update={"denoiser": DenoiserConfig(kind="gnn", hidden=128)})
    found = {}
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found[threads] = train(wide, bank)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(1)
    assert equal(found[1], found[2])


def test_early_stopping(small_bank: FeatureBank) -> None:
    """A rate that moves nothing, no BatchNorm: validation never gets better after the first."""
    lines: list[dict[str, Any]] = []
    config = recipe("mlp", 1, steps=100, validate_every=5, patience=3, learning_rate=1e-12, keep="best")
    train(config, small_bank, log=lines.append)
    assert [line["step"] for line in lines] == [5, 10, 15, 20]
    assert len({line["validation"] for line in lines}) == 1
    lines.clear()
    train(recipe("mlp", 1, steps=30, validate_every=5, learning_rate=1e-12), small_bank, log=lines.append)
    assert len(lines) == 6


def test_a_run_stopped_early_does_not_go_on_when_resumed(small_bank: FeatureBank, tmp_path: Path) -> None:
    config = recipe("mlp", 1, steps=100, validate_every=5, patience=2, learning_rate=1e-12, keep="last")
    path = tmp_path / "c.safetensors"
    stopped = train(config, small_bank, checkpoint=path)
    lines: list[dict[str, Any]] = []
    assert equal(train(config, small_bank, checkpoint=path, resume=True, log=lines.append), stopped)
    assert lines == []


def test_best_and_last(small_bank: FeatureBank) -> None:
    """The best is what training had become at the best validation."""
    for rate in (0.3, 0.6, 1.0, 2.0):  # a rate so high that the last is not the best: else this shows nothing
        options = {"steps": 60, "validate_every": 6, "schedule": "constant", "learning_rate": rate}
        lines: list[dict[str, Any]] = []
        best = train(recipe(keep="best", **options), small_bank, log=lines.append)
        top = max(lines, key=lambda line: line["validation"])
        if top["step"] < 60:
            break
    assert top["step"] < 60
    last = train(recipe(keep="last", **options), small_bank)
    assert not equal(best, last)
    assert equal(best, train(recipe(keep="last", **(options | {"steps": top["step"]})), small_bank))


def test_without_validation_classes(small_bank: FeatureBank) -> None:
    bank = small_bank.take(small_bank.parts != Part.VALIDATION.code)
    lines: list[dict[str, Any]] = []
    learner = train(recipe(keep="last"), bank, log=lines.append)
    assert "validation" not in lines[0]
    assert equal(learner, train(recipe(keep="last"), small_bank))  # validation only looks


def test_bfloat16_on_the_cpu(small_bank: FeatureBank) -> None:
    lines: dict[str, list[dict[str, Any]]] = {"float32": [], "bfloat16": []}
    for precision, log in lines.items():
        config = recipe(dropout=0.9).model_copy(update={"precision": precision})
        learner = train(config, small_bank, log=log.append)
        assert all(p.dtype == torch.float32 for p in learner.parameters())
        assert all(bool(p.isfinite().all()) for p in learner.parameters())
    for exact, rough in zip(*lines.values(), strict=True):
        assert rough["loss"] == pytest.approx(exact["loss"], rel=0.05)
        assert rough["loss"] != exact["loss"]


# Interruption.


def interrupted(config: MetaRecipe, bank: FeatureBank, path: Path, at: int, resume: bool = False) -> None:
    """Train until Ctrl-C comes, in the given step of this sitting."""
    done = 0

    def output(n: int, **_: Any) -> None:
        nonlocal done
        done += n
        if n and done == at * config.training.episodes_per_step:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(config, bank, checkpoint=path, resume=resume, on_progress=output)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("at", [1, 8, 13, 24])
@pytest.mark.parametrize(("kind", "dropout"), [("gnn", 0.95), ("mlp", 0.5)])
def test_ctrl_c_keeps_a_checkpoint_to_resume_from(
    small_bank: FeatureBank, tmp_path: Path, kind: str, dropout: float, at: int
) -> None:
    """At, before and after a validation: the same weights and the same lines as if nothing had happened."""
    config, path = recipe(kind, dropout=dropout, keep="best"), tmp_path / "c.safetensors"
    lines: list[dict[str, Any]] = []
    straight = train(config, small_bank, log=lines.append)
    interrupted(config, small_bank, path, at)
    assert load_checkpoint(path).state["progress"]["step"] == at
    resumed = train(config, small_bank, checkpoint=path, resume=True)
    assert equal(resumed, straight)
    assert load_checkpoint(path).state["progress"]["history"] == lines


def test_ctrl_c_within_a_step_waits_for_its_end(
    small_bank: FeatureBank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a step (running statistics in, weights not yet) is never saved."""
    config, path = recipe(), tmp_path / "c.safetensors"
    straight = train(config, small_bank)
    calls = 0
    forward = Learner.forward

    def interrupting(self: Learner, *args: Any) -> Any:
        nonlocal calls
        losses = forward(self, *args)
        calls += 1
        if calls == 11:
            os.kill(os.getpid(), signal.SIGINT)
        return losses

    monkeypatch.setattr(Learner, "forward", interrupting)
    with pytest.raises(KeyboardInterrupt):
        train(config, small_bank, checkpoint=path)
    assert load_checkpoint(path).state["progress"]["step"] == 11
    assert equal(train(config, small_bank, checkpoint=path, resume=True), straight)


def test_a_second_ctrl_c_does_not_wait(small_bank: FeatureBank, tmp_path: Path) -> None:
    """It leaves the checkpoint of the last validation as it is."""
    config, path = recipe(), tmp_path / "c.safetensors"
    done = 0

    def output(n: int, **_: Any) -> None:
        nonlocal done
        done += n
        if n and done == 11 * config.training.episodes_per_step:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config, small_bank, checkpoint=path, on_progress=output)
    assert load_checkpoint(path).state["progress"]["step"] == 8
    assert equal(train(config, small_bank, checkpoint=path, resume=True), train(config, small_bank))


def test_resume_several_times(small_bank: FeatureBank, tmp_path: Path) -> None:
    config, path = recipe(dropout=0.9, shots=(1, 2), schedule="cosine"), tmp_path / "c.safetensors"
    interrupted(config, small_bank, path, 5)
    interrupted(config, small_bank, path, 6, resume=True)
    interrupted(config, small_bank, path, 9, resume=True)
    assert load_checkpoint(path).state["progress"]["step"] == 20
    resumed = train(config, small_bank, checkpoint=path, resume=True)
    assert equal(resumed, train(config, small_bank))


def test_a_finished_run_resumes_to_itself(small_bank: FeatureBank, tmp_path: Path) -> None:
    config, path = recipe(keep="best"), tmp_path / "c.safetensors"
    finished = train(config, small_bank, checkpoint=path)
    lines: list[dict[str, Any]] = []
    assert equal(train(config, small_bank, checkpoint=path, resume=True, log=lines.append), finished)
    assert lines == []


def test_device_and_evaluation_may_change_between_sittings(small_bank: FeatureBank, tmp_path: Path) -> None:
    config, path = recipe(), tmp_path / "c.safetensors"
    train(config, small_bank, checkpoint=path)
    other = config.model_copy(
        update={"memory_mb": 1.0, "evaluation": EvaluationConfig(episodes=7, queries=6)}
    )
    train(other, small_bank, checkpoint=path, resume=True)
