"""A whole stage-2 run in its folder: train, choose ε, evaluate, draw, report."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from wdae.bank import FeatureBank, Part
from wdae.device import pick_device
from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.errors import MissingExtraError
from wdae.evaluation.compare import compare
from wdae.evaluation.html import write_report
from wdae.evaluation.protocol import base_classes, gather_support
from wdae.evaluation.step_size import choose_steps
from wdae.evaluation.table import ResultTable
from wdae.methods.base import Method
from wdae.methods.initial_estimate import InitialEstimate
from wdae.methods.saved import save_method
from wdae.methods.wdae import WDAE
from wdae.progress import progress
from wdae.randomness import derive_seed
from wdae.run import Run
from wdae.train.checkpoint import load_checkpoint
from wdae.train.meta import FitOptions, as_method, train, train_learned
from wdae.train.meta_config import MetaRecipe

CHECKPOINT, MODEL = "checkpoint.safetensors", "model.safetensors"


def train_method(run: Run, recipe: MetaRecipe, bank: FeatureBank, *, resume: bool = False) -> Method:
    """Train, choose ε on validation classes (denoisers), and leave the model in the run folder."""
    checkpoint = run.path / CHECKPOINT
    done = 0
    if resume and checkpoint.exists():
        done = load_checkpoint(checkpoint).state["progress"]["step"]
        run.truncate_metrics(done)
    episodes = recipe.training.steps * recipe.training.episodes_per_step
    done_episodes = done * recipe.training.episodes_per_step
    with progress(episodes, f"training {recipe.name}", done=done_episodes) as bar:
        options: FitOptions = {
            "checkpoint": checkpoint,
            "resume": resume and checkpoint.exists(),
            "log": lambda line: run.log(**line),
            "told": bar.update,
        }
        if recipe.method is not None:
            learned = train_learned(recipe, bank, **options)
            save_method(run.path / MODEL, learned, recipe.method)
            return learned
        learner = train(recipe, bank, **options)
    method = as_method(learner, recipe, recipe.evaluation.steps)
    if recipe.evaluation.steps is None and bank.has(Part.VALIDATION):
        method.steps = choose_steps(
            method,
            bank,
            recipe.evaluation.shots,
            n_way=recipe.evaluation.ways,
            n_query=recipe.evaluation.queries,
            n_episodes=recipe.evaluation.step_episodes,
            seed=derive_seed(recipe.seed, "step size"),
            device=pick_device(recipe.device),
        )
    save_method(run.path / MODEL, method, recipe.name)
    return method


def run_training(run: Run, recipe: MetaRecipe, bank: FeatureBank, *, resume: bool = False) -> ResultTable:
    """Train a recipe on a bank, evaluate it beside the initial estimate, and write everything down."""
    method = train_method(run, recipe, bank, resume=resume)
    return report_methods(run, [method], recipe, bank)


def report_methods(run: Run, methods: Sequence[Method], recipe: MetaRecipe, bank: FeatureBank) -> ResultTable:
    """Evaluate trained methods beside the initial estimate; results, plots and report go to the run."""
    device = pick_device(recipe.device)
    seed = derive_seed(recipe.seed, "test episodes")
    table = compare([InitialEstimate(), *methods], bank, recipe.evaluation, seed=seed, device=device)
    table.save(run.results)
    denoisers = [method for method in methods if isinstance(method, WDAE)]
    if denoisers:
        with contextlib.suppress(MissingExtraError):  # the report says which plots are missing, and why
            draw_graph(run, denoisers[0], bank, device)
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
    before = InitialEstimate().on(base).adapt(support, joint=True).weights()[0]  # type: ignore[attr-defined]
    after = method.on(base).adapt(support, joint=True).weights()[0]
    graph = _edges(method, before)
    names = [bank.class_names[c] for c in bank.base_classes]
    names += [pool.names[c] for c in episodes.novel_classes[0].tolist()]
    novel = torch.arange(len(names)) >= bank.n_base
    graph_plot.class_graph(
        graph_plot.ClassGraph(
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
