"""Tables that several commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wdae.printing import cell

if TYPE_CHECKING:
    from rich.table import Table

    from wdae.evaluation.table import ResultTable


def gains_table(
    table: ResultTable, baseline: str, metrics: tuple[str, ...] = ("novel", "base", "all")
) -> Table:
    """Paired gains over a method, in points, with 95 % intervals; bold where they exclude zero."""
    from rich import box
    from rich.table import Table

    title = f"Gain over {baseline}, points (paired, ± 95 % interval)"
    view = Table(title=cell(title), box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    view.add_column("method", no_wrap=True)
    view.add_column("shots", justify="right")
    shown = [m for m in metrics if table.gains(baseline, m)]
    for metric in shown:
        view.add_column(metric, justify="right", no_wrap=True)
    gains = {m: {(r.method, r.n_shot): e for r, e in table.gains(baseline, m)} for m in shown}
    for result in table:
        if result.method == baseline:
            continue
        row = []
        for metric in shown:
            gain = gains[metric].get((result.method, result.n_shot))
            text = "" if gain is None else gain.percent(signed=True)
            row.append(f"[bold]{text}[/bold]" if gain is not None and gain.excludes_zero else text)
        view.add_row(cell(result.label), str(result.n_shot), *row)
    return view
