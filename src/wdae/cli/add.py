"""``wdae add``: teach a model new classes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from wdae.printing import say, warn

app = App(name="add", help_format="markdown")


@app.default
def add(
    model: Path,
    sources: Annotated[tuple[Path, ...], Parameter(negative=(), show_default=False)] = (),
    *,
    class_name: Annotated[str | None, Parameter(name=["--class", "-c"])] = None,
    update: bool = False,
    skip_broken: bool = False,
    patience: float = 60.0,
) -> None:
    """Teach a model new classes: wdae add model DIR, or wdae add model --class okapi a.jpg b.jpg.

    Base classes keep their weights. What was there before is kept: wdae undo takes the change back.

    Parameters
    ----------
    model
        The model's folder.
    sources
        A folder with a folder per class; a file of features with labels; or, with --class, pictures.
    class_name
        The class of all the pictures given.
    update
        Classes may be known already; they get more examples.
    skip_broken
        Leave unreadable pictures out; without, they are named and nothing is learned.
    patience
        Seconds to wait while another process changes the model.
    """
    from wdae.classifier.explain import warnings_about
    from wdae.classifier.inputs import read_examples
    from wdae.classifier.store import changing, load

    before = load(model)
    if class_name is not None and not update:
        before.refuse_known([class_name])
    found = read_examples(before, sources, class_name, skip_broken=skip_broken)
    before.checked(found.features, update=update)  # before waiting for anybody
    for name in found.dropped:
        warn(f"left out, cannot be read: {name}")
    with changing(model, patience=patience) as changed:
        changed.add(found.features, update=update, sources=found.sources, pictures=found.pictures)
    for name, rows in found.features.items():
        say(f"{name}: {len(rows)} examples added, {changed.shots(name)} in all")
        for line in warnings_about(changed, name):
            warn(f"warning: {line}")
    say(f"{model}: {len(changed.names)} classes ({len(changed.added)} added)")
