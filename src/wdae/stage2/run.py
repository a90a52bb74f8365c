"""A whole stage-2 run in its folder: train, choose ε, evaluate, draw, report."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from typing import Any, Unpack

import torch

from wdae.bank import FeatureBank
from wdae.calibration.balance import tune
from wdae.calibration.pseudo_novel import where_to_play
from wdae.calibration.step_size import choose_steps
from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.errors import MissingExtraError, RecipeError
from wdae.evaluation.config import EvaluationConfig
from wdae.evaluation.html import write_report
from wdae.evaluation.measure import evaluate
from wdae.evaluation.table import ResultTable
from wdae.methods.base import Method, base_classes, gather_support
from wdae.methods.initial_estimate import InitialEstimate
from wdae.methods.learned import LearnedMethod, WeightGenerator
from wdae.methods.many_shots import draw_posterior, regressed_base
from wdae.methods.saved import save_method
from wdae.methods.wdae import WDAE
from wdae.nn.posterior import Posterior
from wdae.nn.space import FeatureSpace
from wdae.parts import Part
from wdae.runs.progress import progress
from wdae.runs.run import Run, exclusively
from wdae.runtime.cores import one_thread
from wdae.runtime.device import pick_device
from wdae.runtime.distributed import Team
from wdae.runtime.randomness import derive_seed
from wdae.stage2.config import MetaRecipe
from wdae.stage2.learner import as_method
from wdae.stage2.space import find_space, in_space
from wdae.stage2.state import steps_done
from wdae.stage2.train import FitOptions, train, train_learned

CHECKPOINT, MODEL = "checkpoint.safetensors", "model.safetensors"


@exclusively
def train_method(
    run: Run, recipe: MetaRecipe, bank: FeatureBank, *, resume: bool = False, team: Team | None = None
) -> Method:
    """:func:`fit_method` in a run folder, which gets checkpoints, metrics and the model."""
    checkpoint = run.path / CHECKPOINT
    done = 0
    if resume and checkpoint.exists():
        done = steps_done(checkpoint)
        run.truncate_metrics(done)
    episodes = recipe.training.steps * recipe.training.episodes_per_step
    done_episodes = done * recipe.training.episodes_per_step
    with progress(episodes, f"training {recipe.name}", done=done_episodes) as bar:
        method = fit_method(
            recipe,
            bank,
            checkpoint=checkpoint,
            resume=resume and checkpoint.exists(),
            log=lambda line: run.log(**line),
            on_progress=bar.update,
            team=team,
        )
    save_method(run.path / MODEL, method, recipe.method or "")
    return method


def fit_method(
    recipe: MetaRecipe,
    bank: FeatureBank,
    space: FeatureSpace | None = None,
    **options: Unpack[FitOptions],
) -> Method:
    """Train what a recipe asks for; for a denoiser, find its space, ε and balance on pseudo-novel classes.

    Args:
        space: where it was found before, by :func:`wdae.stage2.space.find_space` with the recipe's seed.
        options: those of :func:`wdae.stage2.train.fit`.
    """
    team = options.get("team")
    device = pick_device(recipe.device) if team is None else team.device
    with one_thread(device):
        return _fit_method(recipe, bank, space, device, **options)


def _fit_method(
    recipe: MetaRecipe,
    bank: FeatureBank,
    space: FeatureSpace | None,
    device: torch.device,
    **options: Unpack[FitOptions],
) -> Method:
    if recipe.method is not None:
        learned = train_learned(recipe, bank, **options)
        balance_learned(learned, recipe, to_fit(bank, recipe.evaluation))
        return learned
    team = options.get("team")
    if space is None:
        space = find_space(bank, recipe.space, seed=derive_seed(recipe.seed, "space"), device=device)
    else:
        space = space.to(device)
    bank = bank if space is None else in_space(bank, space)
    method = as_method(train(recipe, bank, **options), recipe, recipe.evaluation.steps)
    if team is not None and not team.is_main:
        return method
    seen = to_fit(bank, recipe.evaluation)
    tune_method(method, recipe, seen)
    method.posterior = posterior_of(recipe.evaluation, seen, recipe.seed, device)
    method.space = space
    return method


def to_fit(bank: FeatureBank, config: EvaluationConfig) -> FeatureBank:
    """The bank with the held-out base images that ε and balance are fitted on."""
    return bank.half_of_held_out("fit") if config.split_held_out else bank


def to_test(bank: FeatureBank, config: EvaluationConfig) -> FeatureBank:
    """The bank with the held-out base images that are test queries."""
    return bank.half_of_held_out("test") if config.split_held_out else bank


def balance_learned(method: LearnedMethod, recipe: MetaRecipe, bank: FeatureBank) -> None:
    """Find the balance of a learned method that generates class weights, where the recipe asks for it."""
    config = recipe.evaluation
    if config.balance in ("auto", "off"):
        return
    if not isinstance(method, WeightGenerator) or config.balance != "validation":
        raise RecipeError(
            f"{method.name} can have no balance found on {config.balance} classes; set evaluation.balance to"
            " off, or to validation for a method that generates weights (lwof-average, lwof-attention)"
        )
    method.balance = tune(method, bank, (*config.shots, *config.tuned_shots), **_played(recipe, bank)).balance


def _played(recipe: MetaRecipe, bank: FeatureBank) -> dict[str, Any]:
    """How pseudo-novel classes are played, as the recipe's test is."""
    config, n_novel = recipe.evaluation, len(bank.classes_of(Part.NOVEL))
    return {
        # few-way: as many novel as base queries; all-way: all classes are equally likely
        "novel_share": 0.5 if config.protocol == "few-way" else n_novel / (bank.n_base + n_novel),
        "n_way": config.ways,
        "n_query": config.queries,
        "n_episodes": config.step_episodes,
        "seed": derive_seed(recipe.seed, "step size"),
        "device": pick_device(recipe.device),
    }


def posterior_of(
    config: EvaluationConfig, bank: FeatureBank, seed: int, device: torch.device | str = "cpu"
) -> Posterior | None:
    """How classes with enough shots are fitted further, beside base images in the method's space."""
    train, drawn = bank.select(Part.BASE_TRAIN, device=device), derive_seed(seed, "anchors")
    regressed = None
    if config.anchors and config.intercepts:
        regressed = regressed_base(bank, config.prior, drawn, device)
    return draw_posterior(
        train,
        config.anchors,
        config.prior,
        drawn,
        share=config.anchor_share,
        intercepts=config.intercepts,
        fewest=config.fewest_shots,
        regressed=regressed,
    )


def tune_method(method: WDAE, recipe: MetaRecipe, bank: FeatureBank) -> None:
    """Find ε and the balance of base and novel scores, or ε alone where balance is off (the paper)."""
    config, seed, device = (
        recipe.evaluation,
        derive_seed(recipe.seed, "step size"),
        pick_device(recipe.device),
    )
    where = where_to_play(bank) if config.balance == "auto" else config.balance
    if where is None or where == "off":
        if config.steps is None and bank.has(Part.VALIDATION):
            method.steps = choose_steps(
                method,
                bank,
                config.shots,
                n_way=config.ways,
                n_query=config.queries,
                n_episodes=config.step_episodes,
                seed=seed,
                device=device,
            )
        return
    given = config.steps
    if given is None and where == "base":  # the denoiser has been trained on these classes: it looks too good
        given = method.steps
    tuned = tune(
        method,
        bank,
        (*config.shots, *config.tuned_shots),
        where=where,
        rule=config.step_rule,
        chosen_for=config.chosen_for,
        base_drop_limit=config.base_drop_limit,
        steps=given,
        **_played(recipe, bank),
    )
    method.steps, method.balance = tuned.steps, tuned.balance


def run_training(
    run: Run, recipe: MetaRecipe, bank: FeatureBank, *, resume: bool = False, team: Team | None = None
) -> ResultTable:
    """Train a recipe on a bank, evaluate it beside the initial estimate, and write everything down."""
    method = train_method(run, recipe, bank, resume=resume, team=team)
    return report_methods(run, [method], recipe, bank)


def report_methods(run: Run, methods: Sequence[Method], recipe: MetaRecipe, bank: FeatureBank) -> ResultTable:
    """Evaluate trained methods beside the initial estimate; results, plots and report go to the run."""
    device = pick_device(recipe.device)
    drawn = recipe.evaluation.episode_seed
    seed = derive_seed(recipe.seed if drawn is None else drawn, "test episodes")
    tested = to_test(bank, recipe.evaluation)
    table = evaluate([InitialEstimate(), *methods], tested, recipe.evaluation, seed=seed, device=device)
    table.save(run.results)
    denoisers = [method for method in methods if isinstance(method, WDAE)]
    if denoisers:
        with contextlib.suppress(MissingExtraError):  # the report says which plots are missing, and why
            first = copy.copy(denoisers[0])
            seen = bank if first.space is None else in_space(bank, first.space)
            first.space = None
            draw_graph(run, first, seen, device)
    write_report(run)
    return table


def draw_graph(run: Run, method: WDAE, bank: FeatureBank, device: torch.device) -> None:
    """The class graph of one test episode, before and after refinement."""
    from wdae.evaluation import graph_plot

    pool = bank.select(Part.NOVEL, device=device)
    spec = EpisodeSpec(min(5, pool.n_classes), (1,), 0)
    episodes = EpisodeSampler(pool, spec, seed=0).draw(0, 1)
    support = gather_support(pool, episodes)
    base = base_classes(bank, device)
    before = InitialEstimate().on(base).adapt(support, joint=True).weights()[0]
    after = method.on(base).adapt(support, joint=True).weights()[0]
    graph = _edges(method, before)
    names = [bank.class_names[c] for c in bank.base_classes]
    names += [pool.names[c] for c in episodes.novel_classes[0].tolist()]
    novel = torch.arange(len(names)) >= bank.n_base
    graph_plot.draw_class_graph(
        graph_plot.GraphPicture(
            tuple(names),
            before.cpu().numpy(),
            after.cpu().numpy(),
            graph[0].cpu().numpy(),
            graph[1].cpu().numpy(),
            novel.numpy(),
        ),
        run.plots,
    )


def _edges(method: WDAE, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs (class, neighbour) ``[M, 2]`` and their strengths ``[M]``."""
    from wdae.nn.graph import build_graph

    graph = build_graph(weights, method.n_neighbours, method.inverse_temperature)
    N, J = graph.neighbours.shape
    classes = torch.arange(N, device=weights.device).repeat_interleave(J)
    return torch.stack([classes, graph.neighbours.flatten()], dim=1), graph.strengths.flatten()
