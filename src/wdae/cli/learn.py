"""``wdae learn``: base classes in, a model to add classes to out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from wdae.classifier.config import LearnConfig
from wdae.cli.options import SkipBroken
from wdae.cli.recipe import recipe_command
from wdae.printing import warn


@recipe_command(LearnConfig)
def learn(
    recipe: LearnConfig,
    source: Path | None = None,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    backbone: str | None = None,
    train: str = "conv4-64",
    epochs: int = 30,
    size: int = 84,
    skip_broken: SkipBroken = False,
    resume: bool = False,
) -> None:
    """Learn a model from base classes: wdae learn photos -o model.

    SOURCE is a folder with a folder of pictures per class, a feature bank, or a file of features with labels
    (.npz, .csv, .safetensors, ...). For pictures a backbone is trained on them, or one that has weights is
    used as it is (--backbone embedded: better with fewer than some hundred pictures a class). Then the
    denoiser is trained and the model calibrated.

    Without SOURCE the model is one that ships with the package: it knows 64 classes of animals and things,
    takes pictures, and is ready to be taught yours: wdae learn -o model.

    Parameters
    ----------
    source
        The base classes.
    output
        The model to make: a folder.
    backbone
        Use a backbone as it is: embedded, timm:NAME, pkg.module:factory, or a folder of wdae pretrain. With
        features as SOURCE: the backbone that they came from, so that the model takes pictures too.
    train
        Without --backbone: the backbone to train on the pictures (conv4-64, resnet10, resnet12, ...).
    epochs
        Without --backbone: passes over the pictures.
    size
        Without --backbone: side to which pictures are scaled.
    resume
        Go on with a model that was begun and interrupted, as it was begun: wdae learn -o model --resume.
    """
    from wdae.classifier.learn_job import learn_from
    from wdae.classifier.lesson import Lesson, attending
    from wdae.classifier.store import load, save
    from wdae.classifier.summary import print_summary, summary
    from wdae.config import load as checked
    from wdae.storage.unfinished import unfinished

    options = {
        "source": None if source is None else source.absolute(),
        "backbone": backbone,
        "train": train,
        "epochs": epochs,
        "size": size,
        "skip_broken": skip_broken,
    }
    asked = checked(Lesson, None, options).model_copy(update={"recipe": recipe})
    try:
        with attending(asked, output, resume=resume) as (lesson, work):
            model = learn_from(lesson, work, on_progress=warn)
            save(model, output)
    except KeyboardInterrupt:
        if (kept := unfinished(output)).exists():
            warn(f"{kept} keeps what was done; go on with: wdae learn -o {output} --resume")
        raise
    print_summary(summary(load(output), output))
