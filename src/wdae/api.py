"""The public functions. Each does what the command of the same name does, and gives the same figures."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from wdae.bank import FeatureBank
from wdae.bank.embedded import embedded_bank
from wdae.bank.format import MANIFEST
from wdae.classifier.model import Model
from wdae.classifier.picture_backbone import PictureBackbone, load_backbone
from wdae.classifier.store import is_model
from wdae.classifier.store import load as load_model
from wdae.comparison.config import CompareRecipe
from wdae.comparison.entries import names_places, split_words
from wdae.comparison.run import chosen_methods, run_comparison
from wdae.comparison.seeds import SeedsTable, run_seeds
from wdae.comparison.table import ComparisonTable
from wdae.config import load as read_recipe
from wdae.config import recipe_file
from wdae.errors import StorageError
from wdae.evaluation.config import EvaluationConfig
from wdae.evaluation.html import write_report
from wdae.evaluation.measure import evaluate as evaluate_methods
from wdae.evaluation.measure import load_methods
from wdae.evaluation.paper import paper_figures
from wdae.evaluation.results import Result
from wdae.evaluation.table import ResultTable
from wdae.methods import Method
from wdae.methods.saved import load_method
from wdae.runs.run import Run
from wdae.runtime.device import pick_device, pick_dtype
from wdae.stage1.model_file import CARD
from wdae.stage2.config import MetaRecipe
from wdae.stage2.run import MODEL, fit_method, report_methods, train_method
from wdae.storage.manifest import without_checksums
from wdae.storage.trust import Trust, refuse_unnamed, trusting

Loaded = FeatureBank | Model | Method | PictureBackbone | Result
EPISODES = {"few-way": 20_000, "all-way": 100}
"""How many episodes the paper measures on, by protocol."""


def load_recipe(name: str | Path, changes: Mapping[str, Any] | None = None) -> MetaRecipe:
    """A recipe of stage 2: a YAML file, or one that ships with the package by its name.

    Args:
        name: a path, or a folder and a name: ``mini-imagenet/wdae-gnn-plus``.
        changes: values by dotted key.

    >>> recipe = load_recipe("mini-imagenet/wdae-gnn", {"training.noise": 0.05})
    >>> recipe.name, recipe.denoiser.hidden, recipe.training.noise
    ('wdae-gnn', 320, 0.05)
    """
    return read_recipe(MetaRecipe, recipe_file(name), changes)


def train(
    recipe: MetaRecipe | str | Path, bank: FeatureBank | str | Path, *, output: str | Path | None = None
) -> Method:
    """Train a method on a feature bank (stage 2), as ``wdae train`` does.

    A denoiser's step sizes ε, its balance of base and novel scores and its feature space are chosen on the
    bank's validation classes, as the recipe says. :func:`wdae.train_denoiser` trains the network alone.

    Args:
        recipe: the recipe, its file, or the name of one that ships with the package.
        bank: the features, or their folder.
        output: a run folder to write, with metrics, test results and report; nothing is written without it.

    >>> from wdae import synthetic_bank
    >>> bank = synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4)
    >>> short = {"denoiser.hidden": 4, "training.steps": 3, "training.n_fake": 4, "device": "cpu"}
    >>> short |= {"training.validation_episodes": 20, "evaluation.step_episodes": 20}
    >>> method = train(load_recipe("mini-imagenet/wdae-gnn", short), bank)
    >>> method.name, method.balance is not None
    ('wdae-gnn', True)
    """
    recipe = recipe if isinstance(recipe, MetaRecipe) else load_recipe(recipe)
    features = as_bank(bank)
    if output is None:
        return fit_method(recipe, features)
    run = Run.create(Path(output), recipe, seed=recipe.seed)
    method = train_method(run, recipe, features)
    report_methods(run, [method], recipe, features)
    return method


def evaluate(
    methods: Method | str | Path | Sequence[Method | str | Path],
    bank: FeatureBank | str | Path,
    *,
    protocol: Literal["few-way", "all-way"] = "few-way",
    shots: Sequence[int] = (1, 5),
    ways: int = 5,
    queries: int = 15,
    episodes: int | None = None,
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    reference: Method | str | Path = "initial-estimate",
    split_held_out: bool = False,
) -> ResultTable:
    """Measure methods on novel and base classes, beside a reference and on the same episodes.

    Args:
        methods: trained methods, run folders of ``wdae train``, or names of methods without parameters.
        bank: the features, or their folder.
        protocol: few-way: a few novel classes an episode; all-way: all of them at once.
        shots: numbers of shots.
        ways: novel classes of an episode (few-way).
        queries: queries of a novel class (few-way).
        episodes: 20,000 few-way or 100 all-way by default, as in the paper.
        seed: which episodes.
        device: auto (a GPU if there is one), cpu, cuda, cuda:1, ...
        precision: of matrix products: auto, float32 or bfloat16.
        reference: what comes first in the table, for others to be compared with.
        split_held_out: ask only that half of the held-out base images which nothing was fitted on.

    >>> from wdae import synthetic_bank
    >>> bank = synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4)
    >>> table = evaluate("fine-tune", bank, shots=(1,), queries=5, episodes=20)
    >>> [(result.method, result.n_shot) for result in table]
    [('initial-estimate', 1), ('fine-tune', 1)]
    """
    where = pick_device(device)
    given = [methods] if isinstance(methods, Method | str | Path) else list(methods)
    chosen = load_methods([reference, *given], where, pick_dtype(precision, where))
    config = EvaluationConfig(
        protocol=protocol,
        shots=tuple(shots),
        ways=ways,
        queries=queries,
        episodes=episodes or EPISODES[protocol],
    )
    features = as_bank(bank)
    features = features.half_of_held_out("test") if split_held_out else features
    return evaluate_methods(chosen, features, config, seed=seed, device=where)


def compare(
    recipe: CompareRecipe | str | Path, output: str | Path, *, resume: bool = False, force: bool = False
) -> ComparisonTable | SeedsTable:
    """Train and measure many methods on one bank, on the same episodes, as ``wdae compare`` does.

    Args:
        recipe: which methods, on which bank, for how long; or its file, or the name of one that ships.
        output: the run folder: it gets each trained method, its results, the table and a report.
        resume: go on with the comparison in that folder, by the recipe it was begun with; ``recipe`` names
            the same bank.
        force: write over an existing run folder.

    >>> import tempfile
    >>> from pathlib import Path
    >>> place = tempfile.TemporaryDirectory()
    >>> recipe = CompareRecipe(methods=("fine-tune",), shots=(1,), episodes=10)
    >>> table = compare(recipe, Path(place.name) / "run")
    >>> [record["method"] for record in table.records()]
    ['initial-estimate', 'fine-tune']
    """
    output = Path(output)
    if not isinstance(recipe, CompareRecipe):
        recipe = read_recipe(CompareRecipe, recipe_file(recipe))
    if resume:
        begun = Run.open(output).recipe(CompareRecipe)
        were, are = (
            {"bank": r.bank, "methods": ",".join(split_words(r.methods)), "reference": r.reference}
            for r in (begun, recipe)
        )
        for key, words in (("methods", begun.methods), ("reference", (begun.reference,))):
            if not names_places(split_words(words)):  # it opens nothing: the run's own
                del were[key]
        named = [word for key, value in were.items() for word in (f"--{key}", value)]
        command = shlex.join(["wdae", "compare", *named, "-o", str(output), "--resume"])
        refuse_unnamed(were, are, output, command)
        recipe = begun
    recipe = recipe.model_copy(update={"methods": split_words(recipe.methods)})
    chosen_methods(recipe)  # refused before anything is loaded or written
    bank = as_bank(recipe.bank)
    run = Run.resume(output) if resume else Run.create(output, recipe, seed=recipe.seed, force=force)
    if recipe.seeds:
        over = run_seeds(run, recipe, bank)
        over.save(run.path)
        return over
    table = run_comparison(run, recipe, bank)
    view = ComparisonTable(table, recipe.reference, paper_figures(bank), bank.info.get("backbone"))
    view.save(run.path)
    write_report(run, baseline=recipe.reference)
    return view


def load(path: str | Path, *, trust: Trust = (), verify: bool = True) -> Loaded:
    """Open anything that wdae has written: a bank, a model, a trained method, a backbone, a result.

    A run of ``wdae train`` gives the method it has trained, a run of ``wdae pretrain`` its backbone.

    Args:
        path: a folder or a file.
        trust: code of yours that the files may name, as ``pkg.module:factory``; nothing else is run.
        verify: compare checksums; without, only names and sizes of files are checked.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from wdae import synthetic_bank
    >>> place = tempfile.TemporaryDirectory()
    >>> synthetic_bank(8, 0, 5, 10, 4, held_out_per_class=2).save(Path(place.name) / "bank")
    >>> load(Path(place.name) / "bank").dim
    4
    """
    with trusting(trust), nullcontext() if verify else without_checksums():
        return _load(Path(path))


def _load(path: Path) -> Loaded:
    if path.is_file():
        return Result.load(path) if path.suffix == ".json" else load_method(path)
    if (path / MANIFEST).is_file():
        return FeatureBank.open(path)
    if is_model(path):
        return load_model(path)
    if (path / CARD).is_file() or (path / "model" / CARD).is_file():
        return load_backbone(str(path))
    if (path / MODEL).is_file():
        return load_method(path / MODEL)
    what = "holds nothing that wdae has finished writing" if path.is_dir() else "does not exist"
    raise StorageError(
        f"{path} {what}; give a feature bank, a model of wdae learn, a run of wdae train or wdae pretrain, or"
        " a result file"
    )


def as_bank(bank: FeatureBank | str | Path) -> FeatureBank:
    """A bank that is open, or opened here; ``embedded`` is the one that ships with the package."""
    if isinstance(bank, FeatureBank):
        return bank
    return embedded_bank() if str(bank) == "embedded" else FeatureBank.open(Path(bank))
