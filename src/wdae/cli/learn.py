"""``wdae learn``: base classes in, a model to add classes to out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from wdae.classifier.learn_job import best_recipe
from wdae.cli.options import Device, SkipBroken, Strict, check_sources
from wdae.cli.recipe import recipe_command
from wdae.printing import warn
from wdae.stage2.config import MetaRecipe
from wdae.storage.files import refuse_existing


@recipe_command(MetaRecipe, default=best_recipe, without=("method", "options"))
def learn(
    recipe: MetaRecipe | None,
    source: Path | None = None,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    start: Annotated[Path | None, Parameter(name="--from")] = None,
    method: str | None = None,
    backbone: str | None = None,
    side: int | None = None,
    crop: float | None = None,
    mean: tuple[float, float, float] | None = None,
    std: tuple[float, float, float] | None = None,
    interpolation: str | None = None,
    device: Device = "auto",
    train: str = "conv4-64",
    epochs: int = 30,
    size: int = 84,
    held_out: float = 0.2,
    novel_share: float | None = None,
    refine_base: bool | None = None,
    max_classes: int = 1000,
    weight_epochs: int = 30,
    strict: Strict = False,
    skip_broken: SkipBroken = True,
    resume: bool = False,
) -> None:
    """Learn a model from base classes: wdae learn photos -o model.

    SOURCE is a folder with a folder of pictures per class, a feature bank, or a file of features with labels
    (.npz, .csv, .safetensors, ...). For pictures a backbone is trained on them, or one that has weights is
    used as it is (--backbone embedded: better with fewer than some hundred pictures a class). The model
    teaches with a method that wdae train has trained (--method RUN), or one is trained now (--recipe FILE,
    wDAE-GNN+ by default).

    Without SOURCE the model is one that ships with the package: it knows 64 classes of animals and things,
    takes pictures, and is ready to be taught yours: wdae learn -o model.

    Parameters
    ----------
    source
        The base classes.
    output
        The model to make: a folder.
    start
        Take a model as it is: another model's folder, or an ONNX file that wdae export has written.
    method
        A trained method to teach with: the folder of wdae train, its model.safetensors, or initial-estimate.
    backbone
        Use a backbone as it is: embedded, lite0, timm:NAME, transformers:NAME, onnx:FILE, pkg.module:factory,
        or a folder of wdae pretrain (wdae backbones lists them). With features as SOURCE: the backbone that
        they came from, so that the model takes pictures too.
    side
        With --backbone: side of the pictures, where it differs from what the backbone says.
    crop
        With --backbone: share of the picture's shorter side that is seen, 0 to 1.
    mean
        With --backbone: what is taken off each colour, red, green and blue: --mean 0.5 0.5 0.5.
    std
        With --backbone: what each colour is divided by then.
    interpolation
        With --backbone: the filter that resizes: bilinear, bicubic, lanczos, nearest, box, hamming.
    train
        Without --backbone: the backbone to train on the pictures (conv4-64, resnet10, resnet12, ...).
    epochs
        Without --backbone: passes over the pictures.
    size
        Without --backbone: side to which pictures are scaled.
    held_out
        Share of each base class kept out of learning, to calibrate on, where the source does not say it.
    novel_share
        Share of the pictures to classify that are expected to be of added classes, unless asked otherwise
        (wdae set, wdae predict --expect); without, so few that base classes lose little.
    refine_base
        Let base weights move too when classes are added, as in the paper.
    max_classes
        Base classes that take part in training and calibration; of more, some are drawn.
    weight_epochs
        Passes over the features to learn base weights, where the source has none.
    resume
        Go on with a model that was begun and interrupted, as it was begun. SOURCE, --method and --backbone
        are named again: wdae learn photos -o model --resume.
    """
    if source is not None:
        check_sources([source])
    if not resume:
        refuse_existing(output)
    if start is not None:
        _take(start, output, source)
        return
    from wdae.classifier.learn_job import LearnJob, check_method, go_on, job_folder
    from wdae.classifier.sources import run_job
    from wdae.classifier.store import save
    from wdae.classifier.summary import print_summary, summary
    from wdae.config import load
    from wdae.errors import RecipeError
    from wdae.storage.unfinished import unfinished

    if method is not None and recipe is not None:
        raise RecipeError("--method is trained already; leave --recipe and its keys out, or --method")
    check_method(method)
    options = {
        "source": None if source is None else source.absolute(),
        "method": method,
        "backbone": backbone,
        "seen.side": side,
        "seen.crop": crop,
        "seen.mean": mean,
        "seen.std": std,
        "seen.interpolation": interpolation,
        "device": device,
        "train": train,
        "epochs": epochs,
        "size": size,
        "skip_broken": skip_broken and not strict,
        "config.seed": 0 if recipe is None else recipe.seed,
        "config.held_out": held_out,
        "config.novel_share": novel_share,
        "config.refine_base": refine_base,
        "config.max_classes": max_classes,
        "config.weight_epochs": weight_epochs,
    }
    asked = load(LearnJob, None, options).model_copy(update={"recipe": recipe})
    try:
        with job_folder(asked, output, resume=resume) as (job, work):
            model = run_job(job, work, on_progress=warn)
            save(model, output)
    except KeyboardInterrupt:
        if (kept := unfinished(output)).exists():
            warn(f"{kept} keeps what was done; go on with: {go_on(asked, output)}")
        raise
    print_summary(summary(output))


def _take(start: Path, output: Path, source: Path | None) -> None:
    """A model as it is, in a folder of its own."""
    from wdae.classifier.store import load, save
    from wdae.classifier.summary import print_summary, summary
    from wdae.errors import ModelError

    if source is not None:
        raise ModelError(f"--from takes a model as it is; leave {source} out, or --from")
    if start.suffix == ".onnx" and start.is_file():
        from wdae.export.whole import open_export

        model = open_export(start)
    else:
        model = load(start)
    save(model, output)
    print_summary(summary(output))
