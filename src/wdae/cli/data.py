"""``wdae data``: look at sets of pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import cyclopts

from wdae.cli.options import check_sources
from wdae.printing import printable

if TYPE_CHECKING:
    from wdae.data.check import CheckReport

app = cyclopts.App(name="data", help="Look at sets of pictures.")

Layout = Literal["auto", "mini-imagenet", "tiered-imagenet", "imagenet-fs", "folders", "csv"]

_SHOWN = 20


@app.command
def check(
    path: Path,
    /,
    *,
    layout: Layout = "auto",
    reading: Literal["names", "positions"] = "names",
    skip_broken: bool = False,
    sheet_dir: Path = Path(),
    workers: int | None = None,
) -> None:
    """Report what a folder or list of pictures holds, what is missing and what cannot be read.

    Every picture is decoded once. A contact sheet (PNG) is written for each part. The exit status is 2 where
    something is missing or unreadable.

    Parameters
    ----------
    path
        A folder, or a CSV file with the columns path,label[,part].
    layout
        How the pictures are laid out; recognised by default.
    reading
        Of ImageNet-FS's split: by its class names, or by positions in the sorted class list.
    skip_broken
        Do not count unreadable pictures as a fault; they are left out and listed all the same.
    sheet_dir
        Where the contact sheets go.
    workers
        Decoding processes; as many as there are cores by default.
    """
    check_sources([path])
    from wdae.data import check as checking
    from wdae.errors import DataError

    report = checking.check(path, layout, reading=reading, sheet_dir=sheet_dir, workers=workers)
    print(rendered(report))
    faults = []
    if report.missing:
        faults.append("something is missing")
    if report.broken and not skip_broken:
        faults.append(f"{len(report.broken)} pictures cannot be read (leave them out with --skip-broken)")
    if faults:
        raise DataError(f"{path}: {' and '.join(faults)}; see the list above")


def rendered(report: CheckReport) -> str:
    """The report as text."""
    lines = [printable(f"{report.name}: layout {report.layout}, {report.n_classes} classes")]
    lines.append(f"  {'part':<14} {'classes':>8} {'pictures':>9}  per class")
    for count in report.counts:
        each = str(count.fewest) if count.fewest == count.most else f"{count.fewest} to {count.most}"
        lines.append(f"  {count.part.value:<14} {count.n_classes:>8} {count.n_images:>9}  {each}")
    copies = [" = ".join(group) for group in report.copies]
    for title, entries in (
        ("missing", report.missing),
        ("cannot be read", report.broken),
        ("the same picture in several classes", copies),
        ("note", report.notes),
        ("contact sheet", list(map(str, report.sheets))),
    ):
        lines += [printable(f"{title}: {entry}") for entry in entries[:_SHOWN]]
        if len(entries) > _SHOWN:
            lines.append(f"{title}: {len(entries) - _SHOWN} more")
    return "\n".join(lines)
