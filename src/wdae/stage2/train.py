"""The training loop of stage 2: episodes of fake novel classes, from stored features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import torch
from torch import nn

from wdae.bank import FeatureBank
from wdae.episodes import Episodes, EpisodeSampler, EpisodeSpec
from wdae.errors import EpisodeError, RecipeError, RunError
from wdae.evaluation.protocol import few_way
from wdae.methods import LearnedMethod, Method, StepLosses
from wdae.methods.base import base_classes
from wdae.nn.cosine import unit
from wdae.parts import Part
from wdae.runs.interrupt import held_interrupts
from wdae.runtime.cores import one_thread
from wdae.runtime.device import pick_device, pick_dtype
from wdae.runtime.distributed import Team
from wdae.runtime.randomness import derive_seed
from wdae.stage2.config import MetaRecipe, TrainingConfig
from wdae.stage2.learner import Learner, as_method, build_learner, build_method, gather_batch
from wdae.stage2.state import TrainingProgress, build_optimiser, learning_rate, restore_state, save_state

Log = Callable[[dict[str, Any]], None]
L = TypeVar("L", bound=nn.Module)


class FitOptions(TypedDict, total=False):
    """The keyword arguments of :func:`fit`."""

    checkpoint: Path | None
    resume: bool
    log: Log | None
    on_progress: Callable[..., None] | None
    team: Team | None


def train(recipe: MetaRecipe, bank: FeatureBank, **options: Unpack[FitOptions]) -> Learner:
    """Train a denoiser on a bank's base classes; the options are those of :func:`fit`.

    >>> from wdae import synthetic_bank
    >>> from wdae.stage2.config import DenoiserConfig
    >>> bank = synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4)
    >>> short = TrainingConfig(steps=3, n_fake=4, validation_episodes=20)
    >>> learner = train(MetaRecipe(denoiser=DenoiserConfig(hidden=4), training=short, device="cpu"), bank)
    >>> learner.denoiser.dim, learner.training
    (8, False)
    """
    shot = min(recipe.training.shots)
    with one_thread(_device(recipe, options.get("team"))):
        learner = build_learner(recipe, bank.dim, base_classes(bank).scale)
        return fit(
            learner, lambda: [(as_method(learner, recipe, {shot: 1.0}), shot)], recipe, bank, **options
        )


def train_learned(recipe: MetaRecipe, bank: FeatureBank, **options: Unpack[FitOptions]) -> LearnedMethod:
    """Train the method that ``recipe.method`` names; the options are those of :func:`fit`."""
    with one_thread(_device(recipe, options.get("team"))):
        method = build_method(recipe, bank, base_classes(bank))
        return fit(
            method, lambda: [(method.eval(), k) for k in recipe.training.shots], recipe, bank, **options
        )


def _device(recipe: MetaRecipe, team: Team | None) -> torch.device:
    return pick_device(recipe.device) if team is None else team.device


def fit(
    learner: L,
    validated: Callable[[], Sequence[tuple[Method, int]]],
    recipe: MetaRecipe,
    bank: FeatureBank,
    *,
    checkpoint: Path | None = None,
    resume: bool = False,
    log: Log | None = None,
    on_progress: Callable[..., None] | None = None,
    team: Team | None = None,
) -> L:
    """Train a learner, a module from episode batches to losses, on a bank's base classes.

    The same recipe and bank give the same weights, whether or not training was interrupted: each step's
    episodes, noise and dropout follow from the seed and the step's number. Where :func:`train` and
    :func:`train_learned` call it on a CPU, they are the same bit for bit on one machine, whatever the number
    of threads.

    Args:
        learner: called with a :class:`TrainingBatch` and a generator, it returns :class:`StepLosses`.
        validated: methods to validate, each with a number of shots; their mean accuracy counts.
        recipe: everything that matters.
        bank: base-train images to learn from; validation classes to choose on, if it has them.
        checkpoint: where to save the state of training, every ``validate_every`` steps and on Ctrl-C.
        resume: continue from that checkpoint.
        log: called with each line of metrics.
        on_progress: called with the number of episodes done and live figures.
        team: processes that share the groups of a step; this one alone by default. All come to the same
            weights, and those are the same for any number of processes.

    Returns:
        The learner with the weights of the best validation (or the last; see the recipe).
    """
    config = recipe.training
    team = team or Team(0, 1, _device(recipe, None))
    device = team.device
    _check_groups(config, team)
    dtype = pick_dtype(recipe.precision, device)
    pool = bank.select(Part.BASE_TRAIN, device=device)
    base_queries = config.base_queries if getattr(learner, "joint", True) else 0
    spec = EpisodeSpec(
        config.n_fake, config.shots, config.queries_per_novel, base_queries, config.unequal_shots
    )
    sampler = EpisodeSampler(pool, spec, derive_seed(recipe.seed, "training episodes"), fake=True)
    if config.keep == "best" and not bank.has(Part.VALIDATION):
        raise EpisodeError(
            "the best weights are chosen on validation classes, and the bank has none; "
            "set training.keep to last"
        )
    if bank.has(Part.VALIDATION):  # refused before the work, not at the first validation
        EpisodeSampler(bank.select(Part.VALIDATION), _validation_spec(recipe, bank), 0)
    learner.to(device)
    if not any(p.requires_grad for p in learner.parameters()):
        return learner.eval()
    optimiser = build_optimiser(learner, config, device)
    progress, best = TrainingProgress(), deepcopy(learner.state_dict())
    if resume:
        if checkpoint is None or not checkpoint.exists():
            raise RunError(
                f"nothing to resume: there is no checkpoint at {checkpoint}; start without --resume"
            )
        progress, best = restore_state(checkpoint, recipe, learner, optimiser)
    forward: Callable[..., StepLosses] = learner
    by_default = device.type == "cuda" and isinstance(learner, Learner)  # inner loops do not compile
    if recipe.compile if recipe.compile is not None else by_default:
        forward = torch.compile(learner, dynamic=False)
    batches = sampler.steps(progress.step, config.episodes_per_step)
    weights = unit(base_classes(bank, device).weights)
    queries = pool.features.to(dtype) if isinstance(learner, Learner) else None
    generator = torch.Generator(device) if forward is learner else None
    sums = torch.tensor(progress.sums, device=device)

    def save() -> None:
        if checkpoint is not None and team.is_main:
            progress.sums = sums.tolist()
            save_state(checkpoint, recipe, learner, optimiser, progress, best)

    def backward(episodes: Episodes, *seed: str | int) -> torch.Tensor:
        """Gradients of some episodes, with noise and dropout of a seed; returns the losses."""
        _reseed(generator, derive_seed(recipe.seed, *seed), device)
        batch = gather_batch(pool, weights, episodes, len(config.shots) == 1, queries)
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            losses = forward(batch, generator)
        optimiser.zero_grad(set_to_none=True)
        losses.total.backward()
        values = losses.total, losses.reconstruction, losses.classification, losses.accuracy
        return torch.stack(values).detach()

    if progress.step == 0 and isinstance(learner, LearnedMethod) and config.keep == "best":
        # Its start may be as good as nearest mean: training must beat that.
        progress.best = _validated_by_main(team, validated, recipe, bank)["validation"]
    learner.train()
    with held_interrupts() as interrupted:
        while not progress.finished(config):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(config, progress.step)
            drawn = next(batches)
            if config.groups == 1:
                sums += backward(drawn, "step", progress.step)
            else:
                sums += _in_groups(learner, team, backward, drawn, config.groups, progress.step)
            optimiser.step()
            progress.step += 1
            if on_progress is not None:
                on_progress(config.episodes_per_step)
            if progress.step % config.validate_every == 0 or progress.step == config.steps:
                line = _line(progress, sums, config)
                sums.zero_()
                if bank.has(Part.VALIDATION):
                    line |= _validated_by_main(team, validated, recipe, bank)
                    progress.stale += 1
                    if line["validation"] > progress.best:
                        progress.best, progress.best_step = line["validation"], progress.step
                        progress.stale = 0
                        best = deepcopy(learner.state_dict()) if config.keep == "best" else best
                    learner.train()
                progress.history.append(line)
                if on_progress is not None:
                    on_progress(0, loss=line["loss"], accuracy=line["accuracy"])
                if log is not None:
                    log(line)
                save()
            if interrupted():
                if team.size == 1:  # several end at different steps: the last checkpoint is for all
                    save()
                raise KeyboardInterrupt
    if config.keep == "best":
        learner.load_state_dict(best)
        if isinstance(learner, LearnedMethod):
            learner.start_kept = progress.best_step == 0
    return learner.eval()


def _check_groups(config: TrainingConfig, team: Team) -> None:
    if config.episodes_per_step % config.groups or config.groups % team.size:
        raise RecipeError(
            f"training.groups is {config.groups}, with {config.episodes_per_step} episodes a step and"
            f" {team.size} processes; give a number of groups that divides the episodes evenly, and that the"
            " processes can share out evenly"
        )


def _in_groups(
    learner: nn.Module,
    team: Team,
    backward: Callable[..., torch.Tensor],
    drawn: Episodes,
    groups: int,
    step: int,
) -> torch.Tensor:
    """Gradients and running statistics as the means over all groups, in their order, whoever computed them.

    Every group starts from the same statistics. Returns the mean of the groups' losses.
    """
    size = len(drawn.novel_classes) // groups
    parameters = [p for p in learner.parameters() if p.requires_grad]
    buffers = [b for b in learner.buffers() if b.is_floating_point()]
    counts = [b for b in learner.buffers() if not b.is_floating_point()]
    before = [b.clone() for b in (*buffers, *counts)]
    rows = []
    for group in range(team.rank, groups, team.size):
        for buffer, value in zip((*buffers, *counts), before, strict=True):
            buffer.copy_(value)
        losses = backward(drawn[group * size : (group + 1) * size], "step", step, group)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        rows.append(torch.cat([t.reshape(-1).float() for t in (losses, *grads, *buffers)]))
    found = team.gather(torch.stack(rows))  # rank after rank
    mean = found.view(team.size, -1, found.shape[1]).transpose(0, 1).reshape(groups, -1).mean(0)
    with torch.no_grad():
        at = 4
        for tensor in (*parameters, *buffers):
            piece = mean[at : at + tensor.numel()].view_as(tensor).to(tensor.dtype)
            if isinstance(tensor, nn.Parameter):
                tensor.grad = piece.clone()
            else:
                tensor.copy_(piece)
            at += tensor.numel()
    return mean[:4]


def _reseed(generator: torch.Generator | None, seed: int, device: torch.device) -> None:
    """Noise and dropout of a step depend on the step alone, so a resumed run draws the same."""
    if generator is not None:
        generator.manual_seed(seed)
    elif device.type == "cuda":
        torch.cuda.manual_seed(seed)  # compiled code draws from the device's default generator
    else:
        torch.default_generator.manual_seed(seed)


def _line(progress: TrainingProgress, sums: torch.Tensor, config: TrainingConfig) -> dict[str, Any]:
    since = progress.history[-1]["step"] if progress.history else 0
    names = ("loss", "reconstruction", "classification", "accuracy")
    means = zip(names, (sums / (progress.step - since)).tolist(), strict=True)
    line: dict[str, Any] = {"step": progress.step, "episodes": progress.step * config.episodes_per_step}
    return line | dict(means) | {"learning_rate": learning_rate(config, progress.step - 1)}


def _validation_spec(recipe: MetaRecipe, bank: FeatureBank) -> EpisodeSpec:
    n_way = min(recipe.evaluation.ways, len(bank.classes_of(Part.VALIDATION)))
    return EpisodeSpec(n_way, (min(recipe.training.shots),), recipe.evaluation.queries)


def _validated_by_main(
    team: Team, validated: Callable[[], Sequence[tuple[Method, int]]], recipe: MetaRecipe, bank: FeatureBank
) -> dict[str, float]:
    """The main process validates; the others wait for its figures."""
    names = ("validation", "validation_ci95")
    found = dict.fromkeys(names, 0.0)
    if team.is_main:
        found = _validate(validated(), recipe, bank, team.device)
    return dict(zip(names, team.from_main([found[name] for name in names]), strict=True))


def _validate(
    validated: Sequence[tuple[Method, int]], recipe: MetaRecipe, bank: FeatureBank, device: torch.device
) -> dict[str, float]:
    """Novel accuracy on validation classes, mean over the given methods and numbers of shots."""
    spec = _validation_spec(recipe, bank)
    estimates = [
        few_way(
            method,
            bank,
            n_shot,
            n_way=spec.n_novel,
            n_query=spec.n_query,
            n_episodes=recipe.training.validation_episodes,
            seed=derive_seed(recipe.seed, "validation"),
            joint=False,
            part=Part.VALIDATION,
            device=device,
        ).metrics["novel"]
        for method, n_shot in validated
    ]
    return {
        "validation": sum(e.mean for e in estimates) / len(estimates),
        "validation_ci95": max(e.ci95 for e in estimates),
    }
