"""``wdae methods``: what there is to compare."""

from __future__ import annotations

from wdae.cli.options import Json

_OURS = "wdae-gnn+"  # a recipe rather than a method of its own


def methods(*, json: Json = False, recipe: str | None = None) -> None:
    """List the methods there are, with their papers and what each can do.

    Parameters
    ----------
    recipe
        Print the recipe that this method is trained with (by wdae compare), for wdae train --recipe.
    """
    if recipe == _OURS:
        from wdae.config import dump, load, recipe_file
        from wdae.stage2.config import MetaRecipe

        print(dump(load(MetaRecipe, recipe_file("mini-imagenet/wdae-gnn-plus"))), end="")
        return
    if recipe is not None:
        from wdae.comparison.config import CompareRecipe
        from wdae.comparison.run import training_recipe
        from wdae.config import dump
        from wdae.errors import ModelError
        from wdae.methods import is_learned

        if not is_learned(recipe):
            raise ModelError(f"{recipe} has nothing to train, so it has no recipe; use it by its name")
        print(dump(training_recipe(recipe, CompareRecipe())), end="")
        return
    from json import dumps

    from rich.console import Console
    from rich.table import Table

    from wdae.methods import find, is_learned, names

    rows = []
    for name in names():
        kind = find(name)
        rows.append(
            {
                "name": name,
                "about": kind.about,
                "paper": kind.paper,
                "trained": is_learned(name),
                "joint": kind.joint,
                "transductive": kind.transductive,
                "ordered": kind.ordered,
            }
        )
    rows.append(
        rows[-1]
        | {
            "name": _OURS,
            "about": "wdae-gnn in a space of its own, what wdae learn teaches with; by its recipe only",
            "paper": "ours",
        }
    )
    if json:
        print(dumps(rows, indent=2))
        return
    view = Table(box=None, pad_edge=False)
    for title in ("method", "trained", "scores", "what it does", "paper"):
        view.add_column(title, no_wrap=title == "method")
    for row in rows:
        notes = [note for note in ("transductive", "ordered") if row[note]]
        about = str(row["about"]) + (f" ({', '.join(notes)})" if notes else "")
        scores = "novel + base" if row["joint"] else "novel"
        view.add_row(str(row["name"]), "yes" if row["trained"] else "", scores, about, str(row["paper"]))
    console = Console()
    Console(width=console.width if console.is_terminal else 140).print(view)
