"""``wdae add``, ``wdae remove`` and ``wdae undo``: commands that change a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from wdae.cli.options import Model, Patience, SkipBroken
from wdae.printing import say, warn

if TYPE_CHECKING:
    from wdae.classifier.model import Model as Classifier


def add(
    model: Model,
    /,
    *sources: Path,
    class_name: Annotated[str | None, Parameter(name=["--class", "-c"])] = None,
    update: bool = False,
    skip_broken: SkipBroken = False,
    patience: Patience = 60.0,
) -> None:
    """Teach a model new classes: wdae add model DIR, or wdae add model --class okapi a.jpg b.jpg.

    Base classes keep their weights. The state before the change stays on disk: wdae undo returns to it.

    Parameters
    ----------
    sources
        A folder with a folder per class; a file of features with labels; or, with --class, pictures.
    class_name
        The class of all the pictures given.
    update
        Classes may be known already; they get more examples.
    """
    from wdae.classifier.explain import warnings_about
    from wdae.classifier.inputs import read_examples
    from wdae.classifier.store import changing, load

    opened = load(model)
    if class_name is not None and not update:
        opened.refuse_known([class_name])
    found = read_examples(opened, sources, class_name, skip_broken=skip_broken)  # others need not wait for it
    opened.checked(found.features, update=update)
    for name in found.dropped:
        warn(f"left out, cannot be read: {name}")
    with changing(model, patience=patience, opened=opened) as changed:
        changed.add(found.features, update=update, sources=found.sources, pictures=found.pictures)
    for name, rows in found.features.items():
        say(f"{name}: {len(rows)} examples added, {changed.shots(name)} in all")
        for line in warnings_about(changed, name):
            warn(f"warning: {line}")
    say(f"{model}: {_size(changed)}")


def remove(model: Model, /, *classes: str, patience: Patience = 60.0) -> None:
    """Take added classes out of a model; wdae undo brings them back.

    Parameters
    ----------
    classes
        Names of classes that were added.
    """
    from wdae.classifier.store import changing

    with changing(model, patience=patience) as changed:
        changed.remove(classes)
    say(f"{model}: {_size(changed)}")


def undo(model: Model, /, *, to: int | None = None, patience: Patience = 60.0) -> None:
    """Take the last change of a model back; again, the one before it.

    Nothing is lost: --to goes to the state after any change, later ones included, so that it also redoes.
    wdae info numbers the changes.

    Parameters
    ----------
    to
        Go to the state after the change of this number, back or forth (0: as learned).
    """
    from wdae.classifier.store import changing

    with changing(model, patience=patience) as changed:
        if to is None:
            changed.undo()
        else:
            changed.restore(to)
    at = "as learned" if changed.history.head == 0 else f"after change {changed.history.head}"
    say(f"{model}: {at}; {_size(changed)}")


def _size(model: Classifier) -> str:
    return f"{len(model.names)} classes ({len(model.added)} added)"
