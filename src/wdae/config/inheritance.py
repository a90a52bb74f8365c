"""Recipe files that build on one another: ``extends: wdae-gnn.yaml``.

The name is relative to the file that gives it, and the recipe it names may extend another in turn. Groups of
keys are merged key by key; lists and single values are replaced. Only recipes in the folder of the file that
was asked for, or below it, are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wdae.config.text import MAX_LETTERS, Text, can_be_path, kind, parse
from wdae.errors import RecipeError, nearest

EXTENDS = "extends"
MAX_FILES = 8


def read(path: Path) -> Text:
    """A recipe's data together with all that it extends; places name the file where it is another one."""
    folder = path.parent.resolve()
    files, texts = [path.resolve()], [parse(_contents(path), str(path))]
    while EXTENDS in texts[-1].data:
        text = texts[-1]
        where = ("" if len(files) > 1 else f"{path} ") + text.places[(EXTENDS,)]
        parent = _parent(text.data.pop(EXTENDS), files[-1], folder, where)
        if parent in files:
            round_trip = " → ".join(_name(file, folder) for file in [*files, parent])
            raise RecipeError(f"{where}: recipes extend each other in a circle: {round_trip}")
        if len(files) == MAX_FILES:
            raise RecipeError(f"{where}: a chain of recipes may have {MAX_FILES} files; this has more")
        name = _name(parent, folder)
        found = parse(_contents(parent), str(parent))
        files.append(parent)
        texts.append(
            Text(
                found.data,
                {key: f"{name} {place}" for key, place in found.places.items()},
                [f"{name} {fault}" for fault in found.faults],
            )
        )
    merged = texts[-1]
    for text in reversed(texts[:-1]):
        merged = Text(
            _merge(merged.data, text.data), merged.places | text.places, [*merged.faults, *text.faults]
        )
    return merged


def _parent(value: Any, file: Path, folder: Path, where: str) -> Path:
    """The file that an ``extends`` names."""
    if not isinstance(value, str) or not value or not can_be_path(value):
        raise RecipeError(
            f"{where}: 'extends' must be the name of a recipe file, got {value!r} ({kind(value)})"
        )
    path = (file.parent / value).resolve()
    if not path.is_relative_to(folder):
        raise RecipeError(
            f"{where}: 'extends' may name recipes in {folder} or below it, got {value!r}; copy it there"
        )
    if not path.is_file():
        known = [str(p.relative_to(file.parent)) for p in file.parent.glob("*.yaml") if p != file]
        raise RecipeError(f"{where}: no recipe {value!r} to extend{nearest(value, known)}")
    return path


def _contents(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_LETTERS + 1)  # one more than the parser takes
    except FileNotFoundError:
        raise RecipeError(
            f"no recipe at {path}; give a YAML file, or a name such as mini-imagenet/wdae-gnn"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read the recipe {path}: {error}; give a YAML file in UTF-8") from None


def _merge(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: _merge(below.get(key), value) for key, value in above.items()}


def _name(file: Path, folder: Path) -> str:
    return str(file.relative_to(folder)) if file.is_relative_to(folder) else file.name
