"""The training loop on episodes of pictures, and its measure: accuracy on episodes of new classes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from wdae.bank import ClassSet
from wdae.data.augment import Draws, apply_augment, prepare, sample_augment
from wdae.episodes import Episodes, EpisodeSampler, EpisodeSpec, take_rows
from wdae.episodic.config import EpisodicRecipe
from wdae.episodic.learners import EpisodicLearner, build_learner
from wdae.errors import RecipeError, RunError
from wdae.runs.interrupt import held_interrupts
from wdae.runs.progress import progress
from wdae.runs.run import Run
from wdae.runtime.randomness import derive_seed, seeded
from wdae.stage1.state import differences, rate_share
from wdae.storage.checkpoint import (
    Checkpoint,
    StateRecord,
    load_checkpoint,
    optimiser_tensors,
    restore_module,
    restore_optimiser,
    save_checkpoint,
    section,
)
from wdae.storage.records import Count

CHECKPOINT = "checkpoint.safetensors"
_EMBED_BATCH = 512
_LONGEST_GRADIENT = 10.0  # gradients through an inner loop can be of any length


class _State(StateRecord):
    step: Count
    best: float
    best_step: Count
    seconds: float
    recipe: EpisodicRecipe


@dataclass
class State:
    """EpisodicLearner, optimiser, the best weights so far, and where training stands."""

    learner: EpisodicLearner
    optimiser: torch.optim.Optimizer
    kept: dict[str, Tensor]
    step: int = 0
    best: float = -1.0
    best_step: int = 0
    seconds: float = 0.0

    def save(self, path: Path, config: EpisodicRecipe) -> None:
        """Write a checkpoint from which :meth:`restore` continues exactly."""
        tensors = {
            **section("learner", self.learner.state_dict()),
            **section("kept", self.kept),
            **section("optimiser", optimiser_tensors(self.optimiser)),
        }
        numbers = {name: getattr(self, name) for name in ("step", "best", "best_step", "seconds")}
        save_checkpoint(path, tensors, {**numbers, "recipe": config.model_dump(mode="json")})

    def restore(self, path: Path, config: EpisodicRecipe) -> None:
        """Continue from a checkpoint of the same recipe."""
        saved = load_checkpoint(path)
        state = _of_same_recipe(saved, config)
        restore_module(self.learner, saved.section("learner"), path)
        restore_optimiser(self.optimiser, saved.section("optimiser"))
        device = next(self.learner.parameters()).device
        self.kept = {name: tensor.to(device) for name, tensor in saved.section("kept").items()}
        self.step, self.best, self.best_step = state.step, state.best, state.best_step
        self.seconds = state.seconds


def check_resumable(path: Path, config: EpisodicRecipe) -> None:
    """Refuse a checkpoint of another recipe, before pictures are decoded."""
    _of_same_recipe(load_checkpoint(path), config)


def _of_same_recipe(saved: Checkpoint, config: EpisodicRecipe) -> _State:
    state = saved.read(_State)
    then, now = (one.model_dump(mode="json") for one in (state.recipe, config))
    # The test may be another: training does not see it.
    free = ("measure.episodes", "measure.batch")
    if differing := [key for key in differences(then, now) if key not in free]:
        raise RecipeError(
            f"{saved.path} was written with another recipe; differing: {', '.join(differing)};"
            " give the recipe that the run began with, or another folder (-o) without --resume"
        )
    return state


class EpisodeBatches:
    """The augmented pictures of every step's episodes; they depend on the seed and the step alone.

    Args:
        pool: pictures of the base classes, ``features [M, S · S · 3]`` uint8, channels last.
    """

    def __init__(self, pool: ClassSet, config: EpisodicRecipe) -> None:
        self.pool, self.config = pool, config
        episode = config.episode
        spec = EpisodeSpec(episode.ways, (config.shots,), episode.queries)
        self.sampler = EpisodeSampler(pool, spec, derive_seed(config.seed, "training episodes"))
        self.apply = apply_augment

    def compile(self) -> None:
        """Fuse the augmentation into a few kernels."""
        self.apply = torch.compile(apply_augment, dynamic=False)

    def since(self, step: int) -> Iterator[Tensor]:
        """Pictures ``[E · n · (K + Q), 3, S, S]`` of each step from ``step`` on, a class's shots first."""
        for number, episodes in enumerate(self.sampler.steps(step, self.config.episode.per_step), step):
            yield self._pictures(episodes, number)

    @torch.no_grad()
    def _pictures(self, episodes: Episodes, step: int) -> Tensor:
        side = self.config.data.size
        rows = torch.cat([episodes.support, episodes.query], dim=-1).flatten()
        images = self.pool.features.index_select(0, rows).view(-1, side, side, 3).permute(0, 3, 1, 2)
        generator = torch.Generator().manual_seed(derive_seed(self.config.seed, "pictures", step))
        draws = sample_augment(len(rows), side, side, self.config.augment, generator)
        device = rows.device
        if device.type == "cuda":
            draws = Draws(*(draw.pin_memory() for draw in draws))
        return self.apply(
            images, Draws(*(d.to(device, non_blocking=True) for d in draws)), self.config.augment
        )


def train_episodic(
    config: EpisodicRecipe,
    base: ClassSet,
    validation: ClassSet,
    run: Run,
    *,
    resume: bool = False,
    max_seconds: float | None = None,
) -> tuple[EpisodicLearner, State]:
    """Train until the last step, or until ``max_seconds`` have passed; the state keeps the best weights.

    A run that stopped early left a checkpoint. With ``resume`` it continues from there; on the CPU it reaches
    exactly the weights of an uninterrupted run.
    """
    began, device = time.monotonic(), base.device
    learner = build_learner(config).to(device)
    learner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.AdamW(
        learner.parameters(), config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    state = State(learner, optimiser, deepcopy(learner.state_dict()))
    if resume:
        state.restore(run.path / CHECKPOINT, config)
        run.truncate_metrics(state.step)
    batches = EpisodeBatches(base, config)
    gradient: Gradient | Recorded = Gradient(learner, config, device)
    if config.compile == "auto" and device.type == "cuda":
        learner.compile_stages()
        batches.compile()
        if learner.recorded:
            gradient = Recorded(Gradient(learner, config, device))
    drops = any(isinstance(part, nn.Dropout2d) for part in learner.modules())
    sums, since, before = torch.zeros(2, device=device), state.step, state.seconds
    with (
        progress(config.steps, config.method, "steps", done=state.step) as bar,
        held_interrupts() as interrupted,
    ):
        if state.step == 0:
            _validate(state, config, validation, run)
        learner.train()
        stopped = False
        pictures_of = batches.since(state.step)
        while state.step < config.steps and not stopped:
            rate = config.learning_rate * rate_share(config.schedule, state.step / config.steps)
            for group in optimiser.param_groups:
                group["lr"] = rate
            pictures = next(pictures_of)
            drawn = seeded(derive_seed(config.seed, "dropout", state.step), device)
            with drawn if drops else nullcontext():
                sums += gradient(pictures)
            torch.nn.utils.clip_grad_norm_(learner.parameters(), _LONGEST_GRADIENT)
            optimiser.step()
            state.step += 1

            done = state.step == config.steps
            if state.step % config.log_every == 0 or done:
                mean_loss, accuracy = (sums / (state.step - since)).tolist()
                sums.zero_()
                since = state.step
                if not math.isfinite(mean_loss):
                    raise RunError(
                        "the loss is no longer a number; lower learning_rate or set schedule.warm_up"
                    )
                state.seconds = before + time.monotonic() - began
                bar.update(state.step - bar.done, loss=mean_loss, accuracy=accuracy)
                values = {"loss": mean_loss, "accuracy": accuracy, "rate": rate, "seconds": state.seconds}
                run.log(step=state.step, episodes=state.step * config.episode.per_step, **values)
                stopped = max_seconds is not None and time.monotonic() - began > max_seconds
            stopped = stopped or interrupted()
            if state.step % config.measure.every == 0 or done:
                _validate(state, config, validation, run)
                learner.train()
            if state.step % config.measure.every == 0 or done or stopped:
                state.save(run.path / CHECKPOINT, config)
    if interrupted():
        raise KeyboardInterrupt
    return learner.eval(), state


class Gradient:
    """The gradient of a step's pictures, left in the parameters."""

    def __init__(self, learner: EpisodicLearner, config: EpisodicRecipe, device: torch.device) -> None:
        self.learner, self.config, self.device = learner, config, device
        episode = config.episode
        labels = torch.arange(episode.ways, device=device).repeat_interleave(episode.queries)
        self.labels = labels.expand(episode.splits * episode.per_step, -1)

    def __call__(self, pictures: Tensor) -> Tensor:
        """Loss and accuracy ``[2]``."""
        learner, episode, K = self.learner, self.config.episode, self.config.shots
        with autocast(self.config, self.device):
            known = learner.embed(pictures).unflatten(
                0, (episode.per_step, episode.ways, K + episode.queries)
            )
            known = torch.cat([known.roll(-K * split, 2) for split in range(episode.splits)])
            scores = learner.score(known[:, :, :K], known[:, :, K:].flatten(1, 2))
        loss = learner.loss(scores, self.labels)
        learner.zero_grad(set_to_none=True)
        loss.backward()
        return torch.stack([loss.detach(), (scores.argmax(-1) == self.labels).float().mean()])


class Recorded:
    """The same from a CUDA graph: kernels are started once, together, however many they are."""

    def __init__(self, gradient: Gradient) -> None:
        self.gradient = gradient
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, pictures: Tensor) -> Tensor:
        """The same two, until the next call."""
        if self.graph is None:
            self._record(pictures)
        assert self.graph is not None
        self.pictures.copy_(pictures)
        self.graph.replay()
        return self.values

    def _record(self, pictures: Tensor) -> None:
        self.pictures = pictures.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries set themselves up before anything is recorded
            for _ in range(2):
                self.gradient(self.pictures)
        torch.cuda.current_stream().wait_stream(side)
        # The gradients of the record are its own memory, which every replay writes anew.
        self.gradient.learner.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.values = self.gradient(self.pictures)


def _validate(state: State, config: EpisodicRecipe, validation: ClassSet, run: Run) -> None:
    """Accuracy on validation classes; the weights of the best are kept."""
    seed, count = derive_seed(config.seed, "validation"), config.measure.validation_episodes
    found = float(measure(state.learner, config, validation, count, seed).mean())
    run.log(step=state.step, validation=found)
    if found > state.best:
        state.best, state.best_step, state.kept = found, state.step, deepcopy(state.learner.state_dict())


@torch.no_grad()
def measure(
    learner: EpisodicLearner, config: EpisodicRecipe, pool: ClassSet, n_episodes: int, seed: int
) -> Tensor:
    """Accuracy of each episode of a pool of pictures ``[n_episodes]``."""
    options, side, device = config.measure, config.data.size, pool.device
    spec = EpisodeSpec(min(options.ways, pool.n_classes), (config.shots,), options.queries)
    sampler = EpisodeSampler(pool, spec, seed)
    learner.eval()
    alone = options.statistics == "running"  # what a picture becomes does not depend on the others
    tested = learner if alone else _of_what_it_is_given(learner)

    def embed(pixels: Tensor) -> Tensor:
        images = pixels.view(-1, side, side, 3).permute(0, 3, 1, 2)
        return tested.embed(prepare(images, config.augment))

    def scores_of(shots: Tensor, queries: Tensor) -> Tensor:
        """Of one episode, from the indices of its pictures."""
        asked = queries.flatten()
        known = embed(pool.features.index_select(0, torch.cat([shots.flatten(), asked])))
        return tested.score(known[: -len(asked)].view(1, *shots.shape, -1), known[None, -len(asked) :])

    with autocast(config, device):
        rows = torch.cat([embed(pixels) for pixels in pool.features.split(_EMBED_BATCH)]) if alone else None
        found = []
        labels = torch.arange(spec.n_novel, device=device).repeat_interleave(spec.n_query)
        for start in range(0, n_episodes, options.batch):
            episodes = sampler.draw(start, min(options.batch, n_episodes - start))
            if rows is not None:
                queries = take_rows(rows, episodes.query.flatten(1))
                scores = learner.score(take_rows(rows, episodes.support), queries)
            else:
                pairs = zip(episodes.support, episodes.query, strict=True)
                scores = torch.cat([scores_of(shots, queries) for shots, queries in pairs])
            found.append((scores.argmax(-1) == labels).float().mean(-1))
    return torch.cat(found).cpu()


def _of_what_it_is_given(learner: EpisodicLearner) -> EpisodicLearner:
    """A copy in which BatchNorm takes the statistics of each batch; the learner's own are not touched."""
    copied = deepcopy(learner)
    for part in copied.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.train()
    return copied


def autocast(config: EpisodicRecipe, device: torch.device) -> torch.autocast:
    """bfloat16 where the recipe asks for it, on GPUs."""
    on = config.precision == "bf16" and device.type == "cuda"
    return torch.autocast(device.type, torch.bfloat16, enabled=on)


def pool_of(images: Tensor, labels: Tensor, names: tuple[str, ...]) -> ClassSet:
    """Pictures ``[M, 3, S, S]`` uint8 class after class, as rows of pixels: what episodes are drawn from."""
    order = labels.argsort(stable=True)
    counts = labels.bincount(minlength=len(names))
    pixels = images.permute(0, 2, 3, 1).flatten(1)[order]
    return ClassSet(pixels, counts.cumsum(0) - counts, counts, names)
