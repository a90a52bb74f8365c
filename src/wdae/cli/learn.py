"""``wdae learn``: base classes in, a model to add classes to out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from wdae.cli.recipe import recipe_command
from wdae.model.learn_config import LearnConfig

app = App(name="learn", help="Learn a model from base classes, to teach new classes to.")


@recipe_command(app, LearnConfig)
def learn(
    recipe: LearnConfig,
    source: Path,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])],
    backbone: str | None = None,
    train: str = "conv4-64",
    epochs: int = 30,
    size: int = 84,
    skip_broken: bool = False,
) -> None:
    """Learn a model from base classes: wdae learn photos -o model.

    SOURCE is a folder with a folder of pictures per class, a feature bank, or a file of features with labels
    (.npz, .csv, .safetensors, ...). For pictures a backbone is trained on them, or one that has weights is
    used as it is. Then the denoiser is trained and the model calibrated.

    Parameters
    ----------
    source
        The base classes.
    output
        The model to make: a folder.
    backbone
        Use a backbone as it is: embedded, timm:NAME, pkg.module:factory, or a folder of wdae pretrain.
    train
        Without --backbone: the backbone to train on the pictures.
    epochs
        Without --backbone: passes over the pictures.
    size
        Without --backbone: side to which pictures are scaled.
    skip_broken
        Leave unreadable pictures out instead of refusing the folder.
    """
    from wdae.model.store import load, save
    from wdae.model.summary import print_summary, summary
    from wdae.model.teach import learn_from
    from wdae.storage import refuse_existing

    refuse_existing(output)
    model = learn_from(
        source, recipe, backbone=backbone, train=train, epochs=epochs, size=size, skip_broken=skip_broken
    )
    save(model, output)
    print_summary(summary(load(output), output))
