"""Training on episodes of pictures as a whole, from recipe to run folder."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from wdae.bank import ClassSet
from wdae.data import pixels
from wdae.episodic.config import FIXED_WAYS, EpisodicRecipe
from wdae.episodic.learners import build_learner
from wdae.episodic.train import CHECKPOINT, check_resumable, measure, pool_of, train_episodic
from wdae.errors import DataError, RunError
from wdae.evaluation.results import Result
from wdae.parts import Part
from wdae.runs.run import Run, exclusively
from wdae.runtime.device import fast_arithmetic, pick_device
from wdae.stage1.data import open_images
from wdae.storage.checkpoint import save_checkpoint

MODEL = "model.safetensors"


def run_episodic(
    config: EpisodicRecipe,
    output: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    force: bool = False,
    max_seconds: float | None = None,
    test_stopped: bool = False,
) -> Result | None:
    """Train and test in a run folder; None where training was stopped, and stopped runs are not tested."""
    began, place = time.monotonic(), pick_device(device)
    if resume and not (output / CHECKPOINT).is_file():
        raise RunError(f"{output} has no checkpoint ({CHECKPOINT}) to go on from; start it without --resume")
    build_learner(config)  # what cannot be built is refused before pictures are decoded
    if resume:
        check_resumable(output / CHECKPOINT, config)
    run = Run.resume(output) if resume else Run.create(output, config, force=force)
    pools = load_pools(config, place)
    left = None if max_seconds is None else max_seconds - (time.monotonic() - began)
    return train_and_test(run, config, pools, resume=resume, max_seconds=left, test_stopped=test_stopped)


@exclusively
def train_and_test(
    run: Run,
    config: EpisodicRecipe,
    pools: dict[Part, ClassSet],
    *,
    resume: bool = False,
    max_seconds: float | None = None,
    test_stopped: bool = False,
) -> Result | None:
    """Train on base classes, keep what validation classes like best, and test that on the novel ones once.

    A run that was trained to its end is tested again with ``resume``. One that ``max_seconds`` stopped is
    tested with ``test_stopped`` alone; ``stopped_at`` of its result is the step.
    """
    base, validation = pools[Part.BASE_TRAIN], pools[Part.VALIDATION]
    novel = pools[Part.NOVEL]
    with fast_arithmetic(base.device):
        learner, state = train_episodic(config, base, validation, run, resume=resume, max_seconds=max_seconds)
        stopped = {"stopped_at": state.step} if state.step < config.steps else {}
        if stopped and not test_stopped:
            return None
        learner.load_state_dict(state.kept)
        facts = {"step": state.best_step, "validation": state.best}
        save_checkpoint(run.path / MODEL, learner.state_dict(), facts)
        values = measure(learner, config, novel, config.measure.episodes, config.seed)
    result = Result.of(
        {"novel": values},
        method=config.method,
        protocol="few-way",
        n_way=min(config.measure.ways, novel.n_classes),
        n_shot=config.shots,
        seed=config.seed,
        n_query=config.measure.queries,
        info={
            "part": Part.NOVEL.value,
            "backbone": config.backbone,
            "transductive": learner.transductive or config.measure.statistics == "episode",
            "start_kept": state.best_step == 0,
            "parameters": sum(p.numel() for p in learner.parameters()),
            "training_seconds": state.seconds,
            "kept_step": state.best_step,
            "validation": state.best,
            **stopped,
        },
    )
    result.save(run.results)
    run.drop_metrics("novel")  # of an earlier test
    run.log(step=state.step, novel=result.metrics["novel"].mean, novel_ci95=result.metrics["novel"].ci95)
    return result


def load_pools(config: EpisodicRecipe, device: torch.device) -> dict[Part, ClassSet]:
    """The pictures of base, validation and novel classes on the device."""
    data = config.data
    images = open_images(data, config.seed)
    rows = {part: images.rows(part) for part in (Part.BASE_TRAIN, Part.VALIDATION, Part.NOVEL)}
    for part, some in rows.items():
        _check_classes(config, part, len(np.unique(images.labels[some])))
    pools = {}
    for part, some in rows.items():
        array = pixels(images.select(some), data.size, cache_dir=data.cache_dir, skip_broken=data.skip_broken)
        known = np.unique(array.labels)
        _check_classes(config, part, len(known))  # skip_broken may have left classes out
        labels = torch.from_numpy(np.searchsorted(known, array.labels)).to(device)
        names = tuple(array.class_names[label] for label in known)
        pools[part] = pool_of(array.tensor(device), labels, names)
    return pools


def _check_classes(config: EpisodicRecipe, part: Part, found: int) -> None:
    path, ways = config.data.path, config.measure.ways
    if not found:
        raise DataError(
            f"{path} has no {part.value} pictures; training on episodes takes base classes to learn"
            " from, validation classes to choose by and novel classes to test on"
        )
    if config.method in FIXED_WAYS and part is not Part.BASE_TRAIN and found < ways:
        raise DataError(
            f"{path} has {found} {part.value} classes, but {config.method} is made for {ways} (measure.ways);"
            " lower episode.ways and measure.ways alike, or take another method"
        )
