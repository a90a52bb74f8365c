"""From a bank of base features to a model: base weights, a trained method, its balance, the class graph."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wdae.bank import FeatureBank
from wdae.bank.feature_bank import class_means
from wdae.calibration.background import Background
from wdae.calibration.balance import measured, tune
from wdae.calibration.fit_detector import fit_detector
from wdae.calibration.pseudo_novel import Weighing, set_aside, where_to_play
from wdae.classifier.base_knowledge import RETURNED, BaseKnowledge, HeldOut
from wdae.classifier.base_weights import learn_weights
from wdae.classifier.learn_job import LearnConfig, best_recipe
from wdae.classifier.model import Model
from wdae.classifier.self_test import accuracy_by_shots
from wdae.classifier.summary import HELD_OUT
from wdae.config import load, recipe_file
from wdae.errors import BankError, EpisodeError, ModelError, RecipeError
from wdae.methods.base import Method, base_classes
from wdae.methods.initial_estimate import InitialEstimate
from wdae.methods.many_shots import draw_posterior, regressed_base
from wdae.methods.saved import load_method
from wdae.methods.wdae import WDAE
from wdae.nn.cosine import unit
from wdae.nn.graph import build_graph
from wdae.nn.space import FeatureSpace
from wdae.parts import Part
from wdae.printing import counted
from wdae.runs.progress import progress
from wdae.runtime.randomness import derive_seed
from wdae.stage2.config import MetaRecipe, SpaceConfig
from wdae.stage2.run import MODEL, fit_method, posterior_of
from wdae.stage2.space import find_space, in_space, with_base_weights
from wdae.stage2.state import steps_done

FEWEST_CLASSES = 10
"""Base classes that a denoiser is trained on, beside the pseudo-novel ones; with fewer there is none."""
SHOTS = (1, 2, 5, 10, 20)
"""Numbers of shots that the initial estimate is balanced for."""

_ENOUGH = 6  # images of a pseudo-novel class: five shots and a query
_ESTIMATE_EPISODES = 200
_SCORES = 3e7  # base scores that ε and balance are found on
_REFIT_STEPS = 100  # in which a trained space learns base classes that are new to it

RecipeLike = MetaRecipe | Mapping[str, Any] | str | Path
MethodLike = Method | str | Path


def learn_from_bank(
    bank: FeatureBank,
    config: LearnConfig | None = None,
    *,
    method: MethodLike | None = None,
    recipe: RecipeLike | None = None,
    info: Mapping[str, Any] | None = None,
    checkpoint: Path | None = None,
    show_progress: bool = False,
    outliers: Mapping[str, Tensor] | None = None,
    background: tuple[Tensor, ...] | None = None,
) -> Model:
    """Learn a model from the base classes of a bank.

    The model teaches with a method: one that was trained before, or one that is trained here as ``wdae
    train`` does, on pseudo-novel classes: the bank's validation classes or, where it has none, a fifth of its
    base classes. Where these are recognised no better in a space of its own, features stay as they are. Too
    few classes for a denoiser leave the initial estimate, balanced. Novel classes of the bank are never
    looked at.

    Args:
        bank: with base-train images; base weights are learned where it has none.
        config: what is not a matter of the recipe.
        method: a trained method, its run folder or file, or ``initial-estimate``.
        recipe: how to train one: a recipe, its file, or keys in which it differs from the default,
            wDAE-GNN+ for any number of shots.
        info: provenance to keep with the model, JSON values.
        checkpoint: where to keep the method's training, and to go on from if it is there.
        outliers: features ``[m, D]`` of pictures of nothing, by kind, to tell the unknown by.
        background: the classifier that the backbone was trained with, to tell it by: weights ``[B, D]`` and
            biases ``[B]``, for features as the backbone gives them, and, where it is known, the mean of these
            ``[D]`` over what the backbone was trained on, to bring other kinds of pictures nearer to that.

    >>> from wdae import synthetic_bank
    >>> bank = synthetic_bank(16, 4, 2, 12, 8, seed=0, held_out_per_class=4)
    >>> short = {"denoiser.hidden": 8, "training.steps": 2, "evaluation.step_episodes": 10}
    >>> model = learn_from_bank(bank, recipe=short)
    >>> len(model.names), model.base.info["denoiser"]
    (16, 'wdae-gnn+-any-shots, trained on 16 classes')
    """
    config = config or LearnConfig()
    if method is not None and recipe is not None:
        raise RecipeError("give a trained method or a recipe to train one by, not both")
    if recipe is not None:
        as_recipe(recipe, config.seed)  # refuses what is none, also where there are too few classes to train
    if not bank.has(Part.BASE_TRAIN):
        raise BankError("the bank has no base-train images to learn a model from")
    learned_here = bank.base_weights is None
    bank = _with_weights(bank, config)
    seed = derive_seed(config.seed, "learn")
    played = bank
    facts: dict[str, Any] = {}
    found: Weighing
    if method is not None and method != InitialEstimate.name:
        found = _fitting(method, bank, seed)
        facts["denoiser"] = f"{found.name}, trained before"
    elif method is None and (reason := _too_few(bank, played := _training_bank(bank, config))) is None:
        asked = fitted(as_recipe(recipe, config.seed), played)
        space = None
        if recipe is None or isinstance(recipe, Mapping):
            space, asked = _with_space(asked, played)
        found = _trained(asked, played, space, checkpoint, show_progress)
        if found.space is not None and played.n_base != bank.n_base:
            found.space = with_base_weights(found.space, bank, asked.space.refit_steps, seed)
        facts |= {
            "denoiser": f"{found.name}, trained on {played.n_base} classes",
            "recipe": asked.model_dump(mode="json"),
        }
    else:
        played = bank
        found = _balanced_estimate(bank, seed)
        facts["denoiser"] = "none, as asked for" if method is not None else reason
    facts |= info or {}
    knowledge = _knowledge(found, bank, played, config, facts, outliers, background, not learned_here)
    if found.balance is not None and (enough := accuracy_by_shots(knowledge, bank, config.seed)):
        found.balance = replace(found.balance, figures={**found.balance.figures, **enough})
    return Model(_with_held_out(knowledge, bank, config) if learned_here else knowledge)


def _with_held_out(base: BaseKnowledge, bank: FeatureBank, config: LearnConfig) -> BaseKnowledge:
    """Base weights learned anew from all images, once nothing is left to be found on those held out."""
    if not bank.has(Part.BASE_HELD_OUT):
        return base
    train = bank.select(Part.BASE_TRAIN)
    means = torch.allclose(base_classes(bank).weights, train.unit_means(torch.float32), atol=1e-4)
    n_images = len(train.features)
    parts = bank.parts.masked_fill(bank.parts == Part.BASE_HELD_OUT.code, Part.BASE_TRAIN.code)
    bank = replace(bank, parts=parts)
    train, method, graph = bank.select(Part.BASE_TRAIN), base.method, base.graph
    if isinstance(method, WDAE) and method.space is not None:
        steps = base.info.get("recipe", {}).get("space", {}).get("refit_steps", _REFIT_STEPS)
        method.space = with_base_weights(method.space, bank, steps, derive_seed(config.seed, "learn"))
        weights = method.space.weights
    else:
        epochs = 0 if means else config.weight_epochs  # where learning was no gain, means again
        seed = derive_seed(config.seed, "base weights")
        found, _ = learn_weights(train, None, epochs, seed, images=n_images)
        weights = unit(found.float())
    if isinstance(method, WDAE) and graph is not None:
        graph = build_graph(weights, method.n_neighbours, method.inverse_temperature)
    info = base.info | {RETURNED: True}
    held_out = None if base.held_out is None else base.held_out.beside(base.weights)
    return replace(base, weights=weights, counts=train.counts, graph=graph, info=info, held_out=held_out)


def _knowledge(
    method: Weighing,
    bank: FeatureBank,
    played: FeatureBank,
    config: LearnConfig,
    info: dict[str, Any],
    outliers: Mapping[str, Tensor] | None,
    background: tuple[Tensor, ...] | None,
    brought: bool,
) -> BaseKnowledge:
    """The method on all base classes, its balance measured on those that it was trained on.

    Base weights are regressed where the bank has ``brought`` its own. Others learn again from held-out images
    when all is found: what was found beside regressed ones would not hold.
    """
    seen, tried = bank, played
    if isinstance(method, WDAE) and method.space is not None:
        seen, tried = in_space(bank, method.space), _in_space(played, bank, method.space)
    if config.refine_base is not None and isinstance(method, WDAE):
        method.refine_base = config.refine_base
    if method.balance is None:  # scores stay as they are, as in an evaluation
        method.posterior = None
    known = method.posterior
    if known is not None and known.n_base != bank.n_base:
        train, each = seen.select(Part.BASE_TRAIN), max(1, len(known.anchors) // max(1, known.n_base))
        drawn = draw_posterior(train, each, known.strength, derive_seed(config.seed, "anchors"))
        assert drawn is not None
        method.posterior = replace(known, anchors=drawn.anchors, n_base=bank.n_base, regressed=None)
    known = method.posterior
    if known is not None and known.intercepts and (known.regressed is None) == brought:
        order = derive_seed(config.seed, "anchors")
        regressed = regressed_base(seen, known.strength, order) if brought else None
        method.posterior = replace(known, regressed=regressed)
    bare = copy.copy(method)
    if isinstance(bare, WDAE):
        bare.space = None
    method.balance = measured(
        bare, seen, tried, novel_share=config.novel_share, seed=config.seed, images=_ENOUGH
    )
    own = None
    if background is not None:
        weight, bias, usual = background[0], background[1], background[2] if len(background) > 2 else None
        found = unit(bank.select(Part.BASE_TRAIN).features.float()).mean(0)
        own = Background.of_linear(weight, bias, bank.mean_length(), usual, found)
        info["background"] = len(own.bias)
    # Any base class may play novel: a detector that is tried on one is fitted without it, unlike a method.
    may_play = bank if bank.n_base <= config.max_classes else played
    detector = fit_detector(bank, may_play, outliers, own, seed=config.seed)
    figures = {**method.balance.figures, **({} if detector is None else detector.figures)}
    method.balance = replace(method.balance, figures=figures)
    base, graph = base_classes(seen), None
    weights = unit(base.weights)
    if isinstance(method, WDAE) and method.space is not None:
        weights = method.space.weights
    if isinstance(method, WDAE) and method.denoiser.kind == "gnn":
        graph = build_graph(weights, method.n_neighbours, method.inverse_temperature)
    train = bank.select(Part.BASE_TRAIN)
    info[HELD_OUT] = sum(bank.counts(Part.BASE_HELD_OUT)) if bank.has(Part.BASE_HELD_OUT) else 0
    info["pseudo_novel"] = len(played.classes_of(Part.VALIDATION)) or len(bank.base_classes)
    held_out = None
    if bank.has(Part.BASE_HELD_OUT):
        held_out = HeldOut.some(seen.select(Part.BASE_HELD_OUT), derive_seed(config.seed, "kept"))
    return BaseKnowledge(
        train.names, weights, train.counts, method, base.scale, graph, info, held_out, detector
    )


def _in_space(some: FeatureBank, bank: FeatureBank, space: FeatureSpace) -> FeatureBank:
    """A bank with some of the base classes of another, in a space that has weights of all."""
    rows = [bank.base_classes.index(c) for c in some.base_classes]
    return in_space(some, replace(space, weights=space.weights[rows]))


def as_recipe(recipe: RecipeLike | None, seed: int = 0) -> MetaRecipe:
    """A recipe from what is given; by default wDAE-GNN+, with other keys where some are given."""
    if recipe is None or isinstance(recipe, Mapping):
        found = load(MetaRecipe, best_recipe(), {"seed": seed, **(recipe or {})})
    else:
        found = recipe if isinstance(recipe, MetaRecipe) else load(MetaRecipe, recipe_file(recipe))
    if found.method is not None:
        raise RecipeError(
            f"recipe {found.name!r} trains {found.method!r}; a model teaches with a denoiser of class"
            " weights: leave 'method' out"
        )
    return found


def fitted(recipe: MetaRecipe, bank: FeatureBank) -> MetaRecipe:
    """The recipe with episodes for which a bank has classes and images, and time; else as it is."""
    training, evaluation, n_base = recipe.training, recipe.evaluation, bank.n_base
    fewest = min(bank.counts(Part.BASE_TRAIN))
    shots = tuple(k for k in training.shots if k < fewest) or (1,)
    queries = max(1, min(evaluation.queries, min(bank.counts(Part.VALIDATION)) - min(shots)))
    fewer = {
        "n_fake": max(1, min(training.n_fake, n_base // 3)),
        "shots": shots,
        "queries_per_novel": min(training.queries_per_novel, fewest - max(shots)),
        "episodes_per_step": max(1, min(training.episodes_per_step, 1024 // n_base)),
        "validate_every": min(training.validate_every, training.steps),
        "validation_episodes": min(training.validation_episodes, max(100, 128_000 // n_base)),
    }
    episodes = int(_SCORES / (2 * evaluation.ways * queries * n_base))
    fewer_played = {"queries": queries, "step_episodes": min(evaluation.step_episodes, max(100, episodes))}
    return recipe.model_copy(
        update={
            "training": training.model_copy(update=fewer),
            "evaluation": evaluation.model_copy(update=fewer_played),
        }
    )


def _training_bank(bank: FeatureBank, config: LearnConfig) -> FeatureBank:
    return set_aside(bank, _ENOUGH, config.max_classes, derive_seed(config.seed, "set aside"))


def _too_few(bank: FeatureBank, played: FeatureBank) -> str | None:
    """Why no denoiser can be trained on a bank's classes; None where one can."""
    validation = played.counts(Part.VALIDATION)
    if played.n_base >= FEWEST_CLASSES and len(validation) >= 2 and min(validation) >= 2:
        return None
    several = sum(count >= 2 for count in bank.counts(Part.BASE_TRAIN))
    needed = FEWEST_CLASSES + (0 if bank.has(Part.VALIDATION) else 2)
    return (
        f"none: {counted(several, 'base class', 'base classes')} with 2 images or more to learn from;"
        f" {needed} are needed. Added classes keep their initial estimate"
    )


def _with_space(recipe: MetaRecipe, bank: FeatureBank) -> tuple[FeatureSpace | None, MetaRecipe]:
    """The space that a recipe leaves open, if any; without one where it is no better by half an error.

    That is measured by initial estimates. Base weights are learned anew there: from few images they are worse
    than those at hand.
    """
    asked = recipe.space
    is_open = None in (asked.power, asked.centre, asked.shrink) and bank.has(Part.BASE_HELD_OUT)
    space = find_space(bank, asked, seed=derive_seed(recipe.seed, "space")) if is_open else None
    if space is None:
        return None, recipe

    def accuracy(some: FeatureBank) -> float:
        trials = tune(InitialEstimate(), some, (1, 5), n_episodes=_ESTIMATE_EPISODES).trials.values()
        return sum(trial[0.0].all for trial in trials) / len(trials)

    plain = accuracy(bank)
    error = math.sqrt(plain * (1 - plain) / sum(bank.counts(Part.VALIDATION)))
    if accuracy(in_space(bank, space)) > plain + error / 2:
        return space, recipe
    return None, recipe.model_copy(update={"space": SpaceConfig()})


def _trained(
    recipe: MetaRecipe, bank: FeatureBank, space: FeatureSpace | None, checkpoint: Path | None, show: bool
) -> WDAE:
    begun = checkpoint is not None and checkpoint.is_file()
    done = steps_done(checkpoint)
    each = recipe.training.episodes_per_step
    options: dict[str, Any] = {"checkpoint": checkpoint, "resume": begun}
    if show:
        with progress(recipe.training.steps * each, f"training {recipe.name}", done=done * each) as bar:
            method = fit_method(recipe, bank, space, on_progress=bar.update, **options)
    else:
        method = fit_method(recipe, bank, space, **options)
    assert isinstance(method, WDAE)
    method.denoiser = method.denoiser.cpu()
    method.space = None if method.space is None else method.space.to("cpu")
    method.dtype = torch.float32
    return method


def _fitting(method: MethodLike, bank: FeatureBank, seed: int) -> Weighing:
    """A trained method for the base classes of a bank, which a space may have to learn first."""
    if isinstance(method, Method):
        found = copy.copy(method)
    else:
        path = Path(method)
        found = load_method(path / MODEL if path.is_dir() else path, dim=bank.dim)
    if not isinstance(found, WDAE | InitialEstimate):
        raise ModelError(
            f"a model teaches with a method that makes class weights (wDAE, initial-estimate); {found.name}"
            " is for wdae evaluate and wdae compare"
        )
    if found.posterior is not None:  # of before, maybe: balance and shares are found anew anyway
        found.posterior = replace(found.posterior, as_counted=True, eased=True)
    if isinstance(found, WDAE):
        found.dtype = torch.float32
        if found.denoiser.dim != bank.dim:
            raise ModelError(
                f"{found.name} works on features of size {found.denoiser.dim}, the bank's are of size"
                f" {bank.dim}; use the bank it was trained on, or train it on this one"
            )
        if found.space is not None:
            means = class_means(in_space(bank, replace(found.space, weights=base_classes(bank).weights)))
            known = found.space.weights
            same = known.shape == means.shape and bool(
                ((means @ known.T).argmax(1) == torch.arange(len(known))).double().mean() >= 0.5
            )
            if not same:
                found.space = with_base_weights(found.space, bank, _REFIT_STEPS, seed)
                if found.posterior is not None:
                    found.posterior = replace(found.posterior, n_base=0)  # of other classes: drawn anew
    return found


def _balanced_estimate(bank: FeatureBank, seed: int) -> InitialEstimate:
    where = where_to_play(bank)
    if where is None:
        return InitialEstimate()
    episodes = min(_ESTIMATE_EPISODES, max(10, int(_SCORES / (150 * bank.n_base))))
    try:
        tuned = tune(
            InitialEstimate(), bank, SHOTS, where=where, n_episodes=episodes, seed=seed, images=_ENOUGH
        )
    except EpisodeError:  # no class can play novel
        return InitialEstimate()
    return InitialEstimate(tuned.balance, posterior_of(as_recipe(None).evaluation, bank, seed))


def _with_weights(bank: FeatureBank, config: LearnConfig) -> FeatureBank:
    if bank.base_weights is not None:
        return bank
    train = bank.select(Part.BASE_TRAIN)
    held_out = bank.select(Part.BASE_HELD_OUT) if bank.has(Part.BASE_HELD_OUT) else None
    seed = derive_seed(config.seed, "base weights")
    return bank.with_base_weights(*learn_weights(train, held_out, config.weight_epochs, seed))


def held_out_parts(labels: Tensor, share: float, seed: int) -> Tensor:
    """Part codes ``[M]``: of each class a share of its images, drawn at random, is held out.

    A class with fewer than 4 images keeps them all to learn from.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "held out"))
    keys = torch.rand(len(labels), generator=generator, dtype=torch.float64)
    order = (labels.double() + keys).argsort()  # class after class, in random order within each
    counts = torch.bincount(labels)
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[order]]
    n_held = torch.where(counts >= 4, (share * counts).round().long().clamp(max=counts - 1), 0)
    parts = torch.full((len(labels),), Part.BASE_TRAIN.code, dtype=torch.uint8)
    parts[order[rank < n_held[labels[order]]]] = Part.BASE_HELD_OUT.code
    return parts
