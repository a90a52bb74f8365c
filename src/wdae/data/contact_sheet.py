"""A picture of the pictures: some classes of a part, some pictures of each, to see what is there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from wdae.data.decode import fit
from wdae.data.image_set import ImageSet
from wdae.errors import DataError
from wdae.parts import Part
from wdae.printing import printable
from wdae.storage.files import atomic_file

_TILE, _GAP, _NAME_WIDTH = 72, 4, 190
_CLASSES, _PER_CLASS = 20, 10  # shown


def contact_sheet(image_set: ImageSet, part: Part, path: Path) -> Path:
    """Write a PNG with a row for each class: its name, its number of pictures, and the first of them.

    Classes are taken evenly from all of the part's; a picture that cannot be read shows as a crossed tile.
    """
    classes = image_set.classes_of(part)
    if not classes:
        raise DataError(f"{image_set.name}: no pictures in {part.value}; there is nothing to show")
    shown = [
        classes[i]
        for i in np.unique(np.linspace(0, len(classes) - 1, min(_CLASSES, len(classes))).round().astype(int))
    ]
    pitch = _TILE + _GAP
    sheet = Image.new(
        "RGB", (_NAME_WIDTH + _PER_CLASS * pitch + _GAP, len(shown) * pitch + pitch // 2), "white"
    )
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(12)
    rows = image_set.rows(part)
    title = f"{image_set.name} · {part.value} · {len(classes)} classes · {len(rows)} pictures"
    draw.text((_GAP, _GAP), printable(title), "black", font)
    for line, label in enumerate(shown):
        top = pitch // 2 + line * pitch
        members = rows[image_set.labels[rows] == label]
        name = image_set.class_names[label]
        draw.text((_GAP, top + _TILE // 3), _shortened(name, draw, font), "black", font)
        draw.text((_GAP, top + _TILE // 3 + 16), str(len(members)), "grey", font)
        for column, row in enumerate(members[:_PER_CLASS].tolist()):
            left = _NAME_WIDTH + column * pitch
            try:
                pixels = fit(image_set.source.read(row, at_least=2 * _TILE), _TILE)
                sheet.paste(Image.fromarray(pixels), (left, top))
            except DataError:
                corners = (left, top, left + _TILE - 1, top + _TILE - 1)
                draw.rectangle(corners, outline="red")
                draw.line(corners, "red")
    with atomic_file(path) as temporary:
        sheet.save(temporary, format="PNG", optimize=True)
    return path


def _shortened(
    name: str, draw: ImageDraw.ImageDraw, font: ImageFont.ImageFont | ImageFont.FreeTypeFont
) -> str:
    name = printable(name)[:200]  # longer ones would be measured for minutes
    if draw.textlength(name, font) <= _NAME_WIDTH - 2 * _GAP:
        return name
    while name and draw.textlength(name + "…", font) > _NAME_WIDTH - 2 * _GAP:
        name = name[:-1]
    return name + "…"
