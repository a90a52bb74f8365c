"""Commands that change a model: ``add``, ``remove``, ``merge``, ``rename``, ``set``, ``undo``, ``redo``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from wdae.cli.options import (
    Device,
    Model,
    Patience,
    SkipBroken,
    Strict,
    check_model,
    check_sources,
    parse_share,
)
from wdae.printing import counted, say, warn

if TYPE_CHECKING:
    from wdae.classifier.head import Head
    from wdae.classifier.light.facts import ModelFacts
    from wdae.classifier.model import Model as Classifier

_TRIED_OUT = 20  # classes; of more at once, wdae explain tells


def add(
    model: Model,
    /,
    *sources: Path,
    class_name: Annotated[str | None, Parameter(name=["--class", "-c"])] = None,
    update: bool = False,
    strict: Strict = False,
    skip_broken: SkipBroken = True,
    device: Device = "auto",
    patience: Patience = 60.0,
) -> None:
    """Teach a model new classes: wdae add model DIR, or wdae add model --class okapi a.jpg b.jpg.

    Base classes keep their weights. It says what the new classes cost them, on base pictures that were held
    out; wdae set and wdae predict --expect shift the balance. The state before the change stays on
    disk: wdae undo returns to it. The same picture given twice counts once.

    Parameters
    ----------
    sources
        A folder with a folder per class; a file of features with labels; or, with --class, pictures.
    class_name
        The class of all the pictures given.
    update
        Classes may be known already; they get more examples.
    """
    check_model(model)
    sources = tuple(check_sources(sources))
    from wdae.classifier.explain import used_twice, warnings_about
    from wdae.classifier.inputs import read_examples
    from wdae.classifier.names import lookalikes
    from wdae.classifier.store import changing, load
    from wdae.data.findings import warn_unreadable

    opened = load(model).on(device)
    more = "--update"
    lenient = skip_broken and not strict
    found = read_examples(  # others need not wait for it
        opened,
        sources,
        class_name,
        skip_broken=lenient,
        option="--class",
        check=None if update else lambda names: opened.refuse_known(names, more),
    )
    if not update:
        opened.refuse_known(found.features, more)
    opened.checked(found.features, update=update)
    warn_unreadable(found.dropped)
    with changing(model, patience=patience, opened=opened) as changed:
        head, shots = changed.head, {name: changed.shots(name) for name in found.features}
        known, base = changed.names, set(changed.base.names)
        changed.add(found.features, update=update, sources=found.sources, pictures=found.pictures)
    for name, rows in found.features.items():
        new = changed.shots(name) - shots[name]
        again = f" ({len(rows) - new} were there already, or given twice)" if new < len(rows) else ""
        in_all = f"{changed.shots(name):,} in all"
        if name in base:
            in_all += ", beside those it was learned from"
        say(f"{name}: {counted(new, 'example')} added{again}, {in_all}")
        for line in warnings_about(changed, name, try_out=len(found.features) <= _TRIED_OUT):
            warn(f"warning: {line}")
    for name, other in lookalikes([name for name in found.features if name not in known], known):
        warn(
            f"warning: {name!r} is a class beside {other!r}; if they are one: wdae merge {model} {name!r}"
            f" --into {other!r}"
        )
    new_rows = [row for name in shots for row in changed.state.get(name, ())[shots[name] :]]
    for line in used_twice(changed, new_rows):
        warn(f"warning: {line}; wdae undo {model} takes this change back")
    _say_cost(model, changed, head)
    say(f"{model}: {_size(changed)}")


def remove(model: Model, /, *classes: str, patience: Patience = 60.0) -> None:
    """Take added classes out of a model; wdae undo brings them back.

    Parameters
    ----------
    classes
        Names of classes that were added.
    """
    check_model(model)
    from wdae.classifier.light.facts import remove_classes

    changed = remove_classes(model, classes, patience)
    say(f"{model}: {_size(changed)}")


def merge(
    model: Model, /, *classes: str, into: Annotated[str, Parameter(name="--into")], patience: Patience = 60.0
) -> None:
    """Make one class of several: wdae merge model Lion --into lion. wdae undo parts them again.

    Parameters
    ----------
    classes
        Names of classes that were added; they go.
    into
        The class that gets their examples: an added one or a base class.
    """
    check_model(model)
    from wdae.classifier.store import changing

    with changing(model, patience=patience) as changed:
        head = changed.head
        changed.merge(classes, into)
    beside = ", beside those it was learned from" if into in changed.base.names else ""
    say(f"{into}: {counted(changed.shots(into), 'example')} given{beside}")
    _say_cost(model, changed, head)
    say(f"{model}: {_size(changed)}")


def rename(
    model: Model,
    old: Annotated[str, Parameter(name="OLD")],
    new: Annotated[str, Parameter(name="NEW")],
    /,
    *,
    patience: Patience = 60.0,
) -> None:
    """Call an added class otherwise: wdae rename model lion Lion. wdae undo takes it back.

    Parameters
    ----------
    old
        The name of a class that was added.
    new
        Its new name, which no class may have.
    """
    check_model(model)
    from wdae.classifier.store import changing

    with changing(model, patience=patience) as changed:
        changed.rename(old, new.strip() or new)
    say(f"{model}: {old} is {changed.added[-1]} now; {_size(changed)}")


def set_(model: Model, setting: Literal["novel-share"], value: str, /, *, patience: Patience = 60.0) -> None:
    """Change a setting of a model: wdae set model novel-share 0.2. wdae undo takes it back.

    novel-share is how many of the pictures you classify are expected to be of added classes, once there are
    five of them. More finds more of the new things, and calls more of the old ones by their names.

    Parameters
    ----------
    setting
        novel-share.
    value
        A share between 0 and 1, or default: so few that base classes lose little.
    """
    check_model(model)
    share = None if value == "default" else parse_share(value, "novel-share 0.2, or default")
    from wdae.classifier.cost import cost
    from wdae.classifier.history import describe_share
    from wdae.classifier.store import changing

    with changing(model, patience=patience) as changed:
        head = changed.head
        changed.set_novel_share(share)
    say(f"{model}: expects {describe_share(changed.novel_share)}")
    price = cost(changed, head) if changed.added else None
    if price is not None:
        say(price.as_text())


def undo(model: Model, /, *, to: int | None = None, patience: Patience = 60.0) -> None:
    """Take the last change of a model back; again, the one before it. wdae redo makes it again.

    Nothing is lost: --to goes to the state after any change, back or forth. wdae info numbers the changes.

    Parameters
    ----------
    to
        Go to the state after the change of this number, back or forth (0: as learned).
    """
    check_model(model)
    from wdae.classifier.store import changing

    with changing(model, patience=patience) as changed:
        if to is None:
            changed.undo()
        else:
            changed.restore(to)
    _say_where(model, changed)


def redo(model: Model, /, *, patience: Patience = 60.0) -> None:
    """Make the change again that wdae undo has taken back; again, the one after it."""
    check_model(model)
    from wdae.classifier.store import changing

    with changing(model, patience=patience) as changed:
        changed.redo()
    _say_where(model, changed)


def _say_where(path: Path, model: Classifier) -> None:
    at = "as learned" if model.history.head == 0 else f"after change {model.history.head}"
    say(f"{path}: {at}; {_size(model)}")


def _say_cost(path: Path, model: Classifier, before: Head) -> None:
    from wdae.classifier.cost import cost

    price = cost(model, before)
    if price is None:
        say(
            "base classes: what it costs them cannot be told; this model keeps no held-out pictures of them."
            f" On labelled pictures of yours: wdae evaluate {path} DIR"
        )
    else:
        say(price.as_text())


def _size(model: Classifier | ModelFacts) -> str:
    return f"{counted(len(model.names), 'class', 'classes')} ({len(model.added)} added)"
