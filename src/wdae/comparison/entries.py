"""What a comparison can be given: a method's name, perhaps with options, a run folder, or a recipe."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wdae.comparison.config import CompareRecipe
from wdae.config import load, recipe_file
from wdae.errors import ModelError, RecipeError, nearest
from wdae.evaluation.measure import split_options
from wdae.methods import WDAE, Method, find, is_learned, names
from wdae.stage2.config import MetaRecipe


@dataclass(frozen=True)
class ComparisonEntry:
    """One row of a comparison; exactly one of ``name``, ``run`` and ``recipe`` is there.

    Args:
        word: as it was given: what tables call it.
        name, options: of a method, and what was given with it.
        run: the folder of a run that was trained before.
        recipe: the file of a recipe to train.
    """

    word: str
    name: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    run: Path | None = None
    recipe: Path | None = None

    @property
    def kind(self) -> type[Method] | None:
        """The class of the method; None where a run's file will tell."""
        if self.run is not None:
            return None
        name = self.name
        if self.recipe is not None:
            name = load(MetaRecipe, self.recipe).method
        return WDAE if name is None else find(name)

    @property
    def learned(self) -> bool:
        """Whether it is to be trained here."""
        return self.recipe is not None or (self.name is not None and is_learned(self.name))


def split_words(words: Sequence[str]) -> tuple[str, ...]:
    """Entries from words with commas between them; a ``key=value`` belongs to the entry before it.

    A key is letters, digits, ``_`` and dots: a folder with ``=`` in its name is told by its path.

    >>> split_words(["lda:shrink=0.9,power=1,simpleshot", "runs/gnn"])
    ('lda:shrink=0.9,power=1', 'simpleshot', 'runs/gnn')
    >>> split_words(["lda:shrink=0.9,runs/noise=0.02"])
    ('lda:shrink=0.9', 'runs/noise=0.02')
    """
    entries: list[str] = []
    for part in (part for word in words for part in word.split(",") if part):
        if re.match(r"[\w.]+=", part) and entries and ":" in entries[-1]:
            entries[-1] += f",{part}"
        else:
            entries.append(part)
    return tuple(entries)


def entry(word: str) -> ComparisonEntry:
    """What a word means: a method wins over a folder of its name, a folder over a recipe.

    >>> entry("lda:shrink=0.9").options, entry("mini-imagenet/wdae-gnn").recipe.name
    ({'shrink': 0.9}, 'wdae-gnn.yaml')
    """
    if word.partition(":")[0] in names():
        name, options = split_options(word)
        return ComparisonEntry(word, name, options)
    if Path(word).is_dir():
        if not (Path(word) / "model.safetensors").exists():
            raise ModelError(f"{word} holds no model.safetensors; give a run that was trained to its end")
        return ComparisonEntry(word, run=Path(word))
    if "/" in word or word.endswith((".yaml", ".yml")):
        try:
            return ComparisonEntry(word, recipe=recipe_file(word))
        except RecipeError as error:
            raise ModelError(f"{word!r} is no run folder, and {error}") from None
    find(word.partition(":")[0])  # says which names there are
    raise ModelError(f"{word!r} is no method, run folder or recipe{nearest(word, names())}")


def names_places(words: Sequence[str]) -> bool:
    """Whether some entry may name a file or a folder."""
    return any(word not in ("all", *names()) and word.partition(":")[0] not in names() for word in words)


def given_recipe(entry: ComparisonEntry, recipe: CompareRecipe) -> MetaRecipe:
    """A recipe to train as it stands, for the comparison's seed, shots and episodes."""
    return load(
        MetaRecipe,
        entry.recipe,
        {
            "seed": recipe.seed,
            "device": recipe.device,
            "precision": recipe.precision,
            "evaluation.shots": list(recipe.shots),
            "evaluation.ways": recipe.ways,
            "evaluation.queries": recipe.queries,
            "evaluation.split_held_out": recipe.split_held_out,
        },
    )


def with_keys(training: MetaRecipe, entry: ComparisonEntry) -> MetaRecipe:
    """A method's recipe with the options that were given: those with a dot are keys of the recipe."""
    data = training.model_dump()
    for key, value in entry.options.items():
        *groups, last = key.split(".")
        if not groups:
            data["options"] = data["options"] | {key: value}
            continue
        inner = data
        for group in groups:
            inner = inner.get(group, {}) if isinstance(inner, dict) else {}
        if last not in inner:
            raise ModelError(f"{entry.word}: no recipe has a key {key!r}{nearest(last, inner)}")
        inner[last] = value
    try:
        return MetaRecipe.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ModelError(f"{entry.word}: {place}: {first['msg']}") from None
