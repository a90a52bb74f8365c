"""Stage 1 as a whole, on drawn pictures: it learns, stops, goes on exactly, and leaves a usable model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import succeeds
from stage1_samples import Interrupted, drawn_data, drawn_folder, extraction, recipe

from wdae.backbones import Backbone
from wdae.backbones import embed as embedding
from wdae.backbones.embed import eager_features
from wdae.bank import FeatureBank
from wdae.errors import ModelError, RecipeError, RunError, StorageError
from wdae.extract.config import ExtractConfig
from wdae.extract.run import extract
from wdae.parts import Part
from wdae.runs.run import Run
from wdae.runtime.device import fast_arithmetic
from wdae.runtime.distributed import Team
from wdae.stage1.averaging import refresh_statistics
from wdae.stage1.batches import Batches
from wdae.stage1.data import load_data
from wdae.stage1.distillation import Teachers
from wdae.stage1.model_file import load_model, save_model
from wdae.stage1.recognition_model import build_recognition_model
from wdae.stage1.run import run_pretraining
from wdae.stage1.state import differences
from wdae.stage1.train import BEST, LAST, train_stage1
from wdae.storage.checkpoint import load_checkpoint
from wdae.storage.tensors import load_tensors

ALONE = Team(0, 1, torch.device("cpu"))
STILL = {f"augment__{key}": 0.0 for key in ("brightness", "contrast", "saturation")}
EVERYTHING: dict[str, Any] = {
    "backbone_options": {"depth": 10, "widen": 1, "image_size": 16, "dropout": 0.1},
    "rotation": {"turns": 1, "classify_all_turns": True},
    "mixup": {"layers": [0, 1, 2, 3], "probability": 0.7},
    "averaging": {"start": 0.3, "decay": 0.7, "refresh_batches": 2},
    "label_smoothing": 0.1,
}


def test_it_learns_and_says_so(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", config := recipe(epochs=12, validation__every=2, keep="last", **STILL))
    outcome = train_stage1(config, drawn_data(), run, ALONE)
    assert outcome.finished
    assert outcome.figures["base_accuracy"] > 90
    assert outcome.figures["val_1shot"] > 60
    rows = run.metrics()
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == outcome.total_steps == 48
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])
    assert sum("val_score" in row for row in rows) == 6
    assert outcome.images_per_s > 0


def test_small_crops_train_a_model_for_whole_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []

    def spy(backbone: Backbone, images: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(images.shape[2:]))
        return eager_features(backbone, images)

    monkeypatch.setattr(embedding, "eager_features", spy)
    config = recipe(epochs=1, augment__size=12, augment__crop="resized")
    run = Run.create(tmp_path / "run", config)
    outcome = train_stage1(config, drawn_data(), run, ALONE)
    assert set(seen) == {(16, 16)}
    assert outcome.model is not None
    assert load_model(outcome.model).card["image_size"] == 16
    with pytest.raises(RecipeError, match="only crop 'resized'"):
        recipe(augment__size=12, augment__crop="pad")


def test_the_best_average_has_statistics_of_its_own(tmp_path: Path) -> None:
    """A rate that leaps at the end makes the last average the worse one."""
    leap = {"optimiser__learning_rate": 0.05, "schedule": {"warm_up": 0.99}}
    config = recipe(**EVERYTHING, **leap, epochs=4)
    run = Run.create(tmp_path / "run", config)
    train_stage1(config, data := drawn_data(), run, ALONE)
    watched = [row for row in run.metrics() if "val_score" in row]
    best = load_checkpoint(run.path / BEST)
    assert best.state["step"] == max(watched, key=lambda row: row["val_score"])["step"]
    model = build_recognition_model(config.backbone, config.backbone_options, 4, seed=0, rotations=True)
    model.load_state_dict(best.tensors)
    batches = data.batches(config, ALONE)
    refresh_statistics(model, (batches.at(best.state["step"] + i).images for i in range(2)))
    for name, value in model.state_dict().items():
        assert torch.allclose(value, best.tensors[name], atol=1e-6), name


@pytest.mark.parametrize("changes", [{}, EVERYTHING], ids=["plain", "everything"])
def test_stopped_and_resumed_is_bit_for_bit_the_same(
    tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config, data = recipe(**changes), drawn_data()
    whole = Run.create(tmp_path / "whole", config)
    assert train_stage1(config, data, whole, ALONE).finished
    broken = Run.create(tmp_path / "broken", config)
    stops = 0
    # No time at all: each call does one step, to its first look at the clock, and stops.
    outcome = train_stage1(config, data, broken, ALONE, max_seconds=0.0)
    while not outcome.finished and stops < 4:
        stops += 1
        outcome = train_stage1(config, data, Run.resume(broken.path), ALONE, resume=True, max_seconds=0.0)
    assert not outcome.finished
    assert outcome.step == 5
    assert train_stage1(config, data, Run.resume(broken.path), ALONE, resume=True).finished
    checkpoints = [load_checkpoint(run.path / LAST) for run in (whole, broken)]
    assert checkpoints[0].state == checkpoints[1].state
    models = [load_tensors(run.path / "model" / "model.safetensors") for run in (whole, broken)]
    for one, other in (models, [checkpoint.tensors for checkpoint in checkpoints]):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    losses = [[row.get("loss") for row in run.metrics()] for run in (whole, broken)]
    assert losses[0] == losses[1]


def test_ctrl_c_leaves_a_checkpoint(tmp_path: Path) -> None:
    config = recipe(epochs=100_000, log_every=7)
    run = Run.create(tmp_path / "run", config)

    def interrupt() -> None:
        while not run.metrics():  # its first steps are logged
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        train_stage1(config, drawn_data(), run, ALONE)
    thread.join()
    step = load_checkpoint(run.path / LAST).state["step"]
    assert step > 0
    again = train_stage1(config, drawn_data(), Run.resume(run.path), ALONE, resume=True, max_seconds=0.0)
    assert again.step > step


def test_another_recipe_is_not_resumed(tmp_path: Path) -> None:
    config = recipe()
    run = Run.create(tmp_path / "run", config)
    train_stage1(config, drawn_data(), run, ALONE, max_seconds=0.0)
    with pytest.raises(RecipeError, match="another recipe; differing: label_smoothing"):
        train_stage1(recipe(label_smoothing=0.2), drawn_data(), run, ALONE, resume=True)
    with pytest.raises(RecipeError, match="the number of training pictures"):
        train_stage1(config, drawn_data(per_class=4), run, ALONE, resume=True)
    assert not differences(
        config.model_dump(mode="json"), recipe(log_every=9, data__path="b").model_dump(mode="json")
    )


def test_nonsense_ends_with_advice(tmp_path: Path) -> None:
    wild = recipe(optimiser__learning_rate=1e9, optimiser__weight_decay=10.0)
    with pytest.raises(RunError, match="no longer a number; lower"):
        train_stage1(wild, drawn_data(), Run.create(tmp_path / "a", wild), ALONE)
    deep = recipe(mixup={"layers": [4]})
    with pytest.raises(RecipeError, match="has 4 stages, so 0"):
        train_stage1(deep, drawn_data(), Run.create(tmp_path / "b", deep), ALONE)
    with pytest.raises(RunError, match="no checkpoint"):
        run_pretraining(recipe(), tmp_path / "nothing", resume=True)


def test_born_again(tmp_path: Path) -> None:
    config = recipe(epochs=2)
    train_stage1(config, drawn_data(), first := Run.create(tmp_path / "first", config), ALONE)
    teachers = {"teachers": [str(first.path / "model")]}
    pupil = recipe(epochs=1, distillation=teachers, mixup={"layers": [1]})
    run = Run.create(tmp_path / "second", pupil)
    train_stage1(pupil, drawn_data(), run, ALONE)
    assert all(row["teacher_loss"] > 0 for row in run.metrics() if "loss" in row)
    with pytest.raises(ModelError, match="knows 4 classes, not the 3"):
        train_stage1(pupil, drawn_data(classes=3), Run.create(tmp_path / "third", pupil), ALONE)
    other = recipe(distillation=teachers, augment__mean=[0.5, 0.5, 0.5])
    with pytest.raises(ModelError, match="normalised by other values"):
        train_stage1(other, drawn_data(), Run.create(tmp_path / "fourth", other), ALONE)


def test_several_teachers_teach_their_mean(tmp_path: Path) -> None:
    folders = []
    for seed in (0, 1):
        config = recipe(epochs=1, seed=seed)
        train_stage1(config, drawn_data(), run := Run.create(tmp_path / f"{seed}", config), ALONE)
        folders.append(run.path / "model")
    names = drawn_data().class_names
    images = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    output = [
        Teachers(some, recipe().augment, names, (0, 0), torch.device("cpu")).targets(images)
        for some in (folders[:1], folders[1:], folders)
    ]
    assert torch.allclose(output[2].scores, (output[0].scores + output[1].scores) / 2, atol=1e-5)
    cosines = [targets.features @ targets.features.T for targets in output]
    assert torch.allclose(cosines[2], (cosines[0] + cosines[1]) / 2, atol=1e-5)
    assert not torch.allclose(cosines[0], cosines[1], atol=1e-2)
    # Pupils of a near-zero rate learn nothing; those of a real one come nearer to what both say.
    losses = []
    for rate in (1e-9, 0.05):
        taught = {"teachers": [str(f) for f in folders], "weight": 1.0, "likeness": 5.0}
        pupil = recipe(epochs=3, seed=2, distillation=taught, optimiser__learning_rate=rate)
        train_stage1(pupil, drawn_data(), run := Run.create(tmp_path / f"pupil-{rate}", pupil), ALONE)
        losses.append([row["teacher_loss"] for row in run.metrics() if "teacher_loss" in row][-1])
    assert losses[1] < 0.7 * losses[0]


def test_a_second_round_goes_on_from_the_first(tmp_path: Path) -> None:
    config = recipe(epochs=2)
    train_stage1(config, drawn_data(), first := Run.create(tmp_path / "first", config), ALONE)
    trained = load_model(first.path / "model").network
    # A rate of nearly nothing: what comes out is what it began with, but for classes that are new.
    still = recipe(epochs=1, start=str(first.path / "model"), optimiser__learning_rate=1e-12)
    for classes in (4, 3):
        run = Run.create(tmp_path / f"second-{classes}", still)
        outcome = train_stage1(still, drawn_data(classes=classes), run, ALONE)
        assert outcome.model is not None
        second = load_model(outcome.model).network
        assert torch.allclose(second.classifier.weight, trained.classifier.weight[:classes], atol=1e-6)
        for name, value in second.backbone.named_parameters():
            assert torch.allclose(value, trained.backbone.get_parameter(name), atol=1e-6)
    other = recipe(start=str(first.path / "model"), backbone="conv4-64", backbone_options={"image_size": 16})
    with pytest.raises(ModelError, match="does not fit"):
        train_stage1(other, drawn_data(), Run.create(tmp_path / "third", other), ALONE)


def test_a_model_that_has_seen_what_is_tested_is_neither_start_nor_teacher(tmp_path: Path) -> None:
    config = recipe(epochs=1, data__held_out=2, data__held_out_seed=7)
    train_stage1(config, drawn_data(), first := Run.create(tmp_path / "first", config), ALONE)
    known = str(first.path / "model")
    ways: list[dict[str, Any]] = [{"start": known}, {"distillation": {"teachers": [known]}}]
    for n, way in enumerate(ways):
        for m, fine in enumerate([{"held_out": 0}, {"held_out": 1, "held_out_seed": 7}]):
            data = {f"data__{key}": value for key, value in fine.items()}
            config = recipe(epochs=1, **way, **data)
            train_stage1(config, drawn_data(), Run.create(tmp_path / f"{n}-{m}", config), ALONE)
        for m, other in enumerate([{"held_out": 2, "held_out_seed": 8}, {"held_out": 3, "held_out_seed": 7}]):
            data = {f"data__{key}": value for key, value in other.items()}
            config = recipe(epochs=1, **way, **data)
            with pytest.raises(ModelError, match="has learned from some of them"):
                train_stage1(config, drawn_data(), Run.create(tmp_path / f"not-{n}-{m}", config), ALONE)
    unseen = replace(drawn_data(classes=3), unseen=frozenset({"class 3"}))
    config = recipe(epochs=1, start=known)
    with pytest.raises(ModelError, match="validation or novel classes of this data set: 'class 3'"):
        train_stage1(config, unseen, Run.create(tmp_path / "novel", config), ALONE)


def test_held_out_pictures_that_have_changed_since_the_training_are_not_tested_with(tmp_path: Path) -> None:
    """Which ones are drawn depends on all pictures: after a change, some that were learned from."""
    folder, cache = drawn_folder(tmp_path / "pictures"), str(tmp_path / "cache")
    changes: dict[str, Any] = {"epochs": 1, "data__path": str(folder), "data__cache_dir": cache}
    changes |= {"data__size": 16, "data__held_out": 2}
    outcome = run_pretraining(recipe(**changes), tmp_path / "first", device="cpu")
    assert outcome is not None and outcome.model is not None
    model = outcome.model

    def extracted(name: str, **more: Any) -> FeatureBank:
        config = ExtractConfig(data=folder, backbone=str(model), cache_dir=Path(cache), **more)
        extract(config, tmp_path / name, ALONE)
        return FeatureBank.open(tmp_path / name)

    assert sum(extracted("same").counts(Part.BASE_HELD_OUT)) == 6
    assert sum(extracted("fewer", held_out=1).counts(Part.BASE_HELD_OUT)) == 3
    (folder / "base" / "base-0" / "0.png").unlink()
    for more in ({}, {"held_out": 1}):
        with pytest.raises(ModelError, match=r"would be held out here, of \d classes: .*'base-1'"):
            extracted("other", **more)
    assert not extracted("none", held_out=0).has(Part.BASE_HELD_OUT)
    ways: list[dict[str, Any]] = [{"start": str(model)}, {"distillation": {"teachers": [str(model)]}}]
    for n, way in enumerate(ways):
        with pytest.raises(ModelError, match="were added, removed or renamed since"):
            run_pretraining(recipe(**changes, **way), tmp_path / f"not-{n}", device="cpu")


def test_bf16_trains_and_model_files_come_back(tmp_path: Path) -> None:
    config = recipe(epochs=1, precision="bf16")
    run = Run.create(tmp_path / "run", config)
    outcome = train_stage1(config, drawn_data(), run, ALONE, model_dtype="float16")
    assert outcome.model is not None
    model = load_model(outcome.model)
    assert model.class_names == drawn_data().class_names
    assert not model.network.training
    save_model(tmp_path / "copy", model.network, model.card)
    again = load_model(tmp_path / "copy")
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.network(images)[0], again.network(images)[0])
    card = json.loads((outcome.model / "model.json").read_text())
    for wrong in ({"depth": 16}, {"widen": 2}, {"widen": 4000}):
        options = card["backbone_options"] | wrong
        forged = card | {"version": 1, "backbone_options": options}
        (tmp_path / "copy" / "model.json").write_text(json.dumps(forged))
        with pytest.raises(ModelError, match="not fit backbone 'wide-resnet'"):
            load_model(tmp_path / "copy")
    with pytest.raises(ModelError, match="holds no stage-1 model"):
        load_model(tmp_path / "nothing")


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_stages_learn_the_same(tmp_path: Path) -> None:
    losses = []
    for mode in ("off", "default"):
        config = recipe(compile=mode, epochs=1, backbone="conv4-64", backbone_options={"image_size": 16})
        run = Run.create(tmp_path / mode, config)
        train_stage1(config, drawn_data(), run, ALONE)
        losses.append([row["loss"] for row in run.metrics() if "loss" in row])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_pictures_to_bank_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, cache = drawn_folder(tmp_path / "pictures"), tmp_path / "cache"
    common = ["--data.path", f"{folder}", "--data.cache_dir", f"{cache}", "--data.size", "16"]
    common += ["--data.held_out", "2", "--backbone", "conv4-64", "--backbone_options.image_size", "16"]
    common += ["--epochs", "2", "--batch", "6", "--precision", "float32", "--validation.episodes", "20"]
    common += ["--augment.padding", "2", "--log_every", "1"]
    succeeds("pretrain", *common, "-o", f"{tmp_path / 'run'}", "--max-seconds", "0")
    assert "stopped at step 1 of 6" in capsys.readouterr().out
    succeeds("pretrain", *common, "-o", f"{tmp_path / 'run'}", "--resume")
    assert "6 steps" in capsys.readouterr().out
    model = tmp_path / "run" / "model"
    words = ["extract", "--data", f"{folder}", "--model", f"{model}", "--cache_dir", f"{cache}"]
    succeeds(*words, "--chunk", "30", "-o", f"{tmp_path / 'bank'}")
    assert "80 images" in capsys.readouterr().out
    bank = FeatureBank.open(tmp_path / "bank")
    assert [sum(bank.counts(part)) for part in Part] == [18, 6, 40, 16]
    assert bank.base_weights is not None
    trained = load_model(model).network
    assert torch.equal(bank.base_weights, trained.classifier.weight.detach())
    assert bank.cosine_scale == pytest.approx(float(trained.classifier.scale.detach()))


def test_less_precise_products_end_with_training_and_extraction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process computes afterwards, class graphs first of all, has all of float32."""
    precision, seen = torch.get_float32_matmul_precision, set()

    def as_on_a_gpu(device: torch.device) -> ExitStack:
        return fast_arithmetic(torch.device("cuda"))

    def noted(*given: Any, **named: Any) -> Any:
        seen.add(precision())
        return pooled(*given, **named)

    pooled = Backbone.pooled
    monkeypatch.setattr(Backbone, "pooled", noted)
    for module in ("wdae.stage1.run", "wdae.extract.job"):
        monkeypatch.setattr(f"{module}.fast_arithmetic", as_on_a_gpu)
    folder, cache = drawn_folder(tmp_path / "pictures"), str(tmp_path / "cache")
    config = recipe(epochs=1, data__path=str(folder), data__cache_dir=cache, data__size=16)
    outcome = run_pretraining(config, tmp_path / "run", device="cpu")
    assert outcome is not None and outcome.finished
    assert (precision(), seen) == ("highest", {"high"})
    seen.clear()
    extract(
        ExtractConfig(data=folder, backbone=str(tmp_path / "run" / "model"), cache_dir=Path(cache)),
        tmp_path / "bank",
        ALONE,
    )
    assert precision() == "highest" and "high" in seen  # and operations are counted, outside


@pytest.mark.parametrize("crop", ["pad", "resized"])
def test_streamed_training(tmp_path: Path, crop: str) -> None:
    folder = drawn_folder(tmp_path / "pictures")
    changes: dict[str, Any] = {"data__path": str(folder), "data__cache_dir": str(tmp_path / "cache")}
    changes |= {"data__size": 16, "data__workers": 0, "augment__crop": crop, "data__held_out": 2}
    kept, streamed = (
        load_data(recipe(**changes, data__stream=stream), ALONE.device) for stream in (False, True)
    )
    changes |= {"epochs": 2, "validation__per_class": 6}
    changes |= {"averaging": {"start": 0.2, "refresh_batches": 2}}
    config = recipe(**changes, data__stream=True)
    batches = streamed.batches(config, ALONE)
    assert batches.steps_per_epoch == 2
    if crop == "pad":  # the same pictures, in the same order, with the same variation
        resident = kept.batches(config, ALONE)
        for step in (1, 2, 0):
            one, other = resident.at(step), batches.at(step)
            assert torch.equal(one.labels, other.labels)
            assert torch.equal(one.images, other.images)
    else:
        assert batches.at(1).images.shape == (8, 3, 16, 16)
        assert torch.equal(batches.at(1).images, batches.at(1).images)
    run = Run.create(tmp_path / "run", config)
    outcome = train_stage1(config, streamed, run, ALONE)
    assert outcome.finished
    assert "val_5shot" in outcome.figures
    if crop == "pad":  # statistics are refreshed on the way, and the stream goes on where it was
        config = recipe(**changes)
        resident_run = Run.create(tmp_path / "resident", config)
        train_stage1(config, kept, resident_run, ALONE)
        one, other = ([row["loss"] for row in r.metrics() if "loss" in row] for r in (run, resident_run))
        assert one == other


def streamed(tmp_path: Path, rank: int = 0, size: int = 1, **changes: Any) -> Batches:
    folder, changes = drawn_folder(tmp_path / "pictures"), {"data__workers": 0} | changes
    changes |= {"data__path": str(folder), "data__cache_dir": str(tmp_path / "cache"), "data__size": 16}
    config = recipe(**changes, data__stream=True)
    return load_data(config, ALONE.device).batches(config, Team(rank, size, ALONE.device))


def test_two_processes_share_a_streamed_batch_as_they_share_one_in_memory(tmp_path: Path) -> None:
    whole, *shares = (streamed(tmp_path, rank, size) for rank, size in ((0, 1), (0, 2), (1, 2)))
    for step in (1, 2):  # from within an epoch into the next
        parts = [share.at(step) for share in shares]
        assert torch.equal(whole.at(step).labels, torch.cat([part.labels for part in parts]))
        assert torch.equal(whole.at(step).images, torch.cat([part.images for part in parts]))


def test_crops_of_streamed_pictures_follow_the_seed(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"augment__crop": "resized", "augment__flip": 0.0, **STILL}
    one, same, other = (streamed(tmp_path, seed=seed, **changes) for seed in (0, 0, 1))
    rows = torch.arange(len(one.order(0)))
    for batches in (one, same, other):  # one order, so that crops alone can differ
        batches.order = lambda _: rows  # type: ignore[method-assign]
    assert torch.equal(one.at(0).images, same.at(0).images)
    assert torch.equal(one.at(0).labels, other.at(0).labels)
    assert not any(torch.equal(a, b) for a, b in zip(one.at(0).images, other.at(0).images, strict=True))


def test_extraction_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Interrupted(monkeypatch, "embed")
    config, out = extraction(tmp_path), tmp_path / "bank"
    with pytest.raises(KeyboardInterrupt):
        extract(config, out, ALONE)
    assert not out.exists()
    extract(config, out, ALONE)
    assert [count for count, _ in calls.made] == [32, 32, 32, 16]
    # Chunks of other settings are not taken up.
    calls.made = []
    with pytest.raises(KeyboardInterrupt):
        extract(config, tmp_path / "b2", ALONE)
    extract(extraction(tmp_path, flip_average=True), tmp_path / "b2", ALONE)
    assert [count for count, _ in calls.made] == [32, 32, 32, 32, 16]
    with pytest.raises(StorageError, match="exists already"):
        extract(config, out, ALONE)
    # Images that the model has learned from are not held out.
    with pytest.raises(ModelError, match="has learned from some of them: of its own, none were held out"):
        extract(extraction(tmp_path, held_out=2), tmp_path / "leak", ALONE)
    # Streamed without a cache, the features are the same.
    extract(extraction(tmp_path, stream=True), tmp_path / "streamed", ALONE)
    one, two = (FeatureBank.open(path) for path in (out, tmp_path / "streamed"))
    assert torch.equal(one.labels, two.labels)
    assert torch.allclose(one.features, two.features, atol=1e-5)


def test_a_model_of_other_classes_is_refused(tmp_path: Path) -> None:
    config = recipe(epochs=1, backbone="conv4-64", backbone_options={"image_size": 16})
    outcome = train_stage1(config, drawn_data(), Run.create(tmp_path / "run", config), ALONE)
    with pytest.raises(ModelError, match="trained on 4 base classes, the data set has 3"):
        extract(extraction(tmp_path, backbone=str(outcome.model)), tmp_path / "bank", ALONE)
    with pytest.raises(RecipeError, match="unknown backbone 'nowhere'"):
        extract(extraction(tmp_path, backbone="nowhere"), tmp_path / "bank", ALONE)
