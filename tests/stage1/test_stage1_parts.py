"""The pieces of stage 1, each against a slow and obvious version of itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from seeded import generator
from stage1_samples import drawn_data, drawn_folder, recipe
from torch import nn
from torch.nn import functional as F

from wdae.errors import DataError, RecipeError
from wdae.stage1.averaging import Average, refresh_statistics
from wdae.stage1.batches import ResidentBatches, all_rotations, upright_and_rotated
from wdae.stage1.config import DataConfig, ScheduleConfig
from wdae.stage1.data import open_images
from wdae.stage1.distillation import TeacherTargets, similarity_error, teacher_divergence
from wdae.stage1.mixup import Mix, draw_mix, mixed_cross_entropy
from wdae.stage1.objective import objective
from wdae.stage1.recognition_model import Recognition, build_recognition_model
from wdae.stage1.state import rate_share


def test_networks_of_different_seeds_may_hold_out_the_same_pictures(tmp_path: Path) -> None:
    folder = drawn_folder(tmp_path)
    data = DataConfig(path=folder, held_out=3)
    own = [open_images(data, seed).parts for seed in (0, 1)]
    assert not np.array_equal(*own)
    shared = data.model_copy(update={"held_out_seed": 0})
    for seed in (0, 1):
        assert np.array_equal(open_images(shared, seed).parts, own[0])


def test_rotations_against_numpy() -> None:
    images = torch.randn(3, 2, 5, 5, generator=generator())
    turned = all_rotations(images)
    for turn in range(4):
        for i in range(3):
            expected = np.rot90(images[i].numpy(), turn, axes=(1, 2))
            assert np.array_equal(turned[turn * 3 + i].numpy(), expected)
    turns = torch.tensor([2, 1, 3])
    both = upright_and_rotated(images, turns)
    assert torch.equal(both[:3], images)
    for i, turn in enumerate(turns.tolist()):
        assert torch.equal(both[3 + i], turned[turn * 3 + i])


@pytest.mark.parametrize(("rotation", "copies"), [(None, 1), ({"turns": 1}, 2), ({"turns": 4}, 4)])
def test_an_epoch_shows_each_picture_once_and_labels_stay_with_pictures(
    rotation: dict[str, int] | None, copies: int
) -> None:
    data = drawn_data()
    plain = {"augment__crop": "none", "augment__flip": 0.0}
    plain |= {f"augment__{key}": 0.0 for key in ("brightness", "contrast", "saturation")}
    config = recipe(batch=4, rotation=rotation, **plain)
    batches = ResidentBatches(data.train.images, data.train.labels, config)
    mean, std = (torch.tensor(v)[:, None, None] for v in (config.augment.mean, config.augment.std))
    seen = []
    for step in range(batches.steps_per_epoch):
        batch = batches.at(step)
        assert len(batch.images) == copies * batch.n_upright == copies * 4
        assert torch.equal(batch.labels, batch.labels[:4].repeat(copies))
        back = (batch.images * std + mean) * 255
        for image, label, turn in zip(back, batch.labels, batch.rotations, strict=True):
            upright = torch.rot90(image, -int(turn), (1, 2))
            same = ((data.train.images.float() - upright).abs() < 0.5).flatten(1).all(dim=1).nonzero()
            assert len(same) == 1
            assert data.train.labels[int(same)] == label
            if turn == 0:
                seen.append(int(same))
        # Whoever is mixed with a row is turned like it, and is another picture.
        assert torch.equal(batch.rotations[batch.partner], batch.rotations)
        assert (batch.partner != torch.arange(len(batch.partner))).all()
    assert sorted(seen) == list(range(36))
    assert not torch.equal(batches.at(0).labels, batches.at(batches.steps_per_epoch).labels)


def test_two_processes_share_the_batch_of_one() -> None:
    data = drawn_data()
    config = recipe(rotation={"turns": 1})
    whole = ResidentBatches(data.train.images, data.train.labels, config).at(5)
    shares = [
        ResidentBatches(data.train.images, data.train.labels, config, rank=rank, size=2).at(5)
        for rank in range(2)
    ]
    assert torch.equal(whole.images[:8], torch.cat([share.images[:4] for share in shares]))
    assert torch.equal(whole.rotations[8:], torch.cat([share.rotations[4:] for share in shares]))
    with pytest.raises(DataError, match="cannot be shared evenly by 3"):
        ResidentBatches(data.train.images, data.train.labels, config, size=3)
    with pytest.raises(DataError, match="36 training pictures do not fill one batch of 64"):
        ResidentBatches(data.train.images, data.train.labels, recipe(batch=64))


@pytest.mark.parametrize("kind", ["step", "cosine", "linear"])
def test_schedules_by_hand(kind: str) -> None:
    schedule = ScheduleConfig(kind=kind, drops=(0.5,), hold=0.25, final=0.2, warm_up=0.1)
    shares = np.array([rate_share(schedule, p) for p in np.linspace(0, 1, 201)])
    assert shares[0] == 0
    assert shares.max() == pytest.approx(1.0)
    assert shares[10] == pytest.approx(0.5)
    assert (np.diff(shares[20:]) <= 1e-12).all()
    assert shares[-1] == pytest.approx(0.1 if kind == "step" else 0.2)
    if kind != "step":
        assert shares[50] == pytest.approx(1.0)
        assert shares[125] == pytest.approx(0.6)  # half-way down, for both shapes


def test_bad_schedules_are_refused() -> None:
    with pytest.raises(RecipeError, match="fractions between 0 and 1"):
        recipe(schedule__drops=[20, 40])
    with pytest.raises(RecipeError, match="must ascend"):
        recipe(schedule__drops=[0.9, 0.5])


def test_a_likeness_that_would_never_count_is_refused() -> None:
    distillation = {"teachers": ["a"], "likeness": 5.0}
    with pytest.raises(RecipeError, match=r"only in steps without mixup, and mixup.probability is 1"):
        recipe(distillation=distillation, mixup={"layers": [0]})
    assert recipe(distillation=distillation, mixup={"probability": 0.5}).distillation is not None


def test_mixing_rows_and_losses() -> None:
    rows = torch.randn(4, 2, 3, 3, generator=generator())
    mix = Mix(1, torch.tensor(0.3), torch.tensor([1, 0, 3, 2]))
    slow = torch.stack([0.3 * rows[i] + 0.7 * rows[j] for i, j in enumerate([1, 0, 3, 2])])
    assert torch.allclose(mix(rows), slow, atol=1e-6)
    scores, labels = torch.randn(4, 5, generator=generator(1)), torch.tensor([0, 4, 2, 2])
    soft = 0.3 * F.one_hot(labels, 5) + 0.7 * F.one_hot(labels[mix.partner], 5)
    expected = -(soft * scores.log_softmax(1)).sum(1).mean()
    assert torch.allclose(mixed_cross_entropy(scores, labels, mix), expected)
    teacher = torch.randn(4, 5, generator=generator(2))
    target = 0.3 * (teacher / 2).softmax(1) + 0.7 * (teacher / 2).softmax(1)[mix.partner]
    slow_kl = 4 * (target * (target.log() - (scores / 2).log_softmax(1))).sum(1).mean()
    assert torch.allclose(teacher_divergence(scores, teacher, mix, 2.0), slow_kl, atol=1e-6)


def test_mixes_are_drawn_from_seed_and_step() -> None:
    config = recipe(mixup={"layers": [0, 2, 3], "probability": 0.5}).mixup
    assert config is not None
    partner = torch.tensor([1, 0])
    drawn = [draw_mix(config, 7, step, partner) for step in range(400)]
    again = [draw_mix(config, 7, step, partner) for step in range(400)]
    mixes = [mix for mix in drawn if mix is not None]
    assert [m and (m.layer, float(m.share)) for m in drawn] == [
        m and (m.layer, float(m.share)) for m in again
    ]
    assert 150 < len(mixes) < 250
    assert {mix.layer for mix in mixes} == {0, 2, 3}
    assert float(torch.stack([mix.share for mix in mixes]).mean()) == pytest.approx(0.5, abs=0.05)


def test_manifold_mixing_happens_between_stages() -> None:
    model = build_recognition_model(
        "wide-resnet", {"depth": 10, "widen": 1}, 3, seed=0, rotations=True
    ).eval()
    images = torch.randn(2, 3, 16, 16, generator=generator())
    mix = Mix(2, torch.tensor(0.25), torch.tensor([1, 0]))
    hidden = model.backbone.stages[1](model.backbone.stages[0](images))
    hidden = 0.25 * hidden + 0.75 * hidden.flip(0)
    features = model.backbone.stages[3](model.backbone.stages[2](hidden)).mean(dim=(2, 3))
    scores, rotation_scores, _ = model(images, mix)
    assert torch.allclose(scores, model.classifier(features), atol=1e-5)
    assert rotation_scores is not None
    assert not torch.allclose(scores, model(images)[0], atol=1e-3)


def test_objective_counts_what_the_recipe_says() -> None:
    data = drawn_data()
    for everything in (False, True):
        config = recipe(rotation={"weight": 0.5, "classify_all_turns": everything}, label_smoothing=0.1)
        batch = ResidentBatches(data.train.images, data.train.labels, config).at(0)
        scores, turns = torch.randn(32, 4, generator=generator()), torch.randn(32, 4, generator=generator(1))
        loss, values = objective(config, Recognition(scores, turns, scores), batch, None, None)
        rows = 32 if everything else 8
        expected = F.cross_entropy(scores[:rows], batch.labels[:rows], label_smoothing=0.1)
        assert torch.allclose(loss, expected + 0.5 * F.cross_entropy(turns, batch.rotations))
        assert torch.allclose(values[4], (scores[:8].argmax(1) == batch.labels[:8]).float().mean())


def test_likeness_against_a_loop() -> None:
    own, other = torch.randn(4, 3, generator=generator()), torch.randn(4, 6, generator=generator(1))
    pairs = [(i, j) for i in range(4) for j in range(4)]
    slow = [
        (F.cosine_similarity(own[i], own[j], 0) - F.cosine_similarity(other[i], other[j], 0)) ** 2
        for i, j in pairs
    ]
    assert torch.allclose(
        similarity_error(own, F.normalize(other, dim=1)), torch.stack(slow).mean(), atol=1e-6
    )


def test_teachers_count_for_scores_and_for_the_likeness_of_upright_unmixed_pictures() -> None:
    config = recipe(
        rotation={"weight": 0.0, "classify_all_turns": True},
        distillation={"teachers": ["a"], "weight": 0.8, "temperature": 2.0, "likeness": 7.0},
    )
    data = drawn_data()
    batch = ResidentBatches(data.train.images, data.train.labels, config).at(0)
    scores, taught = torch.randn(2, 32, 4, generator=generator())
    features, theirs = torch.randn(2, 32, 6, generator=generator(1))
    targets, output = TeacherTargets(taught, F.normalize(theirs, dim=1)), Recognition(scores, None, features)
    labels = F.cross_entropy(scores, batch.labels)
    for mix in (None, Mix(1, torch.tensor(0.3), batch.partner)):
        if mix is not None:
            labels = mixed_cross_entropy(scores, batch.labels, mix)
        expected = 0.2 * labels + 0.8 * teacher_divergence(scores, taught, mix, 2.0)
        if mix is None:
            expected = expected + 0.8 * 7.0 * similarity_error(features[:8], targets.features[:8])
        assert torch.allclose(objective(config, output, batch, mix, targets)[0], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_average_against_a_loop(kind: str) -> None:
    config = recipe(averaging={"kind": kind, "decay": 0.8, "start": 0.3, "every": 2}).averaging
    assert config is not None
    model = build_recognition_model("conv4-64", {"image_size": 16}, 2, seed=0)
    average = Average(model, config, total_steps=10)
    kept: list[float] = []
    slow = 0.0
    for step in range(10):
        with torch.no_grad():
            model.classifier.scale.fill_(float(step))
        average.update(step)
        if step >= 3 and step % 2:
            kept.append(float(step))
            slow = float(step) if len(kept) == 1 else 0.8 * slow + 0.2 * step
    expected = slow if kind == "ema" else sum(kept) / len(kept)
    assert float(average.module.classifier.scale) == pytest.approx(expected)
    assert average.begun


def test_refreshed_statistics_are_those_of_the_pictures() -> None:
    model = build_recognition_model("conv4-64", {"image_size": 16}, 2, seed=0)
    batches = [torch.randn(6, 3, 16, 16, generator=generator(i)) for i in range(3)]
    refresh_statistics(model, batches)
    norm = model.backbone.stages[0][1]
    assert isinstance(norm, nn.BatchNorm2d)
    outputs = [model.backbone.stages[0][0](batch) for batch in batches]
    assert torch.allclose(
        norm.running_mean, torch.stack([o.mean((0, 2, 3)) for o in outputs]).mean(0), atol=1e-5
    )
    variances = [o.transpose(0, 1).flatten(1).var(1) for o in outputs]
    assert torch.allclose(norm.running_var, torch.stack(variances).mean(0), atol=1e-4)
    assert norm.momentum == 0.1


def test_a_model_and_its_teachers_are_all_compiled() -> None:
    """Their stages are of one kind, and torch compiles a kind eight times unless told otherwise."""
    models = [
        build_recognition_model("resnet12", {"image_size": 16, "widths": [4, 4, 4, 4]}, 3, seed=seed)
        for seed in range(4)
    ]
    for model in models:
        model.compile_stages("default")
    assert torch._dynamo.config.recompile_limit >= sum(len(model.backbone.stages) for model in models)
