"""What stops training is said before the first step, and costs nothing that was there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from wdae.bank import FeatureBank
from wdae.errors import EpisodeError, RecipeError, RunError, StorageError
from wdae.evaluation.config import EvaluationConfig
from wdae.parts import Part
from wdae.runtime.device import pick_device, pick_dtype
from wdae.stage2.config import DenoiserConfig, MetaRecipe, TrainingConfig
from wdae.stage2.train import train
from wdae.synthetic import synthetic_bank


def recipe(
    seed: int = 0, device: str = "cpu", hidden: int = 8, queries: int = 6, **training: Any
) -> MetaRecipe:
    options = {"n_fake": 5, "queries_per_novel": 2, "base_queries": 8, "steps": 4, "episodes_per_step": 2}
    options |= {"validate_every": 2, "validation_episodes": 4}
    return MetaRecipe(
        seed=seed,
        device=device,
        precision="float32",
        denoiser=DenoiserConfig(hidden=hidden, dropout=0.5),
        training=TrainingConfig(**(options | training)),
        evaluation=EvaluationConfig(queries=queries),
    )


def refused(
    config: MetaRecipe, bank: FeatureBank, error: type[Exception], message: str, **options: Any
) -> None:
    steps: list[int] = []
    with pytest.raises(error, match=message):
        train(config, bank, on_progress=lambda n, **_: steps.append(n), **options)
    assert steps == []  # not a single step


def test_no_validation_classes_to_choose_on() -> None:
    bank = synthetic_bank(12, 0, 5, 20, 16, seed=0, held_out_per_class=4)
    refused(
        recipe(),
        bank,
        EpisodeError,
        "chosen on validation classes, and the bank has none; set training.keep to last",
    )
    train(recipe(keep="last"), bank)


def test_validation_classes_with_too_few_images(small_bank: FeatureBank) -> None:
    refused(
        recipe(queries=26),
        small_bank,
        EpisodeError,
        "1 shots \\+ 26 queries = 27 images of a class; .* has 26",
    )


def test_base_classes_with_too_few_images(small_bank: FeatureBank) -> None:
    counts = small_bank.counts(Part.BASE_TRAIN)
    assert set(counts) == {20}
    refused(
        recipe(queries_per_novel=20), small_bank, EpisodeError, "1 shots \\+ 20 queries = 21 images.* has 20"
    )


def test_too_many_fake_novel_classes(small_bank: FeatureBank) -> None:
    refused(
        recipe(n_fake=23),
        small_bank,
        EpisodeError,
        "23 novel classes an episode, but there are only 24 base classes",
    )


def test_no_shots(small_bank: FeatureBank) -> None:
    refused(recipe(shots=(1, 0)), small_bank, EpisodeError, "n_shot must be at least 1, got \\(1, 0\\)")


def test_nothing_to_resume_from(small_bank: FeatureBank, tmp_path: Path) -> None:
    missing = tmp_path / "none.safetensors"
    refused(recipe(), small_bank, RunError, f"no checkpoint at {missing}", checkpoint=missing, resume=True)
    refused(recipe(), small_bank, RunError, "nothing to resume", resume=True)


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"hidden": 9}, {"noise": 0.3}, {"steps": 6}, {"classification_loss": False}],
    ids=str,
)
def test_resuming_with_another_recipe(
    small_bank: FeatureBank, tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "c.safetensors"
    train(recipe(), small_bank, checkpoint=path)
    before = path.read_bytes()
    refused(
        recipe(**change),
        small_bank,
        RunError,
        "made with another recipe; resume with the recipe the run began with",
        checkpoint=path,
        resume=True,
    )
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_resuming_from_a_damaged_checkpoint(small_bank: FeatureBank, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "c.safetensors"
    train(recipe(), small_bank, checkpoint=path)
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[:-100]
    else:
        data[-20] ^= 0xFF
    path.write_bytes(data)
    refused(recipe(), small_bank, StorageError, "altered", checkpoint=path, resume=True)


def test_unknown_device(small_bank: FeatureBank) -> None:
    refused(
        recipe(device="gpu"), small_bank, RecipeError, "unknown device 'gpu'; give auto, cpu, cuda or cuda:N"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(small_bank: FeatureBank) -> None:
    for name in ("cuda", "cuda:3"):
        refused(
            recipe(device=name),
            small_bank,
            RecipeError,
            f"device '{name}' was asked for, but .* no usable GPU",
        )
    assert pick_device("auto") == torch.device("cpu")


def test_precision() -> None:
    cpu = torch.device("cpu")
    assert pick_dtype("float32", cpu) == torch.float32
    assert pick_dtype("bfloat16", cpu) == torch.bfloat16
    assert pick_dtype("auto", cpu) in (torch.float32, torch.bfloat16)
    assert pick_dtype("auto", torch.device("meta")) == torch.float32
